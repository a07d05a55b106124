"""Takes from a channel: at least one message, at most the given number, in time; a cancelled take loses nothing."""

import asyncio

import pytest

import busway
from tests.support.channels import STREAM, cut, info, numbers, shown, store, stream
from tests.support.net import PATIENCE, Net, settle, within

pytestmark = pytest.mark.both_loops


async def test_without_a_window_nothing_comes_unasked(net: Net) -> None:
    bus = await stream(net, 20)
    async with bus.channel(STREAM, "c", window=0) as channel:
        await settle(bus)
        assert channel.pending == 0
        got = await channel.take(5, timeout=PATIENCE)
        assert numbers(got) == [0, 1, 2, 3, 4]
        await settle(bus)
        assert channel.pending == 0
        assert (await info(bus)).in_flight == 5
        await channel.ack(got)
        assert (await channel.recv(timeout=PATIENCE)).payload == b"5"
        assert numbers(await channel.take(100, timeout=PATIENCE)) == list(range(6, 20))


async def test_what_is_not_acknowledged_does_not_hinder_a_take(net: Net) -> None:
    """The window is that of what comes unasked."""
    bus = await stream(net, 30)
    async with bus.channel(STREAM, "c", window=0) as channel:
        seen: list[int] = []
        for _ in range(3):
            seen += numbers(await channel.take(10, timeout=PATIENCE))
        assert seen == list(range(30))
        assert (await info(bus)).in_flight == 30


@pytest.mark.parametrize("window", [0, 4, 100])
async def test_it_waits_for_the_first(net: Net, window: int) -> None:
    bus = await stream(net)
    async with bus.channel(STREAM, "c", window=window) as channel:
        taking = asyncio.ensure_future(channel.take(10))
        await settle(bus)
        assert not taking.done()
        await store(bus, 0, 1)
        assert numbers(await within(taking)) == [0]


@pytest.mark.parametrize("window", [0, 100])
async def test_whole_waits_for_all(net: Net, window: int) -> None:
    bus = await stream(net, 3)
    async with bus.channel(STREAM, "c", window=window) as channel:
        taking = asyncio.ensure_future(channel.take(5, timeout=PATIENCE, whole=True))
        await settle(bus)
        await store(bus, 3, 4)
        await settle(bus)
        assert not taking.done()
        await store(bus, 4, 7)
        assert numbers(await within(taking)) == [0, 1, 2, 3, 4]
        assert numbers(await channel.take(5, timeout=0.1, whole=True)) == [5, 6]


@pytest.mark.parametrize("window", [0, 5])
async def test_when_the_time_is_over(net: Net, window: int) -> None:
    bus = await stream(net)
    loop = asyncio.get_running_loop()
    async with bus.channel(STREAM, "c", window=window) as channel:
        for timeout in (0, 0.05):
            begin = loop.time()
            with pytest.raises(busway.Timeout, match="within"):
                await channel.take(3, timeout=timeout)
            with pytest.raises(busway.Timeout, match="within"):
                await channel.recv(timeout=timeout)
            assert loop.time() - begin >= 2 * timeout * 0.9
        await store(bus, 0, 2)
        assert numbers(await channel.take(3, timeout=PATIENCE)) == [0, 1]
        assert (await info(bus)).in_flight == 2


async def test_at_once_takes_what_is_there(net: Net) -> None:
    bus = await stream(net, 3)
    async with bus.channel(STREAM, "c", window=0) as channel:
        assert numbers(await channel.take(10, timeout=0)) == [0, 1, 2]


@pytest.mark.parametrize("window", [0, 5])
async def test_a_take_that_is_given_up_loses_nothing(net: Net, window: int) -> None:
    bus = await stream(net)
    async with bus.channel(STREAM, "c", window=window) as channel:
        for begin in range(0, 40, 2):
            taking = asyncio.ensure_future(channel.take(3, whole=True))
            await asyncio.sleep(0)
            storing = asyncio.ensure_future(store(bus, begin, begin + 2))
            if begin % 4:
                await settle(bus)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            await storing
            seen: list[int] = []
            while len(seen) < 2:
                got = await channel.take(2 - len(seen), timeout=PATIENCE)
                await channel.ack(got)
                seen += numbers(got)
            assert sorted(seen) == [begin, begin + 1]
        assert (await info(bus)).redelivered == 0


async def test_what_one_gave_up_another_who_waits_gets(net: Net) -> None:
    """Without waiting for a lease to end, or for more to be published."""
    bus = await stream(net)
    async with bus.channel(STREAM, "c", window=0, lease=0) as channel:
        first = asyncio.ensure_future(channel.take(2, whole=True))
        await settle(bus)
        second = asyncio.ensure_future(channel.take(2))
        await settle(bus)
        await store(bus, 0, 1)
        await settle(bus)
        assert not second.done()
        first.cancel()
        assert numbers(await within(second)) == [0]
        await asyncio.gather(first, return_exceptions=True)


@pytest.mark.parametrize("window", [0, 50])
async def test_several_at_once_share(net: Net, window: int) -> None:
    bus = await stream(net)
    async with bus.channel(STREAM, "c", window=window) as channel:
        taking = [asyncio.ensure_future(channel.take(5, timeout=PATIENCE, whole=True)) for _ in range(4)]
        await settle(bus)
        await store(bus, 0, 20)
        got = [numbers(await within(one)) for one in taking]
        assert [len(one) for one in got] == [5, 5, 5, 5]
        assert sorted(number for one in got for number in one) == list(range(20))


async def test_consumers_with_and_without_a_window_share(net: Net) -> None:
    bus, other = await stream(net), await net.connect()
    async with bus.channel(STREAM, "c", window=0) as takes, other.channel(STREAM, "c", window=3) as waits:
        await store(bus, 0, 6)
        pushed = await waits.take(3, timeout=PATIENCE, whole=True)
        pulled = await takes.take(10, timeout=PATIENCE)
        assert sorted(numbers(pushed) + numbers(pulled)) == list(range(6))


async def test_iterating_takes_one_at_a_time(net: Net) -> None:
    bus = await stream(net, 5)
    seen = []
    async with bus.channel(STREAM, "c", window=0) as channel:
        async for message in channel:
            seen.append(message)
            assert (await info(bus)).in_flight == 1
            await message.ack()
            if len(seen) == 5:
                break
    assert numbers(seen) == list(range(5))


async def test_batches_of_what_is_taken(net: Net) -> None:
    bus = await stream(net, 25)
    sizes = []
    async with bus.channel(STREAM, "c", window=0) as channel:
        async for batch in channel.batches(10):
            sizes.append(len(batch))
            channel.ack(batch)
            if sum(sizes) == 25:
                break
    assert sizes == [10, 10, 5]
    await shown(bus, floor=25)


@pytest.mark.parametrize("window", [0, 5])
async def test_who_waits_hears_the_end(net: Net, window: int) -> None:
    bus = await stream(net)
    channel = await bus.channel(STREAM, "c", window=window)
    waiting = [asyncio.ensure_future(one) for one in (channel.take(5), channel.recv(), channel.take(5, whole=True))]
    await settle(bus)
    await channel.close()
    for one in waiting:
        with pytest.raises(busway.Closed):
            await within(one)
    with pytest.raises(busway.Closed):
        await channel.take()
    assert [message async for message in channel] == []
    assert [batch async for batch in channel.batches()] == []


@pytest.mark.parametrize("window", [0, 5])
async def test_who_waits_goes_on_waiting_over_a_lost_connection(net: Net, window: int) -> None:
    bus = await stream(net)
    lost = await net.connect(reconnect=(0,))
    async with lost.channel(STREAM, "c", window=window) as channel:
        waiting = [
            asyncio.ensure_future(one) for one in (channel.take(1), channel.recv(), channel.recv(timeout=PATIENCE))
        ]
        await settle(lost)
        for _ in range(3):
            await cut(lost)
        await store(bus, 0, 3)
        got = await within(asyncio.gather(*waiting))
        assert sorted([*numbers(got[0]), *numbers(got[1:])]) == [0, 1, 2]


async def test_what_can_not_be_asked_for(net: Net) -> None:
    bus = await stream(net, 1)
    async with bus.channel(STREAM, "c", window=0) as channel:
        for wrong in (0, -1, 65_537, 1 << 40):
            with pytest.raises(ValueError, match="most"):
                await channel.take(wrong)
        with pytest.raises((ValueError, TypeError)):
            await channel.take(2.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout"):
            await channel.take(1, timeout=float("nan"))
        assert len(await channel.take(65_536, timeout=PATIENCE)) == 1


async def test_expired_messages_do_not_end_a_take(net: Net) -> None:
    """They were found and had expired when they were to be handed out, or later: it waits on, or takes what there is."""
    bus = await stream(net)
    async with bus.channel(STREAM, "c", window=0) as channel:
        await bus.publish("t/a", b"gone", durable=True, expires=0.001)
        taking = asyncio.ensure_future(channel.take(1))
        await settle(bus)
        await store(bus, 1, 2)
        seen = await within(taking)
        if seen[0].payload == b"gone":  # it was quick enough
            seen = await channel.take(1, timeout=PATIENCE)
        assert numbers(seen) == [1]
