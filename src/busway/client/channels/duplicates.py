"""What is done, and lies here once more: messages of a channel that were handed out again, over a lost connection, before they were acknowledged.

A machine. Nobody is to be given such a message. Looking for it among all that waits, at each acknowledgement, would cost as much as
waits; so it is noted what was done, and up to which arrival that can be here again, and each message is held against that when it is its turn.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from copy import copy

from busway._core import Message


class Duplicates:
    """Places of messages that are done, as long as they may turn up."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, int], int] = {}
        self._order: deque[tuple[int, tuple[str, int]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._until)

    def __len__(self) -> int:
        return len(self._until)

    def add(self, broker: str, offsets: Iterable[int], arrived: int) -> None:
        """These are done; of all that arrives in this channel only the first so many may be they. What comes later was handed out on purpose."""
        for offset in offsets:
            self._until[broker, offset] = arrived
            self._order.append((arrived, (broker, offset)))

    def is_one(self, message: Message, number: int) -> bool:
        """Whether the message that was the `number`th to arrive, from 0, is done. To be asked in that order."""
        order, until = self._order, self._until
        while order and order[0][0] <= number:
            arrived, place = order.popleft()
            if until.get(place) == arrived:
                del until[place]
        return until.get((message.broker or "", message.offset or 0), -1) > number

    def iterate(self, batch: list[Message], number: int) -> Iterator[Message]:
        """The messages of a batch without duplicates; its first message was the `number`th to arrive."""
        return WithoutDuplicates(batch, number, self)

    def remaining(self, batch: list[Message], number: int) -> list[Message]:
        """As iterate(), at once."""
        return list(WithoutDuplicates(batch, number, self)) if self else batch

    def clear(self) -> None:
        self._until.clear()
        self._order.clear()


class WithoutDuplicates(Iterator[Message]):
    """A batch without those that are done by the time they are asked for; the first of it was the `number`th to arrive."""

    def __init__(self, batch: list[Message], number: int, ghosts: Duplicates) -> None:
        self._batch = iter(batch)
        self._left = len(batch)
        self._number = number
        self._ghosts = ghosts

    def __next__(self) -> Message:
        for message in self._batch:
            self._left -= 1
            self._number += 1
            if not self._ghosts or not self._ghosts.is_one(message, self._number - 1):
                return message
        raise StopIteration

    def __length_hint__(self) -> int:
        return self._left

    def __copy__(self) -> Iterator[Message]:
        """What is left of the batch, done or not."""
        return copy(self._batch)
