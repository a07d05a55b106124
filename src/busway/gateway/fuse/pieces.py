"""A write that is longer than a request of the kernel, put together again. A machine.

The kernel cuts a write into pieces that end where so many pages are full, so a piece that is nearly a whole request long may be
followed by another, or be all. Each write begins at offset 0, its other pieces behind that. What may go on is
held until its rest comes, or something else shows that there is none.
"""

from typing import Final

from busway.gateway.fuse.wire import MOST, PAGE

FULL: Final = MOST - 16 * PAGE
"""A piece that is longer than this may be followed by another: what is written lies in some places of memory (writev), each of which
begins and ends within a page."""


class Pieces:
    """The pieces of one open file."""

    def __init__(self) -> None:
        self._held = bytearray()

    def __bool__(self) -> bool:
        """Whether something is held."""
        return bool(self._held)

    def continues(self, offset: int) -> bool:
        """Whether a piece at this offset belongs to what is held; if not, that was all: whole() is due."""
        return bool(self._held) and offset == len(self._held)

    def add(self, data: bytes) -> bytes | None:
        """One more piece; the whole write, if this was its last one."""
        if len(data) > FULL:
            self._held += data
            return None
        if not self._held:
            return data
        self._held += data
        return self.whole()

    @property
    def size(self) -> int:
        return len(self._held)

    def whole(self) -> bytes:
        """What is held is all."""
        data, self._held = bytes(self._held), bytearray()
        return data
