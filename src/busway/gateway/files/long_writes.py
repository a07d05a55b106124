"""The long writes to one open file, each whole or not at all, whoever else uses the file meanwhile. A driver.

How long a write is tells its caller's call of the system. Where that can't be seen, a piece that fills its request is held for a
while: then it was all, if its caller lives.
"""

import asyncio
from collections.abc import Callable
from errno import EINVAL, EMSGSIZE
from typing import Final

from busway.gateway.files.kernel import callers
from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.kernel.protocol import MOST, PAGE

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


PATIENCE: Final = 1.0
"""Seconds after which a held write is looked after."""


class LongWrites:
    """Made with who takes what turns out later to have been whole, and who is told of the size of what is dropped."""

    def __init__(
        self, kernel: Kernel, longest: int, late: Callable[[bytes], None], dropped: Callable[[int], None]
    ) -> None:
        self._kernel = kernel
        self._longest = longest
        self._late = late
        self._dropped = dropped
        self._held: dict[int, tuple[Pieces, asyncio.TimerHandle]] = {}
        """By caller."""

    def __bool__(self) -> bool:
        """Whether something is held."""
        return bool(self._held)

    def add(self, offset: int, data: bytes, check: Callable[[bytes, int | None], None]) -> bytes | None:
        """A piece; the whole write, if it is the last. OSError: it can't be.

        What may be held is checked first: `check` is called with the beginning of the write and its length, if that is known.
        """
        caller = self._kernel.caller
        if not offset:
            self._over(caller)  # it is in another call now
            return self._first(caller, data, check)
        held = self._held.get(caller)
        if held is None:
            raise OSError(EINVAL, "the rest of a write that was refused")
        pieces, timer = held
        if not pieces.continues(offset, len(data)):
            self._drop(caller)
            raise OSError(EINVAL, "the rest of another write")
        if offset + len(data) > self._longest:
            self._drop(caller)
            raise OSError(EMSGSIZE, "it is too long")
        timer.cancel()
        if pieces.add(data):
            del self._held[caller]
            return pieces.whole()
        self._hold(caller, pieces)
        return None

    def _first(self, caller: int, data: bytes, check: Callable[[bytes, int | None], None]) -> bytes | None:
        if len(data) > self._longest:
            raise OSError(EMSGSIZE, "it is too long")
        if len(data) <= FULL:
            return data
        total = callers.length(caller)
        if total == len(data):
            return data
        if total is not None and total > self._longest:
            raise OSError(EMSGSIZE, "it is too long")
        check(data, total)
        pieces = Pieces(total)
        pieces.add(data)
        self._hold(caller, pieces)
        return None

    def _hold(self, caller: int, pieces: Pieces) -> None:
        timer = asyncio.get_running_loop().call_later(PATIENCE, self._look, caller)
        self._held[caller] = pieces, timer

    def _look(self, caller: int) -> None:
        """Nothing has followed for a while."""
        pieces, _ = self._held[caller]
        if not callers.is_there(caller):
            self._drop(caller)
        elif pieces.total is None or callers.length(caller, 1) != pieces.total:
            self._over(caller)
        else:
            self._hold(caller, pieces)

    def _over(self, caller: int) -> None:
        """It is in its call no longer: what was not all is dropped, and what may have been all is."""
        held = self._held.get(caller)
        if held is None:
            return
        pieces, timer = held
        if pieces.total is not None:
            self._drop(caller)
            return
        timer.cancel()
        del self._held[caller]
        self._late(pieces.whole())

    def _drop(self, caller: int) -> None:
        pieces, timer = self._held.pop(caller)
        timer.cancel()
        self._dropped(pieces.size)

    def used(self) -> None:
        """Somebody uses the file otherwise: if it is who has written, and does not end, its write is over."""
        caller = self._kernel.caller
        if caller in self._held and callers.is_there(caller):
            self._over(caller)

    def close(self) -> None:
        """Nobody has the file open, so nobody is in a call."""
        for caller in list(self._held):
            if callers.is_there(caller):
                self._over(caller)
            else:
                self._drop(caller)
