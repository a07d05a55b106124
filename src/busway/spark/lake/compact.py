"""Compaction: merges small files of a stream and day into larger ones, sorted by topic and sequence. No row changes.

The archive and `busway lake compact` call it. One commit adds the new files and removes the old ones. The old files
stay on disk for a grace time, for running readers.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession, functions as fn

from busway.common.durations import Duration, duration
from busway.spark.columns import ddl
from busway.spark.lake.spark_settings import own
from busway.spark.lake.table_log.cleanup import left, tidy
from busway.spark.lake.table_log.commits import Commit, File, LakeError, Snapshot, groups
from busway.spark.lake.table_log.folder import DATA, STAGING, Lake
from busway.spark.options import COLUMNS

log = logging.getLogger("busway.spark")

BELOW: Final = 64 << 20
"""Default size in bytes below which files are merged."""
TARGET: Final = 256 << 20
"""Default size in bytes of a merged file."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of compaction for a stream and day."""

    stream: str
    date: str
    before: int
    after: int
    rows: int
    bytes: int


def compact(
    spark: SparkSession,
    lake: str,
    *,
    streams: Sequence[str] = (),
    below: int = BELOW,
    target: int = TARGET,
    grace: Duration = 600.0,
    progress: Callable[[Compacted], None] | None = None,
) -> list[Compacted]:
    """Merge the files of a lake that are smaller than `below` bytes into files of about `target` bytes.

    Files that were removed longer than `grace` ago are deleted. A running archive has locked the lake: use its
    `compact_below` instead.
    """
    kept = duration("grace", grace)
    opened = Lake(lake)
    if not opened.exists():
        raise LakeError(f"{lake} is not a lake, because it has no commits: give the folder of an archive")
    with opened.lock():
        snapshot = opened.snapshot()
        tidy(opened, left(opened, snapshot))
        deleted = opened.clean(snapshot, kept)
        if deleted:
            opened.commit(snapshot, Commit(number=snapshot.number + 1, time=time.time(), kind="clean", deleted=deleted))
        return compact_some(
            own(spark), opened, snapshot, below=below, target=target, streams=streams, progress=progress
        )


def compact_some(
    spark: SparkSession,
    lake: Lake,
    snapshot: Snapshot,
    *,
    below: int,
    target: int = TARGET,
    least: int = 2,
    streams: Sequence[str] = (),
    progress: Callable[[Compacted], None] | None = None,
) -> list[Compacted]:
    """Merge files of a locked lake, where a stream has at least `least` small files of a day."""
    done = []
    for (stream, date), files in groups(snapshot.files.values()).items():
        small = [file for file in files if file.bytes < below]
        if len(small) < max(least, 2) or (streams and stream not in streams):
            continue
        made = _merge(spark, lake, snapshot, small, max(-(-sum(file.bytes for file in small) // target), 1))
        size, rows = sum(file.bytes for file in made), sum(file.rows for file in made)
        done.append(Compacted(stream, date, len(small), len(made), rows, size))
        log.info("merged %d files of the stream %r of %s into %d", len(small), stream, date, len(made))
        if progress is not None:
            progress(done[-1])
    return done


def _merge(spark: SparkSession, lake: Lake, snapshot: Snapshot, small: list[File], count: int) -> list[File]:
    number = snapshot.number + 1
    staging = f"r{number:08d}-{lake.token}"
    lake.discard(staging)
    before = _rows(spark, [lake.uri(DATA, file.path) for file in small])
    # repartition() and not coalesce(), which would also read with so few tasks.
    parts = before.repartitionByRange(count, "topic", "sequence") if count > 1 else before.repartition(1)
    place = lake.uri(STAGING, staging, f"s={small[0].stream}", f"date={small[0].date}")
    parts.sortWithinPartitions("topic", "sequence").write.option("compression", "zstd").parquet(place)
    after = _rows(spark, [place])
    old, new = _figures(before), _figures(after)
    if old != new or old[0] != sum(file.rows for file in small):
        lake.discard(staging)
        raise LakeError(
            f"compaction of the stream {small[0].stream!r} of {small[0].date} made {new[0]} rows with {new[1]} keys from {old[0]} rows with "
            f"{old[1]} keys, and the commits have {sum(file.rows for file in small)} rows: nothing was changed"
        )
    made = lake.place(number, list(lake.staged(staging)))
    commit = Commit(
        number=number,
        time=time.time(),
        kind="compact",
        added=tuple(made),
        removed=tuple(file.path for file in small),
    )
    lake.commit(snapshot, commit)
    lake.discard(staging)
    return made


def _rows(spark: SparkSession, paths: list[str]) -> DataFrame:
    return spark.read.schema(ddl(COLUMNS)).parquet(*paths)


def _figures(frame: DataFrame) -> tuple[int, int]:
    """Return the number of rows and of distinct keys."""
    row = frame.agg(fn.count("*"), fn.count_distinct("broker", "topic", "sequence")).collect()[0]
    return row[0], row[1]
