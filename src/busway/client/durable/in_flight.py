"""Durable publishes in flight: batches that know which of their messages the broker has answered.

Values and bookkeeping only. The durable publisher sends the batches, and sends their unanswered messages again.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from busway.errors import BusError
from busway.positions import Placed, Position

Row: TypeAlias = tuple[Any, ...]
"""A message with a reported result: topic, payload, encoded fields, and any object of the caller."""
Stored: TypeAlias = Callable[[list[Row], Position], None]
"""Callback for messages that are stored at consecutive positions; it gets the position of the first."""
Refused: TypeAlias = Callable[[Row, BusError], None]
"""Callback for a message that is not stored."""


class Unanswered(NamedTuple):
    """A sent message that the broker has not answered, with all that is needed to send it again."""

    number: int
    topic: str
    payload: bytes | str
    fields: bytes
    times: tuple[int, int]
    time: int


class Single(NamedTuple):
    """A message with its own topic, fields and time; time 0: the time of sending."""

    topic: str
    payload: bytes | str
    fields: bytes = b""
    time: int = 0


@dataclass(slots=True, eq=False)
class SentBatch:
    """Messages of one topic that were sent under consecutive numbers."""

    first: int
    topic: str
    payloads: Sequence[bytes | str]
    fields: bytes
    times: tuple[int, int]
    time: int
    size: int
    answer: "asyncio.Future[Placed]" = field(repr=False)
    positions: list[tuple[int, Position, int]] = field(default_factory=list)
    """The broker's answers so far: number and position of the first message, and how many messages."""
    left: int = 0
    """Messages that were not answered."""

    def __post_init__(self) -> None:
        self.left = len(self.payloads)

    @property
    def end(self) -> int:
        """The number after the last one."""
        return self.first + len(self.payloads)

    def mark(self, number: int, count: int, position: Position) -> tuple[int, int]:
        """Record that `count` messages from a number on are stored, as far as they are in this batch.

        Returns how many messages of the answer are handled, and how many of them are new.
        """
        handled = 1 if self._is_answered(number, count) else min(count, self.end - number)
        if self._is_answered(number, handled):
            return handled, 0
        self.positions.append((number, position, handled))
        return handled, handled

    def finish(self) -> None:
        """Complete the answer: all messages are stored."""
        if not self.answer.done():
            placed = Placed()
            for _, first, count in sorted(self.positions):
                placed.add(first, count)
            self.answer.set_result(placed)

    def topic_of(self, number: int) -> str:  # noqa: ARG002, one signature for all
        return self.topic

    def unanswered(self) -> Iterator[Unanswered]:
        """The messages that were not answered."""
        done = {begin + more for begin, _, count in self.positions for more in range(count)}
        for number, payload in enumerate(self.payloads, self.first):
            if number not in done:
                yield Unanswered(number, self.topic, payload, self.fields, self.times, self.time)

    def _is_answered(self, number: int, count: int) -> bool:
        """Whether the position of any of these messages is known."""
        return any(first < number + count and number < first + many for first, _, many in self.positions)


@dataclass(slots=True, eq=False)
class MixedBatch:
    """Messages of any topics that were sent under consecutive numbers. Their positions are not recorded."""

    first: int
    messages: Sequence[Single]
    time: int
    size: int
    answer: "asyncio.Future[None]" = field(repr=False)
    left: int = 0
    refused: int = 0
    """Index of the refused message, if the answer is an error."""
    _stored: bytearray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.left = len(self.messages)
        self._stored = bytearray(len(self.messages))

    @property
    def end(self) -> int:
        return self.first + len(self.messages)

    def mark(self, number: int, count: int, position: Position) -> tuple[int, int]:  # noqa: ARG002, one signature
        """Record that `count` messages from a number on are stored, as far as they are in this batch.

        Returns how many messages of the answer are handled, and how many of them are new.
        """
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

    def unanswered(self) -> Iterator[Unanswered]:
        for index, (topic, payload, fields, time) in enumerate(self.messages):
            if not self._stored[index]:
                yield Unanswered(self.first + index, topic, payload, fields, (0, 0), time or self.time)


class ReportedPublish:
    """Messages that were sent under consecutive numbers, and whose results go to callbacks, once each.

    For programs that forward very many messages. It grows as long as no other message is sent in between.
    """

    __slots__ = ("_refused", "_stored", "end", "first", "left", "rows", "size", "time")

    def __init__(self, first: int, time: int, stored: Stored, refused: Refused) -> None:
        self.first = self.end = first
        self.rows: list[Row | None] = []
        """The messages; None for one whose result was reported."""
        self.time = time
        self.size = 0
        self.left = 0
        self._stored = stored
        self._refused = refused

    def mark(self, number: int, count: int, position: Position) -> tuple[int, int]:
        """Report that `count` messages from a number on are stored, as far as they are in this batch.

        Returns how many messages of the answer are handled, and how many of them are new.
        """
        begin = number - self.first
        end = min(begin + count, len(self.rows))
        rows = self.rows[begin:end]
        self.rows[begin:end] = _REPORTED * (end - begin)
        if None not in rows:
            self._stored(rows, position)  # type: ignore[arg-type]
            return end - begin, end - begin
        new = [(index, row) for index, row in enumerate(rows) if row is not None]
        for index, row in new:
            self._stored([row], position.after(index))
        return end - begin, len(new)

    def refuse(self, number: int, error: BusError) -> bool:
        """Report that a message is not stored. Returns whether that is new."""
        row, self.rows[number - self.first] = self.rows[number - self.first], None
        if row is None:
            return False
        self._refused(row, error)
        return True

    def topic_of(self, number: int) -> str:
        row = self.rows[number - self.first]
        return "" if row is None else str(row[0])

    def unanswered(self) -> Iterator[Unanswered]:
        for index, row in enumerate(self.rows):
            if row is not None:
                yield Unanswered(self.first + index, row[0], row[1], row[2], (0, 0), self.time)

    def finish(self) -> None:
        """Nothing is left to do: every message was reported."""

    # The methods of a future, for callers that treat all batches alike.

    @property
    def answer(self) -> "ReportedPublish":
        return self

    def done(self) -> bool:
        return not self.left

    def set_exception(self, error: BusError) -> None:
        """Report that no remaining message is stored."""
        for index in range(len(self.rows)):
            self.refuse(self.first + index, error)

    def exception(self) -> None:
        """There is no error to retrieve: the callbacks get it."""


class ReportedBatch:
    """The callbacks of a reported feed, and its batch that currently grows."""

    __slots__ = ("_refused", "_stored", "last")

    def __init__(self, stored: Stored, refused: Refused) -> None:
        self._stored = stored
        self._refused = refused
        self.last = self.make(0, 0)

    def make(self, number: int, time: int) -> ReportedPublish:
        """Start a new batch with this number."""
        self.last = ReportedPublish(number, time, self._stored, self._refused)
        return self.last


_REPORTED: Final = [None]
InFlight: TypeAlias = SentBatch | MixedBatch | ReportedPublish
