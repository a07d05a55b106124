"""The identity and length of a journal. A mirror with more entries shows that the journal was lost or truncated.

This is a machine, used by `journal`. A journal has a permanent name, and begins a new life each time it is opened. It
records how many entries each earlier life had when the next one began. A mirror that has seen more has entries that are
lost here.
"""

from typing import Final, Literal, TypeAlias

from busway.broker.channels.state.progress import Stamp
from busway.common import environment

_LIVES: Final = 32
"""The number of lives whose lengths are recorded."""

Loss: TypeAlias = Literal["", "lost", "behind"]
"""The part that a journal lacks: nothing, everything, or its end."""


class JournalIdentity:
    """Name, life and length of one journal. `new`: no earlier journal can have been in its place."""

    def __init__(self, *, new: bool) -> None:
        self._young = not new
        self._name = ""
        self._life = 0
        self._count = 0
        self._ends: dict[int, int] = {}

    # While the file is read.

    def found(self, stamp: Stamp | None) -> None:
        """Count a record of the file: a stamp, or None for an entry."""
        if stamp is None:
            self._count += 1
            return
        self._name, self._life, self._count = stamp.journal, stamp.life, stamp.count
        self._ends, self._young = dict(stamp.ends), stamp.young

    def begin(self, *, damaged: bool) -> None:
        """Begin a new life after the file was read. `damaged`: any life may lack entries."""
        if self._name:
            self._ends[self._life] = self._count
            self._ends = dict(sorted(self._ends.items())[-_LIVES:])
            if damaged:
                self._ends = dict.fromkeys(self._ends, 0)
        else:
            # It is new, of an earlier version, or has lost its beginning. A mirror that knows another name shows which.
            self._name, self._ends = f"{environment.randbits(64):016x}", {}
        self._life += 1
        self._count = 1  # the stamp counts: so a mirror that has seen a life has at least one record of it

    # While the file is written.

    def add(self, count: int) -> None:
        """Count more entries."""
        self._count += count

    def stamp(self) -> Stamp:
        """The stamp to write to the file; it gives the position of the entries behind it."""
        return Stamp(self._name, self._life, self._count, tuple(self._ends.items()), self._young)

    @property
    def place(self) -> Stamp:
        """The current position, for mirrors."""
        return Stamp(self._name, self._life, self._count)

    def lacks(self, known: Stamp) -> Loss:
        """The part of a mirror's entries, up to this stamp, that this journal lacks."""
        if known.journal != self._name:
            return "lost" if self._young else ""
        return "behind" if known.count > self._ends.get(known.life, known.count) else ""

    def mended(self, known: Stamp) -> None:
        """Record that the journal has been restored up to this stamp."""
        self._young = False
        if known.journal == self._name and known.life in self._ends:
            self._ends[known.life] = max(self._ends[known.life], known.count)
