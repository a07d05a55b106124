"""A client of the two files that follows the document byte for byte: structs of its own, and nothing of Busway."""

import contextlib
import errno
import os
import select
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

WORD = struct.Struct("@Q")
META = struct.Struct("@QQQQQ")
SUBSCRIBE, UNSUBSCRIBE, MESSAGE = 0, 1, 2
ALIGN = 16
ROOM = 1 << 16


class Got(NamedTuple):
    """One message with what stands before it."""

    channel: int
    serno: int
    client: int
    size: int
    stride: int
    data: bytes


def padded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def parse(data: bytes) -> list[Got]:
    """The messages of one read; it has to be whole ones and nothing else."""
    found, at = [], 0
    while at < len(data):
        channel, serno, client, size, stride = META.unpack_from(data, at)
        at += META.size
        assert len(data) >= at + stride, "a message is cut off"
        found.append(Got(channel, serno, client, size, stride, data[at : at + size]))
        assert not any(data[at + size : at + stride]), "what pads a message tells of others"
        at += stride
    return found


def register(folder: Path, *names: str) -> list[int]:
    """Write names to the file `channels`; their numbers are those of their lines."""
    with (folder / "channels").open("ab", buffering=0) as file:
        for name in names:
            file.write(name.encode() + b"\n")
    return [listed(folder).index(name) for name in names]


def listed(folder: Path) -> list[str]:
    text = (folder / "channels").read_bytes().decode()
    assert not text or text.endswith("\n")
    return text.split("\n")[:-1]


class Raw:
    """One open `fusebus`."""

    def __init__(self, folder: Path, flags: int = 0) -> None:
        self.folder = folder
        self.fd = os.open(folder / "fusebus", os.O_RDWR | flags)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            with contextlib.suppress(OSError):  # the mount is gone
                os.close(fd)

    def fileno(self) -> int:
        return self.fd

    def subscribe(self, pattern: str | bytes, zeros: int = 0) -> int:
        """The number of the subscription; zeros behind the pattern make the write longer, and so the number that it can tell."""
        text = pattern.encode() if isinstance(pattern, str) else pattern
        return os.write(self.fd, WORD.pack(SUBSCRIBE) + text + bytes(zeros))

    def unsubscribe(self, number: int) -> int:
        return os.write(self.fd, WORD.pack(UNSUBSCRIBE) + WORD.pack(number))

    def publish(self, channel: int, data: bytes) -> int:
        return os.write(self.fd, WORD.pack(MESSAGE) + WORD.pack(channel) + data)

    def ready(self, seconds: float = 0.0) -> bool:
        poll = select.poll()  # not select(), which takes no numbers above 1,023
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def read(self, room: int = ROOM) -> list[Got]:
        return parse(os.read(self.fd, room))

    def all(self, room: int = ROOM) -> list[Got]:
        """Everything that is there; never waits."""
        found = []
        while self.ready():
            found += self.read(room)
        return found

    def wait(self, count: int, seconds: float = 60.0) -> list[Got]:
        """So many messages; those that come from elsewhere may take a moment."""
        found: list[Got] = []
        while len(found) < count:
            assert self.ready(seconds), f"only {len(found)} of {count} messages came"
            found += self.read()
        return found


@contextlib.contextmanager
def refused(*codes: int) -> Iterator[None]:
    """What happens inside fails with this error of the system."""
    try:
        yield
    except OSError as error:
        assert error.errno in codes, f"{error} instead of {[errno.errorcode[code] for code in codes]}"
    else:
        raise AssertionError(f"{[errno.errorcode[code] for code in codes]} was expected")
