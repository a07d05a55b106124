"""Inspection of calling threads in /proc: the length of the write that a thread executes, and whether it is alive.

`long_writes.py` calls it. A thread stays in its system call until the last piece of its write is answered. The kernel
shows that call only to processes that may inspect the thread; otherwise the length is unknown, which is None. A
driver.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from struct import iter_unpack
from typing import Final

_CALLS: Final[dict[str, dict[int, bool]]] = {
    "x86_64": {1: False, 18: False, 20: True, 296: True, 328: True},
    "aarch64": {64: False, 68: False, 66: True, 70: True, 287: True},
}
"""By machine: numbers of write, pwrite64, writev, pwritev and pwritev2, and whether the call has several segments."""
_WRITES: Final = _CALLS.get(os.uname().machine, {})
_LONGEST: Final = 0x7FFFF000
"""Largest number of bytes that one call writes."""
_SEGMENTS: Final = 1024
_SEGMENT: Final = 16
"""Bytes of a segment descriptor: address and length."""
_RUNNING: Final = b"running"
_PAUSE: Final = 0.0002
_TRIES: Final = 250
_EXITING: Final = 4
_FLAGS: Final = 6
"""Index of the flags among the values after the name of a thread."""


def length(caller: int, tries: int = _TRIES) -> int | None:
    """Bytes of the write that a thread executes; None: it executes none, or the length is unknown."""
    if not caller or not _WRITES:
        return None
    try:
        words = _call(caller, tries)
        if len(words) < 4:  # the call and three arguments
            return None
        several = _WRITES.get(int(words[0]))
        if several is None:
            return None
        size = int(words[3], 16)
        return min(_sum(caller, int(words[2], 16), size) if several else size, _LONGEST)
    except (OSError, ValueError):
        return None


def _call(caller: int, tries: int) -> list[bytes]:
    """The system call of a thread with its arguments.

    The kernel shows it only while the thread sleeps. A thread that has just sent a request is about to sleep.
    """
    path = Path(f"/proc/{caller}/syscall")
    for _ in range(tries):
        words = path.read_bytes().split()
        if words[:1] != [_RUNNING]:
            return words
        time.sleep(_PAUSE)
    return []


def _sum(caller: int, address: int, segments: int) -> int:
    if segments > _SEGMENTS:
        raise ValueError("the call has too many segments")
    memory = os.open(f"/proc/{caller}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = os.pread(memory, segments * _SEGMENT, address)
    finally:
        os.close(memory)
    if len(raw) != segments * _SEGMENT:
        raise ValueError("the segments can't be read")
    return sum(size for _, size in iter_unpack("=QQ", raw))


def is_alive(caller: int) -> bool:
    """Whether a thread lives and is not exiting. A thread of an unknown number counts as alive."""
    if not caller:
        return True
    with suppress(OSError, ValueError, IndexError):
        figures = Path(f"/proc/{caller}/stat").read_bytes().rpartition(b")")[2].split()
        return figures[0] not in {b"Z", b"X"} and not int(figures[_FLAGS]) & _EXITING
    return False
