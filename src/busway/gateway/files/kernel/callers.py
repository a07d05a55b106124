"""How long the write is that a caller is in, and whether it is still there. A driver.

Whoever writes is within its call of the system until the last piece of it is answered, and the kernel tells of others' calls in /proc.
It does so only to those who may look into the caller; what can't be known is told as None.
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
"""By machine: numbers of write, pwrite64, writev, pwritev and pwritev2, and whether what is written lies in several places."""
_WRITES: Final = _CALLS.get(os.uname().machine, {})
_LONGEST: Final = 0x7FFFF000
"""Bytes that a call writes at most."""
_PLACES: Final = 1024
_PLACE: Final = 16
"""Bytes that tell of a place: where it is, and how long."""
_RUNNING: Final = b"running"
_PAUSE: Final = 0.0002
_TRIES: Final = 250
_EXITING: Final = 4
_FLAGS: Final = 6
"""Which of the figures behind its name tells the flags of a thread."""


def length(caller: int, tries: int = _TRIES) -> int | None:
    """Bytes of the write that a thread is in; None: it is in none, or that can't be known."""
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
    """Its call and the arguments. It is told only of a thread that sleeps, which who has just asked is about to do."""
    path = Path(f"/proc/{caller}/syscall")
    for _ in range(tries):
        words = path.read_bytes().split()
        if words[:1] != [_RUNNING]:
            return words
        time.sleep(_PAUSE)
    return []


def _sum(caller: int, where: int, places: int) -> int:
    if places > _PLACES:
        raise ValueError("more places than a call can have")
    memory = os.open(f"/proc/{caller}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        told = os.pread(memory, places * _PLACE, where)
    finally:
        os.close(memory)
    if len(told) != places * _PLACE:
        raise ValueError("not all of it can be read")
    return sum(size for _, size in iter_unpack("=QQ", told))


def is_there(caller: int) -> bool:
    """Whether a thread lives, and is not about to end. One that can't be seen from here is taken to live."""
    if not caller:
        return True
    with suppress(OSError, ValueError, IndexError):
        figures = Path(f"/proc/{caller}/stat").read_bytes().rpartition(b")")[2].split()
        return figures[0] not in {b"Z", b"X"} and not int(figures[_FLAGS]) & _EXITING
    return False
