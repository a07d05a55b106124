"""Replay: publishes stored messages again in their order, at a chosen speed, each exactly once even if it is restarted.

The public function is replay(); `busway lake replay` calls it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from string import Formatter
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as f

from busway.client.bus import RECONNECT
from busway.client.durable.feed import Run, RunFailed
from busway.positions import Position
from busway.settings import Identity
from busway.spark.lake.replay_progress import Progress, ProgressError
from busway.spark.options import write_options
from busway.spark.sink import ledger
from busway.spark.sink.ledger import Stored
from busway.spark.sink.rows import BadRow, Rows, content
from busway.spark.sink.sink import open_bus
from busway.sync.bus import Bus
from busway.sync.generated.feed import Feed


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The pace of a replay. `speed` 1 is the original speed, 10 is ten times as fast. `rate` is messages per second.

    Without both, the replay runs at full speed.
    """

    speed: float | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.speed is not None and self.rate is not None:
            raise ValueError("speed and rate exclude each other: give one of them")
        for name, value in (("speed", self.speed), ("rate", self.rate)):
            if value is not None and not (value > 0 and isfinite(value)):
                raise ValueError(f"the {name} must be above zero, but is {value!r}")

    @property
    def paced(self) -> bool:
        """True if speed or rate is given."""
        return self.speed is not None or self.rate is not None

    def due(self, since_first: float, before: int) -> float:
        """Return when a message is due, in seconds after the first message.

        `since_first`: its original distance in seconds. `before`: the number of messages before it.
        """
        if self.speed is not None:
            return max(since_first, 0.0) / self.speed
        return 0.0 if self.rate is None else before / self.rate

    def until(self, times: list[float], before: int, passed: float) -> int:
        """Return how many of the messages with these times are due after `passed` seconds."""
        if not self.paced:
            return len(times)
        for index, moment in enumerate(times):
            if self.due(moment, before + index) > passed:
                return index
        return len(times)


log = logging.getLogger("busway.spark")

FIELD: Final = "replayed-from"
"""The field with the original position of a replayed message, in the text form of busway.Position."""
COLUMNS: Final = ("broker", "stream", "offset", "topic", "stored", "time", "fields", "payload")
"""The columns that a replay needs."""

_NAMES: Final = ("topic", "stream", "broker")
_NAME: Final = 240
"""Largest length of a name in bytes."""
_PART: Final = 200_000
"""Number of small messages that are fetched from Spark at a time."""
_BYTES: Final = 64 << 20
"""Approximate bytes that are fetched from Spark at a time."""
_SLICE: Final = 1000
_OFTEN: Final = 1.0
"""Seconds between two writes of the progress."""

Ended = Callable[[float], bool]
"""Waits a number of seconds. Returns True, maybe earlier, if the replay should stop."""
Report = Callable[[int, int], None]
"""Called with the number of replayed messages and of all messages."""


class ReplayFailed(RuntimeError):  # noqa: N818 - named after the replay
    """A replay has failed. A restart with the same name does not store its messages again."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    name: str
    total: int
    done: int
    stored: int
    """Messages that this run has stored. Earlier runs have stored the others."""

    @property
    def finished(self) -> bool:
        """True if all messages are replayed."""
        return self.done >= self.total


def replay(
    df: DataFrame,
    *,
    url: str,
    name: str,
    state: Path | str,
    to: str = "{topic}",
    speed: float | None = None,
    rate: float | None = None,
    options: dict[str, str] | None = None,
    fresh: bool = False,
    ended: Ended | None = None,
    tell: Report | None = None,
) -> Replayed:
    """Publish a table with the columns of the source on the bus at `url`, durably, in the order in which it was stored.

    `to` is the topic: `replayed/{topic}`, with the placeholders `{topic}`, `{stream}` and `{broker}`. `speed` 1 is the
    original speed, 10 is ten times as fast; `rate` is messages per second; without both the replay runs at full speed.
    Messages keep their time and fields, and get the field `replayed-from`. `options` are further options of the sink:
    ca, cert, key, timeout.

    A replay is identified by its name. All its runs are the same publisher, and none stores a message twice. The file
    `state` records the progress. After a kill the next run continues from there, and first reads back the messages that
    may have been stored behind it. Without the file it reads back everything, unless `fresh` says that the name was
    never used. Rows that the table gets after the begin of the replay are not replayed. If two runs of a replay
    overlap, the later one continues and the earlier one fails.

    `ended` waits a number of seconds and returns True to stop: messages in flight are finished, and a later run
    continues. `tell` is called with the number of replayed messages and of all messages.

    ::

        replay(df.where("topic = 'orders/eu'"), url="tcp://127.0.0.1:7420", name="orders", state="orders.json", speed=10)
    """
    checked = write_options({"url": url, **(options or {})})
    pace, file = Pace(speed=speed, rate=rate), Path(state)
    topic = _template(to)
    missing = [column for column in COLUMNS if column not in df.columns]
    if missing:
        raise ValueError(f"the column {missing[0]!r} is missing; a replay needs {', '.join(COLUMNS)}")
    if not name or "\0" in name:
        raise ValueError("the name of the replay is empty or contains a null character: give another name")
    if len(name.encode()) > _NAME:
        raise ValueError(f"the name of the replay is longer than {_NAME} bytes: give a shorter name")
    rows = _keyed(df)
    known = Progress.read(file, name, to)
    now, size = _new_progress(rows, name, to) if known is None else _resumed(rows, known, file)
    if now.finished and known is not None:
        return Replayed(name, now.total, now.done, 0)
    with open_bus(checked) as first:
        # As in the sink: a stream with a short time `once` could store a resent message twice after a reconnect.
        steady = all(info.once > 2 * checked.timeout for info in first.streams())
    identity = Identity(secret=bytes.fromhex(now.secret), generation=time.time_ns())
    # A run whose file was lost has another session, and finds the stored messages by this name.
    publisher = f"replay {name}"
    with open_bus(checked, identity, name=publisher, reconnect=RECONNECT if steady else None) as bus:
        before = (
            Stored()
            if fresh and known is None
            else ledger.stored(bus, identity.session, now.places, timed=True, name=publisher, patience=checked.timeout)
        )
        if known is None:
            now = replace(now, places=_places(bus) if fresh else {})
            now.write(file)
        run = _Run(bus, bus.feed(checked.timeout), before, now, file, pace, ended or _sleep, tell or (lambda *_: None))
        run.feed.skip(max(before.highest, time.time_ns()))
        run.run(_batches(rows, now, topic, size))
        return Replayed(name, run.now.total, run.now.done, run.stored)


def _keyed(df: DataFrame) -> DataFrame:
    """Return each message once, with the key of its order."""
    rows = df.select(*COLUMNS).dropDuplicates(["broker", "stream", "offset"])
    return rows.withColumn("key", f.struct(f.unix_micros("stored").alias("at"), "broker", "stream", "offset"))


def _new_progress(rows: DataFrame, name: str, to: str) -> tuple[Progress, int]:
    """Return the progress of a new replay of these rows, and the size of the rows in bytes."""
    groups = (
        rows.groupBy("broker", "stream").agg(f.count("*"), f.max("offset"), f.sum(f.octet_length("payload"))).collect()
    )
    ends = {f"{broker}/{stream}": last for broker, stream, _, last, _ in groups}
    total = sum(count for _, _, count, _, _ in groups)
    return Progress(name=name, to=to, total=total, ends=ends), sum(size for *_, size in groups)


def _resumed(rows: DataFrame, known: Progress, file: Path) -> tuple[Progress, int]:
    """Return a known progress and the bytes of the rest. Raises ProgressError if the rest has changed."""
    if known.finished:
        return known, 0
    row = _left(rows, known).agg(f.count("*"), f.sum(f.octet_length("payload"))).first()
    assert row is not None
    left, wanted = row[0], known.total - known.done
    if left != wanted:
        raise ProgressError(
            f"the replay {known.name!r} has {wanted} messages left by {file}, but there are {left}: give it the same messages "
            "as at its begin, or another name to start a new replay"
        )
    return known, row[1] or 0


def _left(rows: DataFrame, now: Progress) -> DataFrame:
    """Return the rows that are not replayed yet."""
    ends = f.create_map(*(f.lit(value) for pair in now.ends.items() for value in pair))
    place = f.concat_ws("/", "broker", "stream")
    rows = rows.where(f.col("offset") <= ends[place]) if now.ends else rows.where("false")
    if now.key is None:
        return rows
    at, broker, stream, offset = now.key
    last = f.struct(
        f.lit(at).cast("long").alias("at"),
        f.lit(broker).alias("broker"),
        f.lit(stream).alias("stream"),
        f.lit(offset).cast("long").alias("offset"),
    )
    return rows.where(f.col("key") > last)


def _template(to: str) -> Column:
    """Return the topic of a replayed message as an expression of Spark. Raises ValueError."""
    parts: list[Column] = []
    try:
        pieces = list(Formatter().parse(to))
    except ValueError as error:
        raise ValueError(f"the topic can't be {to!r}: {error}") from None
    for text, key, form, conversion in pieces:
        if text:
            parts.append(f.lit(text))
        if key is None:
            continue
        if key not in _NAMES or form or conversion:
            raise ValueError(f"the topic can't be {to!r}: use {', '.join(f'{{{name}}}' for name in _NAMES)}")
        parts.append(f.col(key))
    if not parts:
        raise ValueError("the topic can't be empty: give a topic such as replayed/{topic}")
    return f.concat(*parts)


def _batches(rows: DataFrame, now: Progress, topic: Column, size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rest of the rows in order, a part at a time. Spark holds the sorted rows on disk."""
    parts = max(-(-(now.total - now.done) // _PART), -(-size // _BYTES), 1)
    origin = f.concat_ws(":", f.col("broker"), f.col("offset").cast("string"), f.col("stream"))
    fields = f.map_filter(f.coalesce("fields", f.create_map().cast("map<string,string>")), lambda key, _: key != FIELD)
    made = _left(rows, now).select(
        "key",
        topic.alias("topic"),
        "time",
        f.map_concat(fields, f.create_map(f.lit(FIELD), origin)).alias("fields"),
        "payload",
    )
    packed = made.repartitionByRange(parts, "key").sortWithinPartitions("key").mapInArrow(_pack, "part binary")
    for row in packed.toLocalIterator(prefetchPartitions=True):
        with pa.ipc.open_stream(row["part"]) as reader:
            yield from reader


def _pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert batches to bytes, so that the driver gets Arrow batches instead of Python rows."""
    for batch in batches:
        for begin in range(0, batch.num_rows, _SLICE):
            part = batch.slice(begin, _SLICE)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.schema) as writer:
                writer.write_batch(part)
            yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["part"])


class _Run:
    """One run of a replay: sends batches when they are due, and records the progress."""

    def __init__(
        self, bus: Bus, feed: Feed, before: Stored, now: Progress, file: Path, pace: Pace, ended: Ended, report: Report
    ) -> None:
        self.bus = bus
        self.feed = feed
        self.now = now
        self.stored = 0
        self._before = before
        self._file = file
        self._pace = pace
        self._ended = ended
        self._report = report
        self._rows = Rows("", 0)
        self._sent: list[tuple[int, str, str, int]] = []
        """The key of the last sent message, unless it is recorded already."""
        self._started = self._count = now.done
        self._first: int | None = None
        self._begin = self._recorded = time.monotonic()
        self._added: dict[str, Any] = bus.server.get("fields") or {}

    def run(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Send all batches, or stop when `ended` returns True. Raises ReplayFailed."""
        self._report(self.now.done, self.now.total)
        for batch in batches:
            if not self._batch(batch):
                break
        self._record()

    def _batch(self, batch: pa.RecordBatch) -> bool:
        """Send the messages of a batch when they are due. Returns False if the replay should stop."""
        keys = [(key["at"], key["broker"], key["stream"], key["offset"]) for key in batch.column("key").to_pylist()]
        try:
            runs = self._rows.runs(batch.select(["topic", "time", "fields", "payload"]))
        except BadRow as error:
            self._record()
            raise _bad(batch, keys) from error
        if self._first is None:
            self._first, self._begin = keys[0][0], time.monotonic()
        times = [(key[0] - self._first) / 1e6 for key in keys]
        begin, start = 0, self._count
        while begin < len(runs):
            if self._ended(0):
                return False
            passed = time.monotonic() - self._begin
            due = self._pace.until(times[begin:], start - self._started + begin, passed)
            if not due:
                wait = self._pace.due(times[begin], start - self._started + begin) - passed
                if not self._pause(wait):
                    return False
                continue
            self._send(runs[begin : begin + due])
            begin += due
            self._sent, self._count = [keys[begin - 1]], start + begin
            if time.monotonic() - self._recorded > _OFTEN:
                self._record()
        return True

    def _pause(self, seconds: float) -> bool:
        """Wait for the next message. Records the progress before a long wait. Returns False to stop the replay."""
        if seconds > _OFTEN:
            self._record()
        return not self._ended(min(seconds, _OFTEN))

    def _send(self, runs: Sequence[Run]) -> None:
        if self._before.contents:
            runs = [run for run in runs if not self._known(run)]
        try:
            self.feed.send(runs)
        except RunFailed as failed:
            raise _failed(failed) from failed.error
        self.stored += len(runs)

    def _known(self, run: Run) -> bool:
        fields = {**self._added, **msgspec.msgpack.decode(run.fields)}
        return self._before.take(content(run.topic, fields, run.time, run.payloads[0]))

    def _record(self) -> None:
        """Wait until all sent messages are stored, and write the progress. Raises ReplayFailed."""
        try:
            self.feed.done()
        except RunFailed as failed:
            raise _failed(failed) from failed.error
        self._recorded = time.monotonic()
        if self._sent:
            # Messages of earlier runs that this run has not reached lie before the current ends of the streams.
            places = self.now.places if self._before.contents else _places(self.bus)
            self.now = replace(self.now, key=self._sent[0], done=self._count, places=places)
            self.now.write(self._file)
            self._sent = []
            self._report(self.now.done, self.now.total)


def _bad(batch: pa.RecordBatch, keys: Sequence[tuple[int, str, str, int]]) -> ReplayFailed:
    """Return an error that names the first row that can't be a message."""
    for index, (_, broker, stream, offset) in enumerate(keys):
        try:
            Rows("", 0).runs(batch.slice(index, 1))
        except BadRow as error:
            reason = str(error).partition(": ")[2]
            return ReplayFailed(f"the message {Position(broker, stream, offset)} can't be replayed: {reason}")
    raise AssertionError("one of the rows is bad")


def _failed(failed: RunFailed) -> ReplayFailed:
    fields = msgspec.msgpack.decode(failed.run.fields)
    return ReplayFailed(f"the message {fields[FIELD]} can't be stored on {failed.run.topic!r}: {failed}")


def _places(bus: Bus) -> dict[str, int]:
    return {info.name: info.next for info in bus.streams()}


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
