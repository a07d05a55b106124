"""Durable messages over every store: stored once, in order, without gaps, and delivered to each reader."""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import busway
from busway.broker.streams import database
from busway.positions import Position, Positions
from busway.testing import FaultProxy
from tests.broker.streams.each_store.conftest import url_of
from tests.support.net import PATIENCE, gather, payloads, settle, until, within
from tests.support.stream_kits import Place


async def test_a_durable_publish_tells_where_it_is(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    first = await within(bus.publish("orders/a", b"1", durable=True))
    second = await within(bus.publish("orders/b", b"2", durable=True))
    third = await within(bus.publish("orders/a", b"3", durable=True))
    guid = place.server.guid
    assert [first, second, third] == [
        Position(guid, "orders", 0, 1),
        Position(guid, "orders", 1, 1),
        Position(guid, "orders", 2, 2),
    ]


async def test_what_no_stream_takes_goes_to_the_default_stream(bus_with_stream: Place) -> None:
    bus = await bus_with_stream.connect()
    assert (await within(bus.publish("other", b"1", durable=True))).stream == "default"
    assert [message.payload for message in await bus_with_stream.stored("other")] == [b"1"]


async def test_many_are_stored_without_gaps(bus_with_stream: Place) -> None:
    bus, other = await bus_with_stream.connect(), await bus_with_stream.connect()
    sent = [b"%d" % n for n in range(5000)]
    mine, theirs = await within(
        asyncio.gather(
            bus.publish_many("orders/a", sent, durable=True), other.publish_many("orders/a", sent, durable=True)
        )
    )
    assert len(mine) == len(theirs) == 5000
    assert sorted(place.offset for place in [*mine, *theirs]) == list(range(10_000))
    assert sorted(place.sequence for place in [*mine, *theirs]) == list(range(1, 10_001))
    got = await bus_with_stream.stored()
    assert [message.offset for message in got] == list(range(10_000))
    assert [message.sequence for message in got] == list(range(1, 10_001))
    by_offset = {
        place.offset: payload for places in (mine, theirs) for place, payload in zip(places, sent, strict=True)
    }
    assert [message.payload for message in got] == [by_offset[n] for n in range(10_000)]


async def test_a_stored_message_is_the_one_that_was_sent(bus_with_stream: Place) -> None:
    bus = await bus_with_stream.connect("till")
    place = await within(bus.publish("orders/é", b"\x00\xff" * 100, fields={"a": [1, None], "b": "ü"}, durable=True))
    await within(bus.publish("orders/empty", b"", durable=True))
    one, empty = await bus_with_stream.stored()
    assert (one.topic, one.payload, one.fields, one.sender) == (
        "orders/é",
        b"\x00\xff" * 100,
        {"a": [1, None], "b": "ü"},
        "till",
    )
    assert (one.position, one.stream, one.broker) == (place, "orders", place.broker)
    assert (empty.payload, empty.fields) == (b"", {})
    assert one.replayed
    assert empty.last
    assert not one.last


async def test_it_is_delivered_live_too(bus_with_stream: Place) -> None:
    bus, other = await bus_with_stream.connect(), await bus_with_stream.connect()
    async with other.subscribe("orders/*") as plain, other.subscribe("orders/*", since="new") as following:
        places = [await within(bus.publish("orders/a", b"%d" % n, durable=True)) for n in range(3)]
        for subscription in (plain, following):
            got = await gather(subscription, 3)
            assert [message.payload for message in got] == [b"0", b"1", b"2"]
            assert [message.position for message in got] == places
            assert not any(message.replayed for message in got)


async def test_live_after_the_backlog_without_gap_or_repeat(bus_with_stream: Place) -> None:
    bus, other = await bus_with_stream.connect(), await bus_with_stream.connect()
    sending = asyncio.ensure_future(bus.publish_many("orders/a", [b"%d" % n for n in range(20_000)], durable=True))
    await until(lambda: bus_with_stream.stream().safe > 500)
    async with other.subscribe("orders/**", since="all") as subscription:
        got: list[busway.Message] = []
        while len(got) < 20_000:
            got += await subscription.take(timeout=PATIENCE)
        await within(sending)
        await within(bus.publish("orders/a", b"end", durable=True))
        assert await payloads(subscription, 1) == [b"end"]
        assert [message.offset for message in got] == list(range(20_000))
        assert [message.payload for message in got] == [b"%d" % n for n in range(20_000)]
        assert subscription.position[bus_with_stream.server.guid, "orders"] == 20_001


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_more_than_the_broker_keeps_in_memory(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database is slower than a publisher, which is made to wait; and a reader far behind reads from the database."""
    monkeypatch.setattr(database, "_KEPT", 1 << 20)
    monkeypatch.setattr(database, "_PENDING", 256 << 10)
    async with Place(kind, tmp_path, url_of(kind, request)) as place:
        stream = await place.make()
        bus, other = await place.connect(), await place.connect()
        sent = [b"%d" % n + b"x" * 1000 for n in range(6000)]
        async with other.subscribe("orders/**", since="all", limit=100) as subscription:
            await within(bus.publish_many("orders/a", sent, durable=True))
            assert stream.log.first > 3000
            got: list[busway.Message] = []
            while len(got) < 6000:
                got += await subscription.take(timeout=PATIENCE)
            assert [message.payload for message in got] == sent
            assert [message.offset for message in got] == list(range(6000))
            await within(bus.publish("orders/a", b"live", durable=True))
            assert await payloads(subscription, 1) == [b"live"]


async def test_since_a_position_a_time_and_a_while(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    before = [await within(bus.publish("orders/a", b"%d" % n, durable=True)) for n in range(5)]
    moment = time.time_ns()
    await until(lambda: time.time_ns() // 1_000_000 > moment // 1_000_000 + 1)
    moment = datetime.now(UTC)
    await until(lambda: datetime.now(UTC) > moment)
    for n in range(5, 8):
        await within(bus.publish("orders/a", b"%d" % n, durable=True))
    assert [m.payload for m in await place.stored(since=before[2])] == [b"3", b"4", b"5", b"6", b"7"]
    assert [m.payload for m in await place.stored(since=str(Positions([before[3]])))] == [b"4", b"5", b"6", b"7"]
    assert [m.payload for m in await place.stored(since=moment)] == [b"5", b"6", b"7"]
    assert [m.payload for m in await place.stored(since="1h")] == [b"%d" % n for n in range(8)]
    assert [m.payload for m in await place.stored("orders/a", since="all")] == [b"%d" % n for n in range(8)]


async def test_a_time_that_is_to_come_gives_only_what_comes(bus_with_stream: Place) -> None:
    bus, other = await bus_with_stream.connect(), await bus_with_stream.connect()
    await within(bus.publish("orders/a", b"before", durable=True))
    async with other.subscribe("orders/**", since=datetime(2999, 1, 1, tzinfo=UTC)) as subscription:
        await settle(other)
        await within(bus.publish("orders/a", b"after", durable=True))
        assert await payloads(subscription, 1) == [b"after"]


async def test_a_subscription_chooses_from_the_backlog(bus_with_stream: Place) -> None:
    bus, other = await bus_with_stream.connect(), await bus_with_stream.connect()
    for n in range(10):
        await within(bus.publish(f"orders/{n % 3}", b"%d" % n, fields={"even": n % 2 == 0}, durable=True))
    async with other.subscribe("orders/0", where={"even": True}, since="all") as subscription:
        got = await gather(subscription, 2)
        assert [(message.payload, message.last) for message in got] == [(b"0", False), (b"6", True)]


async def test_what_expired_is_not_delivered(bus_with_stream: Place) -> None:
    bus = await bus_with_stream.connect()
    await within(bus.publish("orders/a", b"short", durable=True, expires=0.001))
    await within(bus.publish("orders/a", b"long", durable=True, expires="1h"))
    expired = time.time_ns() + 2_000_000
    await until(lambda: time.time_ns() > expired)
    assert [message.payload for message in await bus_with_stream.stored()] == [b"long"]


async def test_no_more_than_the_stream_may_hold(bus_with_stream: Place) -> None:
    place = bus_with_stream
    stream = await place.make("few", max_count=1000)
    bus = await place.connect()
    await within(bus.publish_many("few/a", [b"%d" % n for n in range(5000)], durable=True))
    await place.trim("few", "1s", 5000 - 1000 - 256)  # a disk removes whole buckets
    got = await place.stored("few/**")
    assert [message.offset for message in got] == list(range(stream.first, 5000))
    assert got[-1].sequence == 5000
    assert (await within(bus.publish("few/a", b"", durable=True))).offset == 5000


async def test_what_is_too_old_leaves(bus_with_stream: Place) -> None:
    place = bus_with_stream
    await place.make("brief", max_age="1h")
    bus = await place.connect()
    await within(bus.publish_many("brief/a", [b"%d" % n for n in range(100)], durable=True))
    await place.trim("brief", "59m", 0)
    assert len(await place.stored("brief/**")) == 100
    await place.trim("brief", "2h", 100)
    assert (await within(bus.publish("brief/a", b"new", durable=True))).offset == 100
    assert [(m.payload, m.sequence) for m in await place.stored("brief/**")] == [(b"new", 101)]


async def test_a_reader_is_told_what_is_gone(bus_with_stream: Place) -> None:
    place = bus_with_stream
    await place.make("brief", max_age="1h")
    bus, other = await place.connect(), await place.connect()
    places = await within(bus.publish_many("brief/a", [b"%d" % n for n in range(10)], durable=True))
    await place.trim("brief", "2h", 10)
    await within(bus.publish("brief/a", b"new", durable=True))
    async with other.subscribe("brief/**", since=places[3]) as subscription:
        assert await payloads(subscription, 1) == [b"new"]
        assert subscription.lost == 6


@pytest.mark.parametrize("frame", range(2, 8))
async def test_sent_again_after_a_lost_answer_it_is_stored_once(bus_with_stream: Place, frame: int) -> None:
    place = bus_with_stream
    async with FaultProxy(place.address, listen=f"unix:{place.folder / 'proxy'}") as proxy:
        proxy.plan(busway.testing.cut("down", frame=frame))
        bus = await place.connect(address=proxy.address)
        places = [await within(bus.publish("orders/a", b"%d" % n, durable=True)) for n in range(10)]
    assert [one.offset for one in places] == list(range(10))
    assert [one.sequence for one in places] == list(range(1, 11))
    assert [message.payload for message in await place.stored()] == [b"%d" % n for n in range(10)]


async def test_a_removed_stream_is_gone_for_good(bus_with_stream: Place) -> None:
    place = bus_with_stream
    bus = await place.connect()
    await within(bus.publish("orders/a", b"1", durable=True))
    await place.remove("orders")
    with pytest.raises(busway.BusError, match="there is no stream 'orders'"):
        place.stream()
    assert (await within(bus.publish("orders/a", b"2", durable=True))).stream == "default"
    await place.make()
    again = await within(bus.publish("orders/a", b"3", durable=True))
    # It goes on with the offsets, so that no place ever means another message.
    assert (again.stream, again.offset, again.sequence) == ("orders", 1, 1)
    assert [m.payload for m in await place.stored(count=2)] in ([b"2", b"3"], [b"3", b"2"])
