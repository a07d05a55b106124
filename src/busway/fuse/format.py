"""Binary format of the file `fusebus`; the client in this package and the file gateway call it.

Numbers are unsigned 64-bit words in native byte order. The first word of a write is its type. A read returns messages,
each after a header of five words.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

SUBSCRIBE: Final = 0
"""A write that subscribes: the type, then a regular expression or the name of a channel."""
UNSUBSCRIBE: Final = 1
"""A write that unsubscribes: the type, then the number of the subscription."""
MESSAGE: Final = 2
"""A write that publishes: the type, the number of the channel, then the payload."""

WORD: Final = Struct("=Q")
TWO: Final = Struct("=QQ")
META: Final = Struct("=QQQQQ")
ALIGN: Final = 16
"""The padded size of a payload is a multiple of it."""
HEAD: Final = TWO.size
"""Bytes before the payload in a write that publishes."""


class Meta(NamedTuple):
    """The header of a message in a read."""

    channel: int
    """The number of the channel."""
    serno: int
    """The serial number of the message, over all channels."""
    client: int
    """The number of the client that published the message."""
    size: int
    """Bytes of the payload, which follows the header."""
    stride: int
    """Bytes from the end of the header to the next header."""


def stride(size: int) -> int:
    """Return the padded size of a payload."""
    return (size + ALIGN - 1) & -ALIGN


def subscribe(pattern: str | bytes) -> bytes:
    """Encode a write that subscribes."""
    return WORD.pack(SUBSCRIBE) + (pattern.encode() if isinstance(pattern, str) else pattern)


def unsubscribe(number: int) -> bytes:
    """Encode a write that unsubscribes."""
    return TWO.pack(UNSUBSCRIBE, number)


def message(channel: int, payload: bytes) -> bytes:
    """Encode a write that publishes."""
    return TWO.pack(MESSAGE, channel) + payload


def messages(data: bytes) -> Iterator[tuple[Meta, bytes]]:
    """Decode the messages of a read. The last padding may be missing. Raises ValueError if a message is incomplete."""
    at = 0
    while at < len(data):
        if len(data) - at < META.size:
            raise ValueError(f"{len(data) - at} bytes at {at} are too few for the header of a message")
        meta = Meta._make(META.unpack_from(data, at))
        at += META.size
        if meta.size > meta.stride or meta.size > len(data) - at:
            raise ValueError(f"the message {meta.serno} is incomplete: it has {len(data) - at} of {meta.size} bytes")
        yield meta, data[at : at + meta.size]
        at += meta.stride
