"""A node that sleeps longer than its clients wait, in virtual time: their publishes are stored once, or reported as
doubtful.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

import busway
from busway.testing.simulation.world import Node, World
from tests.support.simulated_mirrors import LONG, SETTINGS, found, started

COUNT = 20


class Publisher:
    """A client of the first node, which does what it is told to."""

    def __init__(self) -> None:
        self.ready, self.go, self.stored, self.over = (asyncio.Event() for _ in range(4))
        self.places: list[busway.Position] = []
        self.told: Counter[str] = Counter()
        self.doubtful = 0

    async def main(self) -> None:
        async with busway.connect("sim://b1:7420", name="publisher") as bus:
            watching = asyncio.create_task(self._watch(bus.events()))
            await found(bus)
            await bus.publish("orders", "first", durable=True)
            self.ready.set()
            await self.go.wait()
            answers = [asyncio.ensure_future(bus.publish("orders", str(one), durable=True)) for one in range(COUNT)]
            self.places = await asyncio.gather(*answers)
            self.stored.set()
            await self.over.wait()
            watching.cancel()

    async def _watch(self, events: AsyncIterator[busway.Event]) -> None:
        async for event in events:
            self.told[event.kind] += 1
            self.doubtful += event.count if event.kind == "doubtful" else 0


def kept(nodes: list[Node]) -> list[int]:
    """How many messages each node has stored itself."""
    return [node.server._running().streams.by_name["orders"].log.next for node in nodes if node.server is not None]


def test_what_lay_in_front_of_a_node_that_slept_is_not_stored_there(world: World) -> None:
    """Its client has published it elsewhere, where nobody knew it but a mirror, which can't know what its node has: that is told."""

    async def main() -> None:
        nodes = await started(world)
        publisher = Publisher()
        world.launch("publisher", "c1", publisher.main)
        await publisher.ready.wait()
        assert world.suspend(nodes[0])
        publisher.go.set()
        await publisher.stored.wait()
        assert nodes[0].guid not in {one.broker for one in publisher.places}
        world.wake(nodes[0])
        await asyncio.sleep(LONG)
        assert kept(nodes)[0] == 1, "what was stored before"
        assert sum(kept(nodes)) == 1 + COUNT
        assert publisher.doubtful == COUNT
        publisher.over.set()

    world.run(main())
    assert world.loop.failures == []


def test_what_a_node_had_stored_before_it_slept_is_told_if_its_mirror_lacks_it(world: World) -> None:
    async def main() -> None:
        nodes = await started(world)
        publisher = Publisher()
        world.launch("publisher", "c1", publisher.main)
        await publisher.ready.wait()
        world.network.block("b1", "b2")
        publisher.go.set()
        while kept(nodes)[0] < 1 + COUNT:
            await asyncio.sleep(0.01)
        assert world.suspend(nodes[0])
        await publisher.stored.wait()
        assert sum(one.stats()["doubtful"] for node in nodes if (one := node.server) is not None) == COUNT
        world.wake(nodes[0])
        world.network.heal()
        await asyncio.sleep(LONG)
        assert sum(kept(nodes)) == 1 + 2 * COUNT
        assert publisher.doubtful == COUNT
        publisher.over.set()

    world.run(main())
    assert world.loop.failures == []


@pytest.mark.parametrize(("beats", "lost"), [(1.5, 0), (2.5, 1)])
def test_a_sleep_that_every_client_bears_ends_no_connection(world: World, beats: float, lost: int) -> None:
    """Of a longer one a client may have had enough, so all have to come back; those that are still there come back here."""

    async def main() -> None:
        nodes = await started(world)
        publisher = Publisher()
        world.launch("publisher", "c1", publisher.main)
        await publisher.ready.wait()
        assert world.suspend(nodes[0])
        publisher.go.set()
        await asyncio.sleep(beats * SETTINGS.heartbeat)
        world.wake(nodes[0])
        await publisher.stored.wait()
        assert {one.broker for one in publisher.places} == {nodes[0].guid}
        assert (publisher.told["lost"], publisher.doubtful) == (lost, 0)
        assert kept(nodes) == [1 + COUNT, 0, 0]
        publisher.over.set()

    world.run(main())
    assert world.loop.failures == []
