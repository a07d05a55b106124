"""A long write arrives in pieces: it becomes one complete message, or none."""

import asyncio
import contextlib
import ctypes
import errno
import mmap
import os
import random
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import busway
from busway.gateway.files.config import Mount
from busway.gateway.files.door import FileDoor
from busway.gateway.files.kernel import callers
from tests.support.fusebus_client import MESSAGE, WORD, Raw, refused, register
from tests.support.mounts import PATIENCE, Later, mounted, until

MIB = 1 << 20
LIMIT = 4 * MIB


@pytest.fixture(scope="module")
def large():
    with mounted("fusebus", "-b", "--max-message", LIMIT, "--bytes", 64 * MIB) as made:
        yield made


@pytest.fixture
def folder(large) -> Path:
    return large.folder


def unpublished(folder: Path) -> int:
    return int(os.getxattr(folder / "fusebus", "user.busway.unpublished"))


def sizes(reader: Raw) -> list[int]:
    """Of all messages that are there."""
    found = []
    while reader.ready():
        data = os.read(reader.fd, 8 * MIB)
        found.append(WORD.unpack_from(data, 24)[0])
        assert len(data) >= found[-1]
    return found


def head(channel: int) -> bytes:
    return WORD.pack(MESSAGE) + WORD.pack(channel)


def write_half(fd: int, channel: int) -> int:
    """A write whose second half can't be read from memory: the kernel hands over the first, and ends it there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(-1, 2 * MIB) as memory:
        memory[:16] = head(channel)
        place = ctypes.c_char.from_buffer(memory)
        try:
            at = ctypes.addressof(place)
            assert libc.mprotect(ctypes.c_void_p(at + MIB), MIB, 0) == 0
            return int(libc.write(fd, ctypes.c_void_p(at), ctypes.c_size_t(2 * MIB)))
        finally:
            del place


# Who calls.


@pytest.mark.parametrize(
    ("write", "length"),
    [
        (lambda fd: os.write(fd, bytes(112_345)), 112_345),
        (lambda fd: os.writev(fd, [bytes(10), bytes(120_000), b"", bytes(3)]), 120_013),
    ],
)
def test_how_long_the_write_is_that_a_thread_is_in(write: Callable[[int], int], length: int) -> None:
    reads, writes = os.pipe()
    waiting = Later(lambda: write(writes))
    thread = waiting._thread.native_id
    assert callers.length(thread) == length
    assert callers.is_alive(thread)
    got = 0
    while got < length:
        got += len(os.read(reads, MIB))
    assert waiting.result() == length
    until(lambda: not callers.is_alive(thread), "the thread is gone")
    assert callers.length(thread) is None
    os.close(reads)
    os.close(writes)


def test_a_thread_that_is_in_another_call() -> None:
    reads, writes = os.pipe()
    waiting = Later(lambda: os.read(reads, 1000))
    assert callers.length(waiting._thread.native_id) is None
    os.write(writes, b"x")
    waiting.result()
    os.close(reads)
    os.close(writes)


def test_a_thread_that_can_not_be_seen() -> None:
    assert callers.length(0) is None
    assert callers.is_alive(0)


# Messages.


@pytest.mark.parametrize("size", [983_041, 1_000_000, MIB - 16, MIB, 1_500_000, 2 * MIB, LIMIT])
def test_it_is_there_when_the_write_returns(folder: Path, size: int) -> None:
    [channel] = register(folder, f"THERE{size}")
    with Raw(folder) as publisher, Raw(folder) as reader:
        reader.subscribe(f"THERE{size}")
        assert publisher.publish(channel, bytes(size)) == size + 16
        assert sizes(reader) == [size]


@pytest.mark.parametrize("size", [10, 1_000_000, 2 * MIB])
def test_a_channel_that_is_not_there(folder: Path, size: int) -> None:
    with Raw(folder) as client, refused(errno.ENXIO):
        client.publish(900, bytes(size))


@pytest.mark.parametrize("size", [LIMIT + 1, 2 * LIMIT])
def test_more_than_the_limit_takes_nothing(folder: Path, size: int) -> None:
    [channel] = register(folder, "OVER")
    before = unpublished(folder)
    with Raw(folder) as client, refused(errno.EMSGSIZE):
        client.publish(channel, bytes(size))
    assert unpublished(folder) == before


def test_others_that_use_the_file_do_not_cut_it(folder: Path) -> None:
    [channel] = register(folder, "POLLED")
    over = threading.Event()
    with Raw(folder) as publisher, Raw(folder) as reader:
        reader.subscribe("POLLED")

        def disturb() -> None:
            while not over.is_set():
                select.select([publisher.fd], [], [], 0)
                os.close(os.dup(publisher.fd))

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            for _ in range(15):
                assert publisher.publish(channel, bytes(3 * MIB)) == 3 * MIB + 16
        finally:
            over.set()
            thread.join()
        assert sizes(reader) == [3 * MIB] * 15


def test_a_write_that_breaks_off_is_dropped_and_counted(folder: Path) -> None:
    [channel] = register(folder, "HALF")
    before = unpublished(folder)
    with Raw(folder) as publisher, Raw(folder) as reader:
        reader.subscribe("HALF")
        assert write_half(publisher.fd, channel) == MIB
        until(lambda: unpublished(folder) == before + 1, "it is dropped")
        assert write_half(publisher.fd, channel) == MIB
        publisher.publish(channel, b"next")  # which tells that the other one is over
        assert unpublished(folder) == before + 2
        assert write_half(publisher.fd, channel) == MIB
        publisher.close()
        until(lambda: unpublished(folder) == before + 3, "it is dropped")
        assert sizes(reader) == [4]


WRITES = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
data = bytes.fromhex(sys.argv[2]) + bytes(3 << 20)
print(flush=True)
while True:
    os.write(fd, data)
"""


def test_a_writer_that_is_killed(folder: Path) -> None:
    [channel] = register(folder, "KILLED")
    dice = random.Random(3)
    with Raw(folder) as reader:
        reader.subscribe("KILLED")
        for _ in range(8):
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITES, str(folder / "fusebus"), head(channel).hex()], stdout=subprocess.PIPE
            )
            with writer:
                writer.stdout.readline()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    writer.wait(dice.uniform(0, 0.03))
                writer.kill()
            until(lambda: int(os.getxattr(folder / "fusebus", "user.busway.clients")) == 1, "its file is closed")
            assert set(sizes(reader)) <= {3 * MIB}


async def test_what_was_written_goes_out_before_the_end(tmp_path: Path) -> None:
    async with busway.serve(f"unix:{tmp_path}/bus") as server, server.connect() as bus:
        heard = await bus.subscribe("LAST").start()
        place = tmp_path / "mount"
        place.mkdir()

        def work() -> None:
            words = "--url", f"unix:{tmp_path}/bus", "--max-message", LIMIT, "--bytes", 64 * MIB
            with mounted("mount", *words, folder=place) as made:
                [channel] = register(place, "LAST")
                with Raw(place) as client:
                    client.publish(channel, bytes(1_000_000))
                    made.end()

        await asyncio.to_thread(work)
        async with asyncio.timeout(PATIENCE):
            assert len((await anext(aiter(heard))).payload) == 1_000_000


# Where the caller's call can't be seen.


@pytest.fixture
async def blind(tmp_path, monkeypatch):
    monkeypatch.setattr(callers, "length", lambda _caller, _tries=0: None)
    async with busway.serve() as server:
        settings = Mount(max_message=LIMIT, bytes=64 * MIB)
        async with FileDoor(tmp_path, lambda name: server.connect(name=name), settings) as door:
            yield door


async def test_unseen_writes(blind: FileDoor) -> None:
    """One that ends within a request is whole, and one that fills it when its caller does something else, or nothing for a while."""

    def work() -> None:
        place = blind.folder
        [channel] = register(place, "BLIND")
        with Raw(place) as client, Raw(place) as reader:
            reader.subscribe("BLIND")
            assert client.publish(channel, bytes(1_500_000)) == 1_500_016
            assert sizes(reader) == [1_500_000]
            with refused(errno.ENXIO):
                client.publish(900, bytes(1_000_000))
            client.publish(channel, bytes(1_000_000))
            assert not reader.ready()
            other = threading.Thread(target=lambda: (client.ready(), os.close(os.dup(client.fd))))
            other.start()
            other.join()
            assert not reader.ready()
            assert reader.ready(PATIENCE)
            assert sizes(reader) == [1_000_000]
            client.publish(channel, bytes(1_000_000))
            os.close(os.dup(client.fd))
            assert sizes(reader) == [1_000_000]

    await asyncio.to_thread(work)


async def test_an_unseen_caller_that_is_gone(blind: FileDoor) -> None:
    def work() -> None:
        place = blind.folder
        [channel] = register(place, "GONE")
        with Raw(place) as client, Raw(place) as reader:
            reader.subscribe("GONE")
            thread = threading.Thread(target=client.publish, args=(channel, bytes(1_000_000)))
            thread.start()
            thread.join()
            until(lambda: unpublished(place) == 1, "it is dropped")
            assert sizes(reader) == []

    await asyncio.to_thread(work)


async def test_unseen_writes_go_out_before_the_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(callers, "length", lambda _caller, _tries=0: None)
    async with busway.serve() as server, server.connect() as bus:
        heard = await bus.subscribe("LAST").start()
        settings = Mount(max_message=LIMIT, bytes=64 * MIB)
        door = await FileDoor(tmp_path, lambda name: server.connect(name=name), settings).open()
        over, wrote = threading.Event(), threading.Event()

        def work() -> None:
            [channel] = register(tmp_path, "LAST")
            with Raw(tmp_path) as client:
                client.publish(channel, bytes(1_000_000))
                wrote.set()
                over.wait(PATIENCE)

        working = asyncio.create_task(asyncio.to_thread(work))
        await asyncio.to_thread(wrote.wait, PATIENCE)
        await door.close()
        over.set()
        await working
        async with asyncio.timeout(PATIENCE):
            assert len((await anext(aiter(heard))).payload) == 1_000_000
