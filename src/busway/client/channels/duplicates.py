"""Duplicates after a reconnect: drops redelivered messages that this consumer had acknowledged before.

A machine without I/O, used by Channel. Searching the inbox at each acknowledgement would cost as much as the inbox is
long. So it records each acknowledged place with the number of messages that had arrived by then, and checks each
message against these records when a consumer is about to get it.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from copy import copy

from busway._core import Message


class Duplicates:
    """Places of acknowledged messages whose duplicates may be in the inbox."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, int], int] = {}
        """By broker and offset: how many messages had arrived when this one was acknowledged."""
        self._order: deque[tuple[int, tuple[str, int]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._until)

    def __len__(self) -> int:
        return len(self._until)

    def add(self, broker: str, offsets: Iterable[int], arrived: int) -> None:
        """Record acknowledged messages. Only the first `arrived` messages can be duplicates of them."""
        for offset in offsets:
            self._until[broker, offset] = arrived
            self._order.append((arrived, (broker, offset)))

    def contains(self, message: Message, number: int) -> bool:
        """Whether a message, the `number`th to arrive from 0, is a duplicate. Callers ask in the order of arrival."""
        order, until = self._order, self._until
        while order and order[0][0] <= number:
            arrived, place = order.popleft()
            if until.get(place) == arrived:
                del until[place]
        return until.get((message.broker or "", message.offset or 0), -1) > number

    def iterate(self, batch: list[Message], number: int) -> Iterator[Message]:
        """Iterate over a batch without its duplicates. Its first message was the `number`th to arrive."""
        return WithoutDuplicates(batch, number, self)

    def remaining(self, batch: list[Message], number: int) -> list[Message]:
        """A batch without its duplicates. Its first message was the `number`th to arrive."""
        return list(WithoutDuplicates(batch, number, self)) if self else batch

    def clear(self) -> None:
        """Forget all records."""
        self._until.clear()
        self._order.clear()


class WithoutDuplicates(Iterator[Message]):
    """Iterates over a batch and skips messages that are duplicates by the time they are requested."""

    def __init__(self, batch: list[Message], number: int, duplicates: Duplicates) -> None:
        self._batch = iter(batch)
        self._left = len(batch)
        self._number = number
        """The number of the next message by order of arrival."""
        self._duplicates = duplicates

    def __next__(self) -> Message:
        for message in self._batch:
            self._left -= 1
            self._number += 1
            if not self._duplicates or not self._duplicates.contains(message, self._number - 1):
                return message
        raise StopIteration

    def __length_hint__(self) -> int:
        return self._left

    def __copy__(self) -> Iterator[Message]:
        """The rest of the batch with its duplicates."""
        return copy(self._batch)
