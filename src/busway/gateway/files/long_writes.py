"""Long writes to one open file: joins the pieces in which the kernel sends them, so that each is whole or refused.

`bus_file.py` and `service_files.py` call it. The system call of the calling thread shows how long its write is. If
that is unknown, a piece that fills its request is held for a while; without a further piece it counts as the whole
write, provided that its caller is alive. A driver.
"""

import asyncio
from collections.abc import Callable
from errno import EINVAL, EMSGSIZE
from typing import Final

from busway.gateway.files.kernel import callers
from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.kernel.protocol import MOST, PAGE

FULL: Final = MOST - 16 * PAGE
"""Longest piece that is certainly the last one: each segment of a writev may begin and end within a page."""


class Pieces:
    """The pieces of one write so far; `total` is the length of the write, if it is known."""

    def __init__(self, total: int | None = None) -> None:
        self.total = total
        self._data = bytearray()

    def continues(self, offset: int, size: int) -> bool:
        """Whether a piece at this offset can be the next piece."""
        return offset == len(self._data) and (self.total is None or offset + size <= self.total)

    def add(self, data: bytes) -> bool:
        """Add a piece. True: it is certainly the last one."""
        self._data += data
        if self.total is None:
            return len(data) <= FULL
        return len(self._data) >= self.total

    @property
    def size(self) -> int:
        """Bytes so far."""
        return len(self._data)

    def whole(self) -> bytes:
        """The data of all pieces."""
        return bytes(self._data)


PATIENCE: Final = 1.0
"""Seconds without a further piece, after which a write is checked."""


class LongWrites:
    """The unfinished writes of one open file.

    It calls `completed` with the data of a write that later turns out to be whole, and `dropped` with the size of a
    dropped one.
    """

    def __init__(
        self, kernel: Kernel, longest: int, completed: Callable[[bytes], None], dropped: Callable[[int], None]
    ) -> None:
        self._kernel = kernel
        self._longest = longest
        self._completed = completed
        self._dropped = dropped
        self._writes: dict[int, tuple[Pieces, asyncio.TimerHandle]] = {}
        """Unfinished writes with the timer of their next check, by calling thread."""

    def __bool__(self) -> bool:
        """Whether a write is unfinished."""
        return bool(self._writes)

    def add(self, offset: int, data: bytes, check: Callable[[bytes, int | None], None]) -> bytes | None:
        """Add a piece. Returns the data of the write if this is the last piece. Raises OSError if the write is refused.

        Before it holds a first piece, it calls `check` with that piece and the length of the write, if that is known.
        """
        caller = self._kernel.caller
        if not offset:
            self._end(caller)  # the thread is in a new system call
            return self._first(caller, data, check)
        write = self._writes.get(caller)
        if write is None:
            raise OSError(EINVAL, "the beginning of this write was refused")
        pieces, timer = write
        if not pieces.continues(offset, len(data)):
            self._drop(caller)
            raise OSError(EINVAL, "this is the rest of another write")
        if offset + len(data) > self._longest:
            self._drop(caller)
            raise OSError(EMSGSIZE, "the write is too long")
        timer.cancel()
        if pieces.add(data):
            del self._writes[caller]
            return pieces.whole()
        self._store(caller, pieces)
        return None

    def _first(self, caller: int, data: bytes, check: Callable[[bytes, int | None], None]) -> bytes | None:
        if len(data) > self._longest:
            raise OSError(EMSGSIZE, "the write is too long")
        if len(data) <= FULL:
            return data
        total = callers.length(caller)
        if total == len(data):
            return data
        if total is not None and total > self._longest:
            raise OSError(EMSGSIZE, "the write is too long")
        check(data, total)
        pieces = Pieces(total)
        pieces.add(data)
        self._store(caller, pieces)
        return None

    def _store(self, caller: int, pieces: Pieces) -> None:
        timer = asyncio.get_running_loop().call_later(PATIENCE, self._check_stalled, caller)
        self._writes[caller] = pieces, timer

    def _check_stalled(self, caller: int) -> None:
        """Check a write that has got no further piece for a while."""
        pieces, _ = self._writes[caller]
        if not callers.is_alive(caller):
            self._drop(caller)
        elif pieces.total is None or callers.length(caller, 1) != pieces.total:
            self._end(caller)
        else:
            self._store(caller, pieces)

    def _end(self, caller: int) -> None:
        """The system call of a write has ended: drop an incomplete write; one of unknown length is complete."""
        write = self._writes.get(caller)
        if write is None:
            return
        pieces, timer = write
        if pieces.total is not None:
            self._drop(caller)
            return
        timer.cancel()
        del self._writes[caller]
        self._completed(pieces.whole())

    def _drop(self, caller: int) -> None:
        pieces, timer = self._writes.pop(caller)
        timer.cancel()
        self._dropped(pieces.size)

    def used(self) -> None:
        """Another operation on the file: if a live thread with an unfinished write calls it, that write has ended."""
        caller = self._kernel.caller
        if caller in self._writes and callers.is_alive(caller):
            self._end(caller)

    def close(self) -> None:
        """The file is closed, so the system calls of all writes have ended."""
        for caller in list(self._writes):
            if callers.is_alive(caller):
                self._end(caller)
            else:
                self._drop(caller)
