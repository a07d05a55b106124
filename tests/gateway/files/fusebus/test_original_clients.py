"""Programs written for fusebus: its C++ client with a buffer of 1,024 bytes, and its tool in Python."""

import errno
import os
from pathlib import Path

import pytest

from tests.support.fusebus_client import MESSAGE, META, UNSUBSCRIBE, WORD, Raw, padded, refused, register
from tests.support.mounts import Later, mounted

ROOM = 1024
"""The buffer of the C++ client."""


@pytest.fixture(scope="module")
def folder():
    with mounted("fusebus") as made:
        yield made.folder


def attribute(folder: Path, name: str) -> int:
    return int(os.getxattr(folder / "fusebus", f"user.busway.{name}"))


@pytest.mark.parametrize("size", range(972, 985))
def test_padding_that_does_not_fit_is_left_out(folder: Path, size: int) -> None:
    [channel] = register(folder, f"PADDED{size}")
    data = os.urandom(size)
    with Raw(folder) as client:
        client.subscribe(f"PADDED{size}")
        client.publish(channel, data)
        client.publish(channel, b"next")
        read = os.read(client.fd, ROOM)
        assert META.unpack_from(read)[3:] == (size, padded(size))
        assert read[META.size : META.size + size] == data
        assert len(read) == min(META.size + padded(size), ROOM)
        assert [message.data for message in client.read(ROOM)] == [b"next"]


@pytest.mark.parametrize("size", [985, 1016])
def test_a_message_that_does_not_fit_is_told_once_and_skipped(folder: Path, size: int) -> None:
    """Handle() returns -1 once, and then goes on."""
    [channel] = register(folder, f"LARGE{size}")
    before = attribute(folder, "skipped")
    with Raw(folder) as client, Raw(folder) as other:
        for one in (client, other):
            one.subscribe(f"LARGE{size}")
        for data in (b"before", b"x" * size, b"y" * size, b"after"):
            client.publish(channel, data)
        assert [message.data for message in client.read(ROOM)] == [b"before"]
        for _ in range(2):
            with refused(errno.EMSGSIZE):
                client.read(ROOM)
        assert client.ready()
        assert [message.data for message in client.read(ROOM)] == [b"after"]
        assert not client.ready()
        assert [message.size for message in other.wait(4)] == [6, size, size, 5]
    assert attribute(folder, "skipped") == before + 2


def test_a_reader_that_makes_room_skips_nothing(folder: Path) -> None:
    [channel] = register(folder, "GROWS")
    with Raw(folder) as client:
        client.subscribe("GROWS")
        client.publish(channel, b"x" * 1000)
        for room in (8, 8, 100, 200, 1039):
            with refused(errno.EMSGSIZE):
                client.read(room)
        assert [message.size for message in client.read(2048)] == [1000]


def test_a_read_that_waits_and_has_no_room_is_told(folder: Path) -> None:
    [channel] = register(folder, "WAITS")
    with Raw(folder) as client, Raw(folder) as publisher:
        client.subscribe("WAITS")
        later = Later(lambda: os.read(client.fd, ROOM))
        publisher.publish(channel, b"x" * 1000)
        assert later.result() == errno.EMSGSIZE
        later = Later(lambda: client.read(ROOM))
        publisher.publish(channel, b"small")
        assert [message.data for message in later.result()] == [b"small"]


def test_unsubscribing_returns_0(folder: Path) -> None:
    with Raw(folder) as client:
        number = client.subscribe("anything")
        assert os.write(client.fd, WORD.pack(UNSUBSCRIBE) + WORD.pack(number)) == 0
        with refused(errno.ENOENT):
            client.unsubscribe(number)
        [channel] = register(folder, "AFTER")
        assert os.write(client.fd, WORD.pack(MESSAGE) + WORD.pack(channel) + b"x") == 17


def test_without_waiting_a_read_that_finds_nothing_ends() -> None:
    """As cat of the tool does it: subscribe, read once."""
    with mounted("fusebus", "--empty-reads") as made:
        [channel] = register(made.folder, "A")
        with Raw(made.folder) as client:
            client.publish(channel, b"x")
            client.subscribe("nothing has this name")
            assert os.read(client.fd, 1 << 20) == b""
            client.subscribe("A")
            assert [message.data for message in client.read(1 << 20)] == [b"x"]
            assert os.read(client.fd, 1 << 20) == b""
