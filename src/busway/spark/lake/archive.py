"""The archive: writes the messages of streams to a lake, a Delta table, each message exactly once.

The public function is archive(); `busway lake archive` calls it. Spark reads the streams and writes Parquet, and delta-rs
commits the files together with the offsets that they cover. Therefore a killed round is either complete or void: the
next one begins at the offsets of the last commit, and VACUUM deletes files without a commit. archive() works in rounds,
or with `follow` in the micro-batches of Structured Streaming.
"""

import json
import logging
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as fn

from busway.common.durations import Duration, duration
from busway.errors import BusError
from busway.spark import typed
from busway.spark.endpoints import DataLoss, Endpoints
from busway.spark.errors import explain
from busway.spark.lake.coverage import Covered, LakeError, Snapshot
from busway.spark.lake.delta_table import STAGING, Added, Conflict, Lake
from busway.spark.lake.plan import (
    ADVICE,
    check_continuity,
    confirm_damage,
    jumped,
    last_id,
    plan,
    with_archive_advice,
)
from busway.spark.lake.upkeep import KEEP, Upkeep
from busway.spark.options import Options, read_options
from busway.spark.ranges import Place, to_json

log = logging.getLogger("busway.spark")

CHANNEL: Final = "archived"
_ALL: Final = "**"
_ROUND: Final = 20_000_000
"""Largest number of records of a round, so that the repetition of a killed round is short."""
_FILE: Final = 5_000_000
_TRIES: Final = 5
"""Number of consecutive rounds that may fail."""
_LOST: Final = f"{DataLoss.__module__}.{DataLoss.__qualname__}: "
"""The beginning of a DataLoss in the traceback of a worker."""
_CONF: Final = {
    "spark.sql.session.timeZone": "UTC",  # dates in UTC
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # Spark's default type has no statistics
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # with fewer every task sorts its rows by stream and date
    "spark.sql.sources.partitionOverwriteMode": "static",
}
_FAILURES: Final = (ConnectionError, BusError, Conflict, PySparkException, Py4JJavaError)
"""Errors after which a round is repeated."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The result of a round, and the state of the archive."""

    version: int
    """The version of the Delta table that the round committed. -1: there was nothing to archive."""
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
    types: Sequence[Any] = (),
    once: bool = False,
    follow: bool = False,
    interval: Duration = 10.0,
    channel: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    optimize_below: int | None = None,
    keep: Duration | None = KEEP,
    fail_on_data_loss: bool = True,
    options: Mapping[str, str] | None = None,
) -> Progress:
    """Archive streams of a bus (`url`) or folders (`path`), every `interval` until `stop` is set, or `once`.

    With `follow` a streaming query of Spark does it instead of rounds. `types` are protocol classes, or texts
    `PATTERN=FILE` that name a JSON Schema: their payloads get typed columns. The lake remembers them.

    With a url, each round moves the channel of each stream (`archived` by default) to the end of the archive, so that a
    stream with `retain_until` removes archived messages. If only some `topics` are archived, the channel moves only if
    it is named, because the stream then also removes messages of other topics.

    With `optimize_below`, files smaller than this number of bytes are merged when a stream has many of a day (OPTIMIZE).
    Once a day files that no version of the last `keep` has are deleted (VACUUM); None keeps them. Messages that were
    removed before they were archived raise DataLoss; with `fail_on_data_loss=False` the commit records their number
    (`lost`). `options` are further options of the source, such as `ca`. Returns the progress of the last round.
    """
    pause = duration("interval", interval)
    kept = None if keep is None else duration("keep", keep, none=True)
    given = dict(options or {}) | {name: text for name, text in (("url", url), ("path", path)) if text}
    given["topics"] = json.dumps(list(topics))  # a pattern may have a comma
    archiver = Archiver(
        spark,
        Lake(lake),
        given,
        tuple(streams),
        _channel(channel, topics) if given.get("url") else "",
        fail=fail_on_data_loss,
        types=tuple(typed.declared(one) for one in types),
        upkeep=Upkeep(Lake(lake), optimize_below, kept),
    )
    stop = threading.Event() if stop is None else stop
    archiver.begin()
    run = _follow if follow else _rounds
    return run(archiver, stop, once, pause, progress or (lambda _: None))


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
    progress: Callable[[Progress], None],
) -> Progress:
    failed = 0
    done = archiver.idle()
    while not stop.is_set():
        start_time = time.monotonic()
        try:
            done = archiver.round()
            failed = 0
        except _FAILURES as error:
            failed += 1
            if failed >= _TRIES or (once and not isinstance(error, Conflict)):
                raise
            log.warning("a round of the archive failed and will be retried: %s", explain(error).text)
            archiver.begin()
            stop.wait(interval)
            continue
        progress(done)
        if not done.lag:
            archiver.raise_lost()
        archiver.upkeep.run(archiver.snapshot.vacuumed)
        if once and not done.lag:
            return done
        if not done.lag:
            stop.wait(max(interval - (time.monotonic() - start_time), 0.0))
    return done


def _follow(
    archiver: "Archiver",
    stop: threading.Event,
    once: bool,  # noqa: FBT001
    interval: float,
    progress: Callable[[Progress], None],
) -> Progress:
    """Archive with a streaming query until `stop` is set. A query that fails is started again at the end of the archive."""
    failed = 0
    done = archiver.idle()

    def report(now: Progress) -> None:
        nonlocal failed, done
        failed, done = 0, now
        progress(now)

    while not stop.is_set():
        try:
            _query(archiver, stop, once, interval, report)
        except _FAILURES as error:
            failed += 1
            if once or failed >= _TRIES:
                raise
            log.warning("the streaming query of the archive failed and will be started again: %s", explain(error).text)
            stop.wait(interval)
            archiver.begin()
            continue
        break
    return done


def _query(
    archiver: "Archiver",
    stop: threading.Event,
    once: bool,  # noqa: FBT001
    interval: float,
    report: Callable[[Progress], None],
) -> None:
    """Run one streaming query. The Delta table has the offsets, so its checkpoint is temporary."""
    busy, ended = threading.Lock(), False
    raised: list[Exception] = []

    def batch(frame: DataFrame, _: int) -> None:
        with busy:
            if ended:
                return
            try:
                report(archiver.batch(frame))
                archiver.upkeep.run(archiver.snapshot.vacuumed)
            except Exception as error:
                raised.append(error)
                raise

    with tempfile.TemporaryDirectory(prefix="busway-archive-") as checkpoint:
        reader: Any = archiver.spark.readStream.format("busway").options(**archiver.following())
        writer = reader.load().writeStream.foreachBatch(batch).option("checkpointLocation", f"file://{checkpoint}")
        query = writer.trigger(
            **({"availableNow": True} if once else {"processingTime": f"{round(interval * 1000)} milliseconds"})
        ).start()
        try:
            while not query.awaitTermination(0.2) and not stop.is_set():
                pass
        except (PySparkException, Py4JJavaError) as error:
            found = raised[0] if raised else error
            if _LOST in str(found):
                raise DataLoss(with_archive_advice(explain(found).text)) from error
            raise found from None
        finally:
            with busy:  # the micro-batch at work is finished
                ended = True
            query.stop()


class Archiver:
    """Runs the rounds of one lake."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        given: Mapping[str, str],
        streams: tuple[str, ...],
        channel: str,
        *,
        fail: bool,
        types: tuple[typed.Declared, ...] = (),
        upkeep: Upkeep | None = None,
        most: int = _ROUND,
    ) -> None:
        self.spark = spark.newSession()
        for key, value in _CONF.items():
            self.spark.conf.set(key, value)
        self.lake = lake
        self.upkeep = upkeep or Upkeep(lake, None, None)
        self.snapshot = Snapshot()
        self._given = dict(given)
        self._streams = streams
        self._options: Options = read_options(self._given)
        self._channel = channel
        self._fail = fail
        self._types = types
        self._most = most
        self._damaged: set[Place] = set()
        self._lost: tuple[str, ...] = ()

    def begin(self) -> None:
        """Read the table. Raises LakeError if it archives other topics, or was changed by another program."""
        self.snapshot = self.lake.snapshot() if self.lake.exists() else Snapshot()
        before = self.snapshot.topics
        if before and set(before) != set(self._options.topics):
            raise LakeError(
                f"the lake {self.lake.name} archives the topics {', '.join(before)}, not {', '.join(self._options.topics)}: "
                "give the same topics, or another lake"
            )
        if self.snapshot.changed and self._fail:
            raise LakeError(f"{'; '.join(self.snapshot.changed)}, or go on without them (--skip-lost)")
        for text in self.snapshot.changed:
            log.warning("%s", text)

    def idle(self) -> Progress:
        """Return the progress of a round without messages."""
        return Progress(-1, 0, 0, 0, 0, 0.0, 0, self.snapshot.total)

    def raise_lost(self) -> None:
        """Raise DataLoss if the last round left a stream out because messages of it are lost."""
        if self._lost:
            raise DataLoss("; ".join(self._lost))

    def _create(self) -> None:
        """Create the table with the first round, and add the declared columns to it."""
        if self.snapshot.version < 0:
            self.lake.create()
        if self._types:
            self.lake.declare(self._types)
            self._types = ()
        self.snapshot = self.lake.snapshot()

    def round(self, looks: int = _TRIES) -> Progress:
        """Archive the messages of now, or the first part of them. Raises DataLoss. `looks`: attempts that are left."""
        start_time = time.monotonic()
        with Endpoints(self._options) as endpoints:
            available = endpoints.available(self._streams)
            check_continuity(endpoints, self.snapshot, available)
            planned = plan(self.snapshot, available, self._most, fail=self._fail, damaged=self._damaged)
            if self.snapshot.version < 0 or self._types:
                self._create()
            for text in planned.warnings:
                log.warning("%s", text)
            self._lost = planned.lost
            covered = list(planned.covered)
            self._move_channels(endpoints, {part.place: part.begin for part in covered})
            known = {part.place for part in covered}
            waiting = sum(part.next for part in available if part.place in known) - sum(part.end for part in covered)
            covered = [part for part in covered if part.end > part.begin]
            if not covered:
                return self._done(start_time, [], [], waiting)
            try:
                added = self._write(self._frame(covered)) if any(part.end > part.start for part in covered) else []
            except (PySparkException, Py4JJavaError) as error:
                if _LOST not in str(error):
                    raise
                return self._retry(covered, error, looks - 1)
            self._commit(added, covered, endpoints)
            self._damaged.clear()
        return self._done(start_time, added, covered, waiting)

    def _done(self, start_time: float, added: Sequence[Added], covered: Sequence[Covered], waiting: int) -> Progress:
        return Progress(
            self.snapshot.version if covered else -1,
            sum(one.rows for one in added),
            sum(one.bytes for one in added),
            len(added),
            sum(part.lost for part in covered),
            time.monotonic() - start_time,
            waiting,
            self.snapshot.total,
            tuple(sorted({part.stream for part in covered if part.damaged})),
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

    def following(self) -> dict[str, str]:
        """Return the options of a streaming query that begins at the end of the archive."""
        with Endpoints(self._options) as endpoints:
            available = endpoints.available(self._streams)
            check_continuity(endpoints, self.snapshot, available)
            planned = plan(self.snapshot, available, 0, fail=self._fail)
            if planned.lost:
                raise DataLoss("; ".join(planned.lost))
        self._create()
        start = {part.place: part.start for part in planned.covered}
        more = {"streams": json.dumps(self._streams)} if self._streams else {}
        return self._source(start) | more | {"maxRecordsPerTrigger": str(self._most)}

    def batch(self, frame: DataFrame) -> Progress:
        """Archive the messages of a micro-batch."""
        start_time = time.monotonic()
        added = self._write(frame)
        covered = self._covered(added)
        with Endpoints(self._options) as endpoints:
            if covered:
                self._commit(added, covered, endpoints)
            available = endpoints.available(self._streams)
        waiting = sum(max(info.next - (self.snapshot.end(info.place) or 0), 0) for info in available)
        return self._done(start_time, added, covered, waiting)

    def _covered(self, added: Sequence[Added]) -> list[Covered]:
        """Return the ranges of written files: of each stream from the end of the archive to its last written message."""
        if not added:
            return []
        files = [self.lake.uri(*one.action.path.split("/")) for one in added]
        rows = self.spark.read.option("basePath", self.lake.uri()).parquet(*files)
        found = []
        for broker, stream, first, last, count in (
            rows.groupBy("broker", "stream").agg(fn.min("offset"), fn.max("offset"), fn.count("*")).collect()
        ):
            end = self.snapshot.end((broker, stream))
            at = first if end is None else end
            jump = jumped(at, first)
            lost = last + 1 - at - jump - count if _ALL in self._options.topics else 0
            if lost and self._fail:
                self.lake.discard(added)
                raise DataLoss(
                    f"{lost} messages of the stream {stream!r} of the broker {broker} are lost: of the offsets {at} to {last}. {ADVICE}"
                )
            found.append(Covered(broker, stream, at, last + 1, lost, jumped=jump))
        return found

    def _commit(self, added: list[Added], covered: Sequence[Covered], endpoints: Endpoints) -> None:
        rows: dict[str, int] = {}
        for one in added:
            rows[one.stream] = rows.get(one.stream, 0) + one.rows
        topics = self._options.topics
        ranges = confirm_damage(covered, rows) if _ALL in topics else list(covered)
        ranges = [structs.replace(part, last=last_id(endpoints, part.place, part.end)) for part in ranges]
        try:
            self.snapshot = self.lake.commit(self.snapshot, added, ranges, topics)
        except LakeError:
            self.lake.discard(added)
            raise
        self._move_channels(endpoints, {part.place: part.end for part in ranges})

    def _source(self, start: Mapping[Place, int]) -> dict[str, str]:
        """Return the options of the source that reads from these offsets."""
        given = self._given | {"startingOffsets": json.dumps(to_json(start)), "types": self.snapshot.types}
        return given | {"failOnDataLoss": "true" if self._fail else "false"}

    def _frame(self, covered: Sequence[Covered]) -> DataFrame:
        """Return the rows of exactly these ranges."""
        given = self._source({part.place: part.start for part in covered}) | {
            "streams": json.dumps(sorted({part.stream for part in covered})),
            "endingOffsets": json.dumps(to_json({part.place: part.end for part in covered})),
            "failOnDataLoss": "false" if self._damaged else "true",
        }
        # A broker may have created a stream since the plan that has the name of another broker's stream.
        named = [fn.lit(f"{part.broker}/{part.stream}") for part in covered]
        frame = self.spark.read.format("busway").options(**given).load()
        return frame.where(fn.concat_ws("/", "broker", "stream").isin(*named))

    def _write(self, frame: DataFrame) -> list[Added]:
        """Write rows as Parquet files of the table, not yet committed."""
        staging = uuid.uuid4().hex
        try:
            writer = frame.withColumn("date", fn.to_date("stored")).write.partitionBy("stream", "date")
            writer = writer.option("compression", "zstd").option("maxRecordsPerFile", _FILE)
            writer.parquet(self.lake.uri(STAGING, staging))
            return self.lake.place(staging)
        finally:
            self.lake.unstage(staging)

    def _move_channels(self, endpoints: Endpoints, offsets: Mapping[Place, int]) -> None:
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
