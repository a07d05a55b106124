"""Limits are reported: input that is too large, too long or too much gets an error with its code."""

import asyncio

import pytest

import busway
from tests.support import regular
from tests.support.net import PATIENCE, Net, payloads, settle, within

pytestmark = pytest.mark.both_loops


async def test_the_limits_are_told_in_the_handshake(net: Net) -> None:
    await net.serve(
        frame=65536,
        topic=100,
        fields=200,
        subscriptions=5,
        expressions=4,
        outbox=1 << 20,
        topics=7,
        senders=3,
        pending=9,
    )
    bus = await net.connect()
    assert bus.server["limits"] == {
        "frame": 65536,
        "topic": 100,
        "fields": 200,
        "subscriptions": 5,
        "expressions": 4,
        "outbox": 1 << 20,
        "topics": 7,
        "senders": 3,
        "pending": 9,
        "kept": 4096,
        "kept_bytes": 16 << 20,
    }


async def test_a_payload_above_the_frame_limit_is_refused_before_it_is_sent(net: Net) -> None:
    await net.serve(frame=65536)
    bus, other = await net.connect(), await net.connect()
    async with other.subscribe("t") as subscription, other.serve("s", lambda message: b"x" * int(message.text)):
        for call in (
            lambda: bus.publish("t", b"x" * 65536),
            lambda: bus.publish("t", b"x" * 65536, confirm=True),
            lambda: bus.publish_many("t", [b"x" * 65536]),
            lambda: bus.push("t", b"x" * 65536),
            lambda: bus.request("s", b"x" * 65536),
        ):
            with pytest.raises(busway.LimitExceeded) as caught:
                await call()
            assert caught.value.code == 3
        fits = b"x" * (65536 - 200)
        await bus.publish("t", fits)
        assert await payloads(subscription, 1) == [fits]
        with pytest.raises(busway.ServiceError):  # a reply that doesn't fit fails the request, not the connection
            await bus.request("s", b"70000")
        assert (await bus.request("s", b"5")).payload == b"xxxxx"
    assert (bus.state, other.state) == ("connected", "connected")


async def test_the_largest_frame_that_fits_exactly(net: Net) -> None:
    """A PUBLISH has 32 bytes before its payload; its delivery 36 with one id: both must fit or be refused, never cut."""
    await net.serve(frame=4096)
    bus, other = await net.connect(), await net.connect()
    async with other.subscribe("t") as subscription:
        for size in range(4096 - 40, 4096 - 31):
            payload = bytes([size % 251]) * size
            count = await bus.publish("t", payload, confirm=True)
            assert count == 1
            assert await payloads(subscription, 1) == [payload]
        with pytest.raises(busway.LimitExceeded):
            await bus.publish("t", b"x" * (4096 - 31))


async def test_a_topic_above_the_limit_is_refused(net: Net) -> None:
    await net.serve(topic=50)
    bus = await net.connect()
    fits, long = "x" * 50, "x" * 51
    for call in (
        lambda: bus.publish(long, b""),
        lambda: bus.push(long),
        lambda: bus.request(long),
        lambda: bus.subscribe(long),
        lambda: bus.serve(long, lambda message: b""),
    ):
        with pytest.raises(busway.LimitExceeded) as caught:
            await call()
        assert caught.value.code == 22
    async with bus.subscribe(fits) as subscription, bus.serve(fits, lambda message: b"ok"):
        await bus.publish(fits, b"x")
        assert await payloads(subscription, 1) == [b"x"]
        assert (await bus.request(fits)).payload == b"ok"


async def test_too_many_subscriptions(net: Net) -> None:
    await net.serve(subscriptions=3)
    bus, other = await net.connect(), await net.connect()
    held = [await bus.subscribe(f"t/{number}") for number in range(3)]
    with pytest.raises(busway.LimitExceeded) as caught:
        await bus.subscribe("t/3")
    assert caught.value.code == 30
    async with other.subscribe("t/3"):  # the limit is per connection
        assert await bus.publish("t/3", b"", confirm=True) == 1
    await held[0].close()
    async with bus.subscribe("t/3") as subscription:
        await bus.publish("t/3", b"x")
        assert await payloads(subscription, 1) == [b"x"]


async def test_too_many_expressions(net: Net) -> None:
    await net.serve(expressions=3)
    bus, other = await net.connect(), await net.connect()
    held = [await bus.subscribe(pattern) for pattern in ("re:a", "re:a", "b", "re:c.*")]
    with pytest.raises(busway.LimitExceeded, match="3 regular expressions, the limit for one connection") as caught:
        await bus.subscribe("re:d")
    assert caught.value.code == 30
    async with other.subscribe("re:d"), bus.subscribe("d"):  # per connection, and no limit for other patterns
        assert await bus.publish("d", b"", confirm=True) == 2
    await held[0].close()
    async with bus.subscribe("re:d") as subscription:
        await bus.publish("d", b"x")
        assert await payloads(subscription, 1) == [b"x"]
        await bus.publish("a", b"y")  # the other subscription to the same expression goes on
        assert await payloads(held[1], 1) == [b"y"]


async def test_a_topic_that_takes_too_long_to_compare_is_refused_and_nobody_gets_it(net: Net) -> None:
    await net.serve()
    bus, other = await net.connect(), await net.connect()
    async with other.subscribe("**") as everything:
        held = [await other.subscribe(pattern) for pattern in regular.hard(60)]
        for call in (
            lambda: bus.publish(regular.HARDEST, b"", confirm=True),
            lambda: bus.push(regular.HARDEST, b""),
        ):
            with pytest.raises(busway.LimitExceeded, match="regular expressions") as caught:
                await call()
            assert caught.value.code == 29
        assert await bus.publish("0/1", b"plain", confirm=True) == 1
        assert await bus.publish("*/1", b"wild", confirm=True) == 1
        assert await payloads(everything, 2) == [b"plain", b"wild"]
        for each in held[2:]:
            await each.close()
        assert await bus.publish(regular.HARDEST, b"fewer", confirm=True) == 1
        assert await payloads(everything, 1) == [b"fewer"]


async def test_too_many_connections(net: Net) -> None:
    await net.serve(connections=2)
    first, _ = await net.connect(), await net.connect()
    with pytest.raises(busway.BusError) as caught:
        await within(net.client(reconnect=None).__aenter__())
    assert "connection" in str(caught.value).lower()
    assert await first.publish("t", b"", confirm=True) == 0


async def test_too_many_requests_in_flight(net: Net) -> None:
    await net.serve(pending=4)
    server, client = await net.connect(), await net.connect()
    gate = asyncio.Event()

    async def handler(message: busway.Message) -> bytes:
        await gate.wait()
        return b"ok"

    async with server.serve("t", handler):
        asking = [asyncio.ensure_future(client.request("t", timeout=PATIENCE)) for _ in range(4)]
        await settle(client)
        with pytest.raises(busway.LimitExceeded) as caught:
            await client.request("t", timeout=PATIENCE)
        assert caught.value.code == 45
        gate.set()
        assert [(await each).payload for each in asking] == [b"ok"] * 4
        assert (await client.request("t")).payload == b"ok"


async def test_more_topics_than_slots(net: Net) -> None:
    """A connection has few numbers for topics; they are given anew and nothing is mixed up."""
    await net.serve(topics=4)
    bus, other = await net.connect(), await net.connect()
    topics = [f"t/{number % 11}" for number in range(200)]
    async with other.subscribe("t/*") as subscription, other.serve("s", lambda message: message.payload):
        await bus.publish_many([(topic, topic) for topic in topics])
        for topic in topics:
            await bus.publish(topic, topic)
        for _ in range(400):
            message = await subscription.recv(timeout=PATIENCE)
            assert message.topic == message.text
        assert (await bus.request("s", b"x")).payload == b"x"


async def test_more_senders_than_slots(net: Net) -> None:
    await net.serve(senders=2)
    receiver = await net.connect()
    buses = [await net.connect(f"bus-{number}") for number in range(7)]
    async with receiver.subscribe("t") as subscription:
        for _ in range(5):
            for bus in buses:
                await bus.publish("t", bus.name)
                message = await subscription.recv(timeout=PATIENCE)
                assert message.sender == message.text == bus.name
