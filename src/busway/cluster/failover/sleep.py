"""Detects that a node has slept: its process was stopped, or its host suspended.

`ownership` calls it every second with the loop's clock and with one that runs during sleep. After sleep, links may have
ended unnoticed. A link is trusted again when the other side answers a new PING.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

ASLEEP: Final = 3.0
"""Seconds between two looks, after which others may have gone on without this node. A shorter time is borne as a slow link is."""
FIRST: Final = 1 << 48
"""Tokens from here on are of links that are doubted."""


class SleepDetector:
    """Sleep detection of one node. `ping` sends a PING over a link."""

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
