"""Channels with order_by: messages with the same key are delivered one after the other."""

import asyncio

import pytest

import busway
from tests.support.channels import STREAM, cut, info, nothing, numbers, shown, some, store, stream
from tests.support.net import PATIENCE, Net, within


async def mixed(net: Net, **settings: object) -> busway.Bus:
    """Six messages: two on t/a, two on t/b, and two more on t/a."""
    bus = await stream(net)
    await store(bus, 0, 2, "t/a")
    await store(bus, 2, 4, "t/b")
    await store(bus, 4, 6, "t/a")
    await bus.create_channel(STREAM, "c", order_by="topic", **settings)
    return bus


async def test_one_message_of_each_topic_at_a_time(net: Net) -> None:
    bus = await mixed(net)
    assert (await info(bus)).order_by == "topic"
    async with bus.channel(STREAM, "c") as one, bus.channel(STREAM, "c") as two:
        got = {}
        await shown(bus, in_flight=2, waiting=4)
        for channel in (one, two):
            while channel.pending:
                (message,) = await some(channel, 1)
                got[int(message.payload)] = channel, message
        assert sorted(got) == [0, 2]
        seen = [0, 2]
        while len(seen) < 6:
            _, (_, message) = got.popitem()
            await message.ack()
            for channel in (one, two):
                while channel.pending:
                    (message,) = await some(channel, 1)
                    got[int(message.payload)] = channel, message
                    seen.append(int(message.payload))
        assert [n for n in seen if n not in (2, 3)] == [0, 1, 4, 5]
        assert [n for n in seen if n in (2, 3)] == [2, 3]


async def test_a_message_that_failed_is_waited_for(net: Net) -> None:
    bus = await mixed(net, backoff=["1h"])
    async with bus.channel(STREAM, "c") as channel:
        first, other = await some(channel, 2)
        assert numbers([first, other]) == [0, 2]
        await first.nack()
        await other.ack()
        assert numbers(await some(channel, 1)) == [3]
        await shown(bus, in_flight=1, waiting=4)
        assert await nothing(bus, channel)


async def test_a_dead_letter_is_not_waited_for(net: Net) -> None:
    bus = await mixed(net, max_deliveries=1)
    async with bus.channel(STREAM, "c") as channel:
        first, _ = await some(channel, 2)
        await first.nack()
        assert numbers(await some(channel, 1)) == [1]


async def test_a_field_is_a_key_and_without_it_there_is_no_order(net: Net) -> None:
    bus = await stream(net)
    for number, fields in enumerate([{"user": 1}, {"user": 1}, {}, {}, {"user": "1"}, {"user": [1]}, {"user": [1]}]):
        await bus.publish("t/a", b"%d" % number, fields=fields, durable=True)
    async with bus.channel(STREAM, "c", order_by="user", window=10) as channel:
        got = await some(channel, 5)
        assert numbers(got) == [0, 2, 3, 4, 5]
        await channel.ack(got)
        assert numbers(await some(channel, 2)) == [1, 6]


async def test_taking_gets_one_of_each_key(net: Net) -> None:
    bus = await mixed(net)
    async with bus.channel(STREAM, "c", window=0) as channel:
        got = await channel.take(10, timeout=PATIENCE)
        assert numbers(got) == [0, 2]
        with pytest.raises(busway.Timeout):
            await channel.take(10, timeout=0)
        await channel.ack(got)
        assert numbers(await channel.take(10, timeout=PATIENCE)) == [1, 3]


async def test_a_lost_connection_and_rules(net: Net) -> None:
    bus = await stream(net)
    for number in range(12):
        await bus.publish(f"t/{number % 2}", b"%d" % number, fields={"good": number % 3 == 0}, durable=True)
    other = await net.connect("other", reconnect=(0.001,))
    async with other.channel(STREAM, "c", order_by="topic", where={"good": True}) as channel:
        assert numbers(await some(channel, 2)) == [0, 3]
        await cut(other)
        for expected in ([0, 3], [6, 9]):
            got = sorted(await some(channel, 2), key=lambda one: one.offset or 0)
            assert numbers(got) == expected
            await channel.ack(got)
        await shown(bus, lag=0)


async def test_seek_begins_anew(net: Net) -> None:
    bus = await mixed(net)
    async with bus.channel(STREAM, "c", window=0) as channel:
        await channel.ack(await channel.take(10, timeout=PATIENCE))
        await channel.seek(1)
        got = await channel.take(10, timeout=PATIENCE)
        assert numbers(got) == [1, 2]
        await channel.ack(got)
        assert numbers(await channel.take(10, timeout=PATIENCE)) == [3, 4]


async def test_it_changes_only_while_nothing_is_in_flight(net: Net) -> None:
    bus = await mixed(net, backoff=["1h"])
    async with bus.channel(STREAM, "c") as channel:
        first, other = await some(channel, 2)
        for by in ("", "user"):
            with pytest.raises(busway.Rejected, match="2 messages in flight") as refused:
                await bus.update_channel(STREAM, "c", order_by=by)
            assert refused.value.code == busway.errors.Code.INVALID_SETTING
        await asyncio.gather(first.nack(), other.ack())
        (again,) = await some(channel, 1)
        await bus.update_channel(STREAM, "c", order_by="topic", lease=99)
        await again.ack()
    await bus.update_channel(STREAM, "c", order_by="")
    assert (await info(bus)).order_by == ""
    async with bus.channel(STREAM, "c") as channel:
        assert numbers(await some(channel, 4)) == [0, 1, 4, 5]


async def test_redriven_messages_come_one_after_the_other_too(net: Net) -> None:
    bus = await mixed(net, max_deliveries=1)
    async with bus.channel(STREAM, "c") as channel:
        for expected in (0, 2, 1, 4):
            (message,) = await some(channel, 1)
            assert int(message.payload) == expected
            if expected == 2:
                continue
            await (message.reject("bad") if expected < 2 else asyncio.sleep(0))
        await shown(bus, dead=2)
        await within(channel.redrive())
        await message.ack()
        for expected in (0, 1, 5):
            (message,) = await some(channel, 1)
            assert int(message.payload) == expected
            assert channel.pending == 0
            await message.ack()


@pytest.mark.parametrize(
    ("wrong", "error"), [(5, TypeError), (["topic"], TypeError), (".id", busway.Rejected), ("x" * 257, busway.Rejected)]
)
async def test_what_is_no_key(net: Net, wrong: object, error: type[Exception]) -> None:
    bus = await stream(net)
    with pytest.raises(error, match="order_by"):
        await bus.create_channel(STREAM, "c", order_by=wrong)
