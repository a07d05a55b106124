"""Buffer of the last messages for the readers of `fusebus`, each with its header. A machine for `exchange.py`."""

from typing import Final, TypeAlias

from busway.fuse.format import ALIGN, META

Record: TypeAlias = tuple[int, bytes]
"""Channel of a message, and its block: header, payload and padding."""

_PAD: Final = [b"\0" * (-size % ALIGN) for size in range(ALIGN)]


def serno_of(block: bytes) -> int:
    """The serial number in a block."""
    return int(META.unpack_from(block)[1])


def data_end(block: bytes) -> int:
    """The end of the payload in a block, where its padding begins."""
    return META.size + int(META.unpack_from(block)[3])


class MessageBuffer:
    """Messages with serial numbers from 0 without gaps, up to a number of messages and of bytes."""

    def __init__(self, messages: int, bytes: int) -> None:  # noqa: A002 - as the setting
        self.messages = messages
        self.bytes = bytes
        self.records: dict[int, Record] = {}
        self.oldest = 0
        """Serial number of the oldest message in the buffer; `next` if the buffer is empty."""
        self.next = 0
        """Serial number of the next message."""
        self.used = 0
        """Bytes in the buffer without headers."""

    def append(self, channel: int, client: int, payload: bytes) -> int:
        """Add a message, and return its serial number. The caller then calls drop() while a limit is exceeded."""
        size = len(payload)
        pad = _PAD[size % ALIGN]
        stride = size + len(pad)
        serno = self.next
        self.records[serno] = (channel, META.pack(channel, serno, client, size, stride) + payload + pad)
        self.next = serno + 1
        self.used += stride
        return serno

    def drop(self) -> tuple[int, int]:
        """Remove the oldest message, and return its serial number and its channel."""
        serno = self.oldest
        channel, block = self.records.pop(serno)
        self.oldest = serno + 1
        self.used -= len(block) - META.size
        return serno, channel
