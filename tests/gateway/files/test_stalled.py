"""A silent bus and unread replies: waiting callers get an error in the end, and memory does not grow."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import busway
import busway.sync
from busway.gateway.files.config import Mount
from busway.gateway.files.door import FileDoor
from busway.gateway.files.fusebus.bridge import Bridge
from busway.gateway.files.fusebus.exchange import Exchange
from tests.support.fusebus_client import Raw, listed, refused, register
from tests.support.mounts import PATIENCE, Later, mounted, serving, until

MIB = 1 << 20


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A broker that can be stopped, and a mount of its bus."""
    place = tmp_path / "mount"
    place.mkdir()
    url = f"unix:{tmp_path}/bus"
    with (
        serving(url) as server,
        mounted("mount", "--url", url, "--request", 1, folder=place) as made,
    ):

        @contextlib.contextmanager
        def stopped() -> Iterator[None]:
            server.send_signal(signal.SIGSTOP)
            try:
                yield
            finally:
                server.send_signal(signal.SIGCONT)

        yield SimpleNamespace(folder=place, url=url, stopped=stopped, mounted=made)


def test_nothing_waits_for_ever(stalled) -> None:
    folder = stalled.folder
    (folder / "topics" / "known").write_bytes(b"line\n")

    def write() -> None:
        with (folder / "topics" / "known").open("ab", buffering=0) as file:
            file.write(b"line\n")

    with stalled.stopped():
        for work in (
            lambda: os.open(folder / "topics" / "new", os.O_RDWR | os.O_CREAT),
            write,
            lambda: list((folder / "streams").iterdir()),
            lambda: register(folder, "NEW"),
        ):
            assert Later(work).result() in {errno.ETIMEDOUT, errno.EIO}
    write()
    register(folder, "NEW")
    assert [one.name for one in (folder / "streams").iterdir()] == ["default"]


def subscriptions(bus: busway.sync.Bus) -> int:
    return int(bus.info()["stats"]["subscriptions"])


def test_a_channel_that_was_not_registered_is_not_followed(stalled) -> None:
    folder = stalled.folder
    with busway.sync.connect(stalled.url) as bus:
        before = subscriptions(bus)
        with stalled.stopped():
            writer = subprocess.Popen(["sh", "-c", "echo LEAK >> channels"], cwd=folder)
            assert writer.wait(PATIENCE) != 0
        assert listed(folder) == []
        until(lambda: subscriptions(bus) == before, "nobody hears it")
        [channel] = register(folder, "LEAK")  # as if nothing had been
        assert subscriptions(bus) == before + 1
        with Raw(folder) as reader:
            reader.subscribe("LEAK")
            bus.publish("LEAK", b"once")
            assert [(one.channel, one.data) for one in reader.wait(1)] == [(channel, b"once")]
            assert not reader.ready()


class Followed:
    """A bus that takes its time to subscribe, while messages come."""

    state = "connected"

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.open = 0

    def subscribe(self, topic, *, handler, **_options):
        self.topic, self.handler = topic, handler
        return self

    async def start(self):
        self.open += 1
        await self.go.wait()
        return self

    async def close(self):
        self.open -= 1

    def come(self, size: int) -> None:
        self.handler(SimpleNamespace(topic=self.topic[1:], kind="publish", payload=bytes(size), id="0" * 32))


async def test_what_comes_before_a_channel_is_registered_is_bounded() -> None:
    bus = Followed()
    settings = Mount(bytes=10_000, messages=100)
    exchange = Exchange(settings)
    bridge = Bridge(bus, exchange, settings)
    following = asyncio.create_task(bridge.follow(["A"]))
    while not bus.open:
        await asyncio.sleep(0)
    for _ in range(30):
        bus.come(1000)
    assert bridge._early_bytes == sum(len(one.payload) for one in bridge._early["A"]) == 10_000
    for _ in range(200):
        bus.come(1)
    assert len(bridge._early["A"]) == 100
    bus.come(2000)
    assert bridge.too_long == 1
    bus.go.set()
    await following
    exchange.register(["A"])
    bridge.registered(["A"])
    assert len(exchange.store.records) == 100
    assert (bridge._early, bridge._early_bytes) == ({}, 0)


async def test_who_was_interrupted_leaves_nothing_behind() -> None:
    bus = Followed()
    bridge = Bridge(bus, Exchange(Mount()), Mount())
    first, second = (asyncio.create_task(bridge.follow(["A"])) for _ in range(2))
    while not bus.open:
        await asyncio.sleep(0)
    bus.come(10)
    first.cancel()
    await asyncio.wait([first])
    bridge.unfollow(["A"])
    bus.come(10)
    assert bridge._early_bytes == 20  # the other one is still about to register it
    second.cancel()
    await asyncio.wait([second])
    bridge.unfollow(["A"])
    bus.come(10)
    assert (bridge._early, bridge._early_bytes) == ({}, 0)
    bus.go.set()
    async with asyncio.timeout(PATIENCE):
        while bus.open:
            await asyncio.sleep(0)


# Who writes without waiting.


PARALLEL = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 2)
"""Whether the kernel lets several write at once."""


@pytest.fixture
async def full(tmp_path: Path):
    """A mount whose bus has no room, for as long as the test wants it."""
    async with (
        busway.serve() as server,
        FileDoor(tmp_path, lambda name: server.connect(name=name), Mount(request=0.5)) as door,
    ):
        await asyncio.to_thread(register, tmp_path, "A")
        door._bridge._bytes += 100 * MIB
        yield door
        assert door._bridge._bytes == 0


def make_room(door: FileDoor) -> None:
    door._bridge._bytes -= 100 * MIB
    door._bridge._wake_writers()


async def test_who_waits_for_room_is_told_in_the_end(full: FileDoor) -> None:
    """Where the kernel lets one write at a time, nobody who does not want to wait does so for ever."""

    def work() -> None:
        with Raw(full.folder) as waits, Raw(full.folder, os.O_NONBLOCK) as hurries:
            first = Later(lambda: waits.publish(0, b"x"))
            with refused(errno.EAGAIN):
                hurries.publish(0, b"y")
            assert first.result() == errno.ETIMEDOUT

    await asyncio.to_thread(work)
    make_room(full)
    assert full.exchange.published == 0


@pytest.mark.skipif(not PARALLEL, reason="the kernel lets one write at a time")
async def test_who_does_not_wait_is_not_kept_by_who_does(full: FileDoor, monkeypatch) -> None:
    monkeypatch.setattr(full._kernel, "_patience", PATIENCE)
    loop = asyncio.get_running_loop()

    def work() -> None:
        with Raw(full.folder) as waits, Raw(full.folder, os.O_NONBLOCK) as hurries:
            first = Later(lambda: waits.publish(0, b"x" * 1016))
            with refused(errno.EAGAIN):
                hurries.publish(0, b"y" * 1016)
            assert not first.over()
            loop.call_soon_threadsafe(make_room, full)
            assert first.result() == 1032
            hurries.publish(0, b"z")

    await asyncio.to_thread(work)
    assert full.exchange.published == 2


# Services.


@pytest.fixture
def service(stalled) -> Iterator[SimpleNamespace]:
    """A service that tells how long a request was."""
    with (
        busway.sync.connect(stalled.url) as bus,
        bus.serve("length", lambda message: str(len(message.payload))),
    ):
        fd = os.open(stalled.folder / "services" / "length", os.O_RDWR | os.O_CREAT)
        yield SimpleNamespace(fd=fd, folder=stalled.folder)
        os.close(fd)


def reply(fd: int) -> bytes:
    told = b""
    while part := os.read(fd, 100):
        told += part
    return told


def test_a_long_request_is_whole_or_refused(service) -> None:
    for size in (1_048_577, 1_500_000, 3 * MIB):
        with refused(errno.EMSGSIZE):
            os.write(service.fd, bytes(size))
        with refused(errno.ENODATA):
            os.read(service.fd, 10)
    for size in (983_041, 1_000_000, MIB):
        assert os.write(service.fd, bytes(size)) == size
        assert reply(service.fd) == b"%d" % size


def test_a_request_of_several_pieces(tmp_path: Path) -> None:
    with mounted("mount", "--unix", tmp_path / "bus", "--line", 3 * MIB) as made:
        with busway.sync.connect(f"unix:{tmp_path}/bus") as bus, bus.serve("s", lambda one: str(len(one.payload))):
            fd = os.open(made.folder / "services" / "s", os.O_RDWR | os.O_CREAT)
            for size in (2_000_000, 3 * MIB):
                assert os.write(fd, bytes(size)) == size
                assert reply(fd) == b"%d" % size
            os.close(fd)


def test_more_requests_than_replies_were_read_of(service) -> None:
    for _ in range(64):
        os.write(service.fd, b"abc")
    later = Later(lambda: os.write(service.fd, b"abcd"))
    assert reply(service.fd) == b"3"
    assert later.result() == 4
    assert Later(lambda: os.write(service.fd, b"nobody reads")).result() == errno.ETIMEDOUT
    os.set_blocking(service.fd, False)
    with refused(errno.EAGAIN):
        os.write(service.fd, b"abc")
    os.set_blocking(service.fd, True)
    assert [reply(service.fd) for _ in range(64)] == [b"3"] * 63 + [b"4"]
