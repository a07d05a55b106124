"""The sink `busway`: stores each row of a table as one message, exactly once. The data source makes its writers.

All attempts at a partition are the same publisher: the secret of its session is derived from query, epoch and
partition. The id of a query is a random number in its checkpoint, and no message shows it. A later attempt closes the
connection of an earlier one for good, so that only one attempt can write. If the session may have stored rows already,
the sink reads them back before it writes, and each stored copy counts for one row. It compares the content of a row and
not its number, because Spark may deliver the rows of a partition in another order to the next attempt. Therefore
neither the time between attempts nor a restart of the broker matters.
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
from busway.spark.options import OptionError, Options, write_options
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
    """The result of the task of a partition."""

    partition: int
    stored: int
    skipped: int
    """Rows that an earlier attempt has stored."""
    changed: int = 0
    """Messages that an earlier attempt has stored, and that are not among the rows now."""
    query: str = ""
    run: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a partition, with the secret of its session."""

    secret: bytes = field(repr=False)
    attempt: int
    """A number that is higher for later attempts of a Spark application."""
    partition: int
    first: bool
    """True if Spark calls it the first attempt."""

    @classmethod
    def of(cls, context: TaskContext, *owner: object) -> "Attempt":
        """Make the attempt of a task. `owner` identifies the job, or the query and epoch."""
        partition = context.partitionId()
        text = "\0".join(map(str, (*owner, partition)))
        secret = blake2b(text.encode(), digest_size=32, person=b"busway sink").digest()
        return cls(secret, context.taskAttemptId(), partition, context.attemptNumber() == 0)

    @property
    def session(self) -> int:
        """The public number of the session."""
        return session_of(self.secret)


class Writer:
    """Base of both writers. The driver makes it once for each job, and copies of it write in the tasks."""

    def __init__(self, options: Options, schema: Any) -> None:
        self._options = options
        self._timed = "time" in schema.names
        self._topic = "" if "topic" in schema.names else options.topic
        self._made = int(time.time())
        with open_bus(options) as bus:  # reports an unreachable bus now, and not once per task
            streams = bus.streams()
            self._since: int = bus.server.get("since", 0)
        self._begin = {info.name: info.next for info in streams}
        # After a reconnect the publisher resends messages in flight. The stream recognizes them for the time `once`.
        # If that time is too short, the write fails instead, and the next attempt reads back.
        self._steady = all(info.once > 2 * options.timeout for info in streams)

    def connected(self, attempt: Attempt) -> AbstractContextManager[Bus]:
        """Open the connection of this attempt. The broker then closes the connection of an earlier attempt."""
        reconnect = RECONNECT if self._steady else None
        return open_bus(self._options, self.identity(attempt), reconnect=reconnect)

    def identity(self, attempt: Attempt) -> Identity:
        """Return the identity. The generation grows with the job (driver's clock) and the attempt (Spark's count)."""
        return Identity(secret=attempt.secret, generation=self._made << 32 | attempt.attempt & 0xFFFFFFFF)

    def put(self, batches: Iterator[pa.RecordBatch], bus: Bus, attempt: Attempt, before: Stored | None) -> Done:
        """Write the rows of a partition that are not stored yet."""
        rows = Rows(self._options.topic, attempt.partition)
        feed = bus.feed(self._options.timeout)
        if before is not None:
            # The broker may remember the numbers of removed messages, so new numbers are higher than all used ones.
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
            raise WriteFailed(_reason(rows, failed)) from failed.error
        except Timeout as error:
            raise WriteFailed(f"{self._options.urls[0]}: {error}") from error
        changed = before.contents.total() if before is not None else 0
        return Done(attempt.partition, written, rows.count - written, changed)

    def read_back(self, bus: Bus, attempt: Attempt, begin: Mapping[str, int]) -> Stored:
        """Read back the messages of this publisher. No other attempt can use its session at the same time."""
        options = self._options
        return ledger.stored(
            bus, attempt.session, begin, timed=self._timed, topic=self._topic, patience=options.timeout
        )


class BatchWriter(Writer, DataSourceArrowWriter):
    """Writes a table once. Attempts of one job share their sessions, other jobs have other sessions."""

    def __init__(self, options: Options, schema: Any) -> None:
        super().__init__(options, schema)
        self._job = token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        attempt = Attempt.of(_context(), "job", self._job)
        with self.connected(attempt) as bus:
            fresh = attempt.first and not bus.server.get("seen", True) and bus.server.get("since") == self._since
            before = None if fresh else self.read_back(bus, attempt, self._begin)
            return self.put(iterator, bus, attempt, before)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_result(messages, self._options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        done = sum(message.stored for message in messages if isinstance(message, Done))
        log.warning("the write was aborted; at least %d rows are stored", done)


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """Writes the epochs of a streaming query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        context = _context()
        query, run = _property(context, _QUERY), _property(context, _RUN)
        epoch = int(_property(context, _EPOCH))
        attempt = Attempt.of(context, "query", query, epoch)
        with self.connected(attempt) as bus:
            before = self._before(bus, attempt, query, run, epoch)
            return replace(self.put(iterator, bus, attempt, before), query=query, run=run)

    def _before(self, bus: Bus, attempt: Attempt, query: str, run: str, epoch: int) -> Stored | None:
        """Return the stored messages of this partition and epoch, or None if there certainly are none."""
        known = Ledger.read(bus, query)
        if known is None and epoch == 0:  # without a ledger in a later epoch, the ledger was lost
            with open_bus(self._options, name=f"spark {ledger.label(query)}") as named:
                known = ledger.begin(named, query, self._begin)
        first = attempt.first and not bus.server.get("seen", True)
        if first and known is not None and known.precedes(run, epoch, bus.server.get("since", 0)):
            return None
        return self.read_back(bus, attempt, known.begin(epoch) if known is not None else {})

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _log_result(messages, self._options, f"epoch {batchId}: ")
        done = next((message for message in messages if isinstance(message, Done)), None)
        if done is None:
            return  # an epoch without partitions stores nothing
        try:
            with open_bus(self._options, name=f"spark {ledger.label(done.query)}") as bus:
                ledger.record_commit(bus, done.query, done.run, batchId)
        except BusError as error:
            log.warning(
                "epoch %d is stored, but its ledger is not written, so the next epoch reads back more: %s",
                batchId,
                error,
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        done = sum(message.stored for message in messages if isinstance(message, Done))
        log.warning("epoch %d was aborted; at least %d rows are stored, and will not be stored again", batchId, done)


class SinkMixin:
    """The half of the data source that makes writers."""

    options: Any

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - as Spark calls it
        if overwrite:
            raise OptionError('messages on a bus can\'t be overwritten: write with mode("append")')
        return BatchWriter(_checked(self.options, schema), schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802, ARG002, FBT001 - as Spark calls it
        return StreamWriter(_checked(self.options, schema), schema)


@contextmanager
def open_bus(
    options: Options, identity: Identity | None = None, name: str = "", reconnect: Sequence[float] | None = RECONNECT
) -> Iterator[Bus]:
    """Yield a connected client of the bus that is written to. Raises ConnectFailed."""
    with connected(options.urls[0], options, name=name, identity=identity, reconnect=reconnect) as bus:
        yield bus


def _checked(given: Mapping[str, str], schema: Any) -> Options:
    options = write_options(given)
    check_columns(schema, options.topic)
    return options


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("the sink writes only in tasks of Spark: use df.write or df.writeStream")
    return context


def _property(context: TaskContext, name: str) -> str:
    found = context.getLocalProperty(name)
    if found is None:
        raise RuntimeError(
            f"Spark does not pass the property {name} to its tasks, so rows can't be stored exactly once: use a supported version"
        )
    return found


def _missing(runs: list[Run], before: Stored, added: Mapping[str, Any], *, timed: bool) -> Iterator[Run]:
    """Yield the runs without the rows that are stored already."""
    for run in runs:
        fields = {**added, **(msgspec.msgpack.decode(run.fields) if run.fields else {})}
        time_ = run.time if timed else 0
        left = [
            (run.first + at, payload)
            for at, payload in enumerate(run.payloads)
            if not before.take(content(run.topic, fields, time_, payload))
        ]
        if len(left) == len(run.payloads):
            yield run
        else:
            yield from (Run(row, run.topic, (payload,), run.fields, run.time) for row, payload in left)


def _reason(rows: Rows, failed: RunFailed) -> str:
    run = failed.run
    if failed.error.code == Code.FRAME_TOO_LARGE:
        sizes = [len(payload) for payload in run.payloads]
        most = max(sizes)
        return f"{rows.name(run.first + sizes.index(most))} ({run.topic!r}, {most} bytes): {failed}"
    last = run.first + len(run.payloads) - 1
    where = rows.name(run.first) if last == run.first else f"one of the rows {run.first} to {last}, {rows.name(last)}"
    return f"{where} ({run.topic!r}): {failed}"


def _log_result(messages: list[WriterCommitMessage | None], options: Options, prefix: str = "") -> None:
    done = [result for result in messages if isinstance(result, Done)]
    stored, skipped = sum(result.stored for result in done), sum(result.skipped for result in done)
    if skipped:
        log.warning(
            "%s%s: an earlier attempt has stored %d rows, this one %d", prefix, options.urls[0], skipped, stored
        )
    else:
        log.debug("%s%s: %d rows stored", prefix, options.urls[0], stored)
    if changed := sum(result.changed for result in done):
        # This does not end the query: every retry would fail in the same way, and the rows are stored.
        log.error(
            "%s%s: %d rows that an earlier attempt has stored are not among the rows now, so the rows in their place are stored in "
            "addition: make the query deterministic (no rand or uuid), and keep its partitioning",
            prefix,
            options.urls[0],
            changed,
        )
