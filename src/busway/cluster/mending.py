"""What a stream has lost in its midst, as after a power cut, and gets back from its mirror: which holes, in what order, and whether to trust it.

A machine. The end of a stream is another matter: that is copied, and this is put back where it was.
"""

from collections.abc import Iterable
from typing import Protocol

from busway.cluster.mirror_words import Have


class Holed(Protocol):
    """What is needed of a `_core.Log`."""

    def mend(self, block: bytes) -> int: ...


class Mending:
    """The holes of one stream that its mirror may have something of.

    If nothing else shows that the copy is one of this stream, the record before a hole has to be the same on both sides. Before the first
    record of a stream there is none.
    """

    def __init__(self, log: Holed, holes: Iterable[tuple[int, int]], *, trusted: bool) -> None:
        self._log = log
        self._holes = sorted(holes, reverse=True)
        self._trusted = trusted
        self.count = 0
        """Records that are back."""
        self.left = 0
        """Records that the mirror did not have, or that are none of this log."""

    def __bool__(self) -> bool:
        return bool(self._holes)

    @property
    def witness(self) -> int | None:
        """The offset of a record that has to be the same on both sides before anything is taken."""
        return None if self._trusted or not self._holes or self._holes[-1][0] == 0 else self._holes[-1][0] - 1

    @property
    def wanted(self) -> int:
        """The offset from which on records are wanted."""
        return self._holes[-1][0] if self.witness is None else self._holes[-1][0] - 1

    def trust(self) -> None:
        """The witness is the same."""
        self._trusted = True

    def heard(self, block: bytes) -> None:
        """What the mirror has from there on. What it lacks, or does not fit, stays a hole. Raises DataFailed if it can't be written now."""
        begin, end = self._holes[-1]
        count = self._log.mend(block) if block else 0
        self._holes.pop()
        self.count += count
        if not count:
            self.left += end - begin
        elif begin + count < end:
            self._holes.append((begin + count, end))


def shared(holes: Iterable[tuple[int, int]], copy: Have) -> list[tuple[int, int]]:
    """Those that begin with something that the copy may have."""
    return [
        (begin, end)
        for begin, end in holes
        if copy.first <= begin < copy.next and not any(low <= begin < high for low, high in copy.holes)
    ]
