"""Channels over every store: progress survives the broker, and the behaviour is the same in each store."""

import asyncio

import pytest

import busway
from tests.support.net import PATIENCE, gather, within
from tests.support.stream_channels import fill, numbers, shown, some
from tests.support.stream_kits import Place


@pytest.mark.parametrize("window", [0, 50])
async def test_all_is_handed_out_once(bus_with_stream: Place, window: int) -> None:
    place = bus_with_stream
    bus, other = await place.connect(), await place.connect()
    await fill(bus, 0, 1500)
    seen: list[int] = []

    async def consume(bus: busway.Bus) -> None:
        async with bus.channel("orders", "c", window=window) as channel:
            while len(seen) < 3000:
                try:
                    batch = await channel.take(40, timeout=0.1)
                except busway.Timeout:
                    continue
                seen.extend(numbers(batch))
                await channel.ack(batch)

    consuming = [asyncio.ensure_future(consume(one)) for one in (bus, bus, other)]
    for begin in range(1500, 3000, 100):
        await fill(other, begin, begin + 100)
    await within(asyncio.gather(*consuming))
    assert sorted(seen) == list(range(3000))
    await shown(bus, floor=3000, in_flight=0, redelivered=0)


async def test_seek(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    await fill(bus, 0, 20)
    messages = await place.stored()
    async with bus.channel("orders", "c", window=0) as channel:
        await channel.ack(await some(channel, 20))
        for start, offset in ((15, 15), ("first", 0), (messages[7], 7), (messages[3].position, 3), ("1h", 0)):
            assert await within(channel.seek(start)) == offset
            got = await some(channel, 20 - offset)
            assert numbers(got) == list(range(offset, 20))
            await channel.ack(got)
        with pytest.raises(busway.OutOfRange):
            await channel.seek(21)
        assert await channel.seek("new") == 20
        await fill(bus, 20, 21)
        assert numbers(await some(channel, 1)) == [20]


async def test_topics_and_rules(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    for number in range(30):
        await within(bus.publish(f"orders/{number % 3}", b"%d" % number, durable=True, fields={"n": number}))
    where = {"n": list(range(10, 30))}
    async with bus.channel("orders", "c", topic="orders/1", where=where, window=2) as channel:
        seen: list[int] = []
        for _ in range(7):
            message = await channel.recv(timeout=PATIENCE)
            seen.append(int(message.payload))
            await message.ack()
    assert seen == [10, 13, 16, 19, 22, 25, 28]
    await shown(bus, lag=0, floor=30)


async def test_dead_letters(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect("till")
    await fill(bus, 0, 5)
    dead_letter = "orders/dead/{channel}"  # in the same stream
    async with (
        bus.subscribe("orders/dead/*") as dead,
        bus.channel("orders", "c", max_deliveries=2, dead_letter=dead_letter) as channel,
    ):
        for times in (1, 2):
            got = await some(channel, 5 if times == 1 else 2)
            assert {message.deliveries for message in got} == {times}
            bad = [message for message in got if int(message.payload) in (1, 3)]
            await channel.nack(bad)
            if times == 1:
                await channel.ack([message for message in got if message not in bad])
        letters = await gather(dead, 2)
        assert sorted(numbers(letters)) == [1, 3]
        assert {(one.fields["dead_offset"], one.fields["dead_deliveries"]) for one in letters} == {(1, 2), (3, 2)}
        await shown(bus, dead=2, floor=7, lag=0)
        assert channel.pending == 0


async def test_what_is_due_later_and_what_expires(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    async with bus.channel("orders", "c") as channel:
        await within(bus.publish("orders/a", b"0", durable=True, delay=1.0))
        await within(bus.publish("orders/a", b"1", durable=True, expires=0.001, delay=0.1))
        await fill(bus, 2, 3)
        got = await some(channel, 2)
        assert [(message.payload, message.deliveries) for message in got] == [(b"2", 1), (b"0", 1)]
        await channel.ack(got)
        await shown(bus, lag=0)


async def test_what_retention_drops_is_told(bus_with_stream: Place) -> None:
    place = bus_with_stream
    await place.make("brief", max_age="1h")
    bus = await place.connect()
    await fill(bus, 0, 100, "brief/a")
    async with bus.channel("brief", "c", window=10) as channel:
        await some(channel, 10)
        await place.trim("brief", "2h", 100)
        await fill(bus, 100, 101, "brief/a")
        assert numbers(await some(channel, 1)) == [100]
        assert channel.lost == 100


# The next broker.


async def test_where_it_stands_survives(lasting: Place) -> None:
    place = lasting
    bus = await place.connect()
    await fill(bus, 0, 100)
    async with bus.channel("orders", "c", window=0, lease="1h", max_deliveries=9, topic="orders/*") as channel:
        got = await some(channel, 50)
        await channel.ack([message for message in got if message.offset % 5])
        await channel.nack(got[0], delay=0)
        assert numbers(await some(channel, 1)) == [0]
    await place.restart()
    (info,) = await bus.channels("orders")
    assert (info.floor, info.lease, info.max_deliveries, info.topic) == (0, 3600, 9, "orders/*")
    async with bus.channel("orders", "c", window=0) as channel:
        got = await some(channel, 60)
        assert sorted(numbers(got)) == [*range(0, 50, 5), *range(50, 100)]
        assert {message.deliveries for message in got if message.offset == 0} == {3}
        await channel.ack(got)
    await place.restart()
    await shown(bus, floor=100, lag=0)


async def test_a_consumer_goes_on_with_the_next_broker(lasting: Place) -> None:
    place = lasting
    bus, other = await place.connect(), await place.connect()
    await fill(bus, 0, 10)
    async with other.channel("orders", "c", window=4) as channel:
        first = await some(channel, 4)
        await channel.ack(first[:2])
        await place.restart()
        seen: set[int] = set()
        while seen != set(range(2, 10)):
            batch = await channel.take(timeout=PATIENCE)
            await channel.ack(batch)
            assert not seen & set(numbers(batch))
            seen |= set(numbers(batch))
        await shown(bus, floor=10)


async def test_seeks_settings_and_removals_survive(lasting: Place) -> None:
    place = lasting
    bus = await place.connect()
    await fill(bus, 0, 10)
    for name in ("c", "d", "e"):
        await bus.create_channel("orders", name)
    async with bus.channel("orders", "c", window=0) as channel:
        await channel.ack(await some(channel, 10))
        await channel.seek(4)
    await bus.update_channel("orders", "d", paused=True, dead_letter="")
    await bus.remove_channel("orders", "e")
    await place.restart()
    one, two = await bus.channels("orders")
    assert (one.name, one.floor) == ("c", 4)
    assert (two.name, two.paused, two.dead_letter, two.floor) == ("d", True, "", 0)
    async with bus.channel("orders", "c", window=0) as channel:
        assert numbers(await some(channel, 6)) == list(range(4, 10))


async def test_poison_reaches_its_last_delivery_over_restarts(lasting: Place) -> None:
    place = lasting
    bus = await place.connect()
    await fill(bus, 0, 2)
    async with bus.subscribe("dead/**", since="all") as dead:
        async with bus.channel("orders", "c", window=0, max_deliveries=4) as channel:
            first, second = await some(channel, 2)
            await asyncio.gather(first.nack(), second.ack())
            assert [message.deliveries for message in await some(channel, 1)] == [2]
        for times in (3, 4):  # what was noted of it
            await place.restart()
            async with bus.channel("orders", "c", window=0) as channel:
                assert [(message.offset, message.deliveries) for message in await some(channel, 1)] == [(0, times)]
        (letter,) = await gather(dead, 1)
        assert (letter.payload, letter.fields["dead_deliveries"]) == (b"0", 4)
    await place.restart()
    await shown(bus, floor=2)


async def test_a_channel_in_memory_ends_with_its_broker(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    await bus.create_channel("orders", "c")
    await place.restart()
    if place.lasting:
        assert [one.name for one in await bus.channels("orders")] == ["c"]
    else:
        with pytest.raises(busway.Rejected, match="no stream"):
            await bus.channels("orders")
