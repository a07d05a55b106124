"""A heap of deadlines, for machines without a clock.

Items that are over are skipped. A deadline that was moved to a later time is found when the old one comes, so moving
costs nothing.
"""

import heapq
from itertools import count
from math import inf
from typing import Generic, Protocol, TypeVar


class Due(Protocol):
    """An item with a deadline."""

    deadline: float
    over: bool


D = TypeVar("D", bound=Due)


class Deadlines(Generic[D]):
    """Items in the order of their deadlines."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, D]] = []
        self._serial = count()

    def __len__(self) -> int:
        """The number of entries, with those of items that are over and not removed yet."""
        return len(self._heap)

    def __bool__(self) -> bool:
        return any(not item.over for _, _, item in self._heap)

    def add(self, item: D, live: int) -> None:
        """Add an item with its deadline. `live`: the number of items that are not over."""
        heapq.heappush(self._heap, (item.deadline, next(self._serial), item))
        # Most items end long before their deadline: without this, long limits would keep them all in memory.
        if len(self._heap) > 64 + 4 * live:
            self._heap = [alarm for alarm in self._heap if not alarm[2].over]
            heapq.heapify(self._heap)

    def due(self, now: float) -> D | None:
        """Remove and return the next item whose deadline has come."""
        while self._heap and self._heap[0][0] <= now:
            _, _, item = heapq.heappop(self._heap)
            if item.over or item.deadline == inf:
                continue
            if item.deadline <= now:
                return item
            heapq.heappush(self._heap, (item.deadline, next(self._serial), item))
        return None

    def first(self) -> float | None:
        """The earliest deadline, which may be one that was moved to a later time."""
        while self._heap and self._heap[0][2].over:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
