"""Durable publisher of one client: keeps its durable publishes until the broker has answered each with its position.

The bus and the feeds call it. After a lost connection it sends unanswered messages again under the same numbers, so the
broker recognises a message that it has already stored and answers with its first position. Without a connection, or
while the broker is stopping, a call waits for the next connection. Each call ends with positions or with an error.
Cancellation or a timeout of a call does not withdraw the messages that were already sent.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Coroutine, Generator, Iterable, Iterator, Sequence
from copy import copy
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

from busway.client.connection.connection import Connection
from busway.client.connection.core import Core
from busway.client.connection.events import Event
from busway.client.connection.sender import PUBLISH
from busway.client.durable import recovery
from busway.client.durable.in_flight import MOST, NO_TIMES, BatchReport, InFlight, Report, Row, SingleReport
from busway.client.typed.protocol import outgoing
from busway.common import environment
from busway.errors import BusError, Timeout, from_code
from busway.positions import Placed, Position, position_at

log = logging.getLogger("busway.client")

DURABLE: Final = 0x04

Single: TypeAlias = tuple[str, bytes | str, bytes, int]
"""A message with its own topic, encoded fields and time of sending; 0: now."""

_MAX_BYTES: Final = 32 << 20
"""Most bytes in flight before a publish waits for room."""
_OVERHEAD: Final = 256
"""Bytes counted per message besides its payload. They also keep the number of messages in flight below the number that
a stream remembers of each client."""
_MAX_GROWN: Final = MOST * _OVERHEAD
"""Bytes from which a batch gets no further message, so it has at most MOST."""
_UNSENT: Final = "not sent, and will not be stored"
_UNKNOWN: Final = "sent, and may still be stored"


class PendingPublish(Coroutine[Any, Any, Position]):
    """A durable publish in flight. Awaiting it returns the position; as a coroutine it can also run as a task."""

    __slots__ = ("_steps", "answer")

    def __init__(self, answer: "asyncio.Future[Position]") -> None:
        self.answer = answer

    def __await__(self) -> Generator[Any, None, Position]:
        return self.answer.__await__()

    def send(self, value: Any) -> Any:
        return self._await().send(value)

    def throw(self, *error: Any) -> Any:
        return self._await().throw(*error)

    def close(self) -> None:
        """The sent message is not withdrawn."""

    def _await(self) -> Any:
        try:
            return self._steps
        except AttributeError:
            self._steps: Any = self.answer.__await__()
            return self._steps


class DurablePublisher:
    """The durable publishes of one client that the broker has not answered."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._singles = SingleReport()
        self._batches: deque[InFlight] = deque()
        """In the order of their numbers."""
        self._bytes = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._queue = asyncio.Lock()
        self._queued = 0
        """Callers that wait for room, in order; no later caller overtakes them."""
        self._tried: dict[str, int] = {}
        """Brokers that may have stored some of these messages without an answer, with the last number sent to each."""

    def __len__(self) -> int:
        return sum(batch.left for batch in self._batches)

    # One message.

    def publish(
        self, topic: str, payload: bytes | str, fields: bytes, times: tuple[int, int], within: float | None = None
    ) -> Coroutine[Any, Any, Position]:
        """Send a message and wait, at most `within` seconds, until it is as safe as its stream promises.

        Returns its position.
        """
        core = self._core
        connection = core.connection
        started: PendingPublish | Coroutine[Any, Any, PendingPublish]
        if connection is None or self._full(connection):
            if within is None:
                return self._publish_later(topic, payload, fields, times)
            started = self._begin_later(topic, payload, fields, times)
        else:
            started = self._begin(connection, topic, payload, fields, times)
            if within is None:
                return started
        return self._publish_within(started, topic, core.loop.time() + within, within)

    async def _publish_within(
        self,
        started: "PendingPublish | Coroutine[Any, Any, PendingPublish]",
        topic: str,
        deadline: float,
        within: float,
    ) -> Position:
        """Wait for the position of a message, which may still wait for room. Raises Timeout at the deadline."""
        pending: PendingPublish | None = None
        try:
            async with asyncio.timeout_at(deadline):
                pending = started if isinstance(started, PendingPublish) else await started
                return await pending
        except TimeoutError:
            state = _UNSENT if pending is None else _UNKNOWN
            raise Timeout(f"the message on {topic!r} was not acknowledged within {within:g} s: {state}") from None

    async def _publish_later(self, topic: str, payload: bytes | str, fields: bytes, times: tuple[int, int]) -> Position:
        return await (await self._begin_later(topic, payload, fields, times))

    async def _begin_later(
        self, topic: str, payload: bytes | str, fields: bytes, times: tuple[int, int]
    ) -> PendingPublish:
        connection = await self._ready(len(payload) + _OVERHEAD)
        return self._begin(connection, topic, payload, fields, times)

    def _begin(
        self, connection: Connection, topic: str, payload: bytes | str, fields: bytes, times: tuple[int, int]
    ) -> PendingPublish:
        answer = self._core.loop.create_future()
        alone = self._send(self._singles, (topic, payload, fields, times, environment.time_ns(), answer))
        connection.frame_encoded(alone=alone)
        return PendingPublish(answer)

    def begin(self, report: Report, row: Row) -> bool:
        """Send a message if there is room and a connection. False: it was not sent.

        `report` gets its result while the broker's answer is read.
        """
        connection = self._core.connection
        if connection is None or self._full(connection):
            return False
        self._send(report, row)
        return True

    async def begin_later(self, report: Report, row: Row) -> None:
        """Like begin(), but wait for room and a connection."""
        await self._ready(len(row[1]) + _OVERHEAD)
        self._send(report, row)

    def _send(self, report: Report, row: Row) -> bool:
        """Send a message now, in the last batch if that has the same report. Returns whether it is alone in flight."""
        payload = row[1]
        number = self._core.session.send(
            PUBLISH, row[0], payload, flags=DURABLE, fields=row[2], times=row[3], time=row[4]
        )
        size = len(payload) + _OVERHEAD
        self._bytes += size
        batches = self._batches
        if batches:
            batch = batches[-1]
            if batch.report is report and batch.size < _MAX_GROWN and number == batch.first + len(batch.items):
                batch.items.append(row)
                batch.left += 1
                batch.size += size
                return False
        batches.append(InFlight(number, report, [row], size))
        return len(batches) == 1

    # Many messages.

    async def begin_each(self, messages: Sequence[Single], start: int = 0) -> tuple[BatchReport, int]:
        """Send messages from index `start` on. Returns the report in flight and the index of the first unsent message.

        A message that can't be sent ends the batch, or raises if it is the first one.
        """
        part = messages[start : start + MOST]
        connection = await self._ready(_size([payload for _, payload, _, _ in part]))
        now, send, first = environment.time_ns(), self._core.session.send, 0
        rows: list[Row] = []
        for topic, payload, fields, time in part:
            try:
                number = send(PUBLISH, topic, payload, flags=DURABLE, fields=fields, time=time or now)
            except BusError:
                if not rows:
                    raise
                break
            first = first or number
            rows.append((topic, payload, fields, NO_TIMES, time or now))
        report = BatchReport(self._core.loop.create_future(), positions=False)
        self._add(InFlight(first, report, rows, _size([row[1] for row in rows])), connection)
        return report, start + len(rows)

    async def begin_many(self, topic: str, payloads: Sequence[bytes | str], fields: bytes) -> list[BatchReport]:
        """Send payloads of one topic in order. Returns the reports in flight."""
        reports: list[BatchReport] = []
        for begin in range(0, len(payloads), MOST):
            part, done = payloads[begin : begin + MOST], 0
            while done < len(part):
                report, done = await self._begin_many(topic, part, done, fields, NO_TIMES, positions=False)
                if report is not None:
                    reports.append(report)
        return reports

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[object],
        fields: bytes,
        times: tuple[int, int] = NO_TIMES,
        within: float | None = None,
    ) -> Placed:
        """Send payloads in order, wait at most `within` seconds until all are stored, and return their positions."""
        placed = Placed()
        answers: deque[asyncio.Future[Placed]] = deque()
        items, sent = list(payloads), 0
        try:
            async with asyncio.timeout(within):
                for full, part in _parts(topic, items):
                    done = 0
                    while done < len(part):
                        before = done
                        report, done = await self._begin_many(full, part, done, fields, times, positions=True)
                        sent += done - before
                        if report is not None:
                            answers.append(report.answer)
                        while answers and answers[0].done():
                            placed.extend(answers.popleft().result())
                while answers:
                    placed.extend(await asyncio.shield(answers[0]))
                    answers.popleft()
        except TimeoutError:
            stored, unsent = len(placed), len(items) - sent
            counts = [(stored, "stored"), (sent - stored, _UNKNOWN), (unsent, _UNSENT)]
            states = "; ".join(f"{count} {state}" for count, state in counts if count)
            missing = f"{sent - stored + unsent} of {len(items)} messages on {topic!r}"
            raise Timeout(f"{missing} were not acknowledged within {within:g} s: {states}") from None
        return placed

    async def _begin_many(
        self,
        topic: str,
        payloads: Sequence[bytes | str],
        start: int,
        fields: bytes,
        times: tuple[int, int],
        *,
        positions: bool,
    ) -> tuple[BatchReport | None, int]:
        """Send as many payloads as possible now. Returns their report and the index of the first unsent one."""
        core = self._core
        connection = await self._ready(_size(payloads) if start == 0 else 0)
        now = environment.time_ns()
        end, first = core.session.publish_many(topic, payloads, start, fields, DURABLE, times)
        if end == start:
            connection.flush()
            if not (connection.paused or connection.stopped):
                await asyncio.sleep(0)
            return None, end
        part = list(payloads[start:end])
        report = BatchReport(core.loop.create_future(), positions=positions)
        self._add(InFlight(first, report, part, _size(part), (topic, b"", fields, times, now)), connection)
        return report, end

    def _add(self, batch: InFlight, connection: Connection) -> None:
        self._batches.append(batch)
        self._bytes += batch.size
        if len(self._batches) == 1:
            connection.flush()  # a single batch gains nothing by waiting for the end of the loop iteration

    # Room.

    def _full(self, connection: Connection) -> bool:
        """Whether a new message has to wait."""
        full = self._queued or self._bytes > _MAX_BYTES
        return bool(full or connection.paused or connection.stopped or not self._core.open)

    async def _ready(self, size: int) -> Connection:
        """Wait for room for `size` more bytes and for a connection that accepts publishes.

        Callers continue in the order of their calls, so their messages are sent in this order.
        """
        core = self._core
        self._queued += 1
        try:
            async with self._queue:
                while self._bytes and self._bytes + size > _MAX_BYTES:
                    future = core.loop.create_future()
                    self._room.append(future)
                    await future
                connection = await core.wait_usable()
                while connection.paused or connection.stopped:
                    await connection.room(publish=True)
                    connection = await core.wait_usable()
                return connection
        finally:
            self._queued -= 1

    def _make_room(self) -> None:
        while self._room and self._bytes < _MAX_BYTES:
            if not (future := self._room.popleft()).done():
                future.set_result(None)

    # Answers of the broker.

    def stored(self, number: int, count: int, where: tuple[str, str], offset: int, sequence: int) -> None:
        """Process the broker's answer that `count` messages from this number on are stored."""
        end = number + count
        while number < end:
            handled = 1  # a message that was sent again may be answered twice
            if (batch := self._find(number)) is not None:
                handled = batch.stored(number, end - number, position_at(where, offset, sequence))
                if not batch.left:
                    self._remove(batch)
            number, offset, sequence = number + handled, offset + handled, sequence + handled
        if self._room:
            self._make_room()

    def refused(self, number: int, code: int, text: str) -> bool:
        """Process the broker's refusal to store a message. False: the number is not that of a durable publish."""
        if not code or (batch := self._find(number)) is None:
            return False
        self._refuse(batch, number, from_code(code, text))
        self._make_room()
        return True

    def _refuse(self, batch: InFlight, number: int, error: BusError) -> None:
        if batch.refused(number, error):
            self._core.events.emit(Event(kind="rejected", topic=batch.row(number)[0], error=error))
            if not batch.left:
                self._remove(batch)

    def _find(self, number: int) -> InFlight | None:
        """The batch of a message, if it has one."""
        if self._batches and 0 <= number - (found := self._batches[0]).first < len(found.items):
            return found
        index = bisect_right(self._batches, number, key=lambda batch: batch.first) - 1
        return found if index >= 0 and number < (found := self._batches[index]).end else None

    def _remove(self, batch: InFlight) -> None:
        """Remove a batch whose messages are all answered."""
        if self._batches[0] is batch:
            self._batches.popleft()
        else:
            self._batches.remove(batch)
        self._bytes -= batch.size

    # Lost connections.

    def disconnected(self, broker: str) -> None:
        """Record which messages this broker may have got before its connection was lost."""
        numbers = self._numbers()
        self._tried = {guid: last for guid, last in self._tried.items() if numbers and last >= numbers[0]}
        if numbers and broker:
            self._tried[broker] = numbers[-1]

    async def restore(self, patience: float) -> None:
        """Send the unanswered messages again over a new connection, in order, unless another broker has stored them.

        `patience`: seconds to find out what other brokers have stored.
        """
        await self._ask_stored(patience)
        self._send_again()
        self._make_room()

    def _send_again(self) -> None:
        for batch in list(self._batches):
            for number in batch.unanswered():
                topic, payload, fields, times, sent = batch.row(number)[:5]
                try:
                    self._core.session.send(
                        PUBLISH, topic, payload, flags=DURABLE, fields=fields, number=number, time=sent, times=times
                    )
                except BusError as error:  # another server may have other limits
                    self._refuse(batch, number, error)

    async def _ask_stored(self, patience: float) -> None:
        """Ask which messages other brokers have stored. The current broker recognises those that it has stored."""
        others = {guid: last for guid, last in self._tried.items() if guid != self._core.broker}
        numbers = [number for number in self._numbers() if number <= max(others.values(), default=0)]
        unknown: set[str] = set()
        doubtful = 0
        for begin in range(0, len(numbers), recovery.MOST):
            part = numbers[begin : begin + recovery.MOST]
            possible = {guid for guid, last in others.items() if last >= part[0]}
            unsure: list[str] = []
            if brokers := sorted(possible - unknown):
                answer = await recovery.ask(self._core, brokers, part, patience)
                unknown.update(answer.unknown)
                unsure = answer.unsure
                for run in answer.stored:
                    self.stored(run.number, run.many, (run.broker, run.stream), run.offset, run.sequence)
            if unsure or possible & unknown:
                doubtful += len({*part} & {*self._numbers()})
        if doubtful:
            messages = "1 message is" if doubtful == 1 else f"{doubtful} messages are"
            log.warning("%s sent again although another broker may have stored them: duplicates are possible", messages)
            self._core.events.emit(Event(kind="doubtful", count=doubtful))

    def _numbers(self) -> list[int]:
        """The numbers of all unanswered messages, in order."""
        return [number for batch in self._batches for number in batch.unanswered()]

    def end(self, error: BusError) -> None:
        """Fail all unanswered messages, since there will be no further connection."""
        batches, self._batches = self._batches, deque()
        for batch in batches:
            for number in batch.unanswered():
                batch.refused(number, copy(error))
        while self._room:
            if not (future := self._room.popleft()).done():
                future.set_exception(copy(error))


def _size(payloads: Sequence[bytes | str]) -> int:
    return sum(map(len, payloads)) + _OVERHEAD * len(payloads)


def _parts(topic: str, items: list[Any]) -> Iterator[tuple[str, Sequence[bytes | str]]]:
    """Split items into chunks of one topic. A value of a protocol brings its own topic."""
    if all(type(item) is bytes or type(item) is str for item in items):
        encoded = [(topic, items)]
    else:
        pairs = [outgoing(topic, item) for item in items]
        encoded = [(full, [data for _, data in group]) for full, group in groupby(pairs, itemgetter(0))]
    for full, data in encoded:
        for begin in range(0, len(data), MOST):
            yield full, data[begin : begin + MOST]
