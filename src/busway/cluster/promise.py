"""When an acknowledgement waits for the mirror of its stream, and when not. A machine, without a clock."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from busway.cluster.origin import Origin

_STEP: Final = 0.05
"""Seconds that are told apart when it is seen how long something waits."""


class Promise:
    """Whether the acknowledgements of a stream wait for its mirror: none longer than `wait`, and none while nobody can be waited for."""

    def __init__(self, wait: float, now: float, *, hopeful: bool) -> None:
        self._wait = wait
        self.kept = hopeful
        """Acknowledgements wait."""
        self._gone: float | None = now if hopeful else None
        self._open: deque[tuple[int, float]] = deque()
        """Ends of what was written, and since when."""

    def look(self, now: float, written: int, mirrored: int | None) -> bool:
        """How far the stream goes, and how far its mirror has it; None: there is none that copies. Whether `kept` has changed."""
        before = self.kept
        if mirrored is None:
            self._gone = now if self._gone is None else self._gone
        else:
            self._gone = None
            while self._open and self._open[0][0] <= mirrored:
                self._open.popleft()
            if not self.kept and mirrored >= written:
                self.kept = True
        last = self._open[-1] if self._open else None
        if written > (last[0] if last else -1 if mirrored is None else mirrored):
            if last is not None and now - last[1] < _STEP:
                self._open[-1] = written, last[1]
            else:
                self._open.append((written, now))
        if (due := self.deadline()) is not None and now >= due:
            self.kept = False
        if not self.kept:
            self._open.clear()
        return self.kept is not before

    def deadline(self) -> float | None:
        """When nobody is waited for any longer."""
        if not self.kept:
            return None
        since = [one for one in (self._gone, self._open[0][1] if self._open else None) if one is not None]
        return min(since) + self._wait if since else None


def furthest(origins: Iterable[Origin], name: str) -> int | None:
    """How far any mirror has a stream; None: none copies it."""
    found = [one.have for origin in origins if (one := origin.streams.get(name)) is not None and one.open]
    return max(found, default=None)
