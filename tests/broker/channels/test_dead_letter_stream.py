"""The stream of dead letters: the broker makes it for the first one, operators may limit or remove it, and their own streams come first."""

import logging
from pathlib import Path
from typing import Any

import pytest

import busway
from tests.support.channels import shown, store
from tests.support.limited_files import Limited
from tests.support.net import PATIENCE

STREAM = "s"


async def poisoned(bus: busway.Bus, count: int = 1, channel: str = "c", **settings: Any) -> None:
    """A stream with so many messages, all of which are rejected."""
    await bus.create_stream(STREAM, ["t/**"])
    await store(bus, 0, count)
    await reject(bus, count, channel, **settings)


async def reject(bus: busway.Bus, count: int, channel: str = "c", **settings: Any) -> None:
    async with bus.channel(STREAM, channel, **settings) as jobs:
        for _ in range(count):
            await (await jobs.recv(timeout=PATIENCE)).reject("poison")


async def letters(bus: busway.Bus, stream: str, topic: str = "dead/**") -> list[busway.Message]:
    return [message async for batch in (await bus.stream(stream)).read(topic=topic) for message in batch]


async def test_the_first_dead_letter_makes_a_stream_without_limits(tmp_path: Path) -> None:
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        assert [one.name for one in await bus.streams()] == ["default"]
        await poisoned(bus, 3)
        await shown(bus, dead=3)
        dead = await (await bus.stream("dead")).info()
        assert (dead.topics, dead.store, dead.safety) == (("dead/**",), "disk", "synced")
        assert (dead.max_age, dead.max_bytes, dead.max_count) == (None, None, None)
        assert len(await letters(bus, "dead")) == 3
        assert not await letters(bus, "default")
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        assert len(await letters(bus, "dead")) == 3


async def test_a_broker_in_memory_has_one_in_memory() -> None:
    async with busway.serve() as server, server.connect() as bus:
        await poisoned(bus)
        await shown(bus, dead=1)
        dead = await (await bus.stream("dead")).info()
        assert (dead.store, dead.max_age) == ("memory", None)


async def test_limits_that_are_set_stay_and_a_removed_one_is_made_again(tmp_path: Path) -> None:
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await poisoned(bus)
        await shown(bus, dead=1)
        await bus.update_stream("dead", max_count=1000)
        await store(bus, 1, 2)
        await reject(bus, 1)
        await shown(bus, dead=2)
        assert (await (await bus.stream("dead")).info()).max_count == 1000
        await bus.remove_stream("dead")
        await store(bus, 2, 3)
        await reject(bus, 1)
        await shown(bus, dead=3)
        assert [one.payload for one in await letters(bus, "dead")] == [b"2"]


async def test_a_stream_of_an_operator_that_takes_the_topic_gets_them(tmp_path: Path) -> None:
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await bus.create_stream("graves", ["dead/s/*"])
        await poisoned(bus)
        await shown(bus, dead=1)
        assert len(await letters(bus, "graves")) == 1
        assert "dead" not in {one.name for one in await bus.streams()}


@pytest.mark.parametrize("taken", [("dead", "graves/**"), ("graves", "dead/other/**")])
async def test_where_it_cannot_be_made_the_default_stream_gets_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, taken: tuple[str, str]
) -> None:
    name, topic = taken
    with caplog.at_level(logging.WARNING, "busway.broker"):
        async with busway.serve(data=tmp_path) as server, server.connect() as bus:
            await bus.create_stream(name, [topic])
            await poisoned(bus, 2)
            await shown(bus, dead=2)
            assert len(await letters(bus, "default")) == 2
    (said,) = [
        one.getMessage() for one in caplog.records if "'dead'" in one.getMessage() and "default" in one.getMessage()
    ]
    assert f"{name!r}" in said


async def test_a_topic_of_its_own_goes_where_its_stream_is(tmp_path: Path) -> None:
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await poisoned(bus, dead_letter="failed/{channel}")
        await shown(bus, dead=1)
        assert len(await letters(bus, "default", "failed/c")) == 1
        assert "dead" not in {one.name for one in await bus.streams()}


async def test_a_full_disk_leaves_them_with_their_channel(tmp_path: Path) -> None:
    async with Limited(tmp_path) as broker, busway.connect(broker.address) as bus:
        await bus.create_stream(STREAM, ["t/**"])
        await store(bus, 0, 3)
        async with bus.channel(STREAM, "c") as jobs:
            messages = [await jobs.recv(timeout=PATIENCE) for _ in range(3)]
            await broker.limit(1)
            messages[0].reject("the stream can't be made")
            await shown(bus, dying=1, dead=0)
            await broker.limit(0)
            await shown(bus, dying=0, dead=1)
            await broker.limit(1)
            messages[1].reject("the stream is there")
            messages[2].reject("as well")
            await shown(bus, dying=2, dead=1, lag=2)
            await broker.limit(0)
            await shown(bus, dying=0, dead=3, lag=0)
        assert sorted(one.payload for one in await letters(bus, "dead")) == [b"0", b"1", b"2"]
