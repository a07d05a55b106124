"""Channels over lost connections and a broker restart: acknowledged messages never return, all others do."""

import asyncio

import pytest

import busway
from tests.support.channels import STREAM, cut, info, nothing, numbers, shown, some, store, stream
from tests.support.connection_events import abort, next_event
from tests.support.net import PATIENCE, Net, settle, until, within

pytestmark = pytest.mark.both_loops


@pytest.mark.parametrize("window", [0, 10])
async def test_what_was_not_acknowledged_comes_again(net: Net, window: int) -> None:
    bus = await stream(net, 10)
    lost = await net.connect(reconnect=(0,))
    async with lost.channel(STREAM, "c", window=window) as channel:
        got = await channel.take(10, timeout=PATIENCE, whole=True)
        await channel.ack([message for message in got if message.offset % 3 == 0])
        await cut(lost)
        again = await channel.take(6, timeout=PATIENCE, whole=True)
        assert numbers(again) == [1, 2, 4, 5, 7, 8]
        assert {message.deliveries for message in again} == {2}
        await channel.ack(again)
        await store(bus, 10, 12)
        assert numbers(await channel.take(2, timeout=PATIENCE, whole=True)) == [10, 11]
        assert (await info(bus)).floor == 10


async def test_what_arrived_and_nobody_took_comes_once(net: Net) -> None:
    """The copies of the lost connection are dropped, also by one who is in the middle of a batch of them."""
    await stream(net, 10)
    lost = await net.connect(reconnect=(0,))
    seen: list[busway.Message] = []
    async with lost.channel(STREAM, "c", window=10) as channel:
        await until(lambda: channel.pending == 10)
        async for message in channel:
            seen.append(message)
            await message.ack()
            if len(seen) == 4:
                await cut(lost)
            if len(seen) == 10:
                break
        assert numbers(seen) == list(range(10))
        assert [message.deliveries for message in seen] == [1] * 4 + [2] * 6
        assert await nothing(lost, channel)


@pytest.mark.parametrize("begun", [False, True])
async def test_what_is_acknowledged_after_the_loss_does_not_come_again(net: Net, begun: bool) -> None:
    """Its copy has arrived by then; nobody is given it, also not out of a batch that was begun."""
    bus = await stream(net, 4)
    lost = await net.connect(reconnect=(0,))
    async with lost.channel(STREAM, "c", window=10) as channel:
        old = await channel.take(4, timeout=PATIENCE, whole=True)
        await cut(lost)
        await until(lambda: channel.pending == 4)
        if begun:
            assert (await channel.recv(timeout=PATIENCE)).offset == 0
        await channel.ack(old[1:3])
        rest = [3] if begun else [0, 3]
        assert numbers(await some(channel, len(rest))) == rest
        assert await nothing(lost, channel)
        assert (await info(bus)).in_flight == 2


async def test_another_consumer_gets_what_the_lost_one_had(net: Net) -> None:
    bus = await stream(net, 4)
    lost = await net.connect(reconnect=None)
    channel = await lost.channel(STREAM, "c", window=4)
    await some(channel, 2)
    async with bus.channel(STREAM, "c", window=4) as other:
        assert await nothing(bus, other)
        abort(lost)
        again = await some(other, 4)
        assert [(message.offset, message.deliveries) for message in again] == [(0, 2), (1, 2), (2, 2), (3, 2)]
        with pytest.raises(busway.BusError):
            await channel.recv()


async def test_an_acknowledgement_of_a_message_from_before_the_cut(net: Net) -> None:
    """The broker has handed it to the same consumer again, so who has worked on it all the time is heard."""
    bus = await stream(net, 2)
    lost = await net.connect(reconnect=(0,))
    async with lost.channel(STREAM, "c", window=1) as channel:
        first = await channel.recv(timeout=PATIENCE)
        await cut(lost)
        await until(lambda: channel.pending == 1)
        await first.ack()
        assert (await info(bus)).floor == 1
        again = await channel.recv(timeout=PATIENCE)
        if again.offset == 0:  # its copy was on its way
            with pytest.raises(busway.AckLate):
                await again.ack()
            again = await channel.recv(timeout=PATIENCE)
        assert again.offset == 1


async def test_acknowledgements_while_there_is_no_connection(net: Net) -> None:
    bus = await stream(net, 2)
    lost = await net.connect(reconnect=(0,))
    events = lost.events()
    async with lost.channel(STREAM, "c") as channel:
        first, second = await some(channel, 2)
        abort(lost)
        await next_event(events, "lost")
        second.ack()
        with pytest.raises(busway.Disconnected):
            await first.ack()
        told = await next_event(events, "rejected")  # of the one that nobody awaits
        assert isinstance(told.error, busway.Disconnected)
        again = await some(channel, 2)
        assert numbers(again) == [0, 1]
        await channel.ack(again)
        await shown(bus, floor=2)


async def test_an_exclusive_channel_is_had_again(net: Net) -> None:
    await stream(net, 2)
    lost = await net.connect(reconnect=(0,))
    async with lost.channel(STREAM, "c", exclusive=True) as channel:
        await some(channel, 2)
        for _ in range(3):
            await cut(lost)
            assert numbers(await some(channel, 2)) == [0, 1]
            assert not channel.closed


async def test_a_channel_that_was_removed_meanwhile(net: Net) -> None:
    """With create=False it has visibly failed."""
    bus = await stream(net, 1)
    await bus.create_channel(STREAM, "c")
    lost = await net.connect(reconnect=(0,))
    events = lost.events()
    channel = await lost.channel(STREAM, "c", create=False)
    await some(channel, 1)
    abort(lost)
    await bus.remove_channel(STREAM, "c")
    await next_event(events, "rejected")
    with pytest.raises(busway.Rejected):
        await channel.recv(timeout=PATIENCE)


async def test_a_handler_goes_on(net: Net) -> None:
    bus = await stream(net, 100)
    lost = await net.connect(reconnect=(0,))
    done: list[int] = []
    half = asyncio.Event()

    async def handle(message: busway.Message) -> None:
        done.append(int(message.payload))
        if len(done) >= 30:
            half.set()
        await asyncio.sleep(0)

    async with lost.channel(STREAM, "c", window=8, handler=handle, concurrency=3):
        await within(half.wait())
        await cut(lost)
        await shown(bus, floor=100)
    assert set(done) == set(range(100))
    assert len(done) <= 100 + 8


async def test_a_slow_consumer_with_a_wide_window(net: Net) -> None:
    """It is given no more than its connection holds, and everything in the end."""
    await net.serve(outbox=1 << 20)
    bus, slow = await net.connect(), await net.connect()
    await bus.create_stream(STREAM, ["t/**"])
    await bus.publish_many("t/a", [b"." * (16 << 10)] * 600, durable=True)
    async with slow.channel(STREAM, "c", window=65_536) as channel:
        connection = slow._core.connection
        assert connection is not None
        connection.transport.pause_reading()
        await settle(bus)
        assert net.server is not None
        assert net.server.stats()["outbox_bytes"] <= 2 << 20
        async with bus.channel(STREAM, "d", window=600) as quick:  # nobody else is kept waiting
            assert len(await quick.take(600, timeout=PATIENCE, whole=True)) == 600
        connection.transport.resume_reading()
        got = await channel.take(600, timeout=PATIENCE, whole=True)
        assert [message.offset for message in got] == list(range(600))
        await channel.ack(got)
