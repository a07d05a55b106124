"""The kernel's side of a file system in user space, as bytes: what a request says, and how an answer is written. Values only.

It is the protocol of /dev/fuse, version 7.31 (Linux 5.4 and newer), described by <linux/fuse.h>. A request is a header of 40
bytes and a body; an answer is a header of 16 and a body.
"""

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple


class Op(IntEnum):
    """What the kernel asks for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    POLL = 40
    BATCH_FORGET = 42
    RENAME2 = 45


MAJOR: Final = 7
MINOR: Final = 31
ROOT: Final = 1
"""The node of the folder that is mounted."""

# Requests.
HEADER: Final = Struct("=IIQQIIIHH")
"""length, opcode, number, node, user, group, process, length of extensions, nothing"""
ASKED: Final = Struct("=4xIQQ")
"""Of that: opcode, number, node."""
CALLER: Final = Struct("=32xI")
"""Of that: process, which is the thread that asks."""
INIT: Final = Struct("=IIII")
"""major, minor, bytes to read ahead, flags"""
READ: Final = Struct("=QQIIQII")
"""handle, offset, size, flags, lock, flags of the open file, nothing; a WRITE has the same"""
TRANSFER: Final = Struct("=QQI12xI4x")
"""Of that: handle, offset, size, flags of the open file."""
OPEN: Final = Struct("=II")
CREATE: Final = Struct("=IIII")
"""flags, mode, mask, flags; the name follows"""
MKNOD: Final = Struct("=IIII")
"""mode, device, mask, nothing; the name follows"""
MKDIR: Final = Struct("=II")
"""mode, mask; the name follows"""
HANDLE: Final = Struct("=Q")
FORGET: Final = Struct("=Q")
BATCH: Final = Struct("=II")
ONE: Final = Struct("=QQ")
"""node and how often of a BATCH_FORGET; handle and key of a POLL"""
POLL: Final = Struct("=QQII")
"""handle, key, flags, events"""
SIZED: Final = Struct("=II")
"""size and flags of SETXATTR, with the name and the value behind; size of GETXATTR"""
SETATTR: Final = Struct("=II")
"""What is to be set, and nothing; the rest follows."""
OWNERSHIP: Final = 0b111
"""To set mode, user or group."""

# Answers.
OUT: Final = Struct("=IiQ")
"""length, error, number"""
WROTE: Final = Struct("=IiQII")
_INIT: Final = Struct("=IIIIHHIIHHI7I")
_ATTR: Final = Struct("=QQQQQQIIIIIIIIII")
_ENTRY: Final = Struct("=QQQQII")
_ATTR_HEAD: Final = Struct("=QII")
_OPENED: Final = Struct("=QII")
_DIRENT: Final = Struct("=QQII")
_STATFS: Final = Struct("=QQQQQIIII6I")
POLLED: Final = Struct("=II")
SIZE: Final = Struct("=II")
"""How long the value of an attribute is."""
WAKE: Final = Struct("=IiQQ")
"""length, 1, nothing, key: whoever polls with this key looks again"""

# Flags.
ATOMIC_O_TRUNC: Final = 1 << 3
BIG_WRITES: Final = 1 << 5
MAX_PAGES: Final = 1 << 22
DIRECT_IO: Final = 1 << 0
STREAM: Final = 1 << 4
PARALLEL: Final = 1 << 6
"""Several may write at once, within the size of the file; Linux 6.2 and newer."""
SCHEDULE_NOTIFY: Final = 1 << 0
PAGE: Final = 4096
PAGES: Final = 256
"""Pages of a request, the most that the kernel allows."""
MOST: Final = PAGE * PAGES
"""Bytes of a read or write that come in one request, if they begin with a page; else up to a page less."""
BUFFER: Final = MOST + 2 * PAGE


class Attributes(NamedTuple):
    """What stat() tells of a node."""

    node: int
    mode: int
    size: int = 0
    nanoseconds: int = 0
    links: int = 1
    user: int = 0
    group: int = 0


def answer_init(minor: int, ahead: int) -> bytes:
    """The answer to INIT: what this side can do."""
    flags = ATOMIC_O_TRUNC | BIG_WRITES | MAX_PAGES
    return _INIT.pack(MAJOR, min(minor, MINOR), ahead, flags, 16, 12, MOST, 1, PAGES, 0, 0, *([0] * 7))


def _attributes(one: Attributes) -> bytes:
    seconds, rest = divmod(one.nanoseconds, 1_000_000_000)
    return _ATTR.pack(
        one.node,
        one.size,
        (one.size + 511) // 512,
        seconds,
        seconds,
        seconds,
        rest,
        rest,
        rest,
        one.mode,
        one.links,
        one.user,
        one.group,
        0,
        PAGE,
        0,
    )


def answer_attributes(one: Attributes) -> bytes:
    """The answer to GETATTR and SETATTR. The kernel is to ask each time."""
    return _ATTR_HEAD.pack(0, 0, 0) + _attributes(one)


def answer_entry(one: Attributes) -> bytes:
    """The answer to LOOKUP and MKDIR. The kernel is to ask each time."""
    return _ENTRY.pack(one.node, 0, 0, 0, 0, 0) + _attributes(one)


def answer_open(handle: int, flags: int) -> bytes:
    """The answer to OPEN and OPENDIR; behind an entry that to CREATE."""
    return _OPENED.pack(handle, flags, 0)


def answer_statfs() -> bytes:
    """There is no room to run out of."""
    return _STATFS.pack(0, 0, 0, 0, 0, PAGE, 255, PAGE, 0, *([0] * 6))


def directory(entries: Iterable[tuple[str, int, int]], offset: int, size: int) -> bytes:
    """The entries (name, node, mode) from an offset on, as many as fit."""
    made = bytearray()
    for at, (name, node, mode) in enumerate(entries, 1):
        if at <= offset:
            continue
        text = name.encode("utf-8", "surrogateescape")
        entry = _DIRENT.pack(node, at, len(text), mode >> 12) + text
        entry += b"\0" * (-len(entry) % 8)
        if len(made) + len(entry) > size:
            break
        made += entry
    return bytes(made)


def name_of(body: memoryview) -> str:
    """The name at the end of a body, up to its NUL."""
    return bytes(body).partition(b"\0")[0].decode("utf-8", "surrogateescape")
