"""Streams under concurrent changes: losses are reported, nothing is stored twice, and settings persist."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import busway
from busway.broker.channels.progress_log import ProgressLog
from busway.testing import FaultProxy
from tests.support.connection_events import next_event
from tests.support.net import PATIENCE, eventually, within
from tests.support.stream_kits import Place


async def test_a_burst_larger_than_a_ring_is_told_as_lost() -> None:
    async with busway.serve() as server, server.connect() as bus, server.connect() as reader:
        await bus.create_stream("ring", ["r"], store="memory", max_count=10)
        async with reader.subscribe("r", since="all") as subscription:
            await bus.publish("r", b"first", durable=True)
            assert (await subscription.recv(timeout=PATIENCE)).payload == b"first"
            await bus.publish_many("r", [b"%d" % number for number in range(1000)], durable=True)
            got = 0
            while got + subscription.lost < 1000:
                got += len(await subscription.take(1000, timeout=PATIENCE))
            assert (got + subscription.lost, subscription.lost > 0) == (1000, True)


async def test_a_stream_that_is_made_while_messages_come_gives_none_twice(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus, reader = await place.connect(), await place.connect()
    seen: Counter[bytes] = Counter()
    stop = False

    async def publish(name: int) -> int:
        number = 0
        while not stop:
            try:
                await bus.publish("fresh/x", b"%d %d" % (name, number), durable=True)
            except busway.Rejected:
                continue  # the stream was removed meanwhile
            number += 1
        return number

    async with reader.subscribe("fresh/**", since="all") as subscription:
        publishing = [asyncio.ensure_future(publish(name)) for name in range(20)]
        for count in range(4):
            before = sum(seen.values())
            while sum(seen.values()) < before + 100:
                seen.update(message.payload for message in await subscription.take(timeout=PATIENCE))
            if count < 3:
                await within(reader.create_stream(f"fresh-{count}", ["fresh/**"], **place.store))
                await within(reader.remove_stream(f"fresh-{count}")) if count < 2 else None
        stop = True
        total = sum(await within(asyncio.gather(*publishing)))
        while sum(seen.values()) + subscription.lost < total:
            seen.update(message.payload for message in await subscription.take(timeout=PATIENCE))
        assert [payload for payload, times in seen.items() if times > 1] == []


async def test_dead_letters_of_two_channels_come_to_an_end() -> None:
    async with busway.serve() as server, server.connect() as bus:

        def poisoned(message: busway.Message) -> None:
            raise RuntimeError(message.topic)

        async with (
            bus.channel("default", "a", handler=poisoned, max_deliveries=1),
            bus.channel("default", "b", handler=poisoned, max_deliveries=1),
        ):
            await bus.publish("job", b"x", durable=True)

            async def idle() -> bool:
                return all(one.lag == 0 and one.dead > 0 for one in await bus.channels("default"))

            await eventually(idle)
        stored = (await (await bus.stream("default")).info()).next
        assert stored <= 1 + 2 + 4 + 8, "each of both buries what the other one buried, three times over"


async def test_a_reconnect_leaves_the_settings_as_somebody_has_changed_them(tmp_path: Path) -> None:
    async with busway.serve(f"unix:{tmp_path}/bus") as server, server.connect() as admin:
        async with FaultProxy(f"unix:{tmp_path}/bus") as proxy, busway.connect(proxy.address) as bus:
            async with bus.channel("default", "c", lease="30s") as channel:
                await admin.update_channel("default", "c", lease="10m")
                await admin.publish("t", b"1", durable=True)
                await channel.recv(timeout=PATIENCE)
                events = bus.events()
                proxy.cut()
                await next_event(events, "resumed")
                assert (await channel.recv(timeout=PATIENCE)).payload == b"1"
                assert (await channel.info()).lease == 600


async def test_safety_that_is_changed_holds_for_the_progress_of_channels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[bool] = []
    write = ProgressLog.write

    def watched(progress: ProgressLog, entries: Any) -> "asyncio.Future[None]":
        written = write(progress, entries)
        at_once.append(written.done())
        return written

    monkeypatch.setattr(ProgressLog, "write", watched)
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await bus.create_stream("s", ["s"], safety="written")
        await bus.publish_many("s", [b"1", b"2"], durable=True)
        async with bus.channel("s", "c") as channel:
            await (await channel.recv(timeout=PATIENCE)).ack()
            assert at_once[-1]
            await bus.update_stream("s", safety="synced")
            await (await channel.recv(timeout=PATIENCE)).ack()
            assert not at_once[-1], "it waits for a sync"


async def test_a_bucket_that_vanishes_under_a_broker_is_told(tmp_path: Path) -> None:
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await bus.create_stream("s", ["s"])
        hub = server._hub
        assert hub is not None
        hub.streams.get("s").log.set(bucket_bytes=4096)
        await bus.publish_many("s", [b"x" * 100] * 300, durable=True)
        logs = sorted((tmp_path / "streams" / "s" / "log").glob("*.log"))
        assert len(logs) > 3
        logs[1].unlink()
        async with bus.subscribe("s", since="all") as subscription, bus.channel("s", "c", window=0) as channel:
            got = handed = 0
            while got + subscription.lost < 300:
                got += len(await subscription.take(timeout=PATIENCE))
            assert subscription.lost > 0
            while handed < got:
                batch = await channel.take(100, timeout=PATIENCE)
                await channel.ack(batch)
                handed += len(batch)
            await bus.publish("s", b"live", durable=True)
            assert (await subscription.recv(timeout=PATIENCE)).payload == b"live"
        read = sum([len(batch) async for batch in (await bus.stream("s")).read()])
        assert read == got + 1
        assert (await (await bus.stream("s")).info()).damage == 1
