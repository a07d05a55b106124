"""Durable messages that are under way together: which of them the broker has answered, and how to send the rest again.

Values and books only; storing.py sends them.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from busway.errors import BusError
from busway.positions import Placed, Position

Row: TypeAlias = tuple[Any, ...]
"""A message that somebody is told of: topic, payload, fields as they are on the wire, and what is his own."""
Stored: TypeAlias = Callable[[list[Row], Position], None]
"""Told of messages that are stored one after the other, and the place of the first."""
Refused: TypeAlias = Callable[[Row, BusError], None]


class Again(NamedTuple):
    """A message as it was sent, and is sent again."""

    number: int
    topic: str
    payload: bytes | str
    fields: bytes
    times: tuple[int, int]
    time: int


class Alone(NamedTuple):
    """A message with a topic, fields and a time of its own; time 0: when it is sent."""

    topic: str
    payload: bytes | str
    fields: bytes = b""
    time: int = 0


@dataclass(slots=True, eq=False)
class SentBatch:
    """Messages that were sent one after the other, under numbers that follow each other, on one topic."""

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

    @property
    def end(self) -> int:
        """Behind the last number."""
        return self.first + len(self.payloads)

    def mark(self, number: int, count: int, place: Position) -> tuple[int, int]:
        """So many are stored from a number on; how many of these that were, and how many were not told before."""
        some = 1 if self._told(number, count) else min(count, self.end - number)
        if self._told(number, some):
            return some, 0
        self.places.append((number, place, some))
        return some, some

    def finish(self) -> None:
        """All are stored."""
        if not self.answer.done():
            placed = Placed()
            for _, first, count in sorted(self.places):
                placed.add(first, count)
            self.answer.set_result(placed)

    def topic_of(self, number: int) -> str:  # noqa: ARG002, one signature for both
        return self.topic

    def again(self) -> Iterator[Again]:
        """Those that were not answered."""
        done = {begin + more for begin, _, count in self.places for more in range(count)}
        for number, payload in enumerate(self.payloads, self.first):
            if number not in done:
                yield Again(number, self.topic, payload, self.fields, self.times, self.time)

    def _told(self, number: int, count: int) -> bool:
        """Whether the place of one of these is known."""
        return any(first < number + count and number < first + many for first, _, many in self.places)


@dataclass(slots=True, eq=False)
class MixedBatch:
    """Messages of many topics under numbers that follow each other; nobody asks for their places."""

    first: int
    messages: Sequence[Alone]
    time: int
    size: int
    answer: "asyncio.Future[None]" = field(repr=False)
    left: int = 0
    refused: int = 0
    """Which of them was refused, if the answer is an error."""
    _stored: bytearray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.left = len(self.messages)
        self._stored = bytearray(len(self.messages))

    @property
    def end(self) -> int:
        return self.first + len(self.messages)

    def mark(self, number: int, count: int, place: Position) -> tuple[int, int]:  # noqa: ARG002, one signature for both
        begin = number - self.first
        end = min(begin + count, len(self.messages))
        new = self._stored.count(0, begin, end)
        self._stored[begin:end] = b"\1" * (end - begin)
        return end - begin, new

    def finish(self) -> None:
        if not self.answer.done():
            self.answer.set_result(None)

    def topic_of(self, number: int) -> str:
        if not self.answer.done():
            self.refused = number - self.first
        return self.messages[number - self.first].topic

    def again(self) -> Iterator[Again]:
        for at, one in enumerate(self.messages):
            if not self._stored[at]:
                yield Again(self.first + at, one.topic, one.payload, one.fields, (0, 0), one.time or self.time)


class ReportedPublish:
    """Messages under numbers that follow each other, of which nobody awaits an answer: what became of each is told once, at once.

    For programs that pass on very many: it grows while the next number is that behind its last one.
    """

    __slots__ = ("_refused", "_stored", "end", "first", "left", "rows", "size", "time")

    def __init__(self, first: int, time: int, stored: Stored, refused: Refused) -> None:
        self.first = self.end = first
        self.rows: list[Row | None] = []
        """None: it was told of."""
        self.time = time
        self.size = 0
        self.left = 0
        self._stored = stored
        self._refused = refused

    def mark(self, number: int, count: int, place: Position) -> tuple[int, int]:
        begin = number - self.first
        end = min(begin + count, len(self.rows))
        rows = self.rows[begin:end]
        self.rows[begin:end] = _NOBODY * (end - begin)
        if None not in rows:
            self._stored(rows, place)  # type: ignore[arg-type]
            return end - begin, end - begin
        some = [(at, row) for at, row in enumerate(rows) if row is not None]
        for at, row in some:
            self._stored([row], place.after(at))
        return end - begin, len(some)

    def refuse(self, number: int, error: BusError) -> bool:
        """One is not stored; whether that is new."""
        row, self.rows[number - self.first] = self.rows[number - self.first], None
        if row is None:
            return False
        self._refused(row, error)
        return True

    def topic_of(self, number: int) -> str:
        row = self.rows[number - self.first]
        return "" if row is None else str(row[0])

    def again(self) -> Iterator[Again]:
        for at, row in enumerate(self.rows):
            if row is not None:
                yield Again(self.first + at, row[0], row[1], row[2], (0, 0), self.time)

    def finish(self) -> None:
        """All are stored; it was told."""

    # What others have a future for.

    @property
    def answer(self) -> "ReportedPublish":
        return self

    def done(self) -> bool:
        return not self.left

    def set_exception(self, error: BusError) -> None:
        """All that are left are not stored."""
        for at in range(len(self.rows)):
            self.refuse(self.first + at, error)

    def exception(self) -> None:
        """As a future has it."""


class ReportedBatch:
    """Whom to tell, and the messages that grow at the moment."""

    __slots__ = ("_refused", "_stored", "last")

    def __init__(self, stored: Stored, refused: Refused) -> None:
        self._stored = stored
        self._refused = refused
        self.last = self.make(0, 0)

    def make(self, number: int, time: int) -> ReportedPublish:
        """Begin anew with this number."""
        self.last = ReportedPublish(number, time, self._stored, self._refused)
        return self.last


_NOBODY: Final = [None]
Underway: TypeAlias = SentBatch | MixedBatch | ReportedPublish
