"""Push: exactly one consumer gets the message, or the publisher gets an error."""

import asyncio
from contextlib import AsyncExitStack

import pytest

import busway
from tests.support.net import Net, gather, payloads, settle

pytestmark = pytest.mark.both_loops


async def test_exactly_one_consumer_gets_each_push(net: Net) -> None:
    pusher = await net.connect("pusher")
    consumers = [await net.connect() for _ in range(3)]
    async with AsyncExitStack() as stack:
        subscriptions = [await stack.enter_async_context(bus.subscribe("jobs/*")) for bus in consumers]
        await asyncio.gather(*(pusher.push("jobs/new", str(number)) for number in range(90)))
        await settle(pusher, *consumers)
        shares = [await gather(subscription, subscription.pending) for subscription in subscriptions]
    got = sorted(int(message.payload) for share in shares for message in share)
    assert got == list(range(90))
    assert all(shares), "a consumer was never used"
    assert {(message.kind, message.sender, message.topic) for share in shares for message in share} == {
        ("push", "pusher", "jobs/new")
    }


async def test_pushes_one_after_another_keep_their_order_at_a_single_consumer(net: Net) -> None:
    pusher, consumer = await net.connect(), await net.connect()
    async with consumer.subscribe("jobs") as jobs:
        for number in range(20):
            await pusher.push("jobs", str(number))
        assert await payloads(jobs, 20) == [b"%d" % number for number in range(20)]


async def test_nobody_there_is_an_error_of_its_own(net: Net) -> None:
    bus = await net.connect()
    with pytest.raises(busway.NoConsumers) as caught:
        await bus.push("jobs", b"x")
    assert caught.value.code == 44
    assert isinstance(caught.value, busway.NoResponders)
    async with bus.subscribe("other"):
        with pytest.raises(busway.NoConsumers):
            await bus.push("jobs", b"x")


async def test_a_push_reaches_wildcard_and_regular_expression_consumers(net: Net) -> None:
    pusher, consumer = await net.connect(), await net.connect()
    async with consumer.subscribe("jobs/**") as wild:
        await pusher.push("jobs/a/b", b"1")
        assert await payloads(wild, 1) == [b"1"]
    async with consumer.subscribe("re:jobs/.*") as regular:
        await pusher.push("jobs/a/b", b"2")
        assert await payloads(regular, 1) == [b"2"]


async def test_a_push_goes_to_one_subscription_even_when_several_of_a_connection_match(net: Net) -> None:
    pusher, consumer = await net.connect(), await net.connect()
    async with consumer.subscribe("jobs") as one, consumer.subscribe("*") as two:
        for _ in range(10):
            await pusher.push("jobs", b"x")
        await settle(pusher, consumer)
        assert one.pending + two.pending == 10


async def test_members_of_a_group_take_pushes_too(net: Net) -> None:
    pusher, one, two = await net.connect(), await net.connect(), await net.connect()
    async with one.subscribe("jobs", group="g") as first, two.subscribe("jobs", group="g") as second:
        for _ in range(20):
            await pusher.push("jobs", b"x")
        await settle(pusher, one, two)
        assert first.pending + second.pending == 20


async def test_one_may_push_to_oneself(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("jobs") as jobs:
        await bus.push("jobs", b"mine")
        assert await payloads(jobs, 1) == [b"mine"]


async def test_a_consumer_that_left_is_not_counted(net: Net) -> None:
    pusher, gone, stays = await net.connect(), await net.connect(), await net.connect()
    async with gone.subscribe("jobs"), stays.subscribe("jobs") as jobs:
        await gone.close()
        for number in range(10):
            await pusher.push("jobs", str(number))
        assert await payloads(jobs, 10) == [b"%d" % number for number in range(10)]


async def test_a_push_passes_a_full_consumer_by(net: Net) -> None:
    await net.serve(stall=60)
    pusher, one, two = await net.connect(), await net.connect(), await net.connect()
    async with one.subscribe("jobs", group="g", limit=5, patience=60) as full:
        for _ in range(5):
            await pusher.push("jobs", b"x")
        await settle(one)
        with pytest.raises(busway.LimitExceeded):
            await pusher.push("jobs", b"nobody has room")
        async with two.subscribe("jobs", group="g") as free:
            for _ in range(20):
                await pusher.push("jobs", b"y")
            await pusher.publish("jobs", b"to the group", confirm=True)
            await settle(pusher, one, two)
            assert (full.pending, free.pending) == (5, 21)


async def push_too_late(pusher: busway.Bus, consumer: busway.Bus) -> None:
    """A push that is cancelled before its consumer reads of it."""
    assert consumer._core.connection is not None
    transport = consumer._core.connection.transport
    transport.pause_reading()
    with pytest.raises(busway.Timeout):
        await pusher.push("jobs", b"too late", timeout=0.05)
    await pusher.flush()
    transport.resume_reading()
    await settle(consumer)


async def test_a_push_that_nobody_waits_for_any_more_is_taken_back(net: Net) -> None:
    pusher, consumer = await net.connect(), await net.connect()
    async with consumer.subscribe("jobs") as jobs:
        await push_too_late(pusher, consumer)
        assert jobs.pending == 0
        await pusher.push("jobs", b"in time")
        assert await payloads(jobs, 1) == [b"in time"]


async def test_a_push_that_was_taken_back_leaves_room(net: Net) -> None:
    """It filled the queue for a moment; nobody may go on waiting for that."""
    pusher, consumer = await net.connect(), await net.connect()
    async with consumer.subscribe("jobs", limit=1) as jobs:
        await push_too_late(pusher, consumer)
        await pusher.push("jobs", b"in time")
        assert await payloads(jobs, 1) == [b"in time"]
        await settle(consumer)
        assert await pusher.publish("jobs", b"and on", confirm=True) == 1
        assert await payloads(jobs, 1) == [b"and on"]
