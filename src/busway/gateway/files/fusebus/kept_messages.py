"""The messages that are kept for those who read `fusebus`: the last ones, each with the header that it is read with. A machine."""

from typing import Final, TypeAlias

from busway.fuse.format import ALIGN, META

Record: TypeAlias = tuple[int, bytes]
"""Channel, and the message as it is read: header, payload and what pads it."""

_PAD: Final = [b"\0" * (-size % ALIGN) for size in range(ALIGN)]


def serno_of(block: bytes) -> int:
    """The serial number of a message as it is read."""
    return int(META.unpack_from(block)[1])


def data_end(block: bytes) -> int:
    """Where the data of a message as it is read ends, and its padding begins."""
    return META.size + int(META.unpack_from(block)[3])


class KeptMessages:
    """Serial numbers from 0, without gaps. The oldest go when there are too many, or too many bytes."""

    def __init__(self, messages: int, bytes: int) -> None:  # noqa: A002 - as the setting
        self.messages = messages
        self.bytes = bytes
        self.records: dict[int, Record] = {}
        self.oldest = 0
        """Serial number of the oldest that is kept; the next one's if there is none."""
        self.next = 0
        """Serial number of the next one."""
        self.used = 0
        """Bytes that are kept, headers not counted."""

    def append(self, channel: int, client: int, payload: bytes) -> int:
        """Keep one more; its serial number. Then drop() the oldest until `messages` and `bytes` hold again."""
        size = len(payload)
        pad = _PAD[size % ALIGN]
        stride = size + len(pad)
        serno = self.next
        self.records[serno] = (channel, META.pack(channel, serno, client, size, stride) + payload + pad)
        self.next = serno + 1
        self.used += stride
        return serno

    def drop(self) -> tuple[int, int]:
        """Let the oldest go: its serial number and its channel."""
        serno = self.oldest
        channel, block = self.records.pop(serno)
        self.oldest = serno + 1
        self.used -= len(block) - META.size
        return serno, channel
