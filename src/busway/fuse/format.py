"""The bytes that are written to and read from the file `fusebus`. Values only.

Numbers are unsigned, 64 bits long and in the order of the machine. A write is one of three types, which its first word
tells; a read gives messages, each behind a header of five words.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

SUBSCRIBE: Final = 0
"""Type of a write; a regular expression follows, or the name of a channel."""
UNSUBSCRIBE: Final = 1
"""The number of the subscription follows."""
MESSAGE: Final = 2
"""The number of the channel follows, then the payload."""

WORD: Final = Struct("=Q")
TWO: Final = Struct("=QQ")
META: Final = Struct("=QQQQQ")
ALIGN: Final = 16
"""What lies between two headers is a multiple of it."""
HEAD: Final = TWO.size
"""Bytes in front of the payload of a message that is written."""


class Meta(NamedTuple):
    """The header of a message that is read."""

    channel: int
    """The channel it was published on."""
    serno: int
    """Its serial number, over all channels."""
    client: int
    """Who published it."""
    size: int
    """Bytes of the payload, which follows."""
    stride: int
    """Bytes to the next header."""


def stride(size: int) -> int:
    """The place that a payload of so many bytes takes."""
    return (size + ALIGN - 1) & -ALIGN


def subscribe(pattern: str | bytes) -> bytes:
    """What to write for a subscription."""
    return WORD.pack(SUBSCRIBE) + (pattern.encode() if isinstance(pattern, str) else pattern)


def unsubscribe(number: int) -> bytes:
    """What to write to end it."""
    return TWO.pack(UNSUBSCRIBE, number)


def message(channel: int, payload: bytes) -> bytes:
    """What to write to publish."""
    return TWO.pack(MESSAGE, channel) + payload


def messages(data: bytes) -> Iterator[tuple[Meta, bytes]]:
    """The messages that a read gave. ValueError: they are not whole. The padding of the last one may be missing."""
    at = 0
    while at < len(data):
        if len(data) - at < META.size:
            raise ValueError(f"{len(data) - at} bytes at {at} are no header of a message")
        meta = Meta._make(META.unpack_from(data, at))
        at += META.size
        if meta.size > meta.stride or meta.size > len(data) - at:
            raise ValueError(
                f"the message {meta.serno} is not whole: {meta.size} bytes, of which {len(data) - at} are there"
            )
        yield meta, data[at : at + meta.size]
        at += meta.stride
