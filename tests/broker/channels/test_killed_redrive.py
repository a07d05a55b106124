"""A redrive of 10,000 dead letters with real processes, killed in the middle and repeated: each message is back exactly once."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

import busway
from tests.support.children import Child, Children
from tests.support.net import PATIENCE, eventually

COUNT = 10_000

REDRIVE = """
import asyncio, sys, busway

async def main():
    async with busway.connect(sys.argv[1]) as bus:
        await bus.redrive_channel("jobs", "work", progress=lambda done: print(done.redriven, flush=True))

asyncio.run(main())
"""


@pytest.fixture
async def children() -> AsyncIterator[Children]:
    children = Children()
    async with children.stack:
        yield children


async def broker(children: Children, folder: Path) -> Child:
    child = await children.run(
        *("-m", "busway", "serve", "--unix", folder / "bus", "--data", folder / "data", "--json", "-q")
    )
    json.loads(await child.line())
    return child


def connected(folder: Path) -> busway.Bus:
    return busway.connect(f"unix:{folder / 'bus'}")


async def poison(bus: busway.Bus) -> None:
    """10,000 messages, all of which become dead letters but for every hundredth, which is done."""
    await bus.create_stream("jobs", ["jobs/**"])
    await bus.publish_many("jobs/a", [b"%d" % number for number in range(COUNT)], durable=True)
    async with bus.channel("jobs", "work", window=1000) as channel:
        left = COUNT
        while left:
            batch = await channel.take(1000, timeout=PATIENCE)
            left -= len(batch)
            channel.reject([one for one in batch if int(one.payload) % 100], "poison")
            if good := [one for one in batch if int(one.payload) % 100 == 0]:
                await channel.ack(good)

    async def dead() -> bool:
        return (await bus.channel_info("jobs", "work")).floor == COUNT

    await eventually(dead)


async def back(bus: busway.Bus) -> Counter[int]:
    """How often each message comes, when all that come are acknowledged."""
    seen = Counter[int]()
    async with bus.channel("jobs", "work", window=1000) as channel:
        while (await bus.channel_info("jobs", "work")).lag:
            with suppress(busway.Timeout):
                batch = await channel.take(1000, timeout=0.1)
                assert {one.deliveries for one in batch} == {1}
                seen.update(int(one.payload) for one in batch)
                await channel.ack(batch)
    return seen


async def check(bus: busway.Bus) -> None:
    """Everything is sent back: each message comes once."""
    result = await bus.redrive_channel("jobs", "work")
    expected = [number for number in range(COUNT) if number % 100]
    assert (result.redriven + result.before, result.gone, result.left) == (len(expected), 0, 0)
    assert result.before > 0, "it was killed after some were sent back"
    assert result.redriven > 0, "and before all were"
    seen = await back(bus)
    assert sorted(seen) == expected
    assert set(seen.values()) == {1}
    assert await bus.dead_letters("jobs", "work") == []
    assert (await bus.redrive_channel("jobs", "work")).redriven == 0


async def test_of_the_broker(children: Children, tmp_path: Path) -> None:
    server = await broker(children, tmp_path)
    async with connected(tmp_path) as bus:
        await poison(bus)
    killed: list[int] = []
    for after in (1, 3000):
        async with connected(tmp_path) as bus:
            some = asyncio.Event()

            def progress(done: busway.Redrive, after: int = after, some: asyncio.Event = some) -> None:
                if done.redriven >= after:
                    some.set()

            redrive = asyncio.ensure_future(bus.redrive_channel("jobs", "work", progress=progress))
            await asyncio.wait_for(some.wait(), PATIENCE)
            await server.kill()
            server = await broker(children, tmp_path)
            redrive.cancel()
            with suppress(asyncio.CancelledError, busway.BusError):
                killed.append((await redrive).redriven)
    async with connected(tmp_path) as bus:
        await check(bus)


async def test_of_the_client(children: Children, tmp_path: Path) -> None:
    await broker(children, tmp_path)
    async with connected(tmp_path) as bus:
        await poison(bus)
        for _ in range(2):
            child = await children.start(REDRIVE, bus.url)
            while int(await child.line()) < 1000:
                pass
            await child.kill()
        await check(bus)


async def test_while_its_consumers_work(children: Children, tmp_path: Path) -> None:
    """What comes back is acknowledged at once, so a letter that was sent back twice would come twice."""
    server = await broker(children, tmp_path)
    async with connected(tmp_path) as bus:
        await poison(bus)
    done = set[int]()
    twice = list[int]()
    stop = asyncio.Event()

    async def work() -> None:
        async with connected(tmp_path) as bus, bus.channel("jobs", "work", window=100) as channel:
            while not stop.is_set():
                with suppress(busway.Timeout, busway.AckLate, busway.Disconnected, busway.StoreFailed):
                    batch = await channel.take(100, timeout=0.1)
                    await channel.ack(batch)  # from here on it is known to be done
                    numbers = {int(one.payload) for one in batch}
                    twice.extend(numbers & done)
                    done.update(numbers)

    working = asyncio.ensure_future(work())
    async with connected(tmp_path) as bus:
        some = asyncio.Event()
        redrive = asyncio.ensure_future(
            bus.redrive_channel("jobs", "work", progress=lambda result: some.set() if result.redriven >= 4000 else None)
        )
        await asyncio.wait_for(some.wait(), PATIENCE)
        await server.kill()
        await broker(children, tmp_path)
        redrive.cancel()
        with suppress(asyncio.CancelledError, busway.BusError):
            await redrive
    async with connected(tmp_path) as bus:
        assert (await bus.redrive_channel("jobs", "work")).gone == 0

        async def over() -> bool:
            return (await bus.channel_info("jobs", "work")).lag == 0

        await eventually(over)
        stop.set()
        await working
    assert not twice
