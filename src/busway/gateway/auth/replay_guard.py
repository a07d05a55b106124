"""Which requests were here before: those of a time window are remembered, as many as there is room for.

A machine: the time is handed in. Where there is no more room the window becomes shorter, so that nothing that was forgotten
can be sent again.
"""

import heapq
from math import inf
from typing import Final, Literal, TypeAlias

MOST: Final = 100_000
"""Requests of one key that are remembered."""

Verdict: TypeAlias = Literal["new", "late", "again"]


class ReplayGuard:
    """The requests of one key that came within its window."""

    def __init__(self, window: float, *, most: int = MOST) -> None:
        self.window = window
        self.most = most
        self._seen: set[bytes] = set()
        self._times: list[tuple[float, bytes]] = []
        self._floor = -inf  # what was forgotten is not younger

    def __len__(self) -> int:
        return len(self._seen)

    def look(self, mark: bytes, timestamp: float, now: float) -> Verdict:
        """Whether the request with this mark and timestamp, both of which it signed, is new. It is then remembered."""
        while self._times and self._times[0][0] < now - self.window:
            self._forget()
        # Of what fell out of the window by the clock, nothing comes back in when the clock is set back.
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
