"""Simulated nodes of which one is a mirror."""

import asyncio
from contextlib import suppress

import busway
from busway.testing.simulation.world import Node, World
from tests.simulation.checker.final_read_cluster import missing_links

SETTINGS = busway.Settings(heartbeat=1.0, grace=3.0, drain=1.0)


LONG = 30.0
"""Seconds in which dead connections are seen to be dead, and what is missing is fetched."""


async def started(world: World, *, wait: float = 60.0) -> list[Node]:
    """Three nodes, of which the second one mirrors the first one, and a stream that waits for that."""
    urls = [f"sim://b{number}:7420" for number in (1, 2, 3)]
    nodes = []
    for number in (1, 2, 3):
        place = busway.Cluster(
            name="sim", servers=urls, mirror_of="b1" if number == 2 else None, mirror_wait=wait if number == 1 else 5.0
        )
        nodes.append(world.add_node(f"b{number}", SETTINGS, stores=True, cluster=place))
        world.start(nodes[-1])
    async with asyncio.timeout(LONG):
        for node in nodes:
            await node.up.wait()
        while missing_links(nodes):
            await asyncio.sleep(0.1)
    return nodes


async def found(bus: busway.Bus) -> None:
    """The stream, as soon as there is a mirror."""
    while True:
        try:
            await bus.create_stream("orders", topics=["orders"], safety="mirrored")
        except busway.Rejected:
            await asyncio.sleep(0.1)
        else:
            return


async def drained(url: str, got: list[str], count: int) -> None:
    """Consume and acknowledge so many; what is refused comes again."""
    async with busway.connect(url, learn=False) as bus, bus.channel("orders", "work", window=1) as channel:
        while len(got) < count:
            message = await channel.recv()
            with suppress(busway.BusError):
                await message.ack()
                got.append(message.text)
