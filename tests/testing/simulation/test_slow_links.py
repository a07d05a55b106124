"""A client behind a slow link with much traffic: heartbeats wait in the queue, and the client reconnects."""

import asyncio

import busway
from busway.testing.simulation.world import World

MANY = 64
SIZE = 400


def test_who_gets_much_over_a_slow_way_comes_back(world: World) -> None:
    """Its answers take longer than its timeout, and the broker's PING longer than three heartbeats."""
    taken: list[int] = []
    back: list[float] = []

    async def consume() -> None:
        async with busway.connect("sim://b1:7420", name="slow", timeout=2.0, reconnect=(0.0, 0.1)) as bus:
            events = bus.events()
            await bus.post("status", b"here")  # put back behind all that is on its way
            async with bus.channel("default", "work", window=MANY) as channel, bus.subscribe("other"):
                world.network.path("b1", "c1").bandwidth = 3000.0
                world.network.connections("c1", "b1")[0].reset()
                async for event in events:
                    if event.kind == "resumed":
                        back.append(world.loop.time())
                        break
                async for message in channel:
                    taken.append(message.offset or 0)
                    await message.ack()

    async def publish() -> None:
        async with busway.connect("sim://b1:7420", name="quick") as bus:
            await bus.publish_many("jobs", [bytes(SIZE)] * MANY, durable=True)

    async def main() -> None:
        node = world.add_node("b1", busway.Settings(heartbeat=0.5), stores=False)
        world.start(node)
        await node.up.wait()
        world.launch("quick", "c2", publish)
        await asyncio.sleep(5.0)
        client = world.launch("slow", "c1", consume)
        await asyncio.sleep(60.0)
        assert len(back) == 1
        assert taken == list(range(MANY))
        world.kill(client)
        await world.stop(node)

    world.run(main())
    texts = [record.getMessage() for _, record in world.logged.records]
    assert [text for text in texts if not text.startswith(("connection lost", "connected again"))] == []
    assert len(texts) == 2, "it came back once"
    assert world.loop.failures == []


def test_who_knows_many_servers_comes_back_over_long_ways(world: World) -> None:
    """Of a timeout that all servers share, none has enough for a few times there and back."""
    back, over = asyncio.Event(), asyncio.Event()
    names = [f"b{number}" for number in range(1, 8)]

    async def program() -> None:
        urls = [f"sim://{name}:7420" for name in names]
        async with busway.connect(*urls, timeout=2.0, reconnect=(0.1,)) as bus, bus.subscribe("news"):
            for name in names:
                for way in (world.network.path("c1", name), world.network.path(name, "c1")):
                    way.delay = 0.3
            events = bus.events()
            world.network.connections("c1", "b1")[0].reset()
            async for event in events:
                if event.kind == "resumed":
                    back.set()
                    break
        over.set()

    async def main() -> None:
        for name in names:
            world.start(world.add_node(name, busway.Settings(heartbeat=5.0), stores=False))
        for node in world.nodes.values():
            await node.up.wait()
        world.launch("program", "c1", program)
        async with asyncio.timeout(120):
            await back.wait()
        await over.wait()

    world.run(main())
    assert world.loop.failures == []
