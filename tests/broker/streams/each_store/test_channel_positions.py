"""Channels over every store: positions are stored with the stream, and no message is skipped."""

import asyncio

import pytest

import busway
from busway.client.channels.channel import Channel
from busway.errors import StoreFailed
from tests.support.net import PATIENCE, until, within
from tests.support.relay import Relay
from tests.support.stream_kits import Place, stores_again, vanish


async def fill(place: Place, count: int) -> busway.Bus:
    bus = await place.connect()
    await within(bus.publish_many("orders/a", [b"%d" % n for n in range(count)], durable=True))
    return bus


async def test_consumers_share_a_backlog_and_what_comes(bus_with_stream: Place) -> None:
    bus = await fill(bus_with_stream, 1000)
    got: list[int] = []

    async def consume(jobs: Channel) -> None:
        while len(got) < 1500:
            for message in await jobs.take(50, timeout=PATIENCE):
                got.append(message.offset)
                await message.ack()

    consumers = [await bus_with_stream.connect() for _ in range(3)]
    async with (
        consumers[0].channel("orders", "billing") as one,
        consumers[1].channel("orders", "billing") as two,
        consumers[2].channel("orders", "billing") as three,
    ):
        consuming = [asyncio.ensure_future(consume(jobs)) for jobs in (one, two, three)]
        await within(bus.publish_many("orders/b", [b""] * 500, durable=True))
        await until(lambda: len(got) >= 1500)
        for task in consuming:
            task.cancel()
        await asyncio.wait(consuming)
    assert sorted(got) == list(range(1500))


async def test_a_channel_stands_where_it_stood_after_a_restart(lasting: Place) -> None:
    place = lasting
    bus = await fill(place, 300)
    async with bus.channel("orders", "billing", window=300) as jobs:
        messages = [await jobs.recv(timeout=PATIENCE) for _ in range(300)]
        kept = {7, 100, 250}  # not acknowledged
        await within(asyncio.gather(*(one.ack() for one in messages if one.offset not in kept)))
        await place.restart()
        again = [await jobs.recv(timeout=PATIENCE) for _ in kept]
        assert sorted(message.offset for message in again) == sorted(kept)
        await within(asyncio.gather(*(one.ack() for one in again)))
        await within(bus.publish("orders/a", b"new", durable=True))
        last = await jobs.recv(timeout=PATIENCE)
        assert last.payload == b"new"
        await last.ack()
    await place.restart()
    async with bus.channel("orders", "billing") as jobs:
        assert (await jobs.info()).floor == 301


async def test_what_was_refused_comes_again(bus_with_stream: Place) -> None:
    bus = await fill(bus_with_stream, 3)
    async with bus.channel("orders", "billing", max_deliveries=2) as jobs, bus.subscribe("dead/**") as dead:
        for message in [await jobs.recv(timeout=PATIENCE) for _ in range(3)]:
            await (message.nack() if message.offset == 1 else message.ack())
        again = await jobs.recv(timeout=PATIENCE)
        assert (again.offset, again.deliveries) == (1, 2)
        await again.nack()
        assert (await dead.recv(timeout=PATIENCE)).payload == b"1"


async def test_a_removed_stream_has_no_channels(bus_with_stream: Place) -> None:
    bus = await fill(bus_with_stream, 3)
    async with bus.channel("orders", "billing") as jobs:
        await (await jobs.recv(timeout=PATIENCE)).ack()
    await bus_with_stream.remove()
    await bus_with_stream.make()
    await within(bus.publish("orders/a", b"other", durable=True))
    async with bus.channel("orders", "billing") as jobs:
        assert (await jobs.recv(timeout=PATIENCE)).payload == b"other"


async def test_a_database_that_is_gone_costs_a_channel_nothing(far: Place, relay: Relay) -> None:
    bus = await fill(far, 100)
    async with bus.channel("orders", "billing", window=200) as jobs:
        first = [await jobs.recv(timeout=PATIENCE) for _ in range(50)]
        await within(asyncio.gather(*(one.ack() for one in first)))
        vanish(relay)
        message = await jobs.recv(timeout=PATIENCE)
        with pytest.raises(StoreFailed, match="channels of stream 'orders' can't be saved: the database"):
            await within(message.ack())
        rest = [await jobs.recv(timeout=PATIENCE) for _ in range(49)]
        relay.refuse = False
        await stores_again(bus, b"new")
        await within(asyncio.gather(*(one.ack() for one in rest)))
        last = await jobs.recv(timeout=PATIENCE)
        assert last.payload == b"new"
        await last.ack()
    await far.restart()
    async with bus.channel("orders", "billing") as jobs:
        assert (await jobs.info()).floor == 101
