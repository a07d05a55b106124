"""Which generation of a publisher was here last, so that an older one which comes back late stays outside.

A machine. Only clients with an identity have generations. Bounded: the ones that came longest ago are forgotten first.
"""

from typing import Final

_MOST: Final = 65_536


class Fences:
    """The highest generation that each session came with, since the broker started."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: dict[int, int] = {}

    def passes(self, session: int, generation: int) -> bool:
        """Whether no higher generation was here."""
        return generation >= self._known.get(session, 0)

    def enter(self, session: int, generation: int) -> bool:
        """This one was let in; whether one of its session was here before."""
        seen = self._known.pop(session, None) is not None
        self._known[session] = generation
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return seen
