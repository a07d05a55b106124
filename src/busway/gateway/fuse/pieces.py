"""A write that is longer than a request of the kernel, put together again. A machine.

The kernel cuts a write into pieces that end where so many pages are full, so a piece that is nearly a whole request long may be
followed by another, or be all. Each write begins at offset 0, its other pieces behind that.
"""

from typing import Final

from busway.gateway.fuse.wire import MOST, PAGE

FULL: Final = MOST - 16 * PAGE
"""A piece that is longer than this may be followed by another: what is written lies in some places of memory (writev), each of which
begins and ends within a page."""


class Pieces:
    """The pieces of one write, whose length may be known."""

    def __init__(self, total: int | None = None) -> None:
        self.total = total
        self._held = bytearray()

    def continues(self, offset: int, size: int) -> bool:
        """Whether a piece at this offset can be the next one."""
        return offset == len(self._held) and (self.total is None or offset + size <= self.total)

    def add(self, data: bytes) -> bool:
        """One more piece; whether it is the last one, for certain."""
        self._held += data
        if self.total is None:
            return len(data) <= FULL
        return len(self._held) >= self.total

    @property
    def size(self) -> int:
        return len(self._held)

    def whole(self) -> bytes:
        return bytes(self._held)
