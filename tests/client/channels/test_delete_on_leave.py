"""Channels that go with their last consumer, over real connections: leaving is the end of them, a lost connection is not yet."""

from pathlib import Path
from typing import Any

import pytest

import busway
from busway.testing import FaultProxy
from tests.support import wire
from tests.support.channels import STREAM, info, numbers, shown, some, store, stream
from tests.support.connection_events import abort, next_event
from tests.support.net import PATIENCE, Net, eventually
from tests.support.wire import RawClient

EVER = 3600.0
PROMPT: dict[str, Any] = {"reconnect": (0, 0, 0.001), "timeout": PATIENCE}


def passing(bus: busway.Bus, **more: Any) -> busway.Channel:
    return bus.channel(STREAM, "c", delete_on_leave=True, **more)


async def gone(bus: busway.Bus) -> None:
    async def none() -> bool:
        return await bus.channels(STREAM) == []

    await eventually(none)


async def test_a_short_loss_leaves_it_where_it_is(net: Net) -> None:
    server = await net.serve(grace=EVER)
    bus = await stream(net, 4)
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, **PROMPT) as lost:
        async with passing(lost, window=1) as channel:
            await channel.ack(await some(channel, 1))
            events = lost.events()
            proxy.cut()
            await next_event(events, "resumed")
            again = await some(channel, 1)
            assert [(message.offset, message.deliveries) for message in again] == [(1, 2)]
            assert (await info(bus)).floor == 1
        await gone(bus)


async def test_what_is_stored_meanwhile_comes(net: Net) -> None:
    """Also to one that was made to begin with what is new."""
    server = await net.serve(grace=EVER)
    bus = await stream(net, 4)
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, **PROMPT) as lost:
        async with passing(lost, start="new") as channel:
            proxy.refusing = True
            proxy.cut()
            await shown(bus, consumers=0)
            await store(bus, 4, 6)
            proxy.refusing = False
            assert numbers(await some(channel, 2)) == [4, 5]


async def test_who_does_not_come_back_in_time_is_not_waited_for(net: Net) -> None:
    server = await net.serve(grace=0.05)
    bus = await stream(net, 2)
    async with FaultProxy(server.addresses[0]) as proxy:
        lost = await busway.connect(proxy.address, reconnect=None)
        await passing(lost)
        proxy.cut()
        await gone(bus)


async def test_without_grace_a_loss_is_the_end(net: Net) -> None:
    server = await net.serve(grace=0)
    bus = await stream(net, 2)
    async with FaultProxy(server.addresses[0]) as proxy:
        await passing(await busway.connect(proxy.address, reconnect=None))
        proxy.cut()
        await gone(bus)


async def test_another_consumer_keeps_it(net: Net) -> None:
    await net.serve(grace=0.01)
    bus = await stream(net, 2)
    lost = await net.connect(reconnect=None)
    await passing(lost)
    async with passing(bus, window=2) as channel:
        abort(lost)
        await shown(bus, consumers=1)
        assert sorted(numbers(await some(channel, 2))) == [0, 1]
    await gone(bus)


@pytest.mark.parametrize("how", ["channel", "bus"])
async def test_leaving_is_the_end_at_once(net: Net, how: str) -> None:
    await net.serve(grace=EVER)
    bus, leaver = await stream(net, 2), await net.connect()
    channel = await passing(leaver)
    await (channel.close() if how == "channel" else leaver.close())
    await gone(bus)


async def test_one_that_is_left_before_it_is_made_goes_too(net: Net) -> None:
    server = await net.serve(grace=0.01)
    bus = await stream(net, 2)
    asked = {"stream": STREAM, "channel": "c", "settings": {"delete_on_leave": True}}
    async with await RawClient.welcomed(server.addresses[0], 5) as raw:
        await raw.send(wire.channel(7, 1, asked), wire.unchannel(7, 2))
        assert {(await raw.expect(wire.RESULT)).number for _ in range(2)} == {1, 2}
        await gone(bus)


async def test_one_that_is_kept_after_all(net: Net) -> None:
    await net.serve(grace=EVER)
    bus = await stream(net, 2)
    lost = await net.connect(reconnect=None)
    await passing(lost)
    abort(lost)
    await shown(bus, consumers=0)
    await bus.update_channel(STREAM, "c", delete_on_leave=False)
    async with bus.channel(STREAM, "c") as channel:
        await some(channel, 2)
    assert (await info(bus)).consumers == 0


async def test_a_consumer_finds_it_after_a_restart_of_the_broker(net: Net, tmp_path: Path) -> None:
    server = await net.serve(grace=EVER, data=tmp_path)
    await stream(net, 4, store="disk")
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, **PROMPT) as lost:
        async with passing(lost, window=2) as channel:
            await channel.ack(await some(channel, 2))
            events = lost.events()
            await server.stop()
            proxy.upstream = (await net.serve(grace=EVER, data=tmp_path)).addresses[0]
            await next_event(events, "resumed")
            assert numbers(await some(channel, 2)) == [2, 3]
            assert (await info(lost)).floor == 2


async def test_one_that_nobody_comes_back_to_goes_after_a_restart(net: Net, tmp_path: Path) -> None:
    server = await net.serve(grace=EVER, data=tmp_path)
    await stream(net, 2, store="disk")
    bus = await net.connect(reconnect=None)
    await passing(bus)
    await bus.create_channel(STREAM, "stays")
    await server.stop()
    server = await net.serve(grace=0.05, data=tmp_path)

    async def names(bus: busway.Bus) -> list[str]:
        return [one.name for one in await bus.channels(STREAM)]

    bus = await net.connect()

    async def alone() -> bool:
        return await names(bus) == ["stays"]

    await eventually(alone)
    await bus.close()
    await server.stop()
    await net.serve(grace=EVER, data=tmp_path)
    assert await names(await net.connect()) == ["stays"]
