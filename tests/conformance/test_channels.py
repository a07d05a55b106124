"""Channels: which consumer gets which messages, how many at a time, and redelivery of unacknowledged ones."""

import asyncio
import socket

import pytest

import busway
from tests.support.channels import STREAM, TOPIC, info, nothing, numbers, shown, some, store, stream
from tests.support.connection_events import next_event
from tests.support.net import PATIENCE, Net, gather, settle, until, within

pytestmark = pytest.mark.both_loops


# Windows.


async def test_never_more_than_the_window_is_unacknowledged(net: Net) -> None:
    bus = await stream(net, 50)
    async with bus.channel(STREAM, "c", window=7) as channel:
        first = await some(channel, 7)
        assert numbers(first) == list(range(7))
        assert await nothing(bus, channel)
        await channel.ack(first[2])
        assert numbers(await some(channel, 1)) == [7]
        assert await nothing(bus, channel)
        await channel.ack(first[:2] + first[3:])
        assert numbers(await some(channel, 6)) == list(range(8, 14))
        assert await nothing(bus, channel)
        assert (await info(bus)).in_flight == 7


async def test_each_message_once_and_in_order_to_one_who_acknowledges(net: Net) -> None:
    bus = await stream(net, 3000)
    seen: list[busway.Message] = []
    async with bus.channel(STREAM, "c", window=64) as channel:
        async for message in channel:
            seen.append(message)
            message.ack()
            if len(seen) == 3000:
                break
        await store(bus, 3000, 3010)
        seen += await some(channel, 10)
        assert await nothing(bus, channel)
    assert numbers(seen) == list(range(3010))
    assert {message.deliveries for message in seen} == {1}
    assert all(message.channel is channel for message in seen)
    assert [message.offset for message in seen] == list(range(3010))


@pytest.mark.parametrize("many", [1, 10, 1000])
async def test_batches(net: Net, many: int) -> None:
    bus = await stream(net, 1500)
    seen: list[int] = []
    async with bus.channel(STREAM, "c", window=200) as channel:
        async for batch in channel.batches(many):
            assert 1 <= len(batch) <= many
            seen += numbers(batch)
            channel.ack(batch)
            if len(seen) == 1500:
                break
    assert seen == list(range(1500))
    await shown(bus, floor=1500, in_flight=0, lag=0)


async def test_several_consumers_share(net: Net) -> None:
    """Each message goes to one of them, and none is given much more than the others who have the same room."""
    bus, other = await stream(net), await net.connect()
    async with (
        bus.channel(STREAM, "c", window=10) as one,
        other.channel(STREAM, "c", window=10) as two,
        other.channel(STREAM, "c", window=10) as three,
    ):
        await store(bus, 0, 30)
        got = [await some(channel, 10) for channel in (one, two, three)]
        assert sorted(number for part in got for number in numbers(part)) == list(range(30))
        for channel in (one, two, three):
            assert await nothing(bus, channel)
            assert await nothing(other, channel)
        await two.ack(got[1])
        await store(bus, 30, 35)
        assert numbers(await some(two, 5)) == list(range(30, 35))


async def test_two_channels_of_a_stream_are_independent(net: Net) -> None:
    bus = await stream(net, 10)
    async with bus.channel(STREAM, "c") as one, bus.channel(STREAM, "d", window=3) as two:
        got = await some(one, 10)
        await one.ack(got)
        assert numbers(await some(two, 3)) == [0, 1, 2]
        with pytest.raises(busway.Rejected, match="did not deliver this message"):
            two.ack(got[0])
        await shown(bus, "c", floor=10)
        await shown(bus, "d", floor=0, in_flight=3)


async def test_without_a_consumer_nothing_is_lost(net: Net) -> None:
    bus = await stream(net, 5)
    async with bus.channel(STREAM, "c") as channel:
        await channel.ack((await some(channel, 5))[:3])
    await store(bus, 5, 8)
    async with bus.channel(STREAM, "c") as channel:
        got = await some(channel, 5)
        assert numbers(got) == [3, 4, 5, 6, 7]
        assert [message.deliveries for message in got] == [2, 2, 1, 1, 1]


# Acknowledgements.


async def test_nack_gives_it_back_at_once(net: Net) -> None:
    bus = await stream(net, 3)
    async with bus.channel(STREAM, "c") as channel:
        first, second, third = await some(channel, 3)
        await second.nack()
        again = await channel.recv(timeout=PATIENCE)
        assert (again.payload, again.deliveries, again.offset) == (b"1", 2, 1)
        await channel.ack([first, again, third])
        assert await nothing(bus, channel)
        assert (await info(bus)).floor == 3


async def test_nack_with_a_delay(net: Net) -> None:
    bus = await stream(net, 3)
    loop = asyncio.get_running_loop()
    async with bus.channel(STREAM, "c") as channel:
        first, second, third = await some(channel, 3)
        begin = loop.time()
        await asyncio.gather(channel.nack(first, delay=3600), second.nack(0.1), third.ack())
        again = await channel.recv(timeout=PATIENCE)
        assert loop.time() - begin >= 0.09
        assert (again.payload, again.deliveries) == (b"1", 2)
        assert await nothing(bus, channel)
        assert (await info(bus)).waiting == 1


async def test_a_lease_that_ends_gives_it_to_another(net: Net) -> None:
    bus, other = await stream(net, 1), await net.connect()
    async with bus.channel(STREAM, "c", window=1, lease=0.05, max_processing=0) as slow:
        message = await slow.recv(timeout=PATIENCE)
        async with other.channel(STREAM, "c", window=1) as quick:
            # It may come back to the slow one first, who does not even look: its time is over again then.
            again = await quick.recv(timeout=PATIENCE)
            assert (again.offset, again.deliveries >= 2) == (0, True)
            await other.update_channel(STREAM, "c", lease="1h")
            await shown(bus, in_flight=1)
            if (await info(bus)).floor == 0:
                with pytest.raises(busway.AckLate):
                    await message.ack()
            await again.ack()
            with pytest.raises(busway.AckLate):
                await message.ack()
            figures = await info(bus)
            assert (figures.floor, figures.late + figures.refused >= 1) == (1, True)


async def test_extend_keeps_it(net: Net) -> None:
    bus = await stream(net, 2)
    async with bus.channel(STREAM, "c", window=2, lease=2.0, max_processing=0) as channel:
        kept, left = await some(channel, 2)
        again = None
        while again is None:
            await channel.extend(kept)
            try:
                again = await channel.recv(timeout=0.1)
            except busway.Timeout:
                continue
        assert (again.offset, again.deliveries) == (left.offset, 2)
        await channel.ack([kept, again])
        figures = await info(bus)
        assert (figures.floor, figures.late) == (2, 0)


async def test_a_lease_of_zero_has_no_end(net: Net) -> None:
    bus = await stream(net, 1)
    async with bus.channel(STREAM, "c", lease=0) as channel:
        message = await channel.recv(timeout=PATIENCE)
        assert (await info(bus)).lease == 0
        await message.ack()


async def test_an_acknowledgement_is_counted_once(net: Net) -> None:
    bus = await stream(net, 2)
    async with bus.channel(STREAM, "c") as channel:
        first, second = await some(channel, 2)
        await first.ack()
        for call in (first.ack, first.nack, lambda: channel.extend(first)):
            with pytest.raises(busway.AckLate, match="offset 0"):
                await call()
        await second.ack()  # nobody is harmed
        assert (await info(bus)).floor == 2


async def test_late_ones_that_nobody_awaits_are_told(net: Net) -> None:
    bus = await stream(net, 2)
    events = bus.events()
    async with bus.channel(STREAM, "c") as channel:
        first, second = await some(channel, 2)
        await first.ack()
        first.ack()
        second.ack()
        told = await next_event(events, "late")
        assert isinstance(told.error, busway.AckLate)
        assert told.topic == f"{STREAM}/c"
        await shown(bus, floor=2)


async def test_only_who_was_too_late_hears_it(net: Net) -> None:
    """Acknowledgements of one turn share a frame, and each hears its own outcome."""
    bus = await stream(net, 4)
    async with bus.channel(STREAM, "c") as channel:
        got = await some(channel, 4)
        await got[1].ack()
        outcome = await asyncio.gather(*(message.ack() for message in got), return_exceptions=True)
        assert [type(one) for one in outcome] == [type(None), busway.AckLate, type(None), type(None)]


async def test_a_message_that_is_none_of_the_channels(net: Net) -> None:
    bus = await stream(net, 1)
    async with bus.subscribe("t/**", since="all") as plain, bus.channel(STREAM, "c") as channel:
        message = await plain.recv(timeout=PATIENCE)
        assert message.channel is None
        with pytest.raises(busway.Rejected, match="did not deliver this message"):
            channel.ack(message)
        for call in (message.ack, message.nack):
            with pytest.raises((busway.BusError, AttributeError, TypeError, ValueError)):
                call()
        with pytest.raises(ValueError, match="no message"):
            channel.ack([])


# Dead letters.


async def test_after_max_deliveries_it_goes_to_the_dead_letter_topic(net: Net) -> None:
    bus, other = await stream(net), await net.connect()
    await bus.publish(TOPIC, b"poison", durable=True, fields={"colour": "red", "n": 7})
    await store(bus, 1, 2)
    async with (
        other.subscribe(f"dead/{STREAM}/c") as dead,
        bus.channel(STREAM, "c", max_deliveries=3) as channel,
    ):
        for times in (1, 2, 3):
            message = await channel.recv(timeout=PATIENCE)
            if message.offset:
                await message.ack()
                message = await channel.recv(timeout=PATIENCE)
            assert (message.payload, message.deliveries) == (b"poison", times)
            await message.nack()
        (letter,) = await gather(dead, 1)
        assert (letter.payload, letter.sender) == (b"poison", "maker")
        recorded = {"dead_first", "dead_last", "dead_time", "dead_broker", "dead_node", "dead_part", "dead_epoch"}
        assert {name: value for name, value in letter.fields.items() if name not in recorded} == {
            "colour": "red",
            "n": 7,
            "dead_stream": STREAM,
            "dead_channel": "c",
            "dead_offset": 0,
            "dead_topic": TOPIC,
            "dead_deliveries": 3,
            "dead_times": 1,
            "dead_consumer": "maker",
            "dead_host": socket.gethostname(),
        }
        assert letter.time_ns == message.time_ns
        assert letter.stream == "dead"
        await shown(bus, dead=1, floor=2, dying=0, lag=0)
        assert await nothing(bus, channel)
    async with bus.subscribe("dead/**", since="all") as reader:  # it is stored
        assert (await reader.recv(timeout=PATIENCE)).payload == b"poison"


async def test_dead_letters_do_not_come_back_into_their_channel(net: Net) -> None:
    """Their topic is in the same stream."""
    bus = await net.connect()
    await bus.create_stream(STREAM, ["**"])
    await store(bus, 0, 2)
    async with (
        bus.channel(STREAM, "c", max_deliveries=1, dead_letter="bad/{channel}/of/{stream}") as channel,
        bus.channel(STREAM, "d", topic="bad/**") as undertaker,
    ):
        first, second = await some(channel, 2)
        await channel.nack([first, second])
        letters = await some(undertaker, 2)
        assert {letter.topic for letter in letters} == {f"bad/c/of/{STREAM}"}
        assert sorted(numbers(letters)) == [0, 1]
        await undertaker.ack(letters)
        await store(bus, 2, 3)
        assert numbers(await some(channel, 1)) == [2]
        assert await nothing(bus, channel)


async def test_without_a_dead_letter_topic_messages_of_the_empty_topic_are_handed_out(net: Net) -> None:
    bus = await net.connect("maker")
    await bus.create_stream(STREAM, [""], store="memory")
    async with bus.channel(STREAM, "c", dead_letter="") as channel:
        await bus.publish("", b"1", durable=True)
        assert [message.payload for message in await some(channel, 1)] == [b"1"]


async def test_without_a_dead_letter_topic_it_is_given_up(net: Net) -> None:
    bus = await stream(net, 2)
    async with bus.subscribe("**") as all_, bus.channel(STREAM, "c", max_deliveries=1, dead_letter="") as channel:
        first, second = await some(channel, 2)
        await first.nack()
        await second.ack()
        await shown(bus, floor=2, dead=1)
        await settle(bus)
        assert all_.pending == 0


async def test_without_a_limit_it_comes_again_and_again(net: Net) -> None:
    bus = await stream(net, 1)
    async with bus.channel(STREAM, "c", max_deliveries=0, backoff=[]) as channel:
        for times in range(1, 20):
            message = await channel.recv(timeout=PATIENCE)
            assert message.deliveries == times
            await message.nack()


# Handlers.


async def test_a_handler_acknowledges_by_returning_and_gives_back_by_raising(net: Net) -> None:
    bus = await stream(net, 20)
    seen: list[tuple[int, int]] = []

    async def handle(message: busway.Message) -> None:
        seen.append((int(message.payload), message.deliveries or 0))
        if message.deliveries == 1 and int(message.payload) % 5 == 0:
            raise ValueError("not now")

    async with bus.channel(STREAM, "c", window=8, handler=handle):
        await shown(bus, floor=20)
        assert sorted(seen) == sorted([(n, 1) for n in range(20)] + [(n, 2) for n in range(0, 20, 5)])
    assert bus.errors == 4


async def test_a_handler_may_settle_by_itself(net: Net) -> None:
    bus = await stream(net, 3)
    events = bus.events()
    seen: list[int] = []

    def handle(message: busway.Message) -> None:
        seen.append(int(message.payload))
        if message.payload == b"0":
            message.ack()
        elif message.payload == b"1":
            message.nack(delay=3600)
        else:
            message.ack()
            raise ValueError("too late to give it back")

    async with bus.channel(STREAM, "c", handler=handle):
        await shown(bus, waiting=1, in_flight=0, cursor=3)
        assert seen == [0, 1, 2]
        assert (await info(bus)).late == 0
    assert (await next_event(events, "error")).topic == f"{STREAM}/c"


async def test_several_tasks_of_a_handler(net: Net) -> None:
    bus = await stream(net, 8)
    running, most = 0, 0
    go = asyncio.Event()

    async def handle(message: busway.Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if most == 4:
            go.set()
        await within(go.wait())
        running -= 1

    async with bus.channel(STREAM, "c", handler=handle, concurrency=4):
        await shown(bus, floor=8)
    assert most == 4


async def test_closing_lets_a_handler_finish_what_has_arrived(net: Net) -> None:
    bus = await stream(net, 5)
    seen: list[int] = []
    begun, go = asyncio.Event(), asyncio.Event()

    async def handle(message: busway.Message) -> None:
        begun.set()
        await within(go.wait())
        seen.append(int(message.payload))

    channel = await bus.channel(STREAM, "c", handler=handle)
    await within(begun.wait())
    closing = asyncio.ensure_future(channel.close())
    await settle(bus)
    go.set()
    await within(closing)
    assert seen == [0, 1, 2, 3, 4]
    figures = await info(bus)
    assert (figures.floor, figures.consumers) == (5, 0)


# Leaving.


async def test_closing_gives_back_uncounted_what_nobody_looked_at(net: Net) -> None:
    bus, other = await stream(net, 6), await net.connect()
    async with bus.channel(STREAM, "c", max_deliveries=2) as channel:
        got = await some(channel, 2)
        await until(lambda: channel.pending == 4)
        await got[0].ack()
    async with other.channel(STREAM, "c") as channel:
        again = await some(channel, 5)
        assert [(message.offset, message.deliveries) for message in again] == [(1, 2), (2, 1), (3, 1), (4, 1), (5, 1)]
        with pytest.raises(busway.Closed):
            got[1].ack()


async def test_two_clients_of_one_process(net: Net) -> None:
    """Each acknowledges its own, whichever task does it."""
    one, two = await stream(net, 40), await net.connect()
    async with one.channel(STREAM, "c", window=20) as first, two.channel(STREAM, "c", window=20) as second:
        mine, yours = await some(first, 20), await some(second, 20)
        await asyncio.gather(*(message.ack() for message in [*mine, *yours]))
        assert (await info(one)).floor == 40
        assert {message.channel for message in mine} == {first}
        with pytest.raises(busway.Rejected):
            first.ack(yours)


async def test_a_channel_is_entered_once_and_before_it_is_used(net: Net) -> None:
    bus = await stream(net, 1)
    channel = bus.channel(STREAM, "c")
    for use in (channel.recv, channel.take):
        with pytest.raises(busway.LocalProtocolError, match="not been entered"):
            await use()
    async with channel:
        with pytest.raises(busway.LocalProtocolError, match="already"):
            await channel.start()
    with pytest.raises(busway.LocalProtocolError, match="already"):
        await channel.start()
    with pytest.raises(busway.Closed):
        await channel.recv()
