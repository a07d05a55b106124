"""Durable publishes: kept here until the broker says where they are stored, and sent again after a lost connection.

They go out under numbers that stay theirs, so the broker knows one that it has stored already and answers with its first
place. Each call has exactly one outcome: places, or an error. Cancelling a call does not take back what was sent.
"""

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

from busway.client.core import Core
from busway.client.events import Event
from busway.client.sending import PUBLISH
from busway.client.typed import outgoing
from busway.errors import BusError, from_code
from busway.positions import Placed, Position
from busway.streams import seconds

DURABLE: Final = 0x04

Lasting: TypeAlias = float | str | timedelta
"""A length of time: seconds, text such as 90s or 7d, or a timedelta."""

_UNSTORED: Final = 32 << 20
"""Bytes that may wait to be stored before a publish waits too."""
_CHUNK: Final = 1024


@dataclass(slots=True, eq=False)
class _Sent:
    """Messages that were sent one after the other, under numbers that follow each other."""

    first: int
    topic: str
    payloads: Sequence[bytes | str]
    fields: bytes
    times: tuple[int, int]
    time: int
    size: int
    answer: "asyncio.Future[Placed]" = field(repr=False)
    places: list[tuple[int, Position, int]] = field(default_factory=list)
    """Number, place, how many: what the broker has said so far."""
    left: int = 0

    def __post_init__(self) -> None:
        self.left = len(self.payloads)

    def told(self, number: int, count: int) -> bool:
        """Whether the place of one of these is known."""
        return any(first < number + count and number < first + many for first, _, many in self.places)

    def placed(self) -> Placed:
        placed = Placed()
        for _, first, count in sorted(self.places):
            placed.add(first, count)
        return placed


class Unstored:
    """What one client has published durably and was not answered yet."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._sent: deque[_Sent] = deque()
        self._bytes = 0
        self._room: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return sum(one.left for one in self._sent)

    async def one(self, topic: str, payload: bytes | str, fields: bytes, times: tuple[int, int]) -> Position:
        """Send a message, and wait until it is as safe as its stream promises; its place."""
        return (await self._send(topic, (payload,), fields, times))[0]

    async def many(self, topic: str, payloads: Iterable[object], fields: bytes) -> Placed:
        """Send these one after the other; their places."""
        placed = Placed()
        answers: deque[asyncio.Future[Placed]] = deque()
        for full, part in _parts(topic, list(payloads)):
            answers.append(await self._begin(full, part, fields, (0, 0)))
            while answers and answers[0].done():
                placed.extend(answers.popleft().result())
        for answer in answers:
            placed.extend(await asyncio.shield(answer))
        return placed

    async def _send(self, topic: str, payloads: Sequence[bytes | str], fields: bytes, times: tuple[int, int]) -> Placed:
        return await asyncio.shield(await self._begin(topic, payloads, fields, times))

    async def _begin(
        self, topic: str, payloads: Sequence[bytes | str], fields: bytes, times: tuple[int, int]
    ) -> "asyncio.Future[Placed]":
        core = self._core
        size = sum(map(len, payloads))
        while self._bytes and self._bytes + size > _UNSTORED:
            await self._wait_for_room()
        connection = core.usable()
        while connection.paused or connection.stopped:
            await connection.room(publish=True)
            connection = core.usable()
        now = time.time_ns()
        send = core.session.send
        first = send(PUBLISH, topic, payloads[0], flags=DURABLE, fields=fields, time=now, times=times)
        sent = _Sent(first, topic, payloads, fields, times, now, size, core.loop.create_future())
        self._sent.append(sent)
        self._bytes += size
        for count, payload in enumerate(payloads[1:], 1):
            try:
                send(PUBLISH, topic, payload, flags=DURABLE, fields=fields, time=now, times=times)
            except BusError:
                # Those before it are on their way, and the numbers behind them are free for others.
                sent.payloads, sent.left = payloads[:count], count
                raise
        if len(self._sent) == 1:
            connection.flush()  # alone: nothing is gained by waiting for the end of the turn
        return sent.answer

    async def _wait_for_room(self) -> None:
        future = self._core.loop.create_future()
        self._room.append(future)
        await future

    def stored(self, number: int, count: int, place: Position) -> None:
        """The broker has stored so many, from this number on."""
        while count > 0:
            sent = self._find(number)
            if sent is None:
                number, count, place = number + 1, count - 1, _behind(place, 1)
                continue
            some = 1 if sent.told(number, count) else min(count, sent.first + len(sent.payloads) - number)
            if not sent.told(number, some):  # one that was sent again may be answered twice
                sent.places.append((number, place, some))
                self._settle(sent, some)
            if not sent.left and not sent.answer.done():
                sent.answer.set_result(sent.placed())
            number, count, place = number + some, count - some, _behind(place, some)

    def refused(self, number: int, code: int, text: str) -> bool:
        """The broker could not store one; whether it was one of these."""
        sent = self._find(number) if code else None
        if sent is None:
            return False
        self._refuse(sent, from_code(code, text))
        return True

    def _refuse(self, sent: _Sent, error: BusError) -> None:
        if not sent.answer.done():
            sent.answer.set_exception(error)
            sent.answer.exception()  # the event tells it if nobody waits
        self._core.events.tell(Event(kind="rejected", topic=sent.topic, error=error))
        self._settle(sent, 1)

    def restore(self) -> None:
        """There is a new connection: send everything again that was not answered."""
        send = self._core.session.send
        for sent in list(self._sent):
            done = {number + more for number, _, count in sent.places for more in range(count)}
            for number, payload in enumerate(sent.payloads, sent.first):
                if number in done:
                    continue
                try:
                    send(
                        PUBLISH,
                        sent.topic,
                        payload,
                        flags=DURABLE,
                        fields=sent.fields,
                        number=number,
                        time=sent.time,
                        times=sent.times,
                    )
                except BusError as error:  # another server may have other limits
                    self._refuse(sent, error)

    def end(self, error: BusError) -> None:
        """There will be no further connection."""
        sent, self._sent = self._sent, deque()
        for one in sent:
            if not one.answer.done():
                one.answer.set_exception(copy(error))
                one.answer.exception()
        while self._room:
            if not (future := self._room.popleft()).done():
                future.set_exception(copy(error))

    def _find(self, number: int) -> _Sent | None:
        if self._sent and self._sent[0].first <= number < self._sent[0].first + len(self._sent[0].payloads):
            return self._sent[0]
        at = bisect_right(self._sent, number, key=lambda one: one.first) - 1
        found = self._sent[at] if at >= 0 else None
        return found if found is not None and number < found.first + len(found.payloads) else None

    def _settle(self, sent: _Sent, count: int) -> None:
        sent.left -= count
        if sent.left:
            return
        if self._sent and self._sent[0] is sent:
            self._sent.popleft()
        else:
            self._sent.remove(sent)
        self._bytes -= sent.size
        while self._room and self._bytes < _UNSTORED:
            if not (future := self._room.popleft()).done():
                future.set_result(None)


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


def _behind(place: Position, count: int) -> Position:
    return place._replace(offset=place.offset + count, sequence=place.sequence + count)


def times_of(expires: Lasting | datetime | None, delay: Lasting | None, deliver_at: datetime | None) -> tuple[int, int]:
    """When a message expires and when it is due, in nanoseconds since 1970; 0: never, at once."""
    now = time.time_ns()
    if delay is not None and deliver_at is not None:
        raise ValueError("give delay or deliver_at, not both")
    due = 0
    if delay is not None:
        due = now + _nanoseconds("delay", delay)
    elif deliver_at is not None:
        due = _moment("deliver_at", deliver_at)
    if expires is None:
        return 0, due
    return (
        _moment("expires", expires) if isinstance(expires, datetime) else now + _nanoseconds("expires", expires)
    ), due


def _nanoseconds(name: str, value: Lasting) -> int:
    return int(seconds(name, value) * 1e9)


def _moment(name: str, value: Any) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"{name} must be a datetime with a time zone, but is {value!r}")
    return int(value.timestamp() * 1e9)
