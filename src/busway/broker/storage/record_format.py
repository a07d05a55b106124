"""The format of records in a file: each one can be found and checked without the earlier ones.

A record is the magic of its file, the length of its body, a CRC-32 over length and body, and the body. A body never
contains the magic, so a reader can find the next record behind a damaged place. `keyed_journal` reads and writes the
files.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MAGIC: Final = b"\xc1BWC"
"""The magic of a channel journal of version 0.1.0. The magic of other files begins with the same three bytes."""
_HEAD: Final = struct.Struct("<4sII")
_LENGTH: Final = struct.Struct("<I")
# In a body no "W" follows the first two bytes of the magic.
_BEGINS: Final = MAGIC[:2]
_ESCAPED: Final = _BEGINS + b"\x00"


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A valid record with its offset and size in the file."""

    offset: int
    size: int
    entry: T


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where no record could be read."""

    offset: int
    size: int
    torn: bool
    """Whether this may be the beginning of a record at the end of the file, as a crash leaves it."""
    what: str

    def __str__(self) -> str:
        return f"{self.what} at byte {self.offset}, {self.size} bytes skipped"


def frame(body: bytes, magic: bytes = MAGIC) -> bytes:
    body = body.replace(_BEGINS, _ESCAPED)
    length = _LENGTH.pack(len(body))
    return _HEAD.pack(magic, len(body), zlib.crc32(body, zlib.crc32(length))) + body


def scan(data: bytes, decode: Callable[[bytes], T], magic: bytes = MAGIC) -> Iterator[Found[T] | Damage]:
    """All records and damaged places of a file, in order and without gaps.

    `decode` raises ValueError for an unknown body.
    """
    at, end = 0, len(data)
    while at < end:
        found = _read(data, at, decode, magic)
        if isinstance(found, Found):
            yield found
            at += found.size
            continue
        start, fault = at, found
        torn = _torn(data, at, magic)
        while not isinstance(found, Found):
            at = data.find(magic, at + 1)
            if at < 0:
                at = end
                break
            torn = False
            found = _read(data, at, decode, magic)
        if torn:
            fault = "a record that was not written to its end"
        yield Damage(start, at - start, torn, fault)


def _read(data: bytes, at: int, decode: Callable[[bytes], T], magic: bytes) -> Found[T] | str:
    """The record at this offset, or its fault."""
    if len(data) - at < _HEAD.size or not data.startswith(magic, at):
        return "no record"
    _, length, check = _HEAD.unpack_from(data, at)
    start = at + _HEAD.size
    if length > len(data) - start:
        return "a record longer than the file"
    body = data[start : start + length]
    if zlib.crc32(body, zlib.crc32(_LENGTH.pack(length))) != check:
        return "a record with a wrong checksum"
    try:
        entry = decode(body.replace(_ESCAPED, _BEGINS))
    except ValueError as error:
        return f"a record of another kind ({error})"
    return Found(at, _HEAD.size + length, entry)


def _torn(data: bytes, at: int, magic: bytes) -> bool:
    rest = data[at : at + _HEAD.size]
    if len(rest) < _HEAD.size:
        return rest[: len(magic)] == magic[: len(rest)]
    found, length, _ = _HEAD.unpack(rest)
    return bool(found == magic and length > len(data) - at - _HEAD.size)
