"""The floor of free disk space: below it durable publishes are refused, everything else goes on, and it ends by itself."""

import asyncio
import errno
import logging
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import busway
from busway.broker.storage.disk_space import DiskSpace
from busway.common import environment
from busway.errors import Code
from tests.support.net import PATIENCE, eventually, until, within

MIB = 1 << 20
FLOOR = 100 * MIB


class Disk:
    """A disk with as much free space as a test wants."""

    def __init__(self) -> None:
        self.free: int | OSError = 1000 * MIB

    def look(self, _folder: Path) -> tuple[int, int]:
        if isinstance(self.free, OSError):
            raise self.free
        return self.free, 10_000 * MIB


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(environment, "disk_space", disk.look)
    return disk


@pytest.fixture
async def server(disk: Disk, tmp_path: Path) -> AsyncIterator[busway.Server]:
    settings = busway.Settings(min_free_disk=FLOOR)
    async with busway.serve(f"unix:{tmp_path / 'bus'}", data=tmp_path / "data", settings=settings) as server:
        yield server


async def is_low(bus: busway.Bus, low: bool) -> None:
    async def looked() -> bool:
        return (await bus.info())["disk"]["low"] is low

    await eventually(looked)


@pytest.mark.parametrize(
    ("given", "size", "floor"),
    [(None, 1000 * MIB, 20 * MIB), (None, 10**13, 256 * MIB), (7, 1000 * MIB, 7), (0, 1000 * MIB, 0)],
)
def test_the_floor(given: int | None, size: int, floor: int) -> None:
    space = DiskSpace(given)
    assert not space.look(size, size)
    assert (space.floor, space.low, space.refusal()) == (floor, False, None)


def test_it_changes_once_in_each_direction() -> None:
    space = DiskSpace(FLOOR)
    changes = [space.look(free, 10**12) for free in (FLOOR, FLOOR - 1, 0, FLOOR, FLOOR + 1, int(FLOOR * 1.05), FLOOR)]
    assert changes == [False, True, False, False, False, True, False]
    assert space.times == 1


def test_without_a_floor_nothing_is_refused() -> None:
    space = DiskSpace(0)
    assert not space.look(0, 10**12)
    assert not space.low


async def test_durable_publishes_are_refused_and_the_rest_goes_on(
    server: busway.Server, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "busway.broker")
    async with server.connect() as bus, bus.subscribe("$bus/disk/*") as happened:
        for store in ("disk", "db", "memory"):
            await bus.create_stream(store, [f"{store}/**"], store=store)
            await bus.publish(f"{store}/1", b"before", durable=True)
        disk.free = 12 * MIB
        await is_low(bus, True)
        for topic in ("disk/1", "db/1", "anything"):
            with pytest.raises(busway.StoreFailed, match=r"12 MiB free, less than the 100 MiB") as caught:
                await within(bus.publish(topic, b"refused", durable=True))
            assert caught.value.code == Code.NO_SPACE
        with pytest.raises(busway.StoreFailed):
            await within(bus.publish_many("disk/1", [b"refused"] * 3, durable=True))
        assert (await bus.publish("memory/1", b"taken", durable=True)).offset == 1
        async with bus.subscribe("plain") as plain:
            await bus.publish("plain", b"plain")
            assert (await plain.recv(timeout=PATIENCE)).payload == b"plain"
        await bus.pin("config", b"{}")
        async with bus.channel("disk", "work") as jobs:  # a new channel, and its progress, are written
            await (await jobs.recv(timeout=PATIENCE)).ack()
        assert (await bus.channel_info("disk", "work")).floor == 1
        disk.free = 13 * MIB
        disk.free = 500 * MIB
        await is_low(bus, False)
        assert (await within(bus.publish("disk/1", b"after", durable=True))).offset == 1
        assert [(await happened.recv(timeout=PATIENCE)).topic for _ in range(2)] == [
            "$bus/disk/low",
            "$bus/disk/enough",
        ]
        assert (await bus.info())["disk"] | {"free": 0} == {"free": 0, "floor": FLOOR, "low": False, "times": 1}
    assert [one.message.split(", ")[0] for one in caplog.records if "free" in one.message] == [
        f"the disk with the data folder {server._data.path} has 12 MiB free",  # type: ignore[union-attr]
        f"the disk with the data folder {server._data.path} has 500 MiB free again: durable publishes are accepted",  # type: ignore[union-attr]
    ]


async def test_a_resend_of_a_stored_message_is_answered(server: busway.Server, disk: Disk) -> None:
    """A client whose answer was lost with its connection has to hear that the message is stored."""
    identity = busway.settings.Identity(secret=b"0123456789abcdef")
    async with server.connect(identity=identity) as bus:
        first = await bus.publish("a", b"1", durable=True)
    disk.free = 0
    async with server.connect(identity=identity) as again:
        await is_low(again, True)
        with pytest.raises(busway.StoreFailed):
            await within(again.publish("a", b"2", durable=True))
    log = server._hub.streams.get("default").log  # type: ignore[union-attr]
    assert log.placed(identity.session, 1, 10)[0][1] == first.offset


async def test_dead_letters_stay_with_their_channel_until_there_is_space(
    server: busway.Server, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "busway.broker")
    count = 30
    async with server.connect() as bus:
        await bus.create_stream("jobs", ["jobs"])
        await bus.create_stream("letters", ["letters"])
        await bus.create_channel("jobs", "work", max_deliveries=1, dead_letter="letters")
        await bus.publish_many("jobs", [b"%d" % number for number in range(count)], durable=True)
        disk.free = 0
        await is_low(bus, True)
        async with bus.channel("jobs", "work") as jobs:
            for _ in range(count):
                await (await jobs.recv(timeout=PATIENCE)).nack()

            async def refused() -> bool:
                return (await bus.channel_info("jobs", "work")).dying == count

            await eventually(refused)
            await asyncio.sleep(2.2)  # two more attempts of each, which are not logged again
            told = [one.message for one in caplog.records if "can't be moved" in one.message]
            assert len(told) == 1, told
            assert (await (await bus.stream("letters")).info()).count == 0
            disk.free = 1000 * MIB

            async def moved() -> bool:
                return (await (await bus.stream("letters")).info()).count == count

            await eventually(moved)
            found = [one.payload async for batch in (await bus.stream("letters")).read() for one in batch]
            assert sorted(found) == sorted(b"%d" % number for number in range(count))
            await until(lambda: any("moved again" in one.message for one in caplog.records))


async def test_a_disk_that_can_not_be_looked_at_changes_nothing(
    server: busway.Server, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.free = OSError(errno.EIO, "Input/output error")
    await until(lambda: "can't be read" in caplog.text)
    async with server.connect() as bus:
        await bus.publish("a", b"1", durable=True)


async def test_delayed_messages_come_when_there_is_space(server: busway.Server, disk: Disk) -> None:
    async with server.connect() as bus, bus.subscribe("later") as later:
        await bus.publish("later", b"1", durable=True, delay=0.2)
        disk.free = 0
        await is_low(bus, True)
        await asyncio.sleep(0.5)
        disk.free = 1000 * MIB
        assert (await later.recv(timeout=PATIENCE)).payload == b"1"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True, check=False)
    assert not made.returncode, f"only root can mount a small file system: {made.stderr.decode()}"
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


async def test_a_small_disk(small: Path) -> None:
    """A real disk, which something else fills."""
    settings = busway.Settings(min_free_disk=4 * MIB)
    async with busway.serve(data=small / "data", settings=settings) as server, server.connect() as bus:
        await bus.create_stream("s", ["s"])
        await bus.publish("s", b"1", durable=True)
        (small / "ballast").write_bytes(b"x" * (21 * MIB))
        await is_low(bus, True)
        with pytest.raises(busway.StoreFailed) as caught:
            await bus.publish("s", b"2", durable=True)
        assert caught.value.code == Code.NO_SPACE
        await bus.pin("config", b"{}")
        async with bus.channel("s", "work") as jobs:
            await (await jobs.recv(timeout=PATIENCE)).ack()
        (small / "ballast").unlink()
        await is_low(bus, False)
        assert (await bus.publish("s", b"2", durable=True)).offset == 1


async def test_a_full_disk_is_logged_once(small: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = busway.Settings(min_free_disk=0)
    async with busway.serve(data=small / "data", settings=settings) as server, server.connect() as bus:
        await bus.create_stream("s", ["s"])
        (small / "ballast").write_bytes(b"x" * (23 * MIB))
        failed = 0
        async with asyncio.timeout(PATIENCE):
            while failed < 5:
                try:
                    await bus.publish("s", b"x" * 200_000, durable=True)
                except busway.StoreFailed:
                    failed += 1
                    await asyncio.sleep(0.15)  # a failed write is tried again after 0.1 s
        told = [one.message for one in caplog.records if "can't be written" in one.message]
        assert len(told) == 1, told
        assert "No space left" in told[0]
        (small / "ballast").unlink()
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await bus.publish("s", b"again", durable=True)
                    break
                except busway.StoreFailed:
                    await asyncio.sleep(0.15)
        await until(lambda: any("are written again" in one.message for one in caplog.records))
