"""Durable messages that are under way together: which of them the broker has answered, and how to send the rest again.

Values and books only; storing.py sends them.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from busway.positions import Placed, Position


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
class Sent:
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
class Mixed:
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


Underway: TypeAlias = Sent | Mixed
