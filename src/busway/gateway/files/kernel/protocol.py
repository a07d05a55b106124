"""The protocol of /dev/fuse, version 7.31 (Linux 5.4 and newer): layouts of requests, and encoders of answers.

<linux/fuse.h> describes it. A request is a header of 40 bytes and a body; an answer is a header of 16 bytes and a
body. `device.py` and `filesystem.py` call this module. Values only.
"""

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple


class Op(IntEnum):
    """Operations that the kernel requests."""

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
"""The node of the root folder of the mount."""

# Requests.
HEADER: Final = Struct("=IIQQIIIHH")
"""length, opcode, number, node, user, group, process, length of extensions, padding"""
REQUEST: Final = Struct("=4xIQQ")
"""Part of HEADER: opcode, number, node."""
CALLER: Final = Struct("=32xI")
"""Part of HEADER: process, which is the calling thread."""
INIT: Final = Struct("=IIII")
"""major, minor, bytes to read ahead, flags"""
READ: Final = Struct("=QQIIQII")
"""handle, offset, size, flags, lock, flags of the open file, padding; a WRITE has the same"""
TRANSFER: Final = Struct("=QQI12xI4x")
"""Part of READ: handle, offset, size, flags of the open file."""
OPEN: Final = Struct("=II")
CREATE: Final = Struct("=IIII")
"""flags, mode, mask, flags; the name follows"""
MKNOD: Final = Struct("=IIII")
"""mode, device, mask, padding; the name follows"""
MKDIR: Final = Struct("=II")
"""mode, mask; the name follows"""
HANDLE: Final = Struct("=Q")
FORGET: Final = Struct("=Q")
BATCH: Final = Struct("=II")
PAIR: Final = Struct("=QQ")
"""node and number of lookups of a BATCH_FORGET; handle and key of a POLL"""
POLL: Final = Struct("=QQII")
"""handle, key, flags, events"""
SIZED: Final = Struct("=II")
"""size and flags of SETXATTR, followed by the name and the value; size of GETXATTR"""
SETATTR: Final = Struct("=II")
"""flags of the attributes to set, padding; the attributes follow"""
OWNERSHIP: Final = 0b111
"""Flags of SETATTR for mode, user and group."""

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
"""length of the value of an attribute, padding"""
WAKE: Final = Struct("=IiQQ")
"""length, 1, padding, key of the poll to wake"""

# Flags.
ATOMIC_O_TRUNC: Final = 1 << 3
BIG_WRITES: Final = 1 << 5
MAX_PAGES: Final = 1 << 22
DIRECT_IO: Final = 1 << 0
STREAM: Final = 1 << 4
PARALLEL: Final = 1 << 6
"""Allows parallel writes within the size of the file; Linux 6.2 and newer."""
SCHEDULE_NOTIFY: Final = 1 << 0
PAGE: Final = 4096
PAGES: Final = 256
"""Most pages of a request that the kernel allows."""
MOST: Final = PAGE * PAGES
"""Most bytes of a read or write in one request, if they begin at a page; else up to a page less."""
BUFFER: Final = MOST + 2 * PAGE


class Attributes(NamedTuple):
    """The attributes of a node that stat() returns."""

    node: int
    mode: int
    size: int = 0
    nanoseconds: int = 0
    links: int = 1
    user: int = 0
    group: int = 0


def answer_init(minor: int, ahead: int) -> bytes:
    """The answer to INIT: the supported version and features."""
    flags = ATOMIC_O_TRUNC | BIG_WRITES | MAX_PAGES
    return _INIT.pack(MAJOR, min(minor, MINOR), ahead, flags, 16, 12, MOST, 1, PAGES, 0, 0, *([0] * 7))


def _pack_attributes(attributes: Attributes) -> bytes:
    seconds, rest = divmod(attributes.nanoseconds, 1_000_000_000)
    return _ATTR.pack(
        attributes.node,
        attributes.size,
        (attributes.size + 511) // 512,
        seconds,
        seconds,
        seconds,
        rest,
        rest,
        rest,
        attributes.mode,
        attributes.links,
        attributes.user,
        attributes.group,
        0,
        PAGE,
        0,
    )


def answer_attributes(attributes: Attributes) -> bytes:
    """The answer to GETATTR and SETATTR. The kernel must not cache it."""
    return _ATTR_HEAD.pack(0, 0, 0) + _pack_attributes(attributes)


def answer_entry(attributes: Attributes) -> bytes:
    """The answer to LOOKUP and MKDIR. The kernel must not cache it."""
    return _ENTRY.pack(attributes.node, 0, 0, 0, 0, 0) + _pack_attributes(attributes)


def answer_open(handle: int, flags: int) -> bytes:
    """The answer to OPEN and OPENDIR, and the second part of the answer to CREATE, after an entry."""
    return _OPENED.pack(handle, flags, 0)


def answer_statfs() -> bytes:
    """The answer to STATFS: a file system without storage of its own."""
    return _STATFS.pack(0, 0, 0, 0, 0, PAGE, 255, PAGE, 0, *([0] * 6))


def directory(entries: Iterable[tuple[str, int, int]], offset: int, size: int) -> bytes:
    """The answer to READDIR: the entries (name, node, mode) from an offset on, as many as fit."""
    entries_data = bytearray()
    for index, (name, node, mode) in enumerate(entries, 1):
        if index <= offset:
            continue
        text = name.encode("utf-8", "surrogateescape")
        entry = _DIRENT.pack(node, index, len(text), mode >> 12) + text
        entry += b"\0" * (-len(entry) % 8)
        if len(entries_data) + len(entry) > size:
            break
        entries_data += entry
    return bytes(entries_data)


def name_of(body: memoryview) -> str:
    """The name in a body, up to its NUL."""
    return bytes(body).partition(b"\0")[0].decode("utf-8", "surrogateescape")
