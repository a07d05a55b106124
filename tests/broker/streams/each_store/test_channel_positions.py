"""Channels over every store: positions are stored with the stream, and no message is skipped."""

import asyncio

import pytest

import busway
from busway.errors import StoreFailed
from tests.support.net import PATIENCE, within
from tests.support.relay import Relay
from tests.support.stream_kits import Place, stores_again, vanish


async def fill(place: Place, count: int) -> busway.Bus:
    bus = await place.connect()
    await within(bus.publish_many("orders/a", [b"%d" % n for n in range(count)], durable=True))
    return bus


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
