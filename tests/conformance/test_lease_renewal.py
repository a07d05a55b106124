"""Leases: the client renews them while a message is in work, up to `max_processing`."""

import asyncio
import logging
from typing import Any

import pytest

import busway
from tests.support.channels import STREAM, cut, info, numbers, shown, some, store, stream
from tests.support.connection_events import next_event
from tests.support.net import PATIENCE, Net, until, within

pytestmark = pytest.mark.both_loops

LEASE = 0.4
LONG = 2.5
"""Seconds of work: more than six leases."""


async def test_a_handler_that_takes_many_leases_runs_once(net: Net) -> None:
    bus = await stream(net, 6)
    begun: list[int] = []
    done: list[int] = []

    async def work(message: busway.Message) -> None:
        begun.append(int(message.payload))
        await asyncio.sleep(LONG)
        done.append(int(message.payload))

    # Two of the six wait here while four are worked on.
    async with bus.channel(STREAM, "c", window=6, lease=LEASE, handler=work, concurrency=4):
        await within(wait_for(done, 6))
        await shown(bus, floor=6)
    figures = await info(bus)
    assert (sorted(begun), figures.redelivered, figures.late, figures.dead) == (list(range(6)), 0, 0, 0)


async def wait_for(done: list[int], count: int) -> None:
    while len(done) < count:
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("window", [0, 8])
async def test_a_program_that_iterates_keeps_what_it_works_on(net: Net, window: int) -> None:
    bus = await stream(net, 2)
    async with bus.channel(STREAM, "c", window=window, lease=LEASE) as channel:
        async with asyncio.timeout(PATIENCE):
            async for message in channel:
                await asyncio.sleep(LONG)
                await message.ack()
                if int(message.payload) == 1:
                    break
    figures = await info(bus)
    assert (figures.floor, figures.redelivered, figures.late) == (2, 0, 0)


async def test_also_after_it_had_nothing_to_do_and_after_a_reconnect(net: Net) -> None:
    bus = await stream(net)
    async with bus.channel(STREAM, "c", window=4, lease=LEASE) as channel:
        for begin in (0, 2):
            await store(bus, begin, begin + 2)
            got = await some(channel, 2)
            await asyncio.sleep(LONG / 2)
            await channel.ack(got)
            await asyncio.sleep(LEASE)
        assert (await info(bus)).redelivered == 0
        await cut(bus)
        await store(bus, 4, 6)
        got = await some(channel, 2)
        await asyncio.sleep(LONG / 2)
        await channel.ack(got)
    figures = await info(bus)
    assert (figures.floor, figures.redelivered, figures.late) == (6, 0, 0)


async def test_a_changed_lease_is_known_with_the_next_renewal(net: Net) -> None:
    bus, admin = await stream(net, 2), await net.connect()
    async with bus.channel(STREAM, "c", window=1, lease=3.0) as channel:
        (message,) = await some(channel, 1)
        await admin.update_channel(STREAM, "c", lease=LEASE)
        await asyncio.sleep(0.1)
        await message.ack()
        (message,) = await some(channel, 1)
        await asyncio.sleep(3.0)
        await message.ack()
    assert (await info(bus)).redelivered == 0


async def test_a_message_that_is_worked_on_for_too_long_is_reported_and_redelivered(
    net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    bus, other = await stream(net, 1), await net.connect()
    events = bus.events()
    release = asyncio.Event()

    async def never(message: busway.Message) -> None:
        await release.wait()

    with caplog.at_level(logging.WARNING, "busway.client"):
        async with bus.channel(STREAM, "c", window=1, lease=LEASE, handler=never, max_processing=1.0):
            async with other.channel(STREAM, "c", window=1) as quick:
                event = await next_event(events, "overdue")
                assert (event.topic, event.count) == (f"{STREAM}/c", 1)
                again = await quick.recv(timeout=PATIENCE)
                assert (again.offset, again.deliveries) == (0, 2)
                await again.ack()
                release.set()
                event = await next_event(events, "late")
                assert (event.topic, event.count) == (f"{STREAM}/c", 1)
    text = caplog.text
    assert "longer than max_processing=1 s" in text
    assert "late acknowledgements" in text


async def test_also_one_that_a_program_has_taken_and_forgotten(net: Net) -> None:
    bus = await stream(net, 3)
    events = bus.events()
    async with bus.channel(STREAM, "c", window=3, lease=LEASE, max_processing=1.0) as channel:
        kept, forgotten, done = await some(channel, 3)
        await channel.ack([kept, done])
        event = await next_event(events, "overdue")
        assert event.count == 1
        again = await channel.recv(timeout=PATIENCE)
        assert (again.offset, again.deliveries) == (forgotten.offset, 2)
        await again.ack()
    assert (await info(bus)).floor == 3


async def test_what_waits_for_a_slow_loop_is_not_worked_on_yet(net: Net) -> None:
    """Each of these is worked on for less than the limit, and the last waits for longer."""
    bus = await stream(net, 5)
    events = bus.events()
    async with bus.channel(STREAM, "c", window=5, lease=LEASE, max_processing=1.5) as channel:
        async with asyncio.timeout(PATIENCE):
            async for message in channel:
                await asyncio.sleep(0.7)
                await message.ack()
                if int(message.payload) == 4:
                    break
    figures = await info(bus)
    assert (figures.floor, figures.redelivered) == (5, 0)
    await bus.close()
    assert "overdue" not in [event.kind async for event in events]


async def test_messages_that_wait_for_stuck_handlers_go_to_others(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    bus, other = await stream(net, 8), await net.connect()
    stuck, seen, done = asyncio.Event(), list[int](), list[tuple[int, int]]()

    async def work(message: busway.Message) -> None:
        seen.append(int(message.payload))
        await stuck.wait()

    settings: dict[str, Any] = {"lease": LEASE, "max_processing": 0.8, "backoff": []}
    async with bus.channel(STREAM, "c", handler=work, concurrency=2, **settings):
        await until(lambda: len(seen) == 2)
        async with other.channel(STREAM, "c", window=2, **settings) as healthy:
            async with asyncio.timeout(PATIENCE):
                while len(done) < 8:
                    message = await healthy.recv()
                    await message.ack()
                    done.append((int(message.payload), message.deliveries))
        # The two that the handlers had have failed, the others were not looked at.
        assert sorted(done) == [(number, 1 + (number < 2)) for number in range(8)]
        assert seen == [0, 1]
        await store(bus, 8, 10)
        await asyncio.sleep(2 * LEASE)
        assert seen == [0, 1], "it asks for no more"
        stuck.set()
        await shown(bus, floor=10)
        assert sorted(seen) == [0, 1, 8, 9]
    lines = [line for line in caplog.messages if "go to other consumers" in line]
    assert len(lines) == 1
    assert "all handlers work for longer than max_processing=0.8 s: 6 waiting message(s)" in lines[0]


async def test_messages_that_wait_for_a_stuck_program_go_to_others(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    bus, other = await stream(net, 8), await net.connect()
    settings: dict[str, Any] = {"lease": LEASE, "max_processing": 0.8, "backoff": []}
    async with bus.channel(STREAM, "c", window=8, **settings) as channel:
        await (await channel.recv(timeout=PATIENCE)).ack()
        async with other.channel(STREAM, "c", **settings) as healthy:
            got = await some(healthy, 7)
            assert (numbers(got), {message.deliveries for message in got}) == (list(range(1, 8)), {1})
            await healthy.ack(got)
        await store(bus, 8, 10)
        for number in (8, 9):  # it goes on
            message = await channel.recv(timeout=PATIENCE)
            assert (int(message.payload), message.deliveries) == (number, 1)
            await message.ack()
        await shown(bus, floor=10)
    assert len([line for line in caplog.messages if "the program has taken no message" in line]) == 1


async def test_a_take_that_waits_for_more_keeps_its_messages(net: Net) -> None:
    bus = await stream(net, 2)
    async with bus.channel(STREAM, "c", window=0, lease=LEASE, max_processing=0.5) as channel:
        taking = asyncio.ensure_future(channel.take(3, whole=True))
        await asyncio.sleep(1.5)
        await store(bus, 2, 3)
        assert numbers(await within(taking)) == [0, 1, 2]


async def test_extend_renews_beyond_the_limit(net: Net) -> None:
    bus = await stream(net, 1)
    async with bus.channel(STREAM, "c", window=1, lease=1.5, max_processing=0) as channel:
        (message,) = await some(channel, 1)
        for _ in range(6):
            await asyncio.sleep(0.5)
            await message.extend()
        await message.ack()
        with pytest.raises(busway.AckLate):
            await message.extend()
    assert (await info(bus)).redelivered == 0


async def test_without_renewal_the_lease_ends(net: Net) -> None:
    bus = await stream(net, 1)
    async with bus.channel(STREAM, "c", window=1, lease=LEASE, max_processing=0) as channel:
        (first,) = await some(channel, 1)
        again = await channel.recv(timeout=PATIENCE)
        assert (again.offset, again.deliveries) == (first.offset, 2)


async def test_late_acknowledgements_are_logged_once_in_a_while(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    bus = await stream(net, 20)
    events = bus.events()
    async with bus.channel(STREAM, "c", window=20) as channel:
        got = await some(channel, 20)
        await channel.ack(got)
        with caplog.at_level(logging.WARNING, "busway.client"):
            for message in got:
                with pytest.raises(busway.AckLate):
                    await message.ack()
    assert [await next_event(events, "late") for _ in range(20)]
    lines = [record for record in caplog.records if "late acknowledgements" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].levelno == logging.WARNING


async def test_a_late_ack_of_an_earlier_delivery_leaves_the_next_one_to_its_handler(net: Net) -> None:
    bus, other = await stream(net, 2), await net.connect()
    deliveries: list[tuple[int, int]] = []
    earlier: list[busway.Message] = []
    busy = asyncio.Event()

    async def work(message: busway.Message) -> None:
        deliveries.append((int(message.payload), message.deliveries))
        if deliveries[-1] == (0, 1):
            earlier.append(message)
            raise TimeoutError
        if message.offset == 1:
            await busy.wait()

    async with (
        bus.channel(STREAM, "c", window=1, backoff=[0.2], handler=work),
        other.channel(STREAM, "c", window=0) as second,
    ):
        (message,) = await second.take(1, timeout=PATIENCE)
        assert (message.offset, message.deliveries) == (0, 2)
        with pytest.raises(busway.AckLate):
            await earlier[0].ack()
        await message.nack(delay=0)
        busy.set()
        await shown(bus, floor=2)
    assert deliveries == [(0, 1), (1, 1), (0, 3)]


@pytest.mark.parametrize("wrong", ["soon", -1, True, [1]])
async def test_a_wrong_limit_is_refused(net: Net, wrong: object) -> None:
    bus = await stream(net)
    with pytest.raises((ValueError, TypeError), match="max_processing"):
        bus.channel(STREAM, "c", max_processing=wrong)  # type: ignore[arg-type]


async def test_an_idle_channel_sends_nothing(net: Net) -> None:
    bus = await stream(net, 1)
    async with bus.channel(STREAM, "c", window=8, lease=0.06) as channel:
        await (await channel.recv(timeout=PATIENCE)).ack()
        await until(lambda: channel._renewal._timer is None and not channel._renewal._renewing)
        await asyncio.sleep(0.3)
        assert channel._renewal._timer is None
        await store(bus, 1, 2)
        assert numbers(await some(channel, 1)) == [1]
        await until(lambda: channel._renewal._timer is not None)
