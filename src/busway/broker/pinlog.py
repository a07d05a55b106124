"""The format of the file of pins: a row of records, each of which can be found and checked without those before it.

A record is the magic, the length of its body, a CRC-32 over length and body, and the body (MessagePack). The magic is never
found inside a body, so whoever meets a damaged place can look for the next record and find no payload that looks like one.
No file is touched here; `pins` does that.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from busway.broker.flags import FIELDS, PIN
from busway.broker.retained import Kept, Key, Version, body_of, normal

MARKS: Final = 65_536
"""Pins that were taken back, of which that is remembered."""
MAGIC: Final = b"\xc1BWP"
_HEAD: Final = struct.Struct("<4sII")
_LENGTH: Final = struct.Struct("<I")
# In a body no "W" follows the first two bytes of the magic.
_BEGINS: Final = MAGIC[:2]
_ESCAPED: Final = _BEGINS + b"\x00"


class Pin(msgspec.Struct, frozen=True, array_like=True, tag="pin"):
    """A message that was pinned."""

    session: int
    number: int
    name: str
    topic: str
    flags: int
    time: int
    fields: bytes
    payload: bytes

    @property
    def key(self) -> Key:
        return self.name, self.topic, normal(self.fields)

    @staticmethod
    def of(kept: Kept) -> "Pin":
        return Pin(kept.session, kept.number, kept.name, kept.topic, kept.flags, kept.time, kept.fields, kept.payload)

    def kept(self, client: int) -> Kept:
        body = body_of(self.time, self.number, self.fields, self.payload)
        flags = PIN | (FIELDS if self.fields else 0)
        return Kept(client, self.session, self.name, flags, self.topic, body)


class Unpin(msgspec.Struct, frozen=True, array_like=True, tag="unpin"):
    """The pin with this key was taken back; with a version it is remembered, so that no other node brings an older one back."""

    name: str
    topic: str
    fields: bytes
    version: Version = (0, 0, 0)

    @property
    def key(self) -> Key:
        return self.name, self.topic, self.fields


Entry: TypeAlias = Pin | Unpin

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


@dataclass(frozen=True, slots=True)
class Found:
    """A good record, and where it is."""

    offset: int
    size: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where no record could be read."""

    offset: int
    size: int
    torn: bool
    """Whether it looks like the beginning of a record at the end of the file, as a crash leaves it."""
    what: str

    def __str__(self) -> str:
        return f"{self.what} at byte {self.offset}, {self.size} bytes skipped"


def encode(entry: Entry) -> bytes:
    body = _encoder.encode(entry).replace(_BEGINS, _ESCAPED)
    length = _LENGTH.pack(len(body))
    return _HEAD.pack(MAGIC, len(body), zlib.crc32(body, zlib.crc32(length))) + body


def scan(data: bytes) -> Iterator[Found | Damage]:
    """Everything in a file, in order and without gaps: offset and size of one lead to the next."""
    at, end = 0, len(data)
    while at < end:
        found = _read(data, at)
        if isinstance(found, Found):
            yield found
            at += found.size
            continue
        start, what = at, found
        torn = _torn(data, at)
        while not isinstance(found, Found):
            at = data.find(MAGIC, at + 1)
            if at < 0:
                at = end
                break
            torn = False
            found = _read(data, at)
        if torn:
            what = "a record that was not written to its end"
        yield Damage(start, at - start, torn, what)


def _read(data: bytes, at: int) -> Found | str:
    """The record at this place, or what is wrong with it."""
    if len(data) - at < _HEAD.size or not data.startswith(MAGIC, at):
        return "no record"
    _, length, check = _HEAD.unpack_from(data, at)
    start = at + _HEAD.size
    if length > len(data) - start:
        return "a record longer than the file"
    body = data[start : start + length]
    if zlib.crc32(body, zlib.crc32(_LENGTH.pack(length))) != check:
        return "a record with a wrong checksum"
    try:
        entry = _decoder.decode(body.replace(_ESCAPED, _BEGINS))
        entry.key  # noqa: B018, fields that can't be read are found here
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"a record of another kind ({error})"
    return Found(at, _HEAD.size + length, entry)


def _torn(data: bytes, at: int) -> bool:
    rest = data[at : at + _HEAD.size]
    if len(rest) < _HEAD.size:
        return rest[: len(MAGIC)] == MAGIC[: len(rest)]
    magic, length, _ = _HEAD.unpack(rest)
    return bool(magic == MAGIC and length > len(data) - at - _HEAD.size)
