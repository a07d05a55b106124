"""The bridge between the file and the bus: order, limits, a slow or lost bus, and mounts of other users than root."""

import asyncio
import errno
import os

import pytest

import busway
from busway.gateway.files.config import Mount
from busway.gateway.files.door import FileDoor
from busway.gateway.files.fusebus.bridge import Bridge
from busway.gateway.files.fusebus.exchange import Exchange
from busway.gateway.files.kernel import mount
from tests.support.fusebus_client import refused


class SlowBus:
    """Takes a message each time that it is let."""

    state = "connected"

    def __init__(self):
        self.taken = []
        self.let = asyncio.Semaphore(0)

    async def publish(self, topic, payload, *, fields):
        await self.let.acquire()
        if self.state != "connected":
            raise busway.Disconnected("gone")
        self.taken.append((topic, payload, fields["serno"]))


@pytest.fixture
async def slow():
    bus = SlowBus()
    bridge = Bridge(bus, Exchange(Mount()), Mount(unsent=200))
    bridge.start()
    yield bus, bridge
    bus.state = "lost"
    for _ in range(100):
        bus.let.release()
    await bridge.close()


async def test_writers_wait_for_room_and_order_is_kept(slow):
    bus, bridge = slow
    for serno in range(4):
        assert not bridge.full
        bridge.publish("A", b"", serno, 0)
    assert bridge.full
    waiting = asyncio.create_task(bridge.room())
    bus.let.release()
    async with asyncio.timeout(60):
        await waiting
    assert not bridge.full
    bridge.publish("A", b"", 4, 0)
    for _ in range(4):
        bus.let.release()
    async with asyncio.timeout(60):
        await bridge.room(empty=True)
    assert [serno for _, _, serno in bus.taken] == [0, 1, 2, 3, 4]


async def test_a_few_go_out_at_once_and_many_together():
    sent = []

    class Bus:
        state = "connected"

        def publish(self, topic, payload, *, fields):
            sent.append(fields["serno"])  # and nothing to wait for

    bridge = Bridge(Bus(), Exchange(Mount()), Mount())
    now = [1.0]
    bridge._clock = lambda: now[0]
    bridge.start()
    for serno in range(12):
        bridge.publish("A", b"", serno, 0)
    assert sent == list(range(12))
    now[0] += 0.0015  # more than ten in the last millisecond
    for serno in range(12, 15):
        bridge.publish("A", b"", serno, 0)
    assert sent == list(range(12))
    async with asyncio.timeout(60):
        await bridge.room(empty=True)
    assert sent == list(range(15))
    now[0] += 0.0015  # three in this one: slow again
    bridge.publish("A", b"", 15, 0)
    assert sent == list(range(16))
    await bridge.close()


async def test_what_could_not_be_published_is_counted(slow, caplog):
    bus, bridge = slow
    for serno in range(5):
        bridge.publish("A", b"", serno, 0)
    waiting = asyncio.create_task(bridge.room())
    await asyncio.sleep(0)
    bus.state = "lost"
    for _ in range(5):
        bus.let.release()
    async with asyncio.timeout(60):
        await waiting
    with refused(errno.EIO):
        bridge.check()
    async with asyncio.timeout(60):
        while bridge.unpublished < 5:
            await asyncio.sleep(0)
    assert not bus.taken


async def test_mounting_through_the_helper(tmp_path, monkeypatch):
    """As users other than root do."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    async with busway.serve() as server:
        door = FileDoor(tmp_path, lambda name: server.connect(name=name), Mount(documented=True))
        async with door:
            assert await asyncio.to_thread(mount.mounted, tmp_path) == mount.TYPE
            assert await asyncio.to_thread(lambda: sorted(one.name for one in tmp_path.iterdir())) == [
                "channels",
                "fusebus",
            ]
            with pytest.raises(busway.MountFailed, match=r"mounted on .* already"):
                await asyncio.to_thread(mount.prepare, tmp_path)
            assert door.figures()["requests"] > 0
        assert mount.mounted(tmp_path) is None


def test_without_the_helper(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(mount.shutil, "which", lambda name: None)
    for work in (lambda: mount.mount(tmp_path, Mount()), lambda: mount.unmount(tmp_path)):
        with pytest.raises(busway.MountFailed, match=r"fusermount3 is missing.*apt install fuse3"):
            work()
    assert "fusermount3" in mount.missing()


def test_without_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(mount, "DEVICE", str(tmp_path / "none"))
    with pytest.raises(busway.MountFailed, match="modprobe fuse"):
        mount.mount(tmp_path, Mount())
    assert "modprobe fuse" in mount.missing()


def test_names_of_mounts_with_spaces(tmp_path):
    folder = tmp_path / "a b\tc"
    folder.mkdir()
    fd = mount.mount(folder, Mount())
    try:
        assert mount.mounted(folder) == mount.TYPE
    finally:
        os.close(fd)
        assert mount.is_stale(folder)
        assert mount.prepare(folder)
    assert mount.mounted(folder) is None
    assert not mount.prepare(folder)
