"""Messages that retention removes before a channel has delivered them: counted, and reported once to a consumer, whenever one comes."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import busway
from tests.support.channels import STREAM, shown, store
from tests.support.connection_events import next_event
from tests.support.net import PATIENCE, eventually

LIMIT = 500


@pytest.fixture(params=["disk", "memory"])
async def bus(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[busway.Bus]:
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await bus.create_stream(STREAM, ["t/**"], store=request.param, max_count=LIMIT)
        yield bus


async def removed(bus: busway.Bus) -> int:
    """Retention removes everything that is older than what comes now; the first offset that is left."""
    stream = await bus.stream(STREAM)
    end = (await stream.info()).next
    await store(bus, end, end + 4000)
    await bus.update_stream(STREAM, max_count=LIMIT + 1)  # old messages are looked for at once
    await bus.update_stream(STREAM, max_count=LIMIT)

    async def gone() -> bool:
        return (await stream.info()).first >= end

    await eventually(gone)
    return (await stream.info()).first


async def test_a_consumer_that_returns_is_told(bus: busway.Bus, caplog: pytest.LogCaptureFixture) -> None:
    await store(bus, 0, 10)
    async with bus.channel(STREAM, "c", window=4) as channel:
        await channel.ack(await channel.take(4, timeout=PATIENCE, whole=True))
    first = await removed(bus)
    lost = first - 4
    assert (await bus.channel_info(STREAM, "c")).lost == lost
    events = bus.events()
    with caplog.at_level(logging.WARNING, "busway.client"):
        async with bus.channel(STREAM, "c", window=1) as channel:
            event = await next_event(events, "gap")
            assert (event.topic, event.count, channel.lost) == (f"{STREAM}/c", lost, lost)
            assert (await channel.recv(timeout=PATIENCE)).offset == first
            async with bus.channel(STREAM, "c", window=1) as second:
                await second.recv(timeout=PATIENCE)
                assert second.lost == 0, "it is reported once"
    assert any(str(lost) in one.getMessage() for one in caplog.records)
    assert (await bus.channel_info(STREAM, "c")).lost == lost


async def test_all_consumers_that_are_there_are_told_of_what_none_had(bus: busway.Bus) -> None:
    await store(bus, 0, 10)
    async with bus.channel(STREAM, "c", window=1) as one, bus.channel(STREAM, "c", window=1) as two:
        await one.recv(timeout=PATIENCE)
        await two.recv(timeout=PATIENCE)
        first = await removed(bus)

        async def told() -> bool:
            # Each of what it had itself, and of what no consumer had.
            return all(first - 10 < consumer.lost <= first for consumer in (one, two))

        await eventually(told)
        await shown(bus, lost=first)
        async with bus.channel(STREAM, "c", window=0) as three:
            await three.take(1, timeout=PATIENCE)
            assert three.lost == 0


async def test_it_is_known_after_a_restart(tmp_path: Path) -> None:
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await bus.create_stream(STREAM, ["t/**"], max_count=LIMIT)
        await store(bus, 0, 10)
        await bus.create_channel(STREAM, "told")
        await bus.create_channel(STREAM, "untold")
        first = await removed(bus)
        async with bus.channel(STREAM, "told", window=1) as channel:
            await channel.ack(await channel.recv(timeout=PATIENCE))
            assert channel.lost == first
    for _ in range(2):
        async with busway.serve(data=tmp_path) as server, server.connect() as bus:
            for name in ("told", "untold"):
                assert (await bus.channel_info(STREAM, name)).lost == first
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        for name, lost in (("told", 0), ("untold", first)):
            async with bus.channel(STREAM, name, window=1) as channel:
                await channel.recv(timeout=PATIENCE)
                assert channel.lost == lost


async def test_of_what_a_channel_has_done_nothing_is_lost(bus: busway.Bus) -> None:
    await store(bus, 0, LIMIT)
    async with bus.channel(STREAM, "c", window=LIMIT) as channel:
        await channel.ack(await channel.take(LIMIT, timeout=PATIENCE, whole=True))
        for begin in range(LIMIT, 20 * LIMIT, LIMIT // 2):
            await store(bus, begin, begin + LIMIT // 2)
            await channel.ack(await channel.take(LIMIT // 2, timeout=PATIENCE, whole=True))
        assert (await (await bus.stream(STREAM)).info()).first > 0
        assert (await bus.channel_info(STREAM, "c")).lost == channel.lost == 0
        await bus.create_channel(STREAM, "later")
        assert (await bus.channel_info(STREAM, "later")).lost == 0
