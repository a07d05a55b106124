"""Mirrors in virtual time: reads from a copy, and a node that restores its lost end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import busway
from busway.testing.simulation.world import Node, World
from tests.simulation.checker.final_read_cluster import missing_links
from tests.support.simulated_mirrors import LONG, found, started


async def texts(messages: AsyncIterator[busway.Message], got: list[str]) -> None:
    async for message in messages:
        got.append(message.text)


def test_each_who_reads_a_copy_reads_all_of_it(world: World) -> None:
    """Who comes later is further for a while; who was there before misses nothing of what lies between."""
    first, second = list[str](), list[str]()
    stopping = asyncio.Event()

    async def publisher() -> None:
        async with busway.connect("sim://b1:7420", learn=False) as bus:
            await found(bus)
            cut.set()
            for number in range(60):
                await bus.publish("orders", str(number), durable=True)
                await asyncio.sleep(0.15)
            stopping.set()

    async def reader() -> None:
        async with busway.connect("sim://b3:7420", learn=False) as bus:
            while not any(info.name == "orders" for info in await bus.streams()):
                await asyncio.sleep(0.1)
            async with bus.subscribe("orders", since="all") as one:
                reading = [asyncio.create_task(texts(aiter(one), first))]
                await asyncio.sleep(1.5)
                async with bus.subscribe("orders", since="all") as two:
                    reading.append(asyncio.create_task(texts(aiter(two), second)))
                    await stopping.wait()
                    await asyncio.sleep(LONG)
            await asyncio.gather(*reading)
        over.set()

    async def main() -> None:
        await started(world)
        world.launch("publisher", "c1", publisher)
        await cut.wait()
        for way in (("b1", "b3"), ("b3", "b1")):
            world.network.block(*way)
        await asyncio.sleep(1.0)
        world.launch("reader", "c2", reader)
        await over.wait()

    cut, over = asyncio.Event(), asyncio.Event()
    world.run(main())
    everything = [str(number) for number in range(60)]
    assert second == everything
    assert first == everything
    assert world.loop.failures == []


@pytest.mark.parametrize("place", ["b1", "b2", "b3"])
def test_what_a_node_gets_back_from_its_mirror_comes_to_nobody_twice(world: World, place: str) -> None:
    """Without power it has lost what was only written; those who had it get it no second time, and nothing acknowledged is lost."""
    read, followed = list[str](), list[str]()
    over = asyncio.Event()
    starts = 5

    async def subscriber() -> None:
        async with busway.connect(f"sim://{place}:7420", learn=False, reconnect=(0.1,)) as bus:
            while not any(info.name == "orders" for info in await bus.streams()):
                await asyncio.sleep(0.1)
            async with bus.subscribe("orders", since="all") as stored, bus.subscribe("orders") as live:
                tasks = [
                    asyncio.create_task(texts(aiter(stored), read)),
                    asyncio.create_task(texts(aiter(live), followed)),
                ]
                await over.wait()
                await asyncio.sleep(LONG)
            await asyncio.gather(*tasks)
        gone.set()

    async def publisher(node: Node) -> None:
        async with busway.connect("sim://b1:7420", learn=False, reconnect=(0.1,)) as bus:
            await found(bus)
            world.launch("subscriber", "c2", subscriber)
            await asyncio.sleep(1.0)
            for number in range(4 * starts):
                await bus.publish("orders", str(number), durable=True)
                if number % 4 == 3 and number < 4 * (starts - 1):
                    await asyncio.sleep(0.5)
                    assert world.crash(node, power=True)
                    world.loop.call_later(0.5, world.start, node)
                    await asyncio.sleep(LONG)
            over.set()

    async def main() -> None:
        nodes = await started(world)
        world.launch("publisher", "c1", lambda: publisher(nodes[0]))
        await gone.wait()
        assert nodes[0].starts == starts

    gone = asyncio.Event()
    world.run(main())
    everything = [str(number) for number in range(4 * starts)]
    assert read == everything
    assert followed == everything
    assert world.loop.failures == []


def test_a_publisher_keeps_its_order_when_its_node_loses_what_its_mirror_never_had(world: World) -> None:
    """Without power a later page of a file may be left and an earlier one not. Nobody was told that either was stored, and both are sent again."""
    rounds, many = 10, 6
    got, over = list[str](), asyncio.Event()

    async def publisher(node: Node, mirror: Node) -> None:
        async with busway.connect("sim://b1:7420", learn=False, reconnect=(0.1,)) as bus:
            await found(bus)
            for turn in range(rounds):
                while not (await (await bus.stream("orders")).info()).mirrored or missing_links([node, mirror]):
                    await asyncio.sleep(0.1)
                assert world.crash(mirror)
                under_way = []
                for number in range(turn * many, (turn + 1) * many):
                    under_way.append(asyncio.ensure_future(bus.publish("orders", str(number), durable=True)))
                    await asyncio.sleep(0.1)  # so that each is a write of its own
                assert not any(one.done() for one in under_way)
                assert world.crash(node, power=True)
                for gone in (mirror, node):
                    world.start(gone)
                await asyncio.gather(*under_way)
            async for some in (await bus.stream("orders")).read():
                got.extend(message.text for message in some)
        over.set()

    async def main() -> None:
        nodes = await started(world)
        world.launch("publisher", "c1", lambda: publisher(*nodes[:2]))
        await over.wait()

    world.run(main())
    assert got == [str(number) for number in range(rounds * many)]
    told = [record.getMessage() for _, record in world.logged.records]
    assert not any("does not have them either" in one for one in told), "nothing is lost that anybody was promised"
    assert world.loop.failures == []
