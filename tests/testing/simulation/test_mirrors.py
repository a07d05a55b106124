"""Mirrors in virtual time: reads from a copy, and a node that restores its lost end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import busway
from busway.testing.simulation.world import Node, World
from tests.simulation.checker.final_read_cluster import missing_links
from tests.support.simulated_mirrors import LONG, drained, found, started


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


def test_a_mirror_that_stands_in_for_a_node_has_nothing_to_do_meanwhile(world: World) -> None:
    """It is due to nothing while it has the turn of the node: what is due and never done would be looked at for ever."""
    got, over = list[str](), asyncio.Event()

    async def consumer() -> None:
        async with busway.connect("sim://b3:7420", learn=False) as bus:
            async with bus.channel("orders", "work", window=4) as channel:
                while len(got) < 8:
                    message = await channel.recv()
                    got.append(message.text)
                    await message.ack()
        over.set()

    async def publisher(node: Node) -> None:
        async with busway.connect("sim://b1:7420", learn=False, reconnect=()) as bus:
            await found(bus)
            await bus.create_channel("orders", "work")
            for number in range(8):
                await bus.publish("orders", str(number), durable=True)
            assert world.crash(node, power=True)
            await asyncio.sleep(1.0)
            world.launch("consumer", "c2", consumer)

    async def main() -> None:
        nodes = await started(world)
        world.launch("publisher", "c1", lambda: publisher(nodes[0]))
        await over.wait()
        await asyncio.sleep(10 * LONG)

    world.run(main())
    assert got == [str(number) for number in range(8)]
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


def test_a_mirror_that_slept_does_not_take_over_with_what_it_knew_before(world: World) -> None:
    """Its node went on without it, and died when it woke: what was acknowledged meanwhile is handed out to nobody."""
    done, again = list[str](), list[str]()

    async def publisher() -> None:
        async with busway.connect("sim://b1:7420", learn=False, reconnect=()) as bus:
            await found(bus)
            await bus.create_channel("orders", "work")
            for number in range(6):
                await bus.publish("orders", str(number), durable=True)
        stored.set()

    async def main() -> None:
        nodes = await started(world)
        world.launch("publisher", "c1", publisher)
        await stored.wait()
        assert world.suspend(nodes[1])
        consumer = world.launch("consumer", "c2", lambda: drained("sim://b1:7420", done, 3))
        while len(done) < 3:
            await asyncio.sleep(1.0)
        world.kill(consumer)
        assert world.crash(nodes[0])
        world.wake(nodes[1])
        world.launch("other", "c3", lambda: drained("sim://b3:7420", again, 3))
        await asyncio.sleep(2 * LONG)
        assert not again, "nobody knows what is left"
        world.start(nodes[0])
        while len(again) < 3:
            await asyncio.sleep(1.0)

    stored = asyncio.Event()
    world.run(main())
    assert (done, again) == (["0", "1", "2"], ["3", "4", "5"])
    assert world.loop.failures == []


def test_a_mirror_that_slept_while_it_waited_looks_again_before_it_takes_over(world: World) -> None:
    """The others missed its node before it slept; while it slept that came back to them. What it hears of that comes after its time is over."""

    async def founder() -> None:
        async with busway.connect("sim://b1:7420", learn=False) as bus:
            await found(bus)

    def taken() -> int:
        return sum("has taken over the channels of" in record.getMessage() for _, record in world.logged.records)

    async def main() -> None:
        nodes = await started(world)
        world.launch("founder", "c1", founder)
        await asyncio.sleep(2.0)
        cut = [way for name in ("b2", "b3") for way in (("b1", name), (name, "b1"))]
        for way in cut:
            world.network.block(*way)
        await asyncio.sleep(7.0)
        away = [way for name in ("b1", "b3") for way in (("b2", name), (name, "b2"))]
        for way in away:
            world.network.block(*way)
        assert world.suspend(nodes[1])
        for way in cut:
            if way not in away:
                world.network.unblock(*way)
        await asyncio.sleep(LONG)
        world.wake(nodes[1])
        await asyncio.sleep(1.0)
        world.network.heal()
        await asyncio.sleep(LONG)
        assert not missing_links(nodes)

    world.run(main())
    assert taken() == 0
    assert world.loop.failures == []
