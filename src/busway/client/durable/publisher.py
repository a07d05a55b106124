"""Durable publishes: kept here until the broker says where they are stored, and sent again after a lost connection.

They go out under numbers that stay theirs, so the broker knows one that it has stored already and answers with its first
place. Without a connection, or while the broker says that it will stop, a call waits for the next one. Each call has exactly
one outcome: places, or an error. Cancelling a call does not take back what was sent; neither does its timeout.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Coroutine, Generator, Iterable, Iterator, Sequence
from copy import copy
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

from busway.client.connection.connection import Connection
from busway.client.connection.core import Core
from busway.client.connection.events import Event
from busway.client.connection.sender import PUBLISH
from busway.client.durable.in_flight import (
    Again,
    Alone,
    MixedBatch,
    ReportedBatch,
    ReportedPublish,
    Row,
    SentBatch,
    Underway,
)
from busway.client.durable.recovery import MOST, ask
from busway.client.typed.protocol import outgoing
from busway.common import environment
from busway.common.durations import seconds
from busway.errors import BusError, Timeout, from_code
from busway.positions import Placed, Position, moment, position_at

log = logging.getLogger("busway.client")

DURABLE: Final = 0x04

Lasting: TypeAlias = float | str | timedelta
"""A length of time: seconds, text such as 90s or 7d, or a timedelta."""

_UNSTORED: Final = 32 << 20
"""Bytes that may wait to be stored before a publish waits too."""
_EACH: Final = 256
"""Bytes that a message counts besides its payload: what remembers it has a size, and no more are on their way than a stream
remembers of a client."""
_CHUNK: Final = 1024
_TELLING: Final = 20_000_000
"""Nanoseconds in which messages that are told of have the same time, if they are sent again."""
_LONGEST: Final = 100 * 365.25 * 86400
_UNSENT: Final = "not sent, and will not be stored"
_UNKNOWN: Final = "sent, and may still be stored"


class PendingPublish(Coroutine[Any, Any, Position]):
    """A durable publish under way: awaited it gives its place. A coroutine for whoever wants a task of it."""

    __slots__ = ("_steps", "answer", "fields", "payload", "sent", "times", "topic")

    def __init__(
        self,
        answer: "asyncio.Future[Position]",
        topic: str,
        payload: bytes | str,
        fields: bytes,
        times: tuple[int, int],
        sent: int,
    ) -> None:
        self.answer = answer
        self.topic = topic
        self.payload = payload
        self.fields = fields
        self.times = times
        self.sent = sent

    def __await__(self) -> Generator[Any, None, Position]:
        return self.answer.__await__()

    def send(self, value: Any) -> Any:
        return self._await().send(value)

    def throw(self, *error: Any) -> Any:
        return self._await().throw(*error)

    def close(self) -> None:
        """Nothing is taken back."""

    def _await(self) -> Any:
        try:
            return self._steps
        except AttributeError:
            self._steps: Any = self.answer.__await__()
            return self._steps


class DurablePublisher:
    """What one client has published durably and was not answered yet."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ones: dict[int, PendingPublish] = {}
        """By their numbers, those that were sent one by one."""
        self._sent: deque[Underway] = deque()
        self._bytes = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._line = asyncio.Lock()
        self._queued = 0
        """Those who wait for room, one behind the other; nobody passes them."""
        self._tried: dict[str, int] = {}
        """Brokers that got some of these and gave no answer, and the last number that each may have got."""

    def __len__(self) -> int:
        return len(self._ones) + sum(one.left for one in self._sent)

    def one(
        self, topic: str, payload: bytes | str, fields: bytes, times: tuple[int, int], within: float | None = None
    ) -> Coroutine[Any, Any, Position]:
        """Send a message, and wait until it is as safe as its stream promises, for so many seconds at most; its place."""
        core = self._core
        connection = core.connection
        started: PendingPublish | Coroutine[Any, Any, PendingPublish]
        if connection is None or self._full(connection):
            if within is None:
                return self._one_later(topic, payload, fields, times)
            started = self._begin_later(topic, payload, fields, times)
        else:
            started = self._begin_one(connection, topic, payload, fields, times)
            if within is None:
                return started
        return self._one_within(started, topic, core.loop.time() + within, within)

    async def _one_within(
        self,
        started: "PendingPublish | Coroutine[Any, Any, PendingPublish]",
        topic: str,
        deadline: float,
        within: float,
    ) -> Position:
        """The place of a message that was sent, or will be when it can; raises Timeout at the deadline."""
        placing: PendingPublish | None = None
        try:
            async with asyncio.timeout_at(deadline):
                placing = started if isinstance(started, PendingPublish) else await started
                return await placing
        except TimeoutError:
            state = _UNSENT if placing is None else _UNKNOWN
            raise Timeout(f"the message on {topic!r} was not acknowledged within {within:g} s: {state}") from None

    def begin(self, tellings: ReportedBatch, row: Row) -> bool:
        """Send a message if that can be done at once, of which those are told; False: nothing is sent."""
        core = self._core
        connection = core.connection
        if connection is None or self._full(connection):
            return False
        now = environment.time_ns()
        payload = row[1]
        number = core.session.send(PUBLISH, row[0], payload, flags=DURABLE, fields=row[2], time=now)
        telling = tellings.last
        if number != telling.end or not telling.left or now - telling.time > _TELLING or telling.size > _CHUNK * _EACH:
            telling = tellings.make(number, now)
            self._sent.append(telling)
        size = len(payload) + _EACH
        telling.rows.append(row)
        telling.end += 1
        telling.left += 1
        telling.size += size
        self._bytes += size
        return True

    async def begin_each(self, messages: Sequence[Alone], start: int = 0) -> tuple[MixedBatch, int]:
        """Send some of these, from one on, without waiting until they are stored; what is under way, and where to go on.

        One that can't be sent raises when it is the first.
        """
        part = messages[start : start + _CHUNK]
        connection = await self._ready(sum(len(one.payload) for one in part) + _EACH * len(part))
        now, send, first, count = environment.time_ns(), self._core.session.send, 0, 0
        for topic, payload, fields, sent in part:
            try:
                number = send(PUBLISH, topic, payload, flags=DURABLE, fields=fields, time=sent or now)
            except BusError:
                if not count:
                    raise
                break
            first = first or number
            count += 1
        part = part[:count]
        size = sum(len(one.payload) for one in part) + _EACH * count
        mixed = MixedBatch(first, part, now, size, self._core.loop.create_future())
        self._add(mixed, connection)
        return mixed, start + count

    async def begin_many(
        self, topic: str, payloads: Sequence[bytes | str], fields: bytes
    ) -> "list[asyncio.Future[Placed]]":
        """Send these one after the other without waiting until they are stored; their answers."""
        answers: list[asyncio.Future[Placed]] = []
        for begin in range(0, len(payloads), _CHUNK):
            part, done = payloads[begin : begin + _CHUNK], 0
            while done < len(part):
                answer, done = await self._begin_many(topic, part, done, fields, (0, 0))
                if answer is not None:
                    answers.append(answer)
        return answers

    async def _one_later(self, topic: str, payload: bytes | str, fields: bytes, times: tuple[int, int]) -> Position:
        return await (await self._begin_later(topic, payload, fields, times))

    async def _begin_later(
        self, topic: str, payload: bytes | str, fields: bytes, times: tuple[int, int]
    ) -> PendingPublish:
        connection = await self._ready(len(payload) + _EACH)
        return self._begin_one(connection, topic, payload, fields, times)

    def _begin_one(
        self,
        connection: Connection,
        topic: str,
        payload: bytes | str,
        fields: bytes,
        times: tuple[int, int],
    ) -> PendingPublish:
        core = self._core
        now = environment.time_ns()
        number = core.session.send(PUBLISH, topic, payload, flags=DURABLE, fields=fields, time=now, times=times)
        self._ones[number] = placing = PendingPublish(core.loop.create_future(), topic, payload, fields, times, now)
        self._bytes += len(payload) + _EACH
        connection.frame_encoded(alone=len(self._ones) == 1)
        return placing

    async def many(
        self,
        topic: str,
        payloads: Iterable[object],
        fields: bytes,
        times: tuple[int, int] = (0, 0),
        within: float | None = None,
    ) -> Placed:
        """Send these one after the other, and wait until they are stored, for so many seconds at most; their places."""
        placed = Placed()
        answers: deque[asyncio.Future[Placed]] = deque()
        items, sent = list(payloads), 0
        try:
            async with asyncio.timeout(within):
                for full, part in _parts(topic, items):
                    done = 0
                    while done < len(part):
                        before = done
                        answer, done = await self._begin_many(full, part, done, fields, times)
                        sent += done - before
                        if answer is not None:
                            answers.append(answer)
                        while answers and answers[0].done():
                            placed.extend(answers.popleft().result())
                while answers:
                    placed.extend(await asyncio.shield(answers[0]))
                    answers.popleft()
        except TimeoutError:
            stored, unsent = len(placed), len(items) - sent
            counts = [(stored, "stored"), (sent - stored, _UNKNOWN), (unsent, _UNSENT)]
            told = "; ".join(f"{count} {state}" for count, state in counts if count)
            raise Timeout(
                f"{sent - stored + unsent} of {len(items)} messages on {topic!r} were not acknowledged within {within:g} s: {told}"
            ) from None
        return placed

    async def _begin_many(
        self, topic: str, payloads: Sequence[bytes | str], start: int, fields: bytes, times: tuple[int, int]
    ) -> "tuple[asyncio.Future[Placed] | None, int]":
        """Send as many as can be sent now; their answer, and where to go on."""
        core = self._core
        connection = await self._ready(_size(payloads) if start == 0 else 0)
        now = environment.time_ns()
        end, first = core.session.publish_many(topic, payloads, start, fields, DURABLE, times)
        if end == start:
            connection.flush()
            if not (connection.paused or connection.stopped):
                await asyncio.sleep(0)
            return None, end
        part = payloads[start:end] if end - start < len(payloads) else payloads
        sent = SentBatch(first, topic, part, fields, times, now, _size(part), core.loop.create_future())
        self._add(sent, connection)
        return sent.answer, end

    def _add(self, sent: Underway, connection: Connection) -> None:
        self._sent.append(sent)
        self._bytes += sent.size
        if len(self._sent) == 1:
            connection.flush()  # alone: nothing is gained by waiting for the end of the turn

    def _full(self, connection: Connection) -> bool:
        """Whether who wants to send has to wait."""
        waits = self._queued or self._bytes > _UNSTORED
        return bool(waits or connection.paused or connection.stopped or not self._core.open)

    async def _ready(self, size: int) -> Connection:
        """Wait until so many bytes more may wait to be stored, and there is a connection that takes something.

        Who came first goes first: what is sent next is in the order of the calls.
        """
        core = self._core
        self._queued += 1
        try:
            async with self._line:
                while self._bytes and self._bytes + size > _UNSTORED:
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

    def stored(self, number: int, count: int, where: tuple[str, str], offset: int, sequence: int) -> None:
        """The broker has stored so many, from this number on."""
        ones, end = self._ones, number + count
        while number < end:
            if (placing := ones.pop(number, None)) is not None:
                self._bytes -= len(placing.payload) + _EACH
                if not placing.answer.done():
                    placing.answer.set_result(position_at(where, offset, sequence))
                some = 1
            elif (sent := self._find(number)) is not None:
                some, new = sent.mark(number, end - number, position_at(where, offset, sequence))
                if new:
                    self._settle(sent, new)
                if not sent.left:
                    sent.finish()
            else:  # one that was sent again may be answered twice
                some = 1
            number, offset, sequence = number + some, offset + some, sequence + some
        self._make_room()

    def refused(self, number: int, code: int, text: str) -> bool:
        """The broker could not store one; whether it was one of these."""
        if not code:
            return False
        if number in self._ones:
            self._refuse_one(number, from_code(code, text))
        elif (sent := self._find(number)) is not None:
            self._refuse(sent, number, from_code(code, text))
        else:
            return False
        self._make_room()
        return True

    def _refuse_one(self, number: int, error: BusError) -> None:
        placing = self._ones.pop(number)
        self._bytes -= len(placing.payload) + _EACH
        self._tell(placing.answer, placing.topic, error)

    def _refuse(self, sent: Underway, number: int, error: BusError) -> None:
        topic = sent.topic_of(number)
        if not isinstance(sent, ReportedPublish):
            self._tell(sent.answer, topic, error)
        elif sent.refuse(number, error):
            self._core.events.emit(Event(kind="rejected", topic=topic, error=error))
        else:
            return
        self._settle(sent, 1)

    def _tell(self, answer: "asyncio.Future[Any]", topic: str, error: BusError) -> None:
        if not answer.done():
            answer.set_exception(error)
            answer.exception()  # the event tells it if nobody waits
        self._core.events.emit(Event(kind="rejected", topic=topic, error=error))

    def disconnected(self, broker: str) -> None:
        """The connection to this broker is over."""
        numbers = self._numbers()
        self._tried = {guid: last for guid, last in self._tried.items() if numbers and last >= numbers[0]}
        if numbers and broker:
            self._tried[broker] = numbers[-1]

    async def restore(self, patience: float) -> None:
        """There is a new connection: send everything again that was not answered and is not stored elsewhere, in the order it was sent.

        `patience`: seconds in which it has to be known what is stored elsewhere.
        """
        await self._ask(patience)
        many = {sent.first: sent for sent in self._sent}
        for number in sorted([*self._ones, *many]):
            if (placing := self._ones.get(number)) is not None:
                one = Again(number, placing.topic, placing.payload, placing.fields, placing.times, placing.sent)
                self._send_again([one])
            else:
                self._send_again(list(many[number].again()))
        self._make_room()

    async def _ask(self, patience: float) -> None:
        """Whether another broker has stored some of these. This one knows by itself what it has."""
        others = {guid: last for guid, last in self._tried.items() if guid != self._core.broker}
        numbers = [number for number in self._numbers() if number <= max(others.values(), default=0)]
        unknown: set[str] = set()
        doubtful = 0
        for begin in range(0, len(numbers), MOST):
            part = numbers[begin : begin + MOST]
            had = {guid for guid, last in others.items() if last >= part[0]}
            unsure: list[str] = []
            if asked := sorted(had - unknown):
                answer = await ask(self._core, asked, part, patience)
                unknown.update(answer.unknown)
                unsure = answer.unsure
                for one in answer.stored:
                    self.stored(one.number, one.many, (one.broker, one.stream), one.offset, one.sequence)
            if unsure or had & unknown:
                doubtful += len({*part} & {*self._numbers()})
        if doubtful:
            those = "1 message is" if doubtful == 1 else f"{doubtful} messages are"
            log.warning("%s sent again, which another broker may have stored", those)
            self._core.events.emit(Event(kind="doubtful", count=doubtful))

    def _numbers(self) -> list[int]:
        """Of those that were not answered."""
        return sorted([*self._ones, *(again.number for sent in self._sent for again in sent.again())])

    def _send_again(self, messages: list[Again]) -> None:
        send = self._core.session.send
        for number, topic, payload, fields, times, sent in messages:
            try:
                send(PUBLISH, topic, payload, flags=DURABLE, fields=fields, number=number, time=sent, times=times)
            except BusError as error:  # another server may have other limits
                if number in self._ones:
                    self._refuse_one(number, error)
                elif (many := self._find(number)) is not None:
                    self._refuse(many, number, error)

    def end(self, error: BusError) -> None:
        """There will be no further connection."""
        answers: list[asyncio.Future[Any] | ReportedPublish] = [one.answer for one in self._ones.values()]
        answers += [sent.answer for sent in self._sent]
        self._ones, self._sent = {}, deque()
        for answer in answers:
            if not answer.done():
                answer.set_exception(copy(error))
                answer.exception()
        while self._room:
            if not (future := self._room.popleft()).done():
                future.set_exception(copy(error))

    def _find(self, number: int) -> Underway | None:
        if self._sent and self._sent[0].first <= number < self._sent[0].end:
            return self._sent[0]
        at = bisect_right(self._sent, number, key=lambda one: one.first) - 1
        found = self._sent[at] if at >= 0 else None
        return found if found is not None and number < found.end else None

    def _settle(self, sent: Underway, count: int) -> None:
        sent.left -= count
        if sent.left:
            return
        if self._sent and self._sent[0] is sent:
            self._sent.popleft()
        else:
            self._sent.remove(sent)
        self._bytes -= sent.size

    def _make_room(self) -> None:
        while self._room and self._bytes < _UNSTORED:
            if not (future := self._room.popleft()).done():
                future.set_result(None)


def _size(payloads: Sequence[bytes | str]) -> int:
    return sum(map(len, payloads)) + _EACH * len(payloads)


def _parts(topic: str, items: list[Any]) -> Iterator[tuple[str, Sequence[bytes | str]]]:
    """What may be sent in one go: on one topic (values of protocols bring theirs), and not too many."""
    if all(type(one) is bytes or type(one) is str for one in items):
        encoded = [(topic, items)]
    else:
        pairs = [outgoing(topic, one) for one in items]
        encoded = [(full, [data for _, data in some]) for full, some in groupby(pairs, itemgetter(0))]
    for full, data in encoded:
        for begin in range(0, len(data), _CHUNK):
            yield full, data[begin : begin + _CHUNK]


def times_of(expires: Lasting | datetime | None, delay: Lasting | None, deliver_at: datetime | None) -> tuple[int, int]:
    """When a message expires and when it is due, in nanoseconds since 1970; 0: never, at once."""
    now = environment.time_ns()
    if delay is not None and deliver_at is not None:
        raise ValueError("give delay or deliver_at, not both")
    due = 0
    if delay:
        due = now + _nanoseconds("delay", delay)
    elif deliver_at is not None:
        due = _moment("deliver_at", deliver_at)
    if expires is None:
        return 0, due
    return (
        _moment("expires", expires) if isinstance(expires, datetime) else now + _nanoseconds("expires", expires)
    ), due


def _nanoseconds(name: str, value: Lasting) -> int:
    length = seconds(name, value)
    if length > _LONGEST:
        raise ValueError(f"{name} must be less than a hundred years, but is {value!r}")
    return int(length * 1e9)


def _moment(name: str, value: Any) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"{name} must be a datetime with a time zone, but is {value!r}")
    return moment(name, value)
