"""Subscriptions that ask for stored messages: where they begin, live behind the backlog without gap or repeat, positions."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import busway
from busway.positions import Position, Positions
from tests.support.net import PATIENCE, Net, gather, rest, settle, until

pytestmark = pytest.mark.both_loops


def numbers(messages: list[busway.Message]) -> list[int]:
    return [int(message.payload) for message in messages]


async def backlog(subscription: busway.Subscription) -> list[busway.Message]:
    """Up to the one that is marked as the last."""
    got = [await subscription.recv(timeout=PATIENCE)]
    while not got[-1].last:
        got.append(await subscription.recv(timeout=PATIENCE))
    return got


async def fill(bus: busway.Bus, begin: int, end: int, topic: str = "t") -> list[Position]:
    return list(await bus.publish_many(topic, [str(number) for number in range(begin, end)], durable=True))


# Where it begins.


async def test_all(net: Net) -> None:
    bus = await net.connect()
    await fill(bus, 0, 3000)
    async with bus.subscribe("t") as beside, bus.subscribe("t", since="all") as reader:
        got = await backlog(reader)
        assert numbers(got) == list(range(3000))
        assert all(message.replayed for message in got)
        assert [message.last for message in got] == [False] * 2999 + [True]
        await settle(bus)
        assert beside.pending == 0
        await fill(bus, 3000, 3001)
        assert [message.replayed for message in await gather(reader, 1)] == [False]


async def test_new_is_from_now_on_and_misses_nothing_later(net: Net) -> None:
    bus = await net.connect()
    await fill(bus, 0, 10)
    async with bus.subscribe("t", since="new") as reader:
        await fill(bus, 10, 20)
        got = await gather(reader, 10)
        assert numbers(got) == list(range(10, 20))
        assert not any(message.replayed for message in got)


async def test_without_since_nothing_stored_comes(net: Net) -> None:
    bus = await net.connect()
    await fill(bus, 0, 10)
    async with bus.subscribe("t") as live:
        await fill(bus, 10, 11)
        await settle(bus)
        assert numbers(await rest(live)) == [10]


async def test_a_position_is_the_last_that_was_seen(net: Net) -> None:
    bus = await net.connect()
    places = await fill(bus, 0, 10)
    for since in (places[3], str(Positions([places[3]])), Positions([places[1], places[3]])):
        async with bus.subscribe("t", since=since) as reader:
            assert numbers(await backlog(reader)) == list(range(4, 10))


async def test_positions_of_another_broker_say_nothing_here(net: Net) -> None:
    bus = await net.connect()
    await fill(bus, 0, 5)
    async with bus.subscribe("t", since=Position("0" * 32, "default", 3)) as reader:
        assert numbers(await backlog(reader)) == list(range(5))


async def test_a_time_and_a_length_of_time(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as live:
        await fill(bus, 0, 5)
        (fifth,) = (await gather(live, 5))[-1:]
        assert fifth.stored_ns is not None
        # Another nanosecond, so that the times tell them apart.
        while datetime.now(UTC).timestamp() * 1e9 < fifth.stored_ns + 5_000_000:
            await settle(bus)
        await fill(bus, 5, 10)
        sixth = (await gather(live, 5))[0]
        assert sixth.stored_ns is not None
    middle = datetime.fromtimestamp((fifth.stored_ns + sixth.stored_ns) / 2e9, UTC)
    async with bus.subscribe("t", since=middle) as reader:
        assert numbers(await backlog(reader)) == list(range(5, 10))
    for since in ("1h", "3600s", timedelta(hours=1), "30m30s", datetime.now(UTC) - timedelta(days=3)):
        async with bus.subscribe("t", since=since) as reader:
            assert numbers(await backlog(reader)) == list(range(10))
    async with bus.subscribe("t", since=datetime.now(UTC) + timedelta(hours=1)) as reader:
        await fill(bus, 10, 11)
        assert numbers(await gather(reader, 1)) == [10]


async def test_nothing_stored_yet(net: Net) -> None:
    """Nothing of an empty backlog can be marked: the first that comes is live. The position is known all the same."""
    bus = await net.connect()
    async with bus.subscribe("t", since="all") as reader:
        assert await bus.rtt() >= 0
        assert reader.pending == 0
        assert dict(reader.position) == {(bus.server["guid"], "default"): 0}
        await fill(bus, 0, 2)
        got = await gather(reader, 2)
        assert [(message.replayed, message.last) for message in got] == [(False, True)] * 2


# Which of them.


async def test_topics_patterns_and_regular_expressions(net: Net) -> None:
    bus = await net.connect()
    for number in range(30):
        await bus.publish(("a/b", "a/c", "d")[number % 3], str(number), durable=True)
    for pattern, expected in (
        ("a/b", range(0, 30, 3)),
        ("a/*", [number for number in range(30) if number % 3 < 2]),
        ("**", range(30)),
        ("re:a/[cd]|d", [number for number in range(30) if number % 3]),
        ("nothing/here", ()),
    ):
        async with bus.subscribe(pattern, since="all") as reader:
            got = numbers(await backlog(reader)) if expected else []
            assert got == list(expected)
            await settle(bus)
            assert reader.pending == 0


async def test_rules(net: Net) -> None:
    bus = await net.connect()
    for number in range(40):
        await bus.publish("t", str(number), durable=True, fields={"n": number % 4, "name": f"x{number}"})
    rules = [
        ({"n": 1}, [number for number in range(40) if number % 4 == 1]),
        ({"n": [0, 2], "name": "x1*"}, [number for number in range(10, 20) if number % 4 in (0, 2)]),
        ({"n": lambda value: value > 2}, range(3, 40, 4)),
        ({"n": busway.expr("value == 3")}, range(3, 40, 4)),
        (busway.expr('fields.n == 3 || fields.name == "x0"'), [0, *range(3, 40, 4)]),
        ({"missing": busway.ANY}, []),
    ]
    for where, expected in rules:
        async with bus.subscribe("t", where=where, since="all") as reader:
            assert numbers(await gather(reader, len(expected))) == list(expected)
            await settle(bus)
            assert reader.pending == 0


async def test_no_echo_holds_for_the_backlog_as_for_what_is_live(net: Net) -> None:
    """What it falls behind with is the backlog, so who wants no echo must not get one by being slow."""
    bus, other = await net.connect(), await net.connect()
    await fill(bus, 0, 5)
    await fill(other, 5, 10)
    async with bus.subscribe("t", since="all", echo=False) as reader:
        assert numbers(await backlog(reader)) == list(range(5, 10))
        await fill(bus, 10, 12)
        await fill(other, 12, 14)
        assert numbers(await gather(reader, 2)) == [12, 13]
        await settle(bus, other)
        assert reader.pending == 0


async def test_two_subscriptions_of_one_connection_each_read_for_themselves(net: Net) -> None:
    bus, publisher = await net.connect(), await net.connect()
    places = await fill(publisher, 0, 1000)
    async with bus.subscribe("t", since="all") as one, bus.subscribe("*", since=places[899]) as two:
        await fill(publisher, 1000, 1010)
        assert numbers(await gather(one, 1010)) == list(range(1010))
        assert numbers(await gather(two, 110)) == list(range(900, 1010))
        async with bus.subscribe("t") as plain:
            await fill(publisher, 1010, 1020)
            for subscription in (one, two, plain):
                assert numbers(await gather(subscription, 10)) == list(range(1010, 1020))
            await settle(publisher, bus)
            assert (one.pending, two.pending, plain.pending) == (0, 0, 0)


# Live behind the backlog.


async def test_no_gap_and_no_repeat_while_a_publisher_runs(net: Net) -> None:
    reader_bus, publisher = await net.connect(), await net.connect()
    await fill(publisher, 0, 500)
    count = 4000

    async def publish() -> None:
        for begin in range(500, count, 50):
            await fill(publisher, begin, begin + 50)

    publishing = asyncio.ensure_future(publish())
    readers = []
    for since in ("all", "1h", "all", "1h", "all"):
        readers.append(await reader_bus.subscribe("t", since=since))
        await settle(reader_bus)
    for reader in readers:
        got = await gather(reader, count)
        assert numbers(got) == list(range(count))
        end = next(index for index, message in enumerate(got) if message.last)
        assert end >= 499
        assert all(message.replayed for message in got[: end + 1])
        await reader.close()
    await publishing


async def test_replay_does_not_delay_live_messages_that_are_not_stored(net: Net) -> None:
    """A plain message is there although most of the backlog has not been read yet: nobody takes it."""
    await net.serve(outbox=1 << 20)
    bus, publisher = await net.connect(), await net.connect()
    await publisher.publish_many("t", [b"\0" * 8192] * 4000, durable=True)
    async with bus.subscribe("t", since="all", limit=100) as slow, bus.subscribe("live") as live:
        await publisher.publish("live", b"now")
        assert (await live.recv(timeout=PATIENCE)).payload == b"now"
        assert slow.received < 4000
        got = await gather(slow, 4000)
        assert [message.offset for message in got] == list(range(4000))
        assert got[-1].last


async def test_a_subscription_that_ends_in_the_middle_of_its_backlog(net: Net) -> None:
    await net.serve(outbox=1 << 20)
    bus, publisher = await net.connect(), await net.connect()
    await publisher.publish_many("t", [b"\0" * 8192] * 3000, durable=True)
    for taken in (0, 1, 700):
        async with bus.subscribe("t", since="all", limit=10) as reader:
            await gather(reader, taken)
        assert await bus.publish("t", b"", confirm=True) == 0
    async with bus.subscribe("t", since="all") as reader:
        assert len(await backlog(reader)) == 3000


# Positions.


async def test_a_position_can_be_kept_and_given_back(net: Net) -> None:
    bus = await net.connect()
    await fill(bus, 0, 100)
    async with bus.subscribe("t", since="all") as reader:
        assert dict(reader.position) == {(bus.server["guid"], "default"): 0}
        got = await gather(reader, 37)
        kept = str(reader.position)
    assert Positions.parse(kept) == Positions([got[-1].position])
    await fill(bus, 100, 110)
    async with bus.subscribe("t", since=kept) as reader:
        assert numbers(await backlog(reader)) == list(range(37, 110))
        assert reader.position == Positions([Position(bus.server["guid"], "default", 109)])
        await fill(bus, 110, 112)
        assert len(await reader.take(2, timeout=PATIENCE)) >= 1


@pytest.mark.parametrize("way", ["recv", "take", "for", "batches", "handler"])
async def test_the_position_is_how_far_its_consumers_have_come(net: Net, way: str) -> None:
    bus = await net.connect()
    await fill(bus, 0, 50)
    seen: list[int] = []
    kept: Positions | None = None
    if way == "handler":
        done = asyncio.Event()

        def handler(message: busway.Message) -> None:
            seen.append(int(message.payload))
            if message.last:
                done.set()

        async with bus.subscribe("t", since="all", handler=handler) as reader:
            async with asyncio.timeout(PATIENCE):
                await done.wait()
            kept = reader.position
    else:
        async with bus.subscribe("t", since="all") as reader:
            if way == "recv":
                seen = numbers(await gather(reader, 20))
            elif way == "take":
                seen = numbers(await reader.take(20, timeout=PATIENCE))
            elif way == "for":
                async for message in reader:
                    seen.append(int(message.payload))
                    if len(seen) == 20:
                        break
            else:
                async for batch in reader.batches(7):
                    seen += numbers(batch)
                    if len(seen) >= 20:
                        break
            kept = reader.position
    assert kept == Positions([Position(bus.server["guid"], "default", seen[-1])])
    await fill(bus, 50, 51)
    async with bus.subscribe("t", since=kept) as reader:
        assert numbers(await backlog(reader)) == list(range(seen[-1] + 1, 51))


async def test_a_position_behind_a_delayed_message_gives_nothing_twice(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t", since="all") as reader:
        await bus.publish("t", b"0", durable=True, delay=1.0)
        await fill(bus, 1, 5)
        assert numbers(await gather(reader, 5)) == [1, 2, 3, 4, 0]
        kept = reader.position
    await fill(bus, 5, 6)
    async with bus.subscribe("t", since=kept) as reader:
        assert numbers(await backlog(reader)) == [5]


async def test_after_a_restart_a_position_still_counts(net: Net, tmp_path: Path) -> None:
    server = await net.serve(data=tmp_path / "data")
    async with net.client() as bus:
        places = await fill(bus, 0, 10)
    await server.stop()
    await net.serve(data=tmp_path / "data")
    bus = await net.connect()
    async with bus.subscribe("t", since=places[6]) as reader:
        assert numbers(await backlog(reader)) == [7, 8, 9]


# Slow consumers.


@pytest.mark.parametrize("policy", ["block", "drop_oldest", "drop_new", "disconnect"])
async def test_a_slow_consumer_falls_behind_and_catches_up_without_loss(net: Net, policy: busway.Policy) -> None:
    """The connection has no room: whatever the policy, what is stored need not be dropped by the broker, nor its reader ended."""
    server = await net.serve(outbox=1 << 20, stall=0.02)
    slow, publisher, quick = await net.connect("slow"), await net.connect(), await net.connect()
    payload = b".".ljust(32 << 10, b".")
    async with (
        slow.subscribe("t", since="all", policy=policy, limit_bytes=1 << 30) as reader,
        quick.subscribe("t", limit_bytes=1 << 30) as others,
    ):
        assert slow._core.connection is not None
        slow._core.connection.transport.pause_reading()
        for _ in range(1200):
            await publisher.publish("t", payload, durable=True)
        assert len(await gather(others, 1200)) == 1200
        assert server.stats()["outbox_bytes"] <= 2 << 20
        slow._core.connection.transport.resume_reading()
        got = await gather(reader, 1200)
        assert [message.offset for message in got] == list(range(1200))
        assert reader.missed == 0
        await publisher.publish("t", b"live", durable=True)
        assert (await reader.recv(timeout=PATIENCE)).payload == b"live"


async def test_a_durable_publisher_does_not_wait_for_one_who_can_fall_behind(net: Net) -> None:
    server = await net.serve(stall=60)
    slow, publisher = await net.connect(), await net.connect()
    async with slow.subscribe("t", since="all", limit=10, patience=PATIENCE) as reader:
        for begin in range(0, 500, 50):
            async with asyncio.timeout(PATIENCE):
                await fill(publisher, begin, begin + 50)
        await until(lambda: reader.full, lambda: settle(slow))
        async with asyncio.timeout(PATIENCE):
            await fill(publisher, 500, 1000)
        assert server.stats()["messages_dropped"] == 0
        assert numbers(await gather(reader, 1000)) == list(range(1000))
        assert reader.missed == 0


# What is refused.


@pytest.mark.parametrize(
    ("since", "error", "words"),
    [
        ("yesterday", ValueError, "not a length of time"),
        ("", ValueError, "not a length of time"),
        ("0s", ValueError, "above 0"),
        (99, TypeError, "timedelta.seconds=99."),
        (1.5, TypeError, "seconds or an offset"),
        (True, TypeError, "length of time"),
        (b"all", TypeError, "length of time"),
        (datetime(2026, 1, 1), ValueError, "time zone"),  # noqa: DTZ001, that is what is wrong
        ("abc:1:default", ValueError, "not a position"),
        (f"{'0' * 32}:-1:default", ValueError, "not a position"),
    ],
)
async def test_a_bad_since(net: Net, since: object, error: type[Exception], words: str) -> None:
    bus = await net.connect()
    with pytest.raises(error, match=words):
        bus.subscribe("t", since=since)  # type: ignore[call-overload]
    assert (await bus.publish("t", b"", durable=True)).offset == 0


async def test_a_group_shares_what_is_live_only(net: Net) -> None:
    bus = await net.connect()
    with pytest.raises(ValueError, match="channel"):
        bus.subscribe("t", since="all", group="g")


async def test_the_place_of_a_message_as_text_is_behind_it(net: Net) -> None:
    bus = await net.connect()
    places = [await bus.publish("t", str(number), durable=True) for number in range(4)]
    for since in (places[1], str(places[1]), f"{places[1].broker}:+2:{places[1].stream}"):
        async with bus.subscribe("t", since=since) as reader:
            assert [one.text for one in await gather(reader, 2)] == ["2", "3"]
    stream = await bus.stream(places[0].stream)
    for place in (places[1], str(places[1]), f"{places[1].broker}:+1:{places[1].stream}"):
        got = [one.text async for batch in stream.read(place) for one in batch]
        assert got == ["1", "2", "3"], "a read begins with it"
