"""The sink `busway`: rows of a table as stored messages, each exactly once.

The publisher of a partition is the same one however often it is tried: the secret of its session is made of query, epoch
and partition. The id of a query is a random number in its checkpoint, and no message shows it. A later try closes the
connection of an earlier one for good, so only one can write at a time. If something of that session may be stored already,
it is read back before anything is written, and each stored copy stands for one row. What counts is the content of a row and
not its number, since Spark may hand the rows of a partition over in another order the next time. So neither the time that
passed nor a restart of the broker matters.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from secrets import token_hex
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from busway.client.bus import RECONNECT
from busway.client.durable.feed import Run, RunFailed
from busway.errors import BusError, Code, Timeout
from busway.settings import Identity, session_of
from busway.spark.connect import connected
from busway.spark.options import OptionError, Options, writing
from busway.spark.sink import ledger
from busway.spark.sink.ledger import Ledger, Stored
from busway.spark.sink.rows import Rows, check_columns, content
from busway.sync.bus import Bus

log = logging.getLogger("busway.spark")

_QUERY: Final = "sql.streaming.queryId"
_EPOCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"


class WriteFailed(RuntimeError):  # noqa: N818 - it is the write that has failed
    """Rows that could not be stored."""


@dataclass(frozen=True)
class Done(WriterCommitMessage):
    """What the task of a partition has done."""

    partition: int
    stored: int
    skipped: int
    """Rows that were stored before."""
    changed: int = 0
    """Stored before, and not among its rows now."""
    query: str = ""
    run: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one partition."""

    secret: bytes = field(repr=False)
    attempt: int
    """Higher for a later one, within a Spark application."""
    partition: int
    first: bool
    """As far as Spark says."""

    @classmethod
    def of(cls, context: TaskContext, *what: object) -> "Attempt":
        partition = context.partitionId()
        text = "\0".join(map(str, (*what, partition)))
        secret = blake2b(text.encode(), digest_size=32, person=b"busway sink").digest()
        return cls(secret, context.taskAttemptId(), partition, context.attemptNumber() == 0)

    @property
    def session(self) -> int:
        """The public number of its session."""
        return session_of(self.secret)


class Writer:
    """What both kinds of writers have: it is made on the driver, once for each job, and its copies write."""

    def __init__(self, options: Options, schema: Any) -> None:
        self._options = options
        self._timed = "time" in schema.names
        self._topic = "" if "topic" in schema.names else options.topic
        self._made = int(time.time())
        with reached(options) as bus:  # told now if it is not there, and not by each task
            streams = bus.streams()
            self._since: int = bus.server.get("since", 0)
        self._begin = {one.name: one.next for one in streams}
        # What was on its way when a connection was lost is sent again on the next one, and known again if that is soon.
        # Streams that forget too early leave that to the next try, which reads back.
        self._steady = all(one.once > 2 * options.timeout for one in streams)

    def connected(self, this: Attempt) -> AbstractContextManager[Bus]:
        """The connection of this try; that of an earlier one is closed by it."""
        reconnect = RECONNECT if self._steady else None
        return reached(self._options, self.identity(this), reconnect=reconnect)

    def identity(self, this: Attempt) -> Identity:
        """Later tries have higher generations: by the driver's clock, and those of one job by Spark's own count."""
        return Identity(secret=this.secret, generation=self._made << 32 | this.attempt & 0xFFFFFFFF)

    def put(self, batches: Iterator[pa.RecordBatch], bus: Bus, this: Attempt, before: Stored | None) -> Done:
        """Write a partition, but for what is stored already."""
        rows = Rows(self._options.topic, this.partition)
        feed = bus.feed(self._options.timeout)
        if before is not None:
            # Numbers whose messages are gone may still be remembered: so these are higher than any that was ever used.
            feed.skip(max(before.highest, time.time_ns()))
        written = 0
        added: dict[str, Any] = bus.server.get("fields") or {}
        try:
            for batch in batches:
                runs = rows.runs(batch)
                if before is not None and before.contents:
                    runs = list(_missing(runs, before, added, timed=self._timed))
                written += sum(len(run.payloads) for run in runs)
                feed.send(runs)
            feed.done()
        except RunFailed as failed:
            raise WriteFailed(_why(rows, failed)) from failed.error
        except Timeout as error:
            raise WriteFailed(f"{self._options.urls[0]}: {error}") from error
        changed = before.contents.total() if before is not None else 0
        return Done(this.partition, written, rows.count - written, changed)

    def read_back(self, bus: Bus, this: Attempt, begin: Mapping[str, int]) -> Stored:
        """What this publisher has stored. Nobody else can be it while its connection lasts."""
        options = self._options
        return ledger.stored(bus, this.session, begin, timed=self._timed, topic=self._topic, patience=options.timeout)


class BatchWriter(Writer, DataSourceArrowWriter):
    """Writes a table once. Tries of one job know each other, other jobs are others."""

    def __init__(self, options: Options, schema: Any) -> None:
        super().__init__(options, schema)
        self._job = token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        this = Attempt.of(_context(), "job", self._job)
        with self.connected(this) as bus:
            fresh = this.first and not bus.server.get("seen", True) and bus.server.get("since") == self._since
            before = None if fresh else self.read_back(bus, this, self._begin)
            return self.put(iterator, bus, this, before)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell(messages, self._options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        done = sum(one.stored for one in messages if isinstance(one, Done))
        log.warning("the write was broken off; at least %d rows are stored", done)


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """Writes the epochs of a streaming query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        context = _context()
        query, run = _property(context, _QUERY), _property(context, _RUN)
        epoch = int(_property(context, _EPOCH))
        this = Attempt.of(context, "query", query, epoch)
        with self.connected(this) as bus:
            before = self._before(bus, this, query, run, epoch)
            return replace(self.put(iterator, bus, this, before), query=query, run=run)

    def _before(self, bus: Bus, this: Attempt, query: str, run: str, epoch: int) -> Stored | None:
        """What this partition of this epoch has stored already; None: nothing, for sure."""
        known = Ledger.read(bus, query)
        if known is None and epoch == 0:  # a later one has lost its ledger
            with reached(self._options, name=f"spark {ledger.label(query)}") as named:
                known = ledger.begin(named, query, self._begin)
        first = this.first and not bus.server.get("seen", True)
        if first and known is not None and known.precedes(run, epoch, bus.server.get("since", 0)):
            return None
        return self.read_back(bus, this, known.begin(epoch) if known is not None else {})

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _tell(messages, self._options, f"epoch {batchId}: ")
        done = next((one for one in messages if isinstance(one, Done)), None)
        if done is None:
            return  # an epoch without partitions: nothing is stored
        try:
            with reached(self._options, name=f"spark {ledger.label(done.query)}") as bus:
                ledger.note(bus, done.query, done.run, batchId)
        except BusError as error:
            log.warning("epoch %d is written but not noted, so the next one reads back more: %s", batchId, error)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        done = sum(one.stored for one in messages if isinstance(one, Done))
        log.warning("epoch %d was broken off; at least %d rows are stored, and will not be again", batchId, done)


class Writing:
    """The half of the data source that writes."""

    options: Any

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - as Spark calls it
        if overwrite:
            raise OptionError('messages on a bus can\'t be overwritten: write with mode("append")')
        return BatchWriter(_checked(self.options, schema), schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802, ARG002, FBT001 - as Spark calls it
        return StreamWriter(_checked(self.options, schema), schema)


@contextmanager
def reached(
    options: Options, identity: Identity | None = None, name: str = "", reconnect: Sequence[float] | None = RECONNECT
) -> Iterator[Bus]:
    """A client of the bus that is written to."""
    with connected(options.urls[0], options, name=name, identity=identity, reconnect=reconnect) as bus:
        yield bus


def _checked(given: Mapping[str, str], schema: Any) -> Options:
    options = writing(given)
    check_columns(schema, options.topic)
    return options


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("the sink writes in tasks of Spark only")
    return context


def _property(context: TaskContext, name: str) -> str:
    found = context.getLocalProperty(name)
    if found is None:
        raise RuntimeError(f"Spark has not told {name} to its task, so rows can't be stored exactly once")
    return found


def _missing(runs: list[Run], before: Stored, added: Mapping[str, Any], *, timed: bool) -> Iterator[Run]:
    """The runs without what is stored."""
    for run in runs:
        fields = {**added, **(msgspec.msgpack.decode(run.fields) if run.fields else {})}
        time_ = run.time if timed else 0
        left = [
            (run.first + at, one)
            for at, one in enumerate(run.payloads)
            if not before.take(content(run.topic, fields, time_, one))
        ]
        if len(left) == len(run.payloads):
            yield run
        else:
            yield from (Run(row, run.topic, (one,), run.fields, run.time) for row, one in left)


def _why(rows: Rows, failed: RunFailed) -> str:
    run = failed.run
    if failed.error.code == Code.FRAME_TOO_LARGE:
        sizes = [len(one) for one in run.payloads]
        most = max(sizes)
        return f"{rows.name(run.first + sizes.index(most))} ({run.topic!r}, {most} bytes): {failed}"
    last = run.first + len(run.payloads) - 1
    where = rows.name(run.first) if last == run.first else f"one of the rows {run.first} to {last}, {rows.name(last)}"
    return f"{where} ({run.topic!r}): {failed}"


def _tell(messages: list[WriterCommitMessage | None], options: Options, what: str = "") -> None:
    done = [one for one in messages if isinstance(one, Done)]
    stored, skipped = sum(one.stored for one in done), sum(one.skipped for one in done)
    if skipped:
        log.warning(
            "%s%s: %d rows were stored by an earlier try, %d by this one", what, options.urls[0], skipped, stored
        )
    else:
        log.debug("%s%s: %d rows stored", what, options.urls[0], stored)
    if changed := sum(one.changed for one in done):
        # Not an end of the query: it would fail like this each time, and its rows are there.
        log.error(
            "%s%s: %d rows that an earlier try has stored are not among its rows now, so what came in their place is stored besides: "
            "the query gives other rows each time (rand, uuid), or shares them out among other partitions than before",
            what,
            options.urls[0],
            changed,
        )
