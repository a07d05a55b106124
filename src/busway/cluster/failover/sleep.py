"""A node that has slept, as a process that was stopped or a host that was suspended: it notices that, and doubts what it knew before.

A machine. It is looked at every second, by the clock of the loop and by one that also runs while the host sleeps. Who has slept believes in links that
may have ended long ago. What came over one of them is known to be all there is when the other side answers a PING that was sent since.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

ASLEEP: Final = 3.0
"""Seconds between two looks, after which others may have gone on without this node. A shorter time is borne as a slow link is."""
FIRST: Final = 1 << 48
"""Tokens from here on are of links that are doubted."""


class SleepDetector:
    """Whether one node is awake, with a function that says PING to a link."""

    def __init__(self, ping: Callable[[int, int], None]) -> None:
        self._ping = ping
        self._tokens = count(FIRST)
        self._token = FIRST - 1
        self._seen: tuple[float, float] | None = None
        """By both clocks."""
        self._doubted: dict[int, float] = {}
        """Links that were open when it slept, and when it was awake last before."""

    def look(self, now: float, clock: float, links: Iterable[int]) -> bool:
        """Whether it has slept since it looked last; these links are open, as far as it knows."""
        before, self._seen = self._seen, (now, clock)
        if before is None or max(now - before[0], clock - before[1]) <= ASLEEP:
            return False
        self._token = next(self._tokens)
        for conn in links:
            self._doubted.setdefault(conn, before[0])
            self._ping(conn, self._token)
        return True

    def doubts(self, conn: int) -> bool:
        """Whether that link may have ended while this node slept."""
        return conn in self._doubted

    def pong(self, conn: int, token: int) -> bool:
        """The answer to a PING: if it was sent last, the link has lived all the time, and all that was said before is here. Whether that is news."""
        return token == self._token and self._doubted.pop(conn, None) is not None

    def closed(self, conn: int, now: float) -> float:
        """A link has ended: until when all that was said on the other side came here."""
        return self._doubted.pop(conn, now)
