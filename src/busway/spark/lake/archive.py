"""The archive: rounds that bring what streams hold into a lake as Parquet, each message exactly once.

A round reads the commits, asks the brokers (or their folders) how far they are, reads the offsets in between with Spark into `staging`,
moves the files to `data` and commits. Which offsets are archived stands in the commit, with the files: so a round that is killed anywhere
has either happened or not, and the next one takes away what it has left. `spark.read.parquet(lake + "/data")` sees the rows of a round for
a moment before they are committed, those of a killed one until the next round, and those of compacted files twice until the old ones are
deleted; `table()` goes by the commits and sees none of it.
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

from busway.errors import BusError
from busway.spark.columns import ddl
from busway.spark.endpoints import DataLoss, Endpoints
from busway.spark.errors import explain
from busway.spark.lake import continuity
from busway.spark.lake.compact import compact_some
from busway.spark.lake.plan import Plan, advised, judged, plan
from busway.spark.lake.spark_settings import own
from busway.spark.lake.table_log.cleanup import left, tidy
from busway.spark.lake.table_log.commits import Commit, Covered, LakeError, Snapshot
from busway.spark.lake.table_log.folder import DATA, STAGING, Lake
from busway.spark.options import COLUMNS, Options, reading
from busway.spark.ranges import Place, to_json

log = logging.getLogger("busway.spark")

CHANNEL: Final = "archived"
_ALL: Final = "**"
GRACE: Final = 600.0
_ROUND: Final = 20_000_000
"""Records of one round at most, so that one that is killed has not much to do again."""
_FILE: Final = 5_000_000
_TRIES: Final = 5
"""Rounds that may fail one after the other."""
_MANY: Final = 16
"""Small files of a stream and day from which on it is worth putting them together while the archive runs."""
_LOST: Final = f"{DataLoss.__module__}.{DataLoss.__qualname__}: "
"""How the traceback of a worker tells it."""
_KEY: Final = ("broker", "topic", "sequence")


@dataclass(frozen=True, slots=True)
class Progress:
    """How a round went, and how far the archive is."""

    number: int
    """Of the commit; 0: there was nothing to do."""
    rows: int
    bytes: int
    files: int
    lost: int
    """Messages that were gone before they could be archived."""
    seconds: float
    lag: int
    """Messages that the streams had when the round began and that are not archived yet."""
    total: int
    """Rows of the lake."""
    damaged: tuple[str, ...] = ()
    """Streams of which some messages could not be read, and are missing."""


def archive(
    spark: SparkSession,
    lake: str,
    *,
    url: str = "",
    path: str = "",
    streams: Sequence[str] = (),
    topics: Sequence[str] = (_ALL,),
    once: bool = False,
    interval: float = 10.0,
    channel: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    compact_below: int | None = None,
    grace: float = GRACE,
    fail_on_data_loss: bool = True,
    options: Mapping[str, str] | None = None,
) -> Progress:
    """Archive streams of a bus (`url`) or of data folders (`path`) into a lake, every `interval` seconds until `stop` is set, or `once`.

    With a url the channel of each stream (`archived`, if none is named) stands at the end of what is archived, so that a stream with
    `retain_until` lets go of it. If only some `topics` are archived it does so only for a channel that is named, for the rest goes, too.
    With `compact_below`, files that are smaller (in bytes) are put together when a stream has many of a day; the old ones stay `grace`
    seconds for those who read them. Messages that were gone before they were archived are an error, or, unless it is to fail, are
    noted in the commit (`lost`). `options` are more options of the source, such as `ca`. What the last round did is returned.
    """
    given = dict(options or {}) | {name: text for name, text in (("url", url), ("path", path)) if text}
    given["topics"] = json.dumps(list(topics))  # a pattern may have a comma
    work = Archiver(
        spark,
        Lake(lake),
        given,
        tuple(streams),
        _channel(channel, topics) if given.get("url") else "",
        fail=fail_on_data_loss,
        grace=grace,
    )
    stop = threading.Event() if stop is None else stop
    with work.lake.lock():
        work.begin()
        return _rounds(work, stop, once, interval, compact_below, progress or (lambda _: None))


def _channel(named: str | None, topics: Sequence[str]) -> str:
    """The one that is to follow the archive."""
    if named is not None:
        return named
    if _ALL in topics:
        return CHANNEL
    log.warning(
        "only some topics are archived, so the channel %r does not move, and a stream that retains until then lets go of nothing. "
        "If the other topics may go unarchived, name the channel",
        CHANNEL,
    )
    return ""


def _rounds(
    work: "Archiver",
    stop: threading.Event,
    once: bool,  # noqa: FBT001 - handed on
    interval: float,
    compact_below: int | None,
    progress: Callable[[Progress], None],
) -> Progress:
    failed = 0
    done = Progress(0, 0, 0, 0, 0, 0.0, 0, work.snapshot.rows)
    while not stop.is_set():
        begun = time.monotonic()
        try:
            done = work.round()
            failed = 0
        except (ConnectionError, BusError, PySparkException, Py4JJavaError) as error:
            failed += 1
            if once or failed >= _TRIES:
                raise
            log.warning("a round of the archive failed, and is tried again: %s", explain(error).text)
            work.begin()
            stop.wait(interval)
            continue
        progress(done)
        if not done.lag:
            work.raise_lost()
        if compact_below is not None:
            compact_some(work.spark, work.lake, work.snapshot, below=compact_below, least=_MANY)
        if once and not done.lag:
            return done
        if not done.lag:
            stop.wait(max(interval - (time.monotonic() - begun), 0.0))
    return done


class Archiver:
    """The rounds of one lake, by one process that has its lock."""

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
        self._options: Options = reading(self._given)
        self._channel = channel
        self._fail = fail
        self._grace = grace
        self._most = most
        self._damaged: set[Place] = set()
        self._lost: tuple[str, ...] = ()
        self._tidy = False
        self.snapshot = Snapshot()

    def begin(self) -> None:
        """Read the commits."""
        self.snapshot = self.lake.snapshot()
        self._tidy = False
        before = self.snapshot.topics
        if before and set(before) != set(self._options.topics):
            raise LakeError(
                f"the lake {self.lake.name} archives the topics {', '.join(before)}, not {', '.join(self._options.topics)}: "
                "give the same ones, or another lake"
            )

    def raise_lost(self) -> None:
        """Raise DataLoss if the last round left a stream out, as messages of it are gone."""
        if self._lost:
            raise DataLoss("; ".join(self._lost))

    def _tidied(self, places: Endpoints, planned: Plan) -> None:
        """Take away what a round has left that did not end. Not before it is known what is gone: that may be the only copy."""
        found = left(self.lake, self.snapshot, places.held())
        only = next((one.path for one in found if not one.spare), None)
        if only and planned.lost:
            raise DataLoss(
                f"{planned.lost[0]}. But {DATA}/{only} of the lake {self.lake.name} may have them: if {self.lake.missing_commit(only)} was lost, "
                "bring it back from a copy"
            )
        tidy(self.lake, found)
        deleted = self.lake.clean(self.snapshot, self._grace)
        if deleted:
            self._commit(Commit(number=self.snapshot.number + 1, time=time.time(), kind="clean", deleted=deleted))
        self._tidy = True

    def round(self, looks: int = _TRIES) -> Progress:
        """Archive what there is now, or a good part of it. Raises DataLoss."""
        begun = time.monotonic()
        with Endpoints(self._options) as places:
            held = places.held(self._streams)
            continuity.check(places, self.snapshot, held)
            planned = plan(self.snapshot, held, self._most, fail=self._fail, damaged=self._damaged)
            self.lake.make()
            if not self._tidy:
                self._tidied(places, planned)
            for text in planned.told:
                log.warning("%s", text)
            self._lost = planned.lost
            covered = list(planned.covered)
            self._follow(places, {one.place: one.start for one in covered})
            known = {one.place for one in covered}
            waiting = sum(one.next for one in held if one.place in known) - sum(one.end for one in covered)
            covered = [one for one in covered if one.end > one.begin]
            if not covered:
                return Progress(0, 0, 0, 0, 0, time.monotonic() - begun, waiting, self.snapshot.rows)
            try:
                commit = self._archived(covered, places)
            except (PySparkException, Py4JJavaError) as error:
                if _LOST not in str(error):
                    raise
                return self._again(covered, error, looks - 1)
            self._damaged.clear()
            self._follow(places, {one.place: one.end for one in covered})
        size = sum(file.bytes for file in commit.added)
        rows, lost = sum(file.rows for file in commit.added), sum(one.lost for one in covered)
        seconds = time.monotonic() - begun
        damaged = tuple(sorted({one.stream for one in commit.ranges if one.damaged}))
        return Progress(
            commit.number, rows, size, len(commit.added), lost, seconds, waiting, self.snapshot.rows, damaged
        )

    def _again(self, covered: Sequence[Covered], error: Exception, looks: int) -> Progress:
        """Some were gone when they were read: removed meanwhile, then the next look tells which; or damaged, then the rest is read."""
        with Endpoints(self._options) as places:
            first = {one.place: one.first for one in places.held(self._streams)}
        removed = any(first.get(one.place, 0) > one.start for one in covered)
        if self._fail or not looks:
            raise DataLoss(advised(explain(error).text)) from error
        if not removed:
            if self._damaged:
                raise error
            self._damaged.update(one.place for one in covered)
        self.begin()
        return self.round(looks)

    def _archived(self, covered: Sequence[Covered], places: Endpoints) -> Commit:
        number = self.snapshot.number + 1
        staging = f"r{number:08d}-{self.lake.token}"
        self.lake.discard(staging)
        if any(one.end > one.start for one in covered):
            self._write(self._frame(covered), staging)
        staged = list(self.lake.staged(staging))
        if self.lake.brokers(staged) - {one.broker for one in covered}:
            staged = self._without_repeats(staging)
        deleted = self.lake.delete_old(self.snapshot, self._grace)
        added = tuple(self.lake.place(number, staged))
        topics = self._options.topics
        covered = judged(covered, added) if _ALL in topics else covered
        ranges = tuple(structs.replace(one, last=continuity.last_id(places, one.place, one.end)) for one in covered)
        commit = Commit(
            number=number, time=time.time(), kind="archive", topics=topics, ranges=ranges, added=added, deleted=deleted
        )
        self._commit(commit)
        self.lake.discard(staging)
        return commit

    def _commit(self, commit: Commit) -> None:
        self.lake.commit(self.snapshot, commit)

    def _frame(self, covered: Sequence[Covered]) -> DataFrame:
        """The rows of these ranges and no others."""
        begin = {one.place: one.start for one in covered}
        end = {one.place: one.end for one in covered}
        given = self._given | {
            "streams": json.dumps(sorted({stream for _, stream in begin})),
            "startingOffsets": json.dumps(to_json(begin)),
            "endingOffsets": json.dumps(to_json(end)),
            "failOnDataLoss": "false" if self._damaged else "true",
        }
        frame = self.spark.read.format("busway").options(**given).load()
        if len({broker for broker, _ in begin}) > 1:
            # A broker may have made a stream just now that has the name of another one's.
            named = [fn.lit(f"{broker}/{stream}") for broker, stream in begin]
            frame = frame.where(fn.concat_ws("/", "broker", "stream").isin(*named))
        return frame

    def _write(self, frame: DataFrame, staging: str) -> None:
        dated = frame.withColumn("s", fn.col("stream")).withColumn("date", fn.to_date("stored"))
        writer = dated.write.partitionBy("s", "date").option("compression", "zstd").option("maxRecordsPerFile", _FILE)
        writer.parquet(self.lake.uri(STAGING, staging))

    def _without_repeats(self, staging: str) -> list[tuple[str, str, str]]:
        """Rows of another broker than the one that was asked may come from several: each stays once, and none that is there already."""
        rows = self.spark.read.schema(ddl(COLUMNS)).parquet(*(self._uri(one[0]) for one in self.lake.staged(staging)))
        rows = rows.dropDuplicates(list(_KEY))
        streams = {stream for _, stream, _ in self.lake.staged(staging)}
        there = [self.lake.uri(DATA, file.path) for file in self.snapshot.files.values() if file.stream in streams]
        if there:
            known = self.spark.read.schema(ddl(COLUMNS)).parquet(*there).select("stream", *_KEY)
            rows = rows.join(known, ["stream", *_KEY], "left_anti").select(*COLUMNS)
        self.lake.discard(f"{staging}-once")
        self._write(rows, f"{staging}-once")
        self.lake.discard(staging)
        return list(self.lake.staged(f"{staging}-once"))

    def _uri(self, path: str) -> str:
        return self.lake.uri(*path.removeprefix(self.lake.path()).strip("/").split("/"))

    def _follow(self, places: Endpoints, offsets: Mapping[Place, int]) -> None:
        """Let the channel of each stream stand where the archive ends."""
        if not self._channel:
            return
        for (broker, stream), offset in offsets.items():
            try:
                places[broker].follow(self._channel, stream, offset)
            except BusError as error:
                log.warning(
                    "the channel %r of the stream %r does not follow the archive: %s", self._channel, stream, error
                )
