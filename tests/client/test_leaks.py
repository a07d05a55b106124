"""Objects and tasks of closed clients, subscriptions and requests are released."""

import asyncio
import gc
from collections import Counter

import pytest

import busway
from tests.support.channels import cut
from tests.support.net import Net, eventually, gather

KINDS = {"Bus", "Core", "Life", "Connection", "Subscription", "Service", "Session", "Inbox", "Request", "EventStream"}


def counted() -> Counter[str]:
    gc.collect()
    return Counter(
        type(each).__name__
        for each in gc.get_objects()
        if str(type(each).__module__).startswith("busway") and type(each).__name__ in KINDS
    )


async def visit(net: Net, other: busway.Bus) -> None:
    async with net.client(name="visitor") as bus, bus.subscribe("t") as subscription:
        async with bus.serve("s", lambda message: message.payload), other.subscribe("u") as answers:
            await other.publish("t", b"x")
            await gather(subscription, 1)
            assert (await other.request("s", b"y")).payload == b"y"
            await bus.push("u", b"z")
            await gather(answers, 1)


async def test_objects_of_clients_that_left(net: Net) -> None:
    server = await net.serve()
    other = await net.connect()
    await visit(net, other)

    async def alone() -> bool:
        return server.stats()["connections"] == 1

    await eventually(alone)
    before, topics = counted(), server.stats()["topics"]
    for _ in range(30):
        await visit(net, other)
    await eventually(alone)
    assert counted() - before == Counter()
    stats = server.stats()
    assert stats["topics"] == topics
    assert (stats["subscriptions"], stats["services"], stats["pending"], stats["groups"]) == (0, 0, 0, 0)


async def test_requests_that_were_given_up(net: Net) -> None:
    """Timed out and cancelled requests are forgotten by the client and, once told, by the broker."""
    server = await net.serve()
    asker, service = await net.connect(), await net.connect()
    async with service.serve("t"):
        for _ in range(50):
            with pytest.raises(busway.Timeout):
                await asker.request("t", timeout=0.0001)
            task = asyncio.ensure_future(asker.request("t"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asker.flush()
        assert server.stats()["pending"] == 0


async def test_how_far_a_subscription_has_come_is_known_once_for_each_stream(net: Net) -> None:
    """However often the connection is lost: each of them names the streams anew."""
    maker = await net.connect()
    lost = await net.connect(reconnect=(0,))
    async with lost.subscribe("t", since="all") as reader:
        for number in range(10):
            place = await maker.publish("t", b"", durable=True)
            assert [one.offset for one in await gather(reader, 1)] == [number]
            key = place.broker, place.stream
            assert lost._core.session.reached(reader._registration.number) == [(key, number + 1)]
            await cut(lost)
