"""Which journal one is, and how far it goes: so a mirror that follows it can be told from one that knows more, for the journal was lost, or lost its end.

A machine. A journal has a name for good, and a life from each time it is opened to the next. What a life is found to have come to when the
next one begins is remembered: whoever has heard more of it knows something that is lost here.
"""

from typing import Final, Literal, TypeAlias

from busway.broker.channels.state.progress import Stamp
from busway.common import environment

_LIVES: Final = 32
"""The lives of which the ends are remembered."""

Loss: TypeAlias = Literal["", "lost", "behind"]


class JournalIdentity:
    """Of one journal. `new`: there can't have been another one in its place."""

    def __init__(self, *, new: bool) -> None:
        self._young = not new
        self._name = ""
        self._life = 0
        self._count = 0
        self._ends: dict[int, int] = {}

    # While the file is read.

    def found(self, stamp: Stamp | None) -> None:
        """A stamp, or (None) an entry."""
        if stamp is None:
            self._count += 1
            return
        self._name, self._life, self._count = stamp.journal, stamp.life, stamp.count
        self._ends, self._young = dict(stamp.ends), stamp.young

    def begin(self, *, damaged: bool) -> None:
        """All of it is read: from now on it is another life. `damaged`: nobody knows what is missing in its midst, or of which life."""
        if self._name:
            self._ends[self._life] = self._count
            self._ends = dict(sorted(self._ends.items())[-_LIVES:])
            if damaged:
                self._ends = dict.fromkeys(self._ends, 0)
        else:
            # Without a name it is new, or an earlier version's, or its beginning is lost. Who has heard of another one in its place tells which.
            self._name, self._ends = f"{environment.randbits(64):016x}", {}
        self._life += 1
        self._count = 1  # its beginning: so who has heard of a life has heard more than nothing

    # Then.

    def add(self, count: int) -> None:
        """So many more entries."""
        self._count += count

    def stamp(self) -> Stamp:
        """For the file: so it is told where entries stand that follow."""
        return Stamp(self._name, self._life, self._count, tuple(self._ends.items()), self._young)

    @property
    def place(self) -> Stamp:
        """For whoever follows."""
        return Stamp(self._name, self._life, self._count)

    def lacks(self, known: Stamp) -> Loss:
        """What this journal is for who has heard of it as far as that: lost, behind, or neither, so that it counts."""
        if known.journal != self._name:
            return "lost" if self._young else ""
        return "behind" if known.count > self._ends.get(known.life, known.count) else ""

    def mended(self, known: Stamp) -> None:
        """What somebody knew up to there is in it now."""
        self._young = False
        if known.journal == self._name and known.life in self._ends:
            self._ends[known.life] = max(self._ends[known.life], known.count)
