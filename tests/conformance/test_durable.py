"""Durable publishes: stored once, with a place in their stream and a sequence of their topic, and delivered like others."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import busway
from busway.positions import Position
from tests.support.net import PATIENCE, Net, gather, payloads, rest, settle

pytestmark = pytest.mark.both_loops


async def stored(bus: busway.Bus, pattern: str = "**") -> list[busway.Message]:
    """Everything that is stored, as a subscription that comes now reads it."""
    got = []
    async with bus.subscribe(pattern, since="all") as reader:
        while not got or not got[-1].last:
            got.append(await reader.recv(timeout=PATIENCE))
    return got


async def test_a_durable_publish_returns_where_it_is_stored(net: Net) -> None:
    bus = await net.connect("feed")
    places = [await bus.publish("audit/login", str(number), durable=True) for number in range(3)]
    assert [(place.offset, place.sequence) for place in places] == [(0, 1), (1, 2), (2, 3)]
    assert {place.broker for place in places} == {bus.server["guid"]}
    assert {place.stream for place in places} == {"default"}
    assert Position.parse(str(places[1])) == places[1]._replace(sequence=0)


async def test_sequences_are_per_topic_and_offsets_per_stream(net: Net) -> None:
    first, second = await net.connect("first"), await net.connect("second")
    topics = ["a", "b/c", "b/d"]

    async def publish(bus: busway.Bus) -> list[tuple[str, Position]]:
        names = [topics[number % 3] for number in range(60)]
        return list(
            zip(names, await asyncio.gather(*(bus.publish(one, b"", durable=True) for one in names)), strict=True)
        )

    placed = [*await publish(first), *await publish(second)]
    assert sorted(place.offset for _, place in placed) == list(range(120))
    for topic in topics:
        of_topic = sorted((place.offset, place.sequence) for name, place in placed if name == topic)
        assert [sequence for _, sequence in of_topic] == list(range(1, 41))


async def test_pipelined_publishes_are_stored_in_their_order(net: Net) -> None:
    bus = await net.connect()
    places = await asyncio.gather(*(bus.publish("t", str(number), durable=True) for number in range(2000)))
    assert [place.offset for place in places] == list(range(2000))
    assert [int(message.payload) for message in await stored(bus)] == list(range(2000))


async def test_publish_many_tells_each_place(net: Net) -> None:
    bus = await net.connect()
    await bus.publish("other", b"", durable=True)
    placed = await bus.publish_many("t", [str(number) for number in range(5000)], durable=True)
    assert len(placed) == 5000
    assert (placed[0].offset, placed[0].sequence) == (1, 1)
    assert (placed[-1].offset, placed[-1].sequence) == (5000, 5000)
    assert [place.offset for place in placed] == list(range(1, 5001))
    assert placed[10:12] == [placed[10], placed[11]]
    with pytest.raises(IndexError):
        placed[5000]
    assert len(await bus.publish_many("t", [], durable=True)) == 0
    got = await stored(bus, "t")
    assert [message.position for message in got] == list(placed)
    assert [int(message.payload) for message in got] == list(range(5000))


async def test_a_subscriber_gets_stored_messages_live_with_their_place(net: Net) -> None:
    alice, bob = await net.connect("alice"), await net.connect("bob")
    async with alice.subscribe("t/*") as plain:
        place = await bob.publish("t/1", b"kept", durable=True, fields={"n": 7})
        message = await plain.recv(timeout=PATIENCE)
    assert (message.topic, message.payload, message.sender, message.kind) == ("t/1", b"kept", "bob", "publish")
    assert message.fields == {"n": 7}
    assert message.position == place
    assert (message.stream, message.offset, message.sequence) == ("default", place.offset, place.sequence)
    assert message.broker == bob.server["guid"]
    assert (message.replayed, message.last, message.deliveries) == (False, True, 0)  # nothing of a backlog follows
    assert message.stored_ns is not None
    assert abs(message.stored_ns - message.time_ns) < 60 * 10**9


async def test_a_message_that_is_not_stored_has_no_place(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        await bus.publish("t", b"")
        message = await subscription.recv(timeout=PATIENCE)
    assert (message.position, message.stream, message.offset, message.sequence, message.stored_ns) == (None,) * 5


async def test_it_is_delivered_before_it_is_acknowledged_only_once(net: Net) -> None:
    """The acknowledgement comes behind the delivery on the publisher's own connection."""
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        for number in range(20):
            await bus.publish("t", str(number), durable=True)
        await settle(bus)
        assert [int(message.payload) for message in await rest(subscription)] == list(range(20))


async def test_echo_and_groups_hold_for_stored_messages_too(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    async with (
        bus.subscribe("t", echo=False) as silent,
        bus.subscribe("t") as echoed,
        other.subscribe("t", group="g") as one,
        bus.subscribe("t", group="g") as two,
    ):
        for number in range(10):
            await bus.publish("t", str(number), durable=True)
        await settle(bus, other)
        assert (silent.pending, echoed.pending, one.pending + two.pending) == (0, 10, 10)
        shared = [int(message.payload) for each in (one, two) for message in await rest(each)]
        assert sorted(shared) == list(range(10))


async def test_one_copy_per_connection(net: Net) -> None:
    server = await net.serve()
    bus, other = await net.connect(), await net.connect()
    async with bus.subscribe("a/b") as exact, bus.subscribe("a/*") as star, bus.subscribe("re:a/.") as regular:
        before = server.stats()["messages_delivered"]
        await other.publish("a/b", b"once", durable=True)
        for subscription in (exact, star, regular):
            assert await payloads(subscription, 1) == [b"once"]
        assert server.stats()["messages_delivered"] - before == 1


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", b""),
        ("tëxt", "tëxt".encode()),
        (bytearray(b"array"), b"array"),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (b"\0" * 300_000, b"\0" * 300_000),
    ],
    ids=["empty", "str", "bytearray", "object", "large"],
)
async def test_payloads(net: Net, payload: object, expected: bytes) -> None:
    bus = await net.connect()
    async with bus.subscribe("p") as subscription:
        await bus.publish("p", payload, durable=True)
        await bus.publish_many("p", [payload, payload], durable=True)
        assert await payloads(subscription, 3) == [expected] * 3
    assert [message.payload for message in await stored(bus, "p")] == [expected] * 3


class Order(busway.Protocol, prefix="orders"):
    number: int


async def test_typed_payloads(net: Net) -> None:
    bus = await net.connect()
    place = await bus.publish("north", Order(number=7), durable=True)
    assert place.sequence == 1
    async with bus.subscribe(Order, "*", since="all") as orders:
        received = await orders.recv(timeout=PATIENCE)
        assert received.value == Order(number=7)
        assert received.message.position == place
        await bus.publish_many("south", [Order(number=8)], durable=True)
        assert (await orders.recv(timeout=PATIENCE)).value == Order(number=8)


async def test_default_fields_of_client_and_server_are_stored(net: Net) -> None:
    await net.serve(fields={"site": "krk"})
    bus = await net.connect(fields={"unit": 3})
    async with bus.subscribe("t", where={"site": "krk", "unit": 3}) as live:
        await bus.publish("t", b"", durable=True, fields={"n": 1})
        assert (await live.recv(timeout=PATIENCE)).fields == {"site": "krk", "unit": 3, "n": 1}
    assert [message.fields for message in await stored(bus)] == [{"site": "krk", "unit": 3, "n": 1}]


# Times.


async def test_an_expired_message_is_not_handed_out_any_more(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as live:
        await bus.publish("t", b"gone", durable=True, expires=datetime.now(UTC) - timedelta(seconds=1))
        await bus.publish("t", b"stays", durable=True, expires="1h")
        assert await payloads(live, 1) == [b"stays"]
    got = await stored(bus)
    assert [(message.payload, message.sequence) for message in got] == [(b"stays", 2)]


async def test_a_delayed_message_is_stored_at_once_and_delivered_when_it_is_due(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as live, bus.subscribe("t", since="all") as reader:
        late = await bus.publish("t", b"late", durable=True, delay=1.5)
        at = await bus.publish("t", b"at", durable=True, deliver_at=datetime.now(UTC) + timedelta(seconds=1.0))
        now = await bus.publish("t", b"now", durable=True)
        assert (late.offset, at.offset, now.offset) == (0, 1, 2)
        for subscription in (live, reader):
            assert await payloads(subscription, 3) == [b"now", b"at", b"late"]
    got = await stored(bus)
    assert [(message.payload, message.sequence) for message in got] == [(b"now", 1), (b"at", 2), (b"late", 3)]


async def test_a_message_that_is_due_far_ahead_waits(net: Net) -> None:
    bus = await net.connect()
    await bus.publish("t", b"later", durable=True, delay="1h")
    await bus.publish("t", b"past", durable=True, deliver_at=datetime.now(UTC) - timedelta(hours=1))
    assert [message.payload for message in await stored(bus)] == [b"past"]


async def test_many_with_times(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t", since="all") as reader:
        receipts = await bus.publish_many("t", [b"0", b"1"], durable=True, delay=1.0)
        placed = await bus.publish_many("t", [b"2", b"3"], durable=True, expires="1h")
        past = datetime.now(UTC) - timedelta(hours=1)
        await bus.publish_many("t", [b"4"], durable=True, expires=past)
        await bus.publish_many("t", [b"5"], durable=True, deliver_at=past)
        assert await payloads(reader, 5) == [b"2", b"3", b"5", b"0", b"1"]
    assert [(one.offset, one.sequence) for one in [*receipts, *placed]] == [(0, 0), (1, 0), (2, 1), (3, 2)]
    with pytest.raises(ValueError, match="durable=True"):
        await bus.publish_many("t", [b""], expires=5)  # type: ignore[call-overload]


# What is refused.


async def test_a_durable_publish_needs_one_topic(net: Net) -> None:
    bus = await net.connect()
    for topic in ("a/*", "**", "*/b"):
        with pytest.raises(busway.BusError, match="one topic") as caught:
            await bus.publish(topic, b"", durable=True)
        assert caught.value.code == 23
    with pytest.raises(busway.BusError, match="one topic"):
        await bus.publish_many("a/*", [b"", b""], durable=True)
    with pytest.raises(busway.InvalidTopic):
        await bus.publish("a//b", b"", durable=True)
    with pytest.raises(busway.Forbidden, match="belongs to the broker"):
        await bus.publish("$bus/info", b"", durable=True)
    assert (await bus.publish("t", b"", durable=True)).offset == 0


async def test_it_is_answered_anyway_so_confirm_and_offline_make_no_sense(net: Net) -> None:
    bus = await net.connect()
    with pytest.raises(ValueError, match="always confirmed"):
        await bus.publish("t", b"", durable=True, confirm=True)
    with pytest.raises(ValueError, match="always confirmed"):
        await bus.publish("t", b"", durable=True, offline="fail")
    with pytest.raises(ValueError, match="durable=True"):
        await bus.publish("t", b"", expires=5)
    with pytest.raises(ValueError, match="not both"):
        await bus.publish("t", b"", durable=True, delay=5, deliver_at=datetime.now(UTC))
    with pytest.raises(ValueError, match="time zone"):
        await bus.publish("t", b"", durable=True, deliver_at=datetime(2030, 1, 1))  # noqa: DTZ001, that is what is wrong
    with pytest.raises(ValueError, match="not a length of time"):
        await bus.publish("t", b"", durable=True, delay="soon")
    with pytest.raises(TypeError, match="one topic"):
        await bus.publish_many([("t", b"")], durable=True)  # type: ignore[call-overload]
    assert (await bus.publish("t", b"", durable=True)).offset == 0


async def test_what_is_too_large_is_refused_and_the_next_one_is_stored(net: Net) -> None:
    """Also in the middle of many: those before it are stored, and later answers go to whom they belong."""
    await net.serve(frame=64 << 10)
    bus = await net.connect()
    with pytest.raises(busway.BusError):
        await bus.publish("t", b"\0" * (65 << 10), durable=True)
    with pytest.raises(busway.BusError):
        await bus.publish_many("t", [b"before", b"\0" * (65 << 10), b"behind"], durable=True)
    async with asyncio.timeout(PATIENCE):
        place = await bus.publish("t", b"next", durable=True)
        others = await asyncio.gather(*(bus.publish("t", str(number), durable=True) for number in range(10)))
    got = await stored(bus)
    assert [message.payload for message in got if message.position == place] == [b"next"]
    assert [message.payload for message in got if message.position in others] == [
        b"%d" % number for number in range(10)
    ]


async def test_cancelling_takes_nothing_back_and_leaves_no_trace(net: Net) -> None:
    bus = await net.connect()
    publishing = asyncio.ensure_future(bus.publish("t", b"sent", durable=True))
    await asyncio.sleep(0)
    if publishing.cancel():  # else it is stored already, as over memory
        with pytest.raises(asyncio.CancelledError):
            await publishing
    assert (await bus.publish("t", b"next", durable=True)).sequence == 2
    assert [message.payload for message in await stored(bus)] == [b"sent", b"next"]


async def test_a_closed_bus_says_so(net: Net) -> None:
    bus = await net.connect()
    await bus.close()
    with pytest.raises(busway.Closed):
        await bus.publish("t", b"", durable=True)


async def test_a_payload_that_cannot_be_encoded_is_refused(net: Net) -> None:
    bus = await net.connect()
    with pytest.raises(busway.PayloadError):
        await bus.publish("t", object(), durable=True)
    with pytest.raises(busway.PayloadError):
        await bus.publish_many("t", [b"", object()], durable=True)
    assert (await bus.publish("t", b"", durable=True)).offset == 0


async def test_a_restart_goes_on_where_it_ended(net: Net, tmp_path: Path) -> None:
    server = await net.serve(data=tmp_path / "data")
    async with net.client(name="before") as bus:
        await bus.publish_many("t", [b"1", b"2"], durable=True)
        await bus.publish("u", b"3", durable=True)
        guid = bus.server["guid"]
    await server.stop()
    await net.serve(data=tmp_path / "data")
    bus = await net.connect("after")
    place = await bus.publish("t", b"4", durable=True)
    assert place == (guid, "default", 3, 3)
    got = await stored(bus)
    assert [(one.payload, one.topic, one.sender, one.sequence) for one in got] == [
        (b"1", "t", "before", 1),
        (b"2", "t", "before", 2),
        (b"3", "u", "before", 1),
        (b"4", "t", "after", 3),
    ]


async def test_plain_messages_are_not_stored(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as live:
        await bus.publish("t", b"plain")
        await bus.publish("t", b"stored", durable=True)
        await bus.publish("t", b"plain")
        assert [message.payload for message in await gather(live, 3)] == [b"plain", b"stored", b"plain"]
    async with bus.serve("t", lambda message: b""):
        await bus.request("t", b"neither are requests")
    assert [message.payload for message in await stored(bus)] == [b"stored"]


async def test_a_durable_publish_is_taken_by_everything_that_waits(net: Net) -> None:
    bus = await net.connect()
    tasks = [
        asyncio.ensure_future(bus.publish("t", b"1", durable=True)),
        asyncio.create_task(bus.publish("t", b"2", durable=True)),
    ]
    done, _ = await asyncio.wait(tasks, timeout=PATIENCE)
    async with asyncio.TaskGroup() as group:
        third = group.create_task(bus.publish("t", b"3", durable=True))
    gathered = await asyncio.gather(bus.publish("t", b"4", durable=True), bus.publish("t", b"5", durable=True))
    waited = await asyncio.wait_for(bus.publish("t", b"6", durable=True), PATIENCE)
    places = [*(task.result() for task in tasks), third.result(), *gathered, waited]
    assert len(done) == 2
    assert [place.sequence for place in places] == [1, 2, 3, 4, 5, 6]
