"""Delayed messages: each reader of the stream gets each of them once, when it is due or later."""

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta

import pytest

import busway
from busway.testing import FaultProxy
from tests.support.net import PATIENCE, payloads, until, within
from tests.support.stream_kits import Place

SOON = 1.0


async def waits(place: Place, count: int) -> None:
    """And all is stored."""
    await until(lambda: place.stream().log.waits[0] == count and place.stream().safe == place.stream().log.next)


async def test_a_position_behind_it_misses_nothing(bus_with_stream: Place) -> None:
    """The subscription has read what came after it, leaves, and comes back when it was due."""
    place = bus_with_stream
    bus = await place.connect("till")
    async with bus.subscribe("orders/**", since="all") as subscription:
        receipt = await within(bus.publish("orders/a", b"later", durable=True, fields={"x": 1}, delay=SOON))
        await within(bus.publish("orders/a", b"now", durable=True))
        assert await payloads(subscription, 1) == [b"now"]
        kept = subscription.position
    await waits(place, 0)
    (message,) = await place.stored(since=kept)
    assert (message.payload, message.fields, message.sender) == (b"later", {"x": 1}, "till")
    assert (receipt.offset, receipt.sequence) == (0, 0)
    assert (message.offset, message.sequence) == (2, 2)
    async with bus.subscribe("orders/**", since=receipt) as subscription:
        assert await payloads(subscription, 2) == [b"now", b"later"]


async def test_sequences_have_no_gap_and_nobody_sees_it_before(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    for n in range(6):
        delay = timedelta(seconds=SOON if n == 2 else 3600) if n % 2 == 0 else None
        await within(bus.publish("orders/a", b"%d" % n, durable=True, delay=delay))
    await waits(place, 2)
    got = await place.stored()
    assert [(message.payload, message.sequence) for message in got] == [(b"1", 1), (b"3", 2), (b"5", 3), (b"2", 4)]
    orders = await bus.stream("orders")
    read = [message async for messages in orders.read() for message in messages]
    assert [(message.payload, message.sequence) for message in read] == [
        (message.payload, message.sequence) for message in got
    ]
    rows = [row async for batch in orders.arrow(columns=["payload"]) for row in batch.column(0).to_pylist()]
    assert rows == [b"1", b"3", b"5", b"2"]
    assert (await orders.info()).waiting == 2
    assert await orders.topics() == [("orders/a", 1, 4, 4)]
    assert await orders.find("orders/a", 4) == got[-1].offset


async def test_one_that_was_due_while_the_broker_was_down(lasting: Place) -> None:
    """It is there for who comes back with its position, and for a channel, and never again after further restarts."""
    place = lasting
    bus = await place.connect()
    async with bus.subscribe("orders/**", since="all") as subscription:
        await within(bus.publish("orders/a", b"later", durable=True, delay=SOON))
        due = time.time() + SOON
        await within(bus.publish("orders/a", b"now", durable=True))
        assert await payloads(subscription, 1) == [b"now"]
        await place.stop()
        while time.time() < due:
            await asyncio.sleep(due - time.time())
        await place.start()
        assert await payloads(subscription, 1) == [b"later"]
        for _ in range(2):
            await place.restart()
            assert place.stream().log.waits == (0, 0)
        await within(bus.publish("orders/a", b"end", durable=True))
        assert await payloads(subscription, 1) == [b"end"]
    assert [message.payload for message in await place.stored()] == [b"now", b"later", b"end"]


async def test_what_waits_is_known_after_a_restart(lasting: Place) -> None:
    place = lasting
    bus = await place.connect()
    for n in range(5):
        await within(bus.publish("orders/a", b"%d" % n, durable=True, delay=3600 + n))
    before = place.stream().log.waiting()
    assert [offset for _, offset in before] == [0, 1, 2, 3, 4]
    await place.restart()
    assert place.stream().log.waiting() == before


async def test_sent_again_it_comes_once(bus_with_stream: Place) -> None:
    """The answer is lost, and it is due before its publisher is back."""
    place = bus_with_stream
    async with FaultProxy(place.address, listen=f"unix:{place.folder / 'proxy'}") as proxy:
        bus = await place.connect(address=proxy.address)
        await within(bus.publish("orders/b", b"first", durable=True))
        (await proxy.link()).stall("down")
        sending = asyncio.ensure_future(bus.publish("orders/a", b"later", durable=True, delay=SOON))
        await until(lambda: place.stream().safe == 3)
        proxy.refusing = True
        proxy.reset()
        proxy.heal()
        receipt = await within(sending)
    assert (receipt.offset, receipt.sequence) == (1, 0)
    assert [message.payload for message in await place.stored()] == [b"first", b"later"]


async def test_one_that_expires_before_it_is_due_never_comes(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    await within(bus.publish("orders/a", b"never", durable=True, delay=SOON, expires=0.01))
    await waits(place, 0)
    await within(bus.publish("orders/a", b"end", durable=True))
    (message,) = await place.stored()
    assert (message.payload, message.sequence) == (b"end", 1)


async def test_its_stream_may_be_removed(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    await within(bus.publish("orders/a", b"gone", durable=True, delay=SOON))
    await within(bus.publish("default/a", b"stays", durable=True, delay=SOON + 0.05))
    await place.remove()
    async with bus.subscribe("**") as subscription:
        assert await payloads(subscription, 1) == [b"stays"]


async def test_what_limits_remove_before_it_is_due_is_told(
    bus_with_stream: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place = bus_with_stream
    await place.make("brief", max_age="2h")
    bus = await place.connect()
    with pytest.raises(busway.Rejected, match="max_age"):
        await within(bus.publish("brief/a", b"", durable=True, deliver_at=datetime.now(UTC) + timedelta(hours=3)))
    await within(bus.publish("brief/a", b"", durable=True, delay="1h"))
    await within(bus.publish("brief/a", b"", durable=True))
    with caplog.at_level(logging.WARNING, "busway.broker"):
        await place.trim("brief", "3h", 2)
        await until(lambda: "1 messages were removed" in caplog.text)
    info = await (await bus.stream("brief")).info()
    assert (info.waiting, info.dropped) == (0, 1)


async def test_many_that_are_due_at_once(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    when = datetime.now(UTC) + timedelta(seconds=SOON)
    sending = [bus.publish("orders/a", b"%d" % n, durable=True, deliver_at=when) for n in range(500)]
    async with bus.subscribe("orders/**") as plain, bus.subscribe("orders/**", since="all") as following:
        await within(asyncio.gather(*sending))
        for subscription in (plain, following):
            got: list[busway.Message] = []
            while len(got) < 500:
                got += await subscription.take(timeout=PATIENCE)
            assert sorted(int(message.payload) for message in got) == list(range(500))
            assert [message.sequence for message in got] == list(range(1, 501))
