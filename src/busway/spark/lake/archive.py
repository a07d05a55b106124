"""The archive: writes the messages of streams to a lake as Parquet, in rounds, each message exactly once.

The public function is archive(); `busway lake archive` calls it. A round reads the commits, gets the ends of the
streams from the brokers or their folders, reads the new offsets with Spark into `staging`, moves the files to `data`
and commits. The commit has the archived offsets and the files. Therefore a killed round is either complete or void, and
the next round removes its files.

`spark.read.parquet(lake + "/data")` may see uncommitted rows of a round, rows of a killed round until the next one, and
rows of compacted files twice until the old files are deleted. `table()` reads only committed files.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as fn

from busway.common.durations import Duration, duration
from busway.errors import BusError
from busway.spark.columns import ddl
from busway.spark.endpoints import DataLoss, Endpoints
from busway.spark.errors import explain
from busway.spark.lake import continuity
from busway.spark.lake.compact import compact_some
from busway.spark.lake.plan import Plan, confirm_damage, plan, with_archive_advice
from busway.spark.lake.spark_settings import own
from busway.spark.lake.table_log.cleanup import left, tidy
from busway.spark.lake.table_log.commits import Commit, Covered, LakeError, Snapshot
from busway.spark.lake.table_log.folder import DATA, STAGING, Lake
from busway.spark.options import COLUMNS, Options, read_options
from busway.spark.ranges import Place, to_json

log = logging.getLogger("busway.spark")

CHANNEL: Final = "archived"
_ALL: Final = "**"
GRACE: Final = 600.0
_ROUND: Final = 20_000_000
"""Largest number of records of a round, so that the repetition of a killed round is short."""
_FILE: Final = 5_000_000
_TRIES: Final = 5
"""Number of consecutive rounds that may fail."""
_MANY: Final = 16
"""Number of small files of a stream and day from which the running archive merges them."""
_LOST: Final = f"{DataLoss.__module__}.{DataLoss.__qualname__}: "
"""The beginning of a DataLoss in the traceback of a worker."""
_KEY: Final = ("broker", "topic", "sequence")


@dataclass(frozen=True, slots=True)
class Progress:
    """The result of a round, and the state of the archive."""

    number: int
    """The number of the commit. 0: there was nothing to archive."""
    rows: int
    bytes: int
    files: int
    lost: int
    """Messages that were removed before they could be archived."""
    seconds: float
    lag: int
    """Messages that the streams had at the begin of the round and that are not archived yet."""
    total: int
    """Number of rows of the lake."""
    damaged: tuple[str, ...] = ()
    """Streams with damaged messages, which are missing in the lake."""


def archive(
    spark: SparkSession,
    lake: str,
    *,
    url: str = "",
    path: str = "",
    streams: Sequence[str] = (),
    topics: Sequence[str] = (_ALL,),
    once: bool = False,
    interval: Duration = 10.0,
    channel: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    compact_below: int | None = None,
    grace: Duration = GRACE,
    fail_on_data_loss: bool = True,
    options: Mapping[str, str] | None = None,
) -> Progress:
    """Archive streams of a bus (`url`) or folders (`path`), every `interval` until `stop` is set, or `once`.

    With a url, each round moves the channel of each stream (`archived` by default) to the end of the archive, so that a
    stream with `retain_until` removes archived messages. If only some `topics` are archived, the channel moves only if
    it is named, because the stream then also removes messages of other topics. With `compact_below`, small files (in
    bytes) are merged when a stream has many files of a day; the old files stay for `grace` for readers.
    Messages that were removed before they were archived raise DataLoss; with `fail_on_data_loss=False` the commit
    records their number (`lost`). `options` are further options of the source, such as `ca`. Returns the progress of
    the last round.
    """
    pause, kept = duration("interval", interval), duration("grace", grace)
    given = dict(options or {}) | {name: text for name, text in (("url", url), ("path", path)) if text}
    given["topics"] = json.dumps(list(topics))  # a pattern may have a comma
    archiver = Archiver(
        spark,
        Lake(lake),
        given,
        tuple(streams),
        _channel(channel, topics) if given.get("url") else "",
        fail=fail_on_data_loss,
        grace=kept,
    )
    stop = threading.Event() if stop is None else stop
    with archiver.lake.lock():
        archiver.begin()
        return _rounds(archiver, stop, once, pause, compact_below, progress or (lambda _: None))


def _channel(named: str | None, topics: Sequence[str]) -> str:
    """Return the name of the channel that records the progress of the archive. Empty: no channel."""
    if named is not None:
        return named
    if _ALL in topics:
        return CHANNEL
    log.warning(
        "only some topics are archived, so the channel %r does not move, and a stream with that retain_until removes nothing; "
        "if messages of other topics may be removed unarchived, name the channel",
        CHANNEL,
    )
    return ""


def _rounds(
    archiver: "Archiver",
    stop: threading.Event,
    once: bool,  # noqa: FBT001 - passed on
    interval: float,
    compact_below: int | None,
    progress: Callable[[Progress], None],
) -> Progress:
    failed = 0
    done = Progress(0, 0, 0, 0, 0, 0.0, 0, archiver.snapshot.rows)
    while not stop.is_set():
        start_time = time.monotonic()
        try:
            done = archiver.round()
            failed = 0
        except (ConnectionError, BusError, PySparkException, Py4JJavaError) as error:
            failed += 1
            if once or failed >= _TRIES:
                raise
            log.warning("a round of the archive failed and will be retried: %s", explain(error).text)
            archiver.begin()
            stop.wait(interval)
            continue
        progress(done)
        if not done.lag:
            archiver.raise_lost()
        if compact_below is not None:
            compact_some(archiver.spark, archiver.lake, archiver.snapshot, below=compact_below, least=_MANY)
        if once and not done.lag:
            return done
        if not done.lag:
            stop.wait(max(interval - (time.monotonic() - start_time), 0.0))
    return done


class Archiver:
    """Runs the rounds of one lake. The process must have the lock of the lake."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        given: Mapping[str, str],
        streams: tuple[str, ...],
        channel: str,
        *,
        fail: bool,
        grace: float = GRACE,
        most: int = _ROUND,
    ) -> None:
        self.spark = own(spark)
        self.lake = lake
        self._given = dict(given)
        self._streams = streams
        self._options: Options = read_options(self._given)
        self._channel = channel
        self._fail = fail
        self._grace = grace
        self._most = most
        self._damaged: set[Place] = set()
        self._lost: tuple[str, ...] = ()
        self._cleaned = False
        self.snapshot = Snapshot()

    def begin(self) -> None:
        """Read the commits. Raises LakeError if the lake archives other topics."""
        self.snapshot = self.lake.snapshot()
        self._cleaned = False
        before = self.snapshot.topics
        if before and set(before) != set(self._options.topics):
            raise LakeError(
                f"the lake {self.lake.name} archives the topics {', '.join(before)}, not {', '.join(self._options.topics)}: "
                "give the same topics, or another lake"
            )

    def raise_lost(self) -> None:
        """Raise DataLoss if the last round left a stream out because messages of it are lost."""
        if self._lost:
            raise DataLoss("; ".join(self._lost))

    def _clean_up(self, endpoints: Endpoints, planned: Plan) -> None:
        """Remove the files of killed rounds. Raises DataLoss if such a file may be the only copy of lost messages."""
        found = left(self.lake, self.snapshot, endpoints.available())
        only = next((file.path for file in found if not file.spare), None)
        if only and planned.lost:
            raise DataLoss(
                f"{planned.lost[0]}. But {DATA}/{only} of the lake {self.lake.name} may have them: if {self.lake.missing_commit(only)} was lost, "
                "restore it from a backup"
            )
        tidy(self.lake, found)
        deleted = self.lake.clean(self.snapshot, self._grace)
        if deleted:
            self._commit(Commit(number=self.snapshot.number + 1, time=time.time(), kind="clean", deleted=deleted))
        self._cleaned = True

    def round(self, looks: int = _TRIES) -> Progress:
        """Archive the messages of now, or the first part of them. Raises DataLoss. `looks`: attempts that are left."""
        start_time = time.monotonic()
        with Endpoints(self._options) as endpoints:
            available = endpoints.available(self._streams)
            continuity.check(endpoints, self.snapshot, available)
            planned = plan(self.snapshot, available, self._most, fail=self._fail, damaged=self._damaged)
            self.lake.make()
            if not self._cleaned:
                self._clean_up(endpoints, planned)
            for text in planned.warnings:
                log.warning("%s", text)
            self._lost = planned.lost
            covered = list(planned.covered)
            self._follow(endpoints, {part.place: part.start for part in covered})
            known = {part.place for part in covered}
            waiting = sum(part.next for part in available if part.place in known) - sum(part.end for part in covered)
            covered = [part for part in covered if part.end > part.begin]
            if not covered:
                return Progress(0, 0, 0, 0, 0, time.monotonic() - start_time, waiting, self.snapshot.rows)
            try:
                commit = self._archive(covered, endpoints)
            except (PySparkException, Py4JJavaError) as error:
                if _LOST not in str(error):
                    raise
                return self._retry(covered, error, looks - 1)
            self._damaged.clear()
            self._follow(endpoints, {part.place: part.end for part in covered})
        size = sum(file.bytes for file in commit.added)
        rows, lost = sum(file.rows for file in commit.added), sum(part.lost for part in covered)
        seconds = time.monotonic() - start_time
        damaged = tuple(sorted({part.stream for part in commit.ranges if part.damaged}))
        return Progress(
            commit.number, rows, size, len(commit.added), lost, seconds, waiting, self.snapshot.rows, damaged
        )

    def _retry(self, covered: Sequence[Covered], error: Exception, looks: int) -> Progress:
        """Repeat a round whose read lost messages: they were removed, which the new plan finds, or are damaged."""
        with Endpoints(self._options) as endpoints:
            first = {part.place: part.first for part in endpoints.available(self._streams)}
        removed = any(first.get(part.place, 0) > part.start for part in covered)
        if self._fail or not looks:
            raise DataLoss(with_archive_advice(explain(error).text)) from error
        if not removed:
            if self._damaged:
                raise error
            self._damaged.update(part.place for part in covered)
        self.begin()
        return self.round(looks)

    def _archive(self, covered: Sequence[Covered], endpoints: Endpoints) -> Commit:
        number = self.snapshot.number + 1
        staging = f"r{number:08d}-{self.lake.token}"
        self.lake.discard(staging)
        if any(part.end > part.start for part in covered):
            self._write(self._frame(covered), staging)
        staged = list(self.lake.staged(staging))
        if self.lake.brokers(staged) - {part.broker for part in covered}:
            staged = self._without_repeats(staging)
        deleted = self.lake.delete_old(self.snapshot, self._grace)
        added = tuple(self.lake.place(number, staged))
        topics = self._options.topics
        covered = confirm_damage(covered, added) if _ALL in topics else covered
        ranges = tuple(
            structs.replace(part, last=continuity.last_id(endpoints, part.place, part.end)) for part in covered
        )
        commit = Commit(
            number=number, time=time.time(), kind="archive", topics=topics, ranges=ranges, added=added, deleted=deleted
        )
        self._commit(commit)
        self.lake.discard(staging)
        return commit

    def _commit(self, commit: Commit) -> None:
        self.lake.commit(self.snapshot, commit)

    def _frame(self, covered: Sequence[Covered]) -> DataFrame:
        """Return the rows of exactly these ranges."""
        begin = {part.place: part.start for part in covered}
        end = {part.place: part.end for part in covered}
        given = self._given | {
            "streams": json.dumps(sorted({stream for _, stream in begin})),
            "startingOffsets": json.dumps(to_json(begin)),
            "endingOffsets": json.dumps(to_json(end)),
            "failOnDataLoss": "false" if self._damaged else "true",
        }
        frame = self.spark.read.format("busway").options(**given).load()
        if len({broker for broker, _ in begin}) > 1:
            # A broker may have created a stream since the plan that has the name of another broker's stream.
            named = [fn.lit(f"{broker}/{stream}") for broker, stream in begin]
            frame = frame.where(fn.concat_ws("/", "broker", "stream").isin(*named))
        return frame

    def _write(self, frame: DataFrame, staging: str) -> None:
        dated = frame.withColumn("s", fn.col("stream")).withColumn("date", fn.to_date("stored"))
        writer = dated.write.partitionBy("s", "date").option("compression", "zstd").option("maxRecordsPerFile", _FILE)
        writer.parquet(self.lake.uri(STAGING, staging))

    def _without_repeats(self, staging: str) -> list[tuple[str, str, str]]:
        """Write each row once: several brokers may return rows of the same other broker, or archived rows."""
        rows = self.spark.read.schema(ddl(COLUMNS)).parquet(*(self._uri(part[0]) for part in self.lake.staged(staging)))
        rows = rows.dropDuplicates(list(_KEY))
        streams = {stream for _, stream, _ in self.lake.staged(staging)}
        archived = [self.lake.uri(DATA, file.path) for file in self.snapshot.files.values() if file.stream in streams]
        if archived:
            known = self.spark.read.schema(ddl(COLUMNS)).parquet(*archived).select("stream", *_KEY)
            rows = rows.join(known, ["stream", *_KEY], "left_anti").select(*COLUMNS)
        self.lake.discard(f"{staging}-once")
        self._write(rows, f"{staging}-once")
        self.lake.discard(staging)
        return list(self.lake.staged(f"{staging}-once"))

    def _uri(self, path: str) -> str:
        return self.lake.uri(*path.removeprefix(self.lake.path()).strip("/").split("/"))

    def _follow(self, endpoints: Endpoints, offsets: Mapping[Place, int]) -> None:
        """Move the channel of each stream to the end of the archive."""
        if not self._channel:
            return
        for (broker, stream), offset in offsets.items():
            try:
                endpoints[broker].follow(self._channel, stream, offset)
            except BusError as error:
                log.warning(
                    "the channel %r of the stream %r can't be moved to the end of the archive: %s",
                    self._channel,
                    stream,
                    error,
                )
