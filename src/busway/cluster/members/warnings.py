"""How much people are told of troubles that others cause: each of them once a minute, and of strangers no more than a few.

A machine, part of the membership. Whoever reaches the port can come under as many names as it likes, so what is told of those who came and
showed no key is bounded altogether; how many were left out is counted and said.
"""

from typing import Final

from busway.cluster.members.actions import Kind, Notice
from busway.cluster.node import MOST_NODES

EVERY: Final = 60.0
"""Seconds in which the same is told once, and for which what is told of strangers counts."""
STRANGERS: Final = 10
"""Notices about strangers in that time."""
_REPEATED: Final = frozenset({"refused", "conflict"})
"""What goes on until somebody changes something."""
_SUMMARY: Final[dict[str, str]] = {
    "refused": "{} more that came in the last minute were refused",
    "conflict": "{} more that came in the last minute were in conflict",
}


class Warnings:
    """What was told by one node."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], float] = {}
        self._begun: float | None = None
        """When the first of the strangers came that count now."""
        self._count = 0
        self._left: dict[Kind, int] = {}
        """How many were left out since, by what would have been told."""

    @property
    def due(self) -> float | None:
        """When it is to be said how many were left out."""
        return self._begun + EVERY if self._begun is not None and self._left else None

    def worth(self, kind: Kind, guid: str, now: float, *, stranger: bool) -> bool:
        """Whether people are told this."""
        if kind not in _REPEATED:
            return True
        if now < self._told.get((kind, guid), float("-inf")) + EVERY:
            return False
        if stranger and not self._room(now):
            self._left[kind] = self._left.get(kind, 0) + 1
            return False
        if len(self._told) > MOST_NODES:
            self._told.clear()
        self._told[kind, guid] = now
        return True

    def left_out(self, now: float) -> list[Notice]:
        """What there is to say of those that were left out, when it is time."""
        if (due := self.due) is None or now < due:
            return []
        left, self._left, self._begun = self._left, {}, None
        return [Notice(kind, "", "", _SUMMARY[kind].format(times), times) for kind, times in left.items()]

    def _room(self, now: float) -> bool:
        if self._begun is None or (now >= self._begun + EVERY and not self._left):
            self._begun, self._count = now, 0
        self._count += 1
        return self._count <= STRANGERS
