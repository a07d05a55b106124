"""Durable publishes in flight: messages under consecutive numbers, and which of them the broker has answered.

Values and bookkeeping only. The durable publisher sends the messages, and sends the unanswered ones again. A report
passes the results to the callers.
"""

import asyncio
from typing import Any, Final, Protocol, TypeAlias

from busway.errors import BusError
from busway.positions import Placed, Position

Row: TypeAlias = tuple[Any, ...]
"""A message: topic, payload, encoded fields, times of expiry and delivery, time of sending; then objects of the caller."""

NO_TIMES: Final = (0, 0)
MOST: Final = 1024
"""Most messages of a batch."""


_ANSWERED: Final = [None]
"""Takes the place of a stored message: the garbage collector would have to visit all that a large batch refers to."""


class Report(Protocol):
    """Gets the result of each message of a batch, once."""

    def stored(self, batch: "InFlight", begin: int, end: int, position: Position) -> None:
        """The messages with these indexes are stored at consecutive positions; `position` is that of the first."""

    def refused(self, batch: "InFlight", index: int, error: BusError) -> None:
        """The message with this index is not stored."""


class InFlight:
    """Messages that were sent under consecutive numbers. It may grow while it is the last one.

    `common` is what all messages have in common; then `items` are their payloads. Without it `items` are rows.
    """

    __slots__ = ("_answered", "common", "first", "items", "left", "report", "size")

    def __init__(self, first: int, report: Report, items: list[Any], size: int, common: Row | None = None) -> None:
        self.first = first
        self.report = report
        self.items = items
        self.size = size
        """Bytes that it counts for."""
        self.common = common
        self.left = len(items)
        """Messages that were not answered."""
        self._answered = bytearray(MOST)

    @property
    def end(self) -> int:
        """The number after the last one."""
        return self.first + len(self.items)

    def stored(self, number: int, count: int, position: Position) -> int:
        """Record and report that `count` messages from a number on are stored, as far as they are in this batch.

        Returns how many of them are in this batch. A message that was sent again may be answered twice.
        """
        begin, answered = number - self.first, self._answered
        if count == 1:
            if not answered[begin]:
                answered[begin] = 1
                self.left -= 1
                self.report.stored(self, begin, begin + 1, position)
                self.items[begin] = None
            return 1
        end = min(begin + count, len(self.items))
        new = answered.count(0, begin, end)
        known = answered[begin:end] if new < end - begin else None
        answered[begin:end] = b"\1" * (end - begin)
        self.left -= new
        if known is None:
            self.report.stored(self, begin, end, position)
        else:
            for index in range(end - begin):
                if not known[index]:
                    self.report.stored(self, begin + index, begin + index + 1, position.after(index))
        self.items[begin:end] = _ANSWERED * (end - begin)
        return end - begin

    def refused(self, number: int, error: BusError) -> bool:
        """Record and report that a message is not stored. Returns whether that is new."""
        index = number - self.first
        if self._answered[index]:
            return False
        self._answered[index] = 1
        self.left -= 1
        self.report.refused(self, index, error)
        return True

    def unanswered(self) -> list[int]:
        """The numbers of the messages that were not answered."""
        answered = self._answered
        return [self.first + index for index in range(len(self.items)) if not answered[index]]

    def row(self, number: int) -> Row:
        """The message with this number."""
        item = self.items[number - self.first]
        return item if self.common is None else (self.common[0], item, *self.common[2:])


class SingleReport:
    """Passes the result of each message to the future that its row holds."""

    def stored(self, batch: InFlight, begin: int, end: int, position: Position) -> None:
        for index in range(begin, end):
            answer = batch.items[index][5]
            if not answer.done():
                answer.set_result(position.after(index - begin) if index > begin else position)

    def refused(self, batch: InFlight, index: int, error: BusError) -> None:
        fail(batch.items[index][5], error)


class BatchReport:
    """Passes the result of a whole batch to one future: the first error, or when all messages are stored, `Placed`.

    That has their positions only if `positions` are wanted.
    """

    def __init__(self, answer: "asyncio.Future[Placed]", *, positions: bool) -> None:
        self.answer = answer
        self.failed = 0
        """Index of the message that was refused first."""
        self._positions = positions
        self._stored: list[tuple[int, Position, int]] = []

    def stored(self, batch: InFlight, begin: int, end: int, position: Position) -> None:
        if self._positions:
            self._stored.append((begin, position, end - begin))
        if not batch.left and not self.answer.done():
            placed = Placed()
            for _, first, count in sorted(self._stored):
                placed.add(first, count)
            self.answer.set_result(placed)

    def refused(self, batch: InFlight, index: int, error: BusError) -> None:  # noqa: ARG002, as in Report
        if not self.answer.done():
            self.failed = index
        fail(self.answer, error)


def fail(answer: "asyncio.Future[Any]", error: BusError) -> None:
    """End a future with an error, which needs no caller that awaits it: an event reports the error, too."""
    if not answer.done():
        answer.set_exception(error)
        answer.exception()
