"""Settings of channels: start, seek, selection, exclusive consumers, and removal."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

import busway
from busway.errors import Code
from tests.support.channels import STREAM, TOPIC, info, nothing, numbers, shown, some, store, stream
from tests.support.connection_events import abort, next_event
from tests.support.net import PATIENCE, Net, settle, until, within

pytestmark = pytest.mark.both_loops


async def moment(bus: busway.Bus) -> datetime:
    """Later than what was stored so far, and earlier than what will be."""
    now = datetime.now(UTC)
    while datetime.now(UTC) < now + timedelta(milliseconds=5):
        await settle(bus)
    return now + timedelta(milliseconds=2)


# Where it begins.


async def test_where_a_new_channel_begins(net: Net) -> None:
    bus = await stream(net, 4)
    between = await moment(bus)
    await store(bus, 4, 8)
    async with bus.subscribe("t/**", since="all") as reader:
        messages = [await reader.recv(timeout=PATIENCE) for _ in range(8)]
    places: list[tuple[Any, int]] = [
        (None, 0),
        ("first", 0),
        ("new", 8),
        (3, 3),
        (8, 8),
        (0, 0),
        (messages[5].position, 5),
        (messages[6], 6),
        (between, 4),
        ("1h", 0),
        (timedelta(hours=1), 0),
        (datetime.now(UTC) + timedelta(hours=1), 8),
    ]
    for number, (start, offset) in enumerate(places):
        async with bus.channel(STREAM, f"c{number}", start=start, window=100) as channel:
            assert numbers(await some(channel, 8 - offset)) == list(range(offset, 8))
            assert await nothing(bus, channel)
    await store(bus, 8, 9)
    async with bus.channel(STREAM, "c2", start="first") as channel:  # one that is there stays where it is
        assert numbers(await some(channel, 1)) == [8]


async def test_places_that_are_none(net: Net) -> None:
    bus = await stream(net, 3)
    (message,) = await some_of(bus, 1)
    for start, error in (
        (-1, ValueError),
        (4, busway.OutOfRange),
        (1 << 62, busway.OutOfRange),
        (message.position._replace(offset=9), busway.OutOfRange),
        (True, TypeError),
        ("soon", ValueError),
        (datetime(2026, 1, 1), ValueError),  # noqa: DTZ001, that is what is wrong
        (object(), TypeError),
    ):
        with pytest.raises(error):
            await bus.create_channel(STREAM, "c", start=start)
        with pytest.raises(error):
            await bus.channel(STREAM, "c", start=start)
        with pytest.raises(error):
            bus_channel = await bus.channel(STREAM, "there")
            try:
                await bus_channel.seek(start)
            finally:
                await bus_channel.close()
    assert [one.name for one in await bus.channels(STREAM)] == ["there"]


async def some_of(bus: busway.Bus, count: int, pattern: str = "t/**") -> list[Any]:
    async with bus.subscribe(pattern, since="all") as reader:
        return [await reader.recv(timeout=PATIENCE) for _ in range(count)]


# Seeking.


@pytest.mark.parametrize("window", [0, 100])
async def test_seek(net: Net, window: int) -> None:
    bus = await stream(net, 4)
    between = await moment(bus)
    await store(bus, 4, 8)
    async with bus.channel(STREAM, "c", window=window) as channel:

        async def rest(begin: int) -> list[busway.Message]:
            """What comes from here on; what was in flight before may come before it."""
            got: list[busway.Message] = []
            while not got or got[-1].offset != 7:
                got += await channel.take(100, timeout=PATIENCE)
            begun = numbers(got).index(begin)
            assert numbers(got)[begun:] == list(range(begin, 8))
            return got[begun:]

        messages = await rest(0)
        await channel.ack(messages)
        places: list[tuple[Any, int]] = [
            (5, 5),
            ("first", 0),
            (messages[3].position, 3),
            (between, 4),
            ("1h", 0),
            (messages[6], 6),
        ]
        for start, offset in places:
            assert await channel.seek(start) == offset
            await channel.ack(await rest(offset))
            assert (await info(bus)).floor == 8
        assert await bus.seek_channel(STREAM, "c", 7) == 7  # from elsewhere
        await channel.ack(await rest(7))
        assert await channel.seek("new") == 8
        await store(bus, 8, 9)
        assert numbers(await channel.take(5, timeout=PATIENCE)) == [8]


async def test_seek_to_a_message_checks_that_it_is_that_one(net: Net) -> None:
    bus = await stream(net, 3)
    async with busway.serve() as elsewhere, elsewhere.connect() as other:
        await other.create_stream(STREAM, ["t/**"])
        await store(other, 0, 3)
        theirs = await some_of(other, 3)
    mine = await some_of(bus, 3)
    async with bus.channel(STREAM, "c") as channel:
        assert await channel.seek(mine[1]) == 1
        with pytest.raises(busway.OutOfRange, match="is not"):
            await channel.seek(theirs[1])
        with pytest.raises(busway.OutOfRange, match="is not"):
            await bus.create_channel(STREAM, "d", start=theirs[1])
    stray = await bus.publish("elsewhere", b"", durable=True)
    for wrong in (stray, (await some_of(bus, 1, "elsewhere"))[0]):
        with pytest.raises(ValueError, match="in the stream 'default'"):
            await bus.seek_channel(STREAM, "c", wrong)


async def test_a_seek_takes_what_is_in_flight_from_its_consumers(net: Net) -> None:
    bus = await stream(net, 10)
    async with bus.channel(STREAM, "c", window=5) as channel:
        got = await some(channel, 5)
        await channel.seek(8)
        assert numbers(await some(channel, 2)) == [8, 9]
        with pytest.raises(busway.AckLate):
            await channel.ack(got[0])
        figures = await info(bus)
        assert (figures.floor, figures.in_flight) == (8, 2)


# What it chooses.


async def test_topics_and_rules_choose(net: Net) -> None:
    bus = await net.connect()
    await bus.create_stream(STREAM, ["t/**"])
    for number in range(40):
        fields = {"n": number, "even": number % 2 == 0}
        await bus.publish(f"t/{number % 4}", b"%d" % number, durable=True, fields=fields)
    for index, (topic, where, expected) in enumerate(
        [
            ("t/1", None, range(1, 40, 4)),
            ("t/*", {"even": True}, range(0, 40, 2)),
            ("re:t/[23]", {"n": [2, 3, 4, 5, 6]}, [2, 3, 6]),
            (None, busway.expr("fields.n >= 38"), [38, 39]),
            ("t/0", {"even": False}, []),
        ]
    ):
        async with bus.channel(STREAM, f"c{index}", topic=topic, where=where, window=5) as channel:
            seen = []
            for _ in expected:
                message = await channel.recv(timeout=PATIENCE)
                seen.append(int(message.payload))
                await message.ack()
            assert seen == list(expected)
            assert await nothing(bus, channel)
        await shown(bus, f"c{index}", floor=40, lag=0)
    with pytest.raises(busway.InvalidRule, match=r"expr\(\.\.\.\)"):
        bus.channel(STREAM, "x", where={"n": lambda value: True})


async def test_another_choice_holds_for_what_was_not_handed_out(net: Net) -> None:
    bus = await net.connect()
    await bus.create_stream(STREAM, ["t/**"])
    for number in range(20):
        await bus.publish(f"t/{number % 2}", b"%d" % number, durable=True)
    async with bus.channel(STREAM, "c", window=4) as channel:
        got = await some(channel, 4)
        await bus.update_channel(STREAM, "c", topic="t/1")
        await channel.ack(got)
        assert numbers(await some(channel, 4)) == [5, 7, 9, 11]


# Paused.


@pytest.mark.parametrize("window", [0, 10])
async def test_a_paused_channel_hands_nothing_out(net: Net, window: int) -> None:
    bus = await stream(net, 3)
    async with bus.channel(STREAM, "c", window=window, paused=True) as channel:
        taking = asyncio.ensure_future(channel.take(10, timeout=PATIENCE, whole=window == 0))
        await store(bus, 3, 10)
        await settle(bus)
        assert not taking.done()
        assert (await info(bus)).paused
        await channel.resume()
        got = await within(taking)
        assert numbers(got) == list(range(len(got)))
        await channel.pause()
        await channel.ack(got)  # what is in flight is not touched
        await channel.info()
        await channel.resume()
        assert not (await channel.info()).paused


# Who may consume it.


async def test_an_exclusive_channel_has_one_consumer(net: Net) -> None:
    bus, other = await stream(net, 2), await net.connect()
    async with bus.channel(STREAM, "c", exclusive=True) as channel:
        for settings in ({}, {"exclusive": True}, {"exclusive": False}, {"lease": 5}):
            with pytest.raises(busway.Rejected, match="exclusive") as caught:
                await other.channel(STREAM, "c", **settings)
            assert caught.value.code == Code.CHANNEL_TAKEN
        figures = await info(bus)
        assert (figures.exclusive, figures.lease, figures.consumers) == (True, 30, 1)
        assert numbers(await some(channel, 2)) == [0, 1]
    async with other.channel(STREAM, "c") as channel:
        assert numbers(await some(channel, 2)) == [0, 1]


async def test_a_shared_channel_can_not_be_had_exclusively(net: Net) -> None:
    bus, other = await stream(net), await net.connect()
    async with bus.channel(STREAM, "c"):
        with pytest.raises(busway.Rejected, match="exclusively"):
            await other.channel(STREAM, "c", exclusive=True)
        assert not (await info(bus)).exclusive
        async with other.channel(STREAM, "c"):
            assert (await info(bus)).consumers == 2


async def test_delete_on_leave(net: Net) -> None:
    bus, other = await stream(net, 2), await net.connect()
    async with bus.channel(STREAM, "c", delete_on_leave=True) as channel:
        async with other.channel(STREAM, "c"):
            await shown(bus, consumers=2)
        await shown(bus, consumers=1)
        await some(channel, 2)
    assert await bus.channels(STREAM) == []
    async with bus.channel(STREAM, "c") as channel:  # another one
        assert [message.deliveries for message in await some(channel, 2)] == [1, 1]


# Settings.


async def test_settings_are_those_that_were_given_last(net: Net) -> None:
    bus = await stream(net)
    made = await bus.create_channel(STREAM, "c", lease="1m", max_deliveries=2, dead_letter="bad")
    assert (made.lease, made.max_deliveries, made.dead_letter, made.topic, made.exclusive) == (
        60,
        2,
        "bad",
        "**",
        False,
    )
    assert made == await bus.create_channel(STREAM, "c")
    async with bus.channel(STREAM, "c", max_deliveries=7):
        pass
    changed = await bus.update_channel(STREAM, "c", topic="t/x", lease=0, paused=True)
    assert (changed.lease, changed.max_deliveries, changed.dead_letter, changed.topic) == (0, 7, "bad", "t/x")
    assert changed.paused
    assert [one.name for one in await bus.channels(STREAM)] == ["c"]
    assert (await bus.stream(STREAM)).name == STREAM


async def test_the_backoff_is_a_setting_as_others_are(net: Net) -> None:
    bus = await stream(net)
    assert (await bus.create_channel(STREAM, "c")).backoff == (1.0, 5.0, 30.0, 120.0, 600.0)
    assert (await bus.update_channel(STREAM, "c", backoff=["1s", 2.5, timedelta(minutes=1)])).backoff == (
        1.0,
        2.5,
        60.0,
    )
    grows = busway.Backoff("1s", factor=3, limit="1h", jitter=0.2)
    async with bus.channel(STREAM, "c", backoff=grows) as channel:
        assert (await channel.info()).backoff == grows
    assert (await bus.update_channel(STREAM, "c", lease=5)).backoff == grows
    for none in ([], 0, "none"):
        await bus.update_channel(STREAM, "c", backoff=grows)
        assert (await bus.update_channel(STREAM, "c", backoff=none)).backoff == ()


async def test_a_message_that_failed_comes_after_its_delay(net: Net) -> None:
    bus = await stream(net, 2)
    async with bus.channel(STREAM, "c", backoff=["1h"]) as channel:
        first, second = await some(channel, 2)
        await asyncio.gather(first.nack(), second.nack(delay=0))
        assert numbers(await some(channel, 1)) == [1]
        await shown(bus, waiting=1, in_flight=1)
        assert channel.pending == 0


async def test_a_handler_that_raises_is_called_again_after_each_delay(net: Net) -> None:
    bus = await stream(net, 1)
    seen: list[tuple[int | None, float]] = []
    done = asyncio.Event()

    async def handle(message: busway.Message) -> None:
        seen.append((message.deliveries, asyncio.get_running_loop().time()))
        if len(seen) < 4:
            raise ConnectionError("the database is down")
        done.set()

    async with bus.channel(STREAM, "c", backoff=["50ms", "100ms"], handler=handle):
        await within(done.wait())
    assert [deliveries for deliveries, _ in seen] == [1, 2, 3, 4]
    waited = [after - before for (_, before), (_, after) in pairwise(seen)]
    assert all(wait >= least for wait, least in zip(waited, (0.045, 0.095, 0.095), strict=True))


async def test_only_a_second_loss_of_a_consumer_waits(net: Net) -> None:
    bus = await stream(net, 1)
    await bus.create_channel(STREAM, "c", backoff=["1h"])
    for times in (1, 2):
        one = await net.connect("one", reconnect=None)
        channel = await one.channel(STREAM, "c")
        assert (await channel.recv(timeout=PATIENCE)).deliveries == times
        abort(one)
        await shown(bus, in_flight=0)
    await shown(bus, waiting=1)
    async with bus.channel(STREAM, "c") as channel:
        assert await nothing(bus, channel)


@pytest.mark.parametrize("zero", [0, "0s", timedelta(0)])
async def test_a_lease_may_be_zero_but_not_negative(net: Net, zero: Any) -> None:
    bus = await stream(net)
    assert (await bus.create_channel(STREAM, "c", lease=zero)).lease == 0
    with pytest.raises(ValueError, match=r"^lease must not be negative, but is -1$"):
        await bus.update_channel(STREAM, "c", lease=-1)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"backoff": [-1]}, ValueError),
        ({"backoff": [""]}, ValueError),
        ({"backoff": "soon"}, ValueError),
        ({"backoff": [float("nan")]}, ValueError),
        ({"backoff": [1] * 65}, ValueError),
        ({"backoff": True}, TypeError),
        ({"backoff": {"first": 1}}, TypeError),
        ({"lease": -1}, ValueError),
        ({"lease": "soon"}, ValueError),
        ({"lease": float("nan")}, ValueError),
        ({"max_deliveries": -1}, ValueError),
        ({"max_deliveries": 1.5}, ValueError),
        ({"max_deliveries": True}, ValueError),
        ({"dead_letter": "a//b"}, busway.InvalidTopic),
        ({"dead_letter": "a/*"}, busway.InvalidTopic),
        ({"dead_letter": "a/{colour}"}, busway.BusError),
        ({"dead_letter": "$bus/x"}, busway.Forbidden),
        ({"dead_letter": 5}, TypeError),
        ({"topic": "a//b"}, busway.InvalidTopic),
        ({"where": {"a": object()}}, (ValueError, TypeError)),
    ],
)
async def test_settings_that_are_none(net: Net, settings: dict[str, Any], error: type[Exception]) -> None:
    bus = await stream(net)
    with pytest.raises(error):
        await bus.channel(STREAM, "c", **settings)
    with pytest.raises(error):
        await bus.create_channel(STREAM, "c", **settings)
    assert await bus.channels(STREAM) == []
    await bus.create_channel(STREAM, "c")
    before = await info(bus)
    with pytest.raises(error):
        await bus.update_channel(STREAM, "c", **settings)
    assert await info(bus) == before


async def test_names_and_windows_that_are_none(net: Net) -> None:
    bus = await stream(net)
    for name in ("", "a/b", "-a", "a" * 65, ".", "ä", 5, None):
        with pytest.raises(ValueError, match="not a valid name of a channel"):
            bus.channel(STREAM, name)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not a valid name of a channel"):
            await bus.create_channel(STREAM, name)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not a valid name of a stream"):
            bus.channel(name, "c")  # type: ignore[arg-type]
    for window in (-1, 65_537, 1.5, True, "5"):
        with pytest.raises(ValueError, match="window"):
            bus.channel(STREAM, "c", window=window)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="colour"):
        await bus.create_channel(STREAM, "c", colour=5)
    with pytest.raises(ValueError, match="window"):
        bus.channel(STREAM, "c", window=0, handler=print)
    with pytest.raises(TypeError, match="handler"):
        bus.channel(STREAM, "c", handler=5)  # type: ignore[arg-type]


async def test_unknown_streams_and_channels(net: Net) -> None:
    bus = await stream(net)
    for call in (
        lambda: bus.channel("nobody", "c").start(),
        lambda: bus.create_channel("nobody", "c"),
        lambda: bus.channels("nobody"),
    ):
        with pytest.raises(busway.Rejected, match="no stream 'nobody'") as caught:
            await call()
        assert caught.value.code == Code.NO_STREAM
    for call in (
        lambda: bus.channel(STREAM, "c", create=False).start(),
        lambda: bus.update_channel(STREAM, "c", lease=5),
        lambda: bus.seek_channel(STREAM, "c", 0),
        lambda: bus.remove_channel(STREAM, "c"),
    ):
        with pytest.raises(busway.Rejected, match="no channel 'c'") as caught:
            await call()
        assert caught.value.code == Code.NO_CHANNEL
    await bus.create_channel(STREAM, "c")
    async with bus.channel(STREAM, "c", create=False):
        assert (await info(bus)).consumers == 1


# How it ends.


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("what", ["channel", "stream"])
async def test_consumers_hear_that_it_was_removed(net: Net, what: str, window: int) -> None:
    bus, other = await stream(net, 1), await net.connect()
    events = bus.events()
    async with bus.channel(STREAM, "c", window=window) as channel:
        (message,) = await channel.take(1, timeout=PATIENCE)
        waiting = [asyncio.ensure_future(one) for one in (channel.take(5), channel.recv(), anext(aiter(channel)))]
        await settle(bus)
        if what == "channel":
            assert (await other.remove_channel(STREAM, "c")).in_flight == 1
            assert await other.channels(STREAM) == []
        else:
            await other.remove_stream(STREAM)
        code = Code.NO_CHANNEL if what == "channel" else Code.NO_STREAM
        for one in waiting:
            with pytest.raises(busway.Rejected, match="removed") as caught:
                await within(one)
            assert caught.value.code == code
        assert (await next_event(events, "rejected")).topic == f"{STREAM}/c"
        assert channel.closed
        with pytest.raises(busway.Rejected, match="removed"):
            message.ack()
    if what == "channel":
        async with bus.channel(STREAM, "c", window=window) as channel:  # another one, from the beginning
            assert [one.deliveries for one in await channel.take(5, timeout=PATIENCE)] == [1]


async def test_a_handler_hears_that_it_was_removed(net: Net) -> None:
    bus = await stream(net, 1)
    seen = asyncio.Event()
    async with bus.channel(STREAM, "c", handler=lambda message: seen.set()):
        await within(seen.wait())
        await bus.remove_channel(STREAM, "c")
        await until(lambda: bus.errors == 1)


# Times.


async def test_messages_that_expire(net: Net) -> None:
    bus = await stream(net)
    await bus.publish(TOPIC, b"0", durable=True, expires=0.001)
    await bus.publish(TOPIC, b"1", durable=True, expires=3600)
    await moment(bus)
    async with bus.channel(STREAM, "c") as channel:
        assert numbers(await some(channel, 1)) == [1]
        # One that expires while it waits to be handed out again does not come again.
        await bus.publish(TOPIC, b"2", durable=True, expires=1.0)
        (message,) = await some(channel, 1)
        await message.nack(delay=1.2)
        await shown(bus, floor=1, in_flight=1, waiting=0)
        assert await nothing(bus, channel)


async def test_what_retention_drops_is_told(net: Net) -> None:
    bus = await stream(net, max_count=100)
    events = bus.events()
    async with bus.channel(STREAM, "c", window=10) as channel:
        await store(bus, 0, 10)
        got = await some(channel, 10)
        for begin in range(10, 30_000, 2000):
            await store(bus, begin, begin + 2000)
        await bus.update_stream(STREAM, max_count=50)  # what is too much goes at once
        event = await next_event(events, "gap")
        assert (event.topic, event.count > 0) == (f"{STREAM}/c", True)
        with pytest.raises(busway.AckLate):
            await channel.ack(got)
        # What was on its way when it was dropped still comes, but nobody keeps count of it any more.
        last = -1
        while last < 29_999:
            message = await channel.recv(timeout=PATIENCE)
            assert message.offset is not None
            assert message.offset > last
            last = message.offset
            await asyncio.gather(message.ack(), return_exceptions=True)
        first = (await (await bus.stream(STREAM)).info()).first
        assert first > 29_000
        await until(lambda: channel.lost >= 10)
        figures = await info(bus)
        assert (figures.lost, figures.floor) == (channel.lost, 30_000)
