"""When what is to be looked at again: a heap of deadlines, for machines without a clock.

What is over is passed by. A deadline that has moved on since is found when the old one comes, so moving one costs nothing.
"""

import heapq
from itertools import count
from math import inf
from typing import Generic, Protocol, TypeVar


class Due(Protocol):
    """Something with a time of its own."""

    deadline: float
    over: bool


D = TypeVar("D", bound=Due)


class Deadlines(Generic[D]):
    """Deadlines in their order."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, D]] = []
        self._serial = count()

    def __len__(self) -> int:
        """Those of what is over included, as long as they are there."""
        return len(self._heap)

    def __bool__(self) -> bool:
        return any(not item.over for _, _, item in self._heap)

    def add(self, item: D, live: int) -> None:
        """Look at it at its deadline. `live`: how many things there are at all."""
        heapq.heappush(self._heap, (item.deadline, next(self._serial), item))
        # Most end long before their time: without this a long limit would keep them all in memory.
        if len(self._heap) > 64 + 4 * live:
            self._heap = [alarm for alarm in self._heap if not alarm[2].over]
            heapq.heapify(self._heap)

    def due(self, now: float) -> D | None:
        """The next one whose time has come."""
        while self._heap and self._heap[0][0] <= now:
            _, _, item = heapq.heappop(self._heap)
            if item.over or item.deadline == inf:
                continue
            if item.deadline <= now:
                return item
            heapq.heappush(self._heap, (item.deadline, next(self._serial), item))
        return None

    def first(self) -> float | None:
        """When the next one is to be looked at."""
        while self._heap and self._heap[0][2].over:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
