"""Rate limit for warnings about other nodes: the same one once a minute, and only a few about strangers.

`membership` owns it and passes the time. Any host that reaches the port can claim any number of names, so the warnings
about nodes without a proof of the key are limited together. The number of suppressed ones is reported.
"""

from typing import Final

from busway.cluster.members.actions import Kind, Notice
from busway.cluster.node import MOST_NODES

EVERY: Final = 60.0
"""Seconds in which the same warning is reported once, and for which the limit for strangers holds."""
STRANGERS: Final = 10
"""Warnings about strangers in EVERY seconds."""
_REPEATED: Final = frozenset({"refused", "conflict"})
"""Kinds that repeat until an operator changes something."""
_SUMMARY: Final[dict[str, str]] = {
    "refused": "{} more connections were refused in the last minute",
    "conflict": "{} more connections were in conflict in the last minute",
}


class Warnings:
    """The warnings of one node."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], float] = {}
        self._period_start: float | None = None
        """When the current limit period for strangers began."""
        self._count = 0
        self._suppressed: dict[Kind, int] = {}
        """Suppressed warnings of this period, by kind."""

    @property
    def due(self) -> float | None:
        """When to report the number of suppressed warnings; None: there are none."""
        return self._period_start + EVERY if self._period_start is not None and self._suppressed else None

    def worth(self, kind: Kind, guid: str, now: float, *, stranger: bool) -> bool:
        """Whether to report this warning."""
        if kind not in _REPEATED:
            return True
        if now < self._reported.get((kind, guid), float("-inf")) + EVERY:
            return False
        if stranger and not self._allow_stranger(now):
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return False
        if len(self._reported) > MOST_NODES:
            self._reported.clear()
        self._reported[kind, guid] = now
        return True

    def left_out(self, now: float) -> list[Notice]:
        """Notices about suppressed warnings, when they are due."""
        if (due := self.due) is None or now < due:
            return []
        suppressed, self._suppressed, self._period_start = self._suppressed, {}, None
        return [Notice(kind, "", "", _SUMMARY[kind].format(times), times) for kind, times in suppressed.items()]

    def _allow_stranger(self, now: float) -> bool:
        if self._period_start is None or (now >= self._period_start + EVERY and not self._suppressed):
            self._period_start, self._count = now, 0
        self._count += 1
        return self._count <= STRANGERS
