"""The compaction of a progress log: when to write snapshots of all channels, and which records they replace.

This is a machine, used by `progress_log`. A compaction begins when the log has grown enough. It writes the snapshots in
steps, so that the broker can do other work in between. When all are written, the log needs no record from before the
compaction.
"""

from collections.abc import Iterable
from typing import Final

from busway.settings import MiB

WORTH: Final = 2 * MiB
"""The least bytes of entries between two compactions."""
TIMES: Final = 2
"""The bytes of entries between two compactions, as a multiple of the snapshots' size."""
_CHANNEL: Final = 200
"""About the bytes of a channel's snapshot."""
_STEP: Final = 100
"""Channels in one step."""


class Compaction:
    """The compaction of one log."""

    def __init__(self, worth: int = WORTH) -> None:
        self._worth = worth
        self._left = worth
        """Bytes of entries until the next compaction."""
        self._names: list[str] = []
        """Channels whose snapshots are not written yet."""
        self._begin: int | None = None
        """The offset at which the compaction began; None: there is none."""
        self._end: int | None = None
        """The offset behind the last snapshot; None: some are not written yet."""
        self._size = 0
        """The bytes of the snapshots of this compaction."""

    @property
    def due(self) -> bool:
        return self._left <= 0 and self._begin is None

    def resume(self, size: int, channels: int) -> None:
        """Go on with a log that has so many bytes and channels."""
        live = channels * _CHANNEL
        self._left = live + max(self._worth, TIMES * live) - size

    def wrote(self, size: int) -> None:
        """Count the bytes of a record."""
        self._left -= size

    def begin(self, names: Iterable[str], offset: int) -> None:
        """Begin a compaction of a log that ends at this offset."""
        self._names = list(names)[::-1]
        self._begin, self._end, self._size = offset, None, 0

    def take(self) -> list[str] | None:
        """The channels whose snapshots are written next; None: there is no compaction, or it has written all."""
        if self._begin is None or self._end is not None:
            return None
        names, self._names = self._names[: -_STEP - 1 : -1], self._names[:-_STEP]
        return names

    def stepped(self, size: int, end: int) -> bool:
        """The snapshots of a step were appended: their size, and the offset behind them. Returns whether more follow."""
        self._size += size
        if self._names:
            return True
        self._end = end
        self._left = max(self._worth, TIMES * self._size)
        return False

    def safe(self, upto: int) -> int | None:
        """Records below this offset are safe. Returns the first offset that the log needs, once this has changed."""
        if self._begin is None or self._end is None or upto < self._end:
            return None
        begin, self._begin, self._end = self._begin, None, None
        return begin

    def fail(self) -> None:
        """A snapshot could not be written. Another compaction begins later."""
        if self._begin is not None:
            self._names, self._begin, self._end = [], None, None
            self._left = self._worth
