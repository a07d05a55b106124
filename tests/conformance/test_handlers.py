"""Consumers and handlers that do everything at once: share, nest, close themselves."""

import asyncio

import pytest

import busway
from tests.support.net import PATIENCE, Net, gather, payloads, settle, until, within

pytestmark = pytest.mark.both_loops


async def test_several_readers_of_one_subscription_share_its_messages(net: Net) -> None:
    bus = await net.connect()
    got: list[list[bytes]] = [[], [], []]

    async with bus.subscribe("t") as subscription:

        async def read(mine: list[bytes]) -> None:
            while True:
                mine.append((await subscription.recv()).payload)
                await asyncio.sleep(0)

        readers = [asyncio.ensure_future(read(mine)) for mine in got]
        for number in range(60):
            await bus.publish("t", str(number))
            if number % 10 == 0:
                await bus.flush()
        await until(lambda: sum(map(len, got)) == 60)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    assert sorted(int(each) for mine in got for each in mine) == list(range(60))
    assert all(got)


async def test_a_cancelled_reader_leaves_the_message_to_the_next(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        first = asyncio.ensure_future(subscription.recv())
        second = asyncio.ensure_future(subscription.recv())
        await asyncio.sleep(0)
        await bus.publish("t", b"x")
        first.cancel()
        assert (await within(second)).payload == b"x"
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_handler_may_publish_ask_and_subscribe(net: Net) -> None:
    bus = await net.connect()
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handler(message: busway.Message) -> None:
        async with bus.subscribe("inner") as inner:
            await bus.publish("inner", (await bus.request("upper", message.payload)).payload)
            done.set_result((await inner.recv(timeout=PATIENCE)).payload)

    async with bus.subscribe("t", handler=handler), bus.serve("upper", lambda message: message.payload.upper()):
        await bus.publish("t", b"abc")
        assert await within(done) == b"ABC"


async def test_a_handler_may_close_its_own_subscription(net: Net) -> None:
    bus = await net.connect()
    seen: list[bytes] = []
    closed = asyncio.Event()

    async def handler(message: busway.Message) -> None:
        seen.append(message.payload)
        await subscription.close()
        closed.set()

    subscription = await bus.subscribe("t", handler=handler)
    await bus.publish_many("t", [b"1"])
    await within(closed.wait())
    assert await bus.publish("t", b"2", confirm=True) == 0
    assert seen == [b"1"]


async def test_a_handler_may_close_the_bus(net: Net) -> None:
    bus = await net.connect()
    closed = asyncio.Event()

    async def handler(message: busway.Message) -> None:
        await bus.close()
        closed.set()

    await bus.subscribe("t", handler=handler)
    await bus.publish("t", b"x")
    await until(lambda: bus.state == "closed")
    await within(bus.close())


async def test_a_service_handler_may_close_its_service(net: Net) -> None:
    server, client = await net.connect(), await net.connect()

    async def handler(message: busway.Message) -> bytes:
        await service.close()
        return b"last"

    service = await server.serve("t", handler)
    assert (await client.request("t", timeout=PATIENCE)).payload == b"last"
    with pytest.raises(busway.NoResponders):
        await client.request("t")


async def test_many_subscribers_of_one_topic(net: Net) -> None:
    publisher = await net.connect()
    buses = [await net.connect() for _ in range(25)]
    subscriptions = [await bus.subscribe("t") for bus in buses]
    assert await publisher.publish("t", b"first", confirm=True) == 25
    await publisher.publish_many("t", [str(number) for number in range(200)])
    expected = [b"first"] + [b"%d" % number for number in range(200)]
    for subscription in subscriptions:
        assert await payloads(subscription, 201) == expected


async def test_the_largest_message_of_the_usual_settings(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    payload = bytes(range(256)) * ((8 << 20) // 256)
    payload = payload[: (8 << 20) - 32]
    async with other.subscribe("t") as subscription, other.serve("s", lambda message: message.payload):
        await bus.publish("t", payload)
        await bus.publish("t", b"next")
        first, second = await gather(subscription, 2)
        assert first.payload == payload
        assert second.payload == b"next"
        assert (await bus.request("s", payload, timeout=PATIENCE)).payload == payload


async def test_events_have_many_listeners(net: Net) -> None:
    await net.serve()
    bus = net.client()
    first, second = bus.events(), bus.events()
    await bus
    await bus.close()
    for events in (first, second):
        assert [event.kind async for event in events] == ["connected", "closed"]
    assert [event.kind async for event in bus.events()] == []


async def test_the_loop_is_not_starved_by_a_busy_subscription(net: Net) -> None:
    """A consumer that never waits by itself still lets others have their turn."""
    bus, other = await net.connect(), await net.connect()
    async with bus.subscribe("t", handler=lambda message: None), other.serve("s", lambda message: b"ok"):
        flooding = asyncio.ensure_future(other.publish_many("t", [b"x"] * 100_000))
        for _ in range(5):
            assert (await bus.request("s", timeout=PATIENCE)).payload == b"ok"
        await within(flooding)
        await settle(other, bus)


async def test_several_tasks_of_a_handler_lose_nothing(net: Net) -> None:
    """One of them takes out the next messages while another one, done with the last before them, looks for more."""
    bus, other = await net.connect(), await net.connect()
    seen: list[int] = []
    count = 1500

    async def handle(message: busway.Message) -> None:
        await asyncio.sleep(0)
        seen.append(int(message.payload))

    async with bus.subscribe("t", handler=handle, concurrency=3):
        for begin in range(0, count, 3):
            await other.publish_many("t", [b"%d" % number for number in range(begin, begin + 3)])
            await asyncio.sleep(0)
        await settle(other, bus)
    assert sorted(seen) == list(range(count))
