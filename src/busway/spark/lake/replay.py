"""Replay: stored messages back on to a bus, in their order, at a chosen speed, each exactly once however often it is started."""

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
from busway.spark.options import writing
from busway.spark.sink import ledger
from busway.spark.sink.ledger import Stored
from busway.spark.sink.rows import BadRow, Rows, content
from busway.spark.sink.sink import reached
from busway.sync.bus import Bus, Feed


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`speed`: 1 is that of the original, 10 ten times as fast. `rate`: messages a second. Neither: as fast as it goes."""

    speed: float | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.speed is not None and self.rate is not None:
            raise ValueError("give a speed or a rate, not both")
        for name, value in (("speed", self.speed), ("rate", self.rate)):
            if value is not None and not (value > 0 and isfinite(value)):
                raise ValueError(f"the {name} must be above zero, but is {value!r}")

    @property
    def paced(self) -> bool:
        return self.speed is not None or self.rate is not None

    def due(self, since_first: float, before: int) -> float:
        """Seconds after the first one: of one that was so many seconds behind it, with so many before it."""
        if self.speed is not None:
            return max(since_first, 0.0) / self.speed
        return 0.0 if self.rate is None else before / self.rate

    def until(self, times: list[float], before: int, passed: float) -> int:
        """How many of these that follow each other are due when so much time has passed."""
        if not self.paced:
            return len(times)
        for place, one in enumerate(times):
            if self.due(one, before + place) > passed:
                return place
        return len(times)


log = logging.getLogger("busway.spark")

FIELD: Final = "replayed-from"
"""The field that says where a replayed message was stored: as a busway.Position is written."""
COLUMNS: Final = ("broker", "stream", "offset", "topic", "stored", "time", "fields", "payload")
"""Those that a replay needs."""

_NAMES: Final = ("topic", "stream", "broker")
_NAME: Final = 240
_TOGETHER: Final = 200_000
"""Messages that are fetched from Spark at a time, if they are small."""
_BYTES: Final = 64 << 20
_SLICE: Final = 1000
_OFTEN: Final = 1.0
"""Seconds between two notes of how far it is."""

Ended = Callable[[float], bool]
"""Waits so many seconds, or until it is to end; whether it is."""
Tell = Callable[[int, int], None]
"""Is told how many messages are done, of how many."""


class ReplayFailed(RuntimeError):  # noqa: N818 - it is the replay that has failed
    """A replay could not go on; what it has stored is not stored again when it is started again."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay has done."""

    name: str
    total: int
    done: int
    stored: int
    """By this run; the others by earlier ones."""

    @property
    def finished(self) -> bool:
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
    tell: Tell | None = None,
) -> Replayed:
    """Publish a table with the columns of the source on the bus at `url`, durably, in the order in which it was stored.

    `to` makes the topic: `replayed/{topic}`, with `{stream}` and `{broker}` as well. `speed` 1 keeps the distances in time, 10
    is ten times as fast; `rate` is so many messages a second; without both it goes as fast as it can. Messages keep their
    time and fields, and get the field `replayed-from`. `options` are more of the sink: ca, cert, key, timeout.

    A replay has a name, and is done once: it is the same publisher each time, and stores nothing that it has stored before.
    The file `state` says how far it has come. One that was killed goes on there: what it may have stored behind that is read
    back from the bus first. Without the file everything is read back; `fresh` says that this name was never used, which spares
    that. What the table has got since the replay began is no part of it. Two at a time: the later one goes on, the other fails.

    `ended` waits so many seconds and says whether to end: then what is on its way is finished, and the replay can go on later.

    ::

        replay(df.where("topic = 'orders/eu'"), url="tcp://127.0.0.1:7420", name="orders", state="orders.json", speed=10)
    """
    checked = writing({"url": url, **(options or {})})
    pace, file = Pace(speed=speed, rate=rate), Path(state)
    topic = _template(to)
    missing = [column for column in COLUMNS if column not in df.columns]
    if missing:
        raise ValueError(f"a replay needs the column {missing[0]!r}; it needs {', '.join(COLUMNS)}")
    if not name or "\0" in name:
        raise ValueError("a replay needs a name")
    if len(name.encode()) > _NAME:
        raise ValueError(f"the name of a replay has at most {_NAME} bytes")
    rows = _keyed(df)
    known = Progress.read(file, name, to)
    now, size = _begun(rows, name, to) if known is None else _resumed(rows, known, file)
    if now.finished and known is not None:
        return Replayed(name, now.total, now.done, 0)
    with reached(checked) as first:
        # As the sink: a stream that forgets publishers soon could store again what is sent again on another connection.
        steady = all(one.once > 2 * checked.timeout for one in first.streams())
    identity = Identity(secret=bytes.fromhex(now.secret), generation=time.time_ns())
    # Found by its name also by a run whose file is lost, and whose session is another one for that.
    publisher = f"replay {name}"
    with reached(checked, identity, name=publisher, reconnect=RECONNECT if steady else None) as bus:
        before = (
            Stored()
            if fresh and known is None
            else ledger.stored(bus, identity.session, now.places, timed=True, name=publisher, patience=checked.timeout)
        )
        if known is None:
            now = replace(now, places=_places(bus) if fresh else {})
            now.write(file)
        work = _Work(
            bus, bus.feed(checked.timeout), before, now, file, pace, ended or _sleep, tell or (lambda *_: None)
        )
        work.feed.skip(max(before.highest, time.time_ns()))
        work.run(_batches(rows, now, topic, size))
        return Replayed(name, work.now.total, work.now.done, work.stored)


def _keyed(df: DataFrame) -> DataFrame:
    """Each message once, with what puts it in order."""
    rows = df.select(*COLUMNS).dropDuplicates(["broker", "stream", "offset"])
    return rows.withColumn("key", f.struct(f.unix_micros("stored").alias("at"), "broker", "stream", "offset"))


def _begun(rows: DataFrame, name: str, to: str) -> tuple[Progress, int]:
    """A replay of what is there now; and how many bytes it has."""
    groups = (
        rows.groupBy("broker", "stream").agg(f.count("*"), f.max("offset"), f.sum(f.octet_length("payload"))).collect()
    )
    ends = {f"{broker}/{stream}": last for broker, stream, _, last, _ in groups}
    total = sum(count for _, _, count, _, _ in groups)
    return Progress(name=name, to=to, total=total, ends=ends), sum(size for *_, size in groups)


def _resumed(rows: DataFrame, known: Progress, file: Path) -> tuple[Progress, int]:
    """The same again, if the rest of it is still there; and how many bytes that has. Raises ProgressError."""
    if known.finished:
        return known, 0
    row = _left(rows, known).agg(f.count("*"), f.sum(f.octet_length("payload"))).first()
    assert row is not None
    left, wanted = row[0], known.total - known.done
    if left != wanted:
        raise ProgressError(
            f"the replay {known.name!r} has {wanted} messages left by {file}, but there are {left}: it must be given the same messages "
            "as when it began. Give another name to begin with these"
        )
    return known, row[1] or 0


def _left(rows: DataFrame, now: Progress) -> DataFrame:
    """What is to be replayed of them."""
    ends = f.create_map(*(f.lit(one) for pair in now.ends.items() for one in pair))
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
    """The topic that a message is replayed on. Raises ValueError."""
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
            raise ValueError(f"the topic can't be {to!r}: there are {', '.join(f'{{{one}}}' for one in _NAMES)}")
        parts.append(f.col(key))
    if not parts:
        raise ValueError("the topic can't be empty")
    return f.concat(*parts)


def _batches(rows: DataFrame, now: Progress, topic: Column, size: int) -> Iterator[pa.RecordBatch]:
    """In order, a part at a time: what Spark has sorted waits on its disks."""
    parts = max(-(-(now.total - now.done) // _TOGETHER), -(-size // _BYTES), 1)
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
    """Batches as bytes: so they come to this process as they are, and not as rows of Python."""
    for batch in batches:
        for begin in range(0, batch.num_rows, _SLICE):
            part = batch.slice(begin, _SLICE)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.schema) as writer:
                writer.write_batch(part)
            yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["part"])


class _Work:
    """One run of a replay."""

    def __init__(
        self, bus: Bus, feed: Feed, before: Stored, now: Progress, file: Path, pace: Pace, ended: Ended, tell: Tell
    ) -> None:
        self.bus = bus
        self.feed = feed
        self.now = now
        self.stored = 0
        self._before = before
        self._file = file
        self._pace = pace
        self._ended = ended
        self._tell = tell
        self._rows = Rows("", 0)
        self._sent: list[tuple[int, str, str, int]] = []
        """The key of the last one that was sent, if that isn't noted yet."""
        self._started = self._count = now.done
        self._first: int | None = None
        self._begin = self._noted = time.monotonic()
        self._added: dict[str, Any] = bus.server.get("fields") or {}

    def run(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Send everything, or until it is to end. Raises ReplayFailed."""
        self._tell(self.now.done, self.now.total)
        for batch in batches:
            if not self._batch(batch):
                break
        self._note()

    def _batch(self, batch: pa.RecordBatch) -> bool:
        """Send these when they are due; whether to go on."""
        keys = [(one["at"], one["broker"], one["stream"], one["offset"]) for one in batch.column("key").to_pylist()]
        try:
            runs = self._rows.runs(batch.select(["topic", "time", "fields", "payload"]))
        except BadRow as error:
            self._note()
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
            if time.monotonic() - self._noted > _OFTEN:
                self._note()
        return True

    def _pause(self, seconds: float) -> bool:
        """Wait until the next one is due, with everything noted if that is long."""
        if seconds > _OFTEN:
            self._note()
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

    def _note(self) -> None:
        """See to it that all that was sent is stored, and write down how far that is."""
        try:
            self.feed.done()
        except RunFailed as failed:
            raise _failed(failed) from failed.error
        self._noted = time.monotonic()
        if self._sent:
            # What earlier runs have stored and this one has not come to yet lies before the ends of the streams.
            places = self.now.places if self._before.contents else _places(self.bus)
            self.now = replace(self.now, key=self._sent[0], done=self._count, places=places)
            self.now.write(self._file)
            self._sent = []
            self._tell(self.now.done, self.now.total)


def _bad(batch: pa.RecordBatch, keys: Sequence[tuple[int, str, str, int]]) -> ReplayFailed:
    """Which of these can't be a message."""
    for place, (_, broker, stream, offset) in enumerate(keys):
        try:
            Rows("", 0).runs(batch.slice(place, 1))
        except BadRow as error:
            why = str(error).partition(": ")[2]
            return ReplayFailed(f"the message {Position(broker, stream, offset)} can't be replayed: {why}")
    raise AssertionError("one of them is bad")


def _failed(failed: RunFailed) -> ReplayFailed:
    fields = msgspec.msgpack.decode(failed.run.fields)
    return ReplayFailed(f"the message {fields[FIELD]} can't be stored on {failed.run.topic!r}: {failed}")


def _places(bus: Bus) -> dict[str, int]:
    return {info.name: info.next for info in bus.streams()}


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
