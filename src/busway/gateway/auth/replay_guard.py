"""Replay guard: remembers the requests of one key within a time window, and detects repeated ones. A machine.

`keys.py` asks it for each request of a key with a window. Its memory is bounded: when it is full, the window becomes
shorter, so that a request that it has forgotten is refused as late.
"""

import heapq
from math import inf
from typing import Final, Literal, TypeAlias

MOST: Final = 100_000
"""Remembered requests per key."""

Verdict: TypeAlias = Literal["new", "late", "again"]


class ReplayGuard:
    """The requests of one key within its window."""

    def __init__(self, window: float, *, most: int = MOST) -> None:
        self.window = window
        self.most = most
        self._seen: set[bytes] = set()
        self._times: list[tuple[float, bytes]] = []
        self._floor = -inf  # newest timestamp of the forgotten requests

    def __len__(self) -> int:
        return len(self._seen)

    def look(self, mark: bytes, timestamp: float, now: float) -> Verdict:
        """Whether a request is new, which it then remembers. The request has signed its mark and its timestamp."""
        while self._times and self._times[0][0] < now - self.window:
            self._forget()
        # A forgotten request stays refused if the clock is set back.
        if not abs(now - timestamp) <= self.window or timestamp <= self._floor:
            return "again" if mark in self._seen else "late"
        if mark in self._seen:
            return "again"
        self._seen.add(mark)
        heapq.heappush(self._times, (timestamp, mark))
        if len(self._seen) > self.most:
            self._forget()
        return "new"

    def _forget(self) -> None:
        timestamp, mark = heapq.heappop(self._times)
        self._seen.discard(mark)
        self._floor = max(self._floor, timestamp)
