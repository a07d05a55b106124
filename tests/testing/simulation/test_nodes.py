"""Nodes in virtual time: clients that move between nodes, and their messages, posts and services."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import busway
from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.frames import Join
from busway.broker.channels.manager import Channels
from busway.errors import Code
from busway.testing.simulation.transport import SimulatedTransport
from busway.testing.simulation.world import Node, World
from tests.simulation.checker.final_read_cluster import missing_links

SETTINGS = busway.Settings(heartbeat=1.0, grace=8.0, drain=1.0)
LONG = 30.0
"""Seconds in which dead connections are seen to be dead, and times of grace end."""


async def started(world: World, count: int = 3, *, stores: bool = False) -> list[Node]:
    """So many nodes, each linked to each."""
    urls = [f"sim://b{number}:7420" for number in range(1, count + 1)]
    nodes = [
        world.add_node(f"b{number}", SETTINGS, stores=stores, cluster=busway.Cluster(name="sim", servers=urls))
        for number in range(1, count + 1)
    ]
    for node in nodes:
        world.start(node)
    await whole(nodes)
    return nodes


async def whole(nodes: list[Node]) -> None:
    async with asyncio.timeout(120):
        for node in nodes:
            await node.up.wait()
        while missing_links(nodes):
            await asyncio.sleep(0.1)


async def asked(world: World, nodes: list[Node], ask: Callable[[busway.Bus], Awaitable[object]]) -> list[object]:
    """What a client of each node says."""
    answers: list[object] = []
    done = asyncio.Event()

    async def main() -> None:
        for node in nodes:
            async with busway.connect(node.url) as bus:
                answers.append(await ask(bus))
        done.set()

    world.launch("question", "question", main)
    await done.wait()
    return answers


async def posts(bus: busway.Bus) -> list[str]:
    return [message.text for message in await bus.kept("status")]


def clean(world: World) -> None:
    assert [
        text for _, record in world.logged.records if (text := record.getMessage()) and record.levelname == "ERROR"
    ] == []
    assert world.loop.failures == []


@pytest.mark.parametrize(
    "how",
    [SimulatedTransport.reset, lambda end: end.peer.lose_silently(), SimulatedTransport.lose_silently],
    ids=["reset", "unheard", "unseen"],
)
def test_a_post_goes_with_its_client_to_another_node(world: World, how: Callable[[SimulatedTransport], None]) -> None:
    """The first node sees sooner or later that the client is gone from there, and withdraws nothing."""
    stopping = asyncio.Event()
    there: list[str] = []

    async def program() -> None:
        async with busway.connect("sim://b1:7420", "sim://b2:7420", name="c1", reconnect=(0.0, 0.1)) as bus:
            await bus.post("status", "here")
            there.append("posted")
            await stopping.wait()
            there.append(bus.server["name"])

    async def main() -> None:
        nodes = await started(world)
        world.launch("c1", "c1", program)
        while not there:
            await asyncio.sleep(0.1)
        world.network.block("c1", "b1")
        how(world.network.connections("c1", "b1")[0])
        await asyncio.sleep(LONG)
        assert await asked(world, nodes, posts) == [["here"]] * 3
        stopping.set()
        await asyncio.sleep(LONG)
        assert there[1:] == ["b2"]
        assert await asked(world, nodes, posts) == [[]] * 3

    world.run(main())
    clean(world)


def test_a_post_goes_with_its_client_to_another_node_and_back(world: World) -> None:
    stopping = asyncio.Event()
    there: list[str] = []

    async def program() -> None:
        async with busway.connect("sim://b1:7420", "sim://b2:7420", name="c1", reconnect=(0.0, 0.1)) as bus:
            await bus.post("status", "here")
            async for event in bus.events():
                if event.kind == "resumed":
                    there.append(bus.server["name"])
                if len(there) == 2:
                    break
            await stopping.wait()

    async def main() -> None:
        nodes = await started(world)
        world.launch("c1", "c1", program)
        await asyncio.sleep(1.0)
        for here, other in (("b1", "b2"), ("b2", "b1")):
            world.network.unblock("c1", other)
            world.network.block("c1", here)
            world.network.connections("c1", here)[0].reset()
            await asyncio.sleep(3.0)
        assert there == ["b2", "b1"]
        await asyncio.sleep(LONG)
        assert await asked(world, nodes, posts) == [["here"]] * 3
        stopping.set()
        await asyncio.sleep(LONG)
        assert await asked(world, nodes, posts) == [[]] * 3

    world.run(main())
    clean(world)


async def answer(bus: busway.Bus) -> str:
    return (await bus.request("only")).text


LOST = pytest.mark.parametrize(
    "how",
    [SimulatedTransport.reset, lambda end: end.peer.lose_silently(), SimulatedTransport.lose_silently],
    ids=["reset", "unheard", "unseen"],
)


@LOST
def test_an_exclusive_service_goes_with_its_client_to_another_node(
    world: World, how: Callable[[SimulatedTransport], None]
) -> None:
    """The first node may believe for a while that the client still serves there; it waits for that, and loses nothing."""
    stopping, serves = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def program() -> None:
        async with busway.connect("sim://b1:7420", "sim://b2:7420", name="c1", reconnect=(0.0, 0.1)) as bus:
            events = bus.events()
            service = await bus.serve("only", lambda _: "mine")
            serves.set()
            await stopping.wait()
            assert not service.closed
            told.append(bus.server["name"])
        told.extend([event.kind async for event in events if event.kind in {"rejected", "error"}])

    async def main() -> None:
        nodes = await started(world)
        world.launch("c1", "c1", program)
        await serves.wait()
        world.network.block("c1", "b1")
        how(world.network.connections("c1", "b1")[0])
        await asyncio.sleep(LONG)
        assert await asked(world, nodes, answer) == ["mine"] * 3
        stopping.set()
        await asyncio.sleep(LONG)
        assert told == ["b2"]

    world.run(main())
    clean(world)


def test_a_service_that_somebody_else_has_meanwhile_is_told_to_be_lost(world: World) -> None:
    """It is asked for again while it may be the client's own, and no longer."""
    serves, over, stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def program() -> None:
        async with busway.connect("sim://b1:7420", "sim://b2:7420", name="c1", reconnect=(3.0,)) as bus:
            service = await bus.serve("only")
            serves.set()
            with pytest.raises(busway.ServiceTaken):
                await service.recv()
            told.append(bus.server["name"])
            assert service.closed
        over.set()

    async def rival() -> None:
        async with busway.connect("sim://b3:7420", name="c2") as bus:
            while not stopping.is_set():
                try:
                    async with bus.serve("only", lambda _: "another one's"):
                        await stopping.wait()
                except busway.ServiceTaken:
                    await asyncio.sleep(0.1)

    async def main() -> None:
        nodes = await started(world)
        world.launch("c1", "c1", program)
        await serves.wait()
        world.launch("c2", "c2", rival)
        world.network.block("c1", "b1")
        world.network.connections("c1", "b1")[0].reset()
        await over.wait()
        assert await asked(world, nodes, answer) == ["another one's"] * 3
        stopping.set()
        assert told == ["b2"]

    world.run(main())
    assert [record.getMessage() for _, record in world.logged.records if record.levelname == "ERROR"] == [
        "'only' was refused after the reconnect: \"only\" is served already"
    ]


def test_a_service_that_somebody_else_has_is_not_waited_for_once_the_old_server_has_stopped(world: World) -> None:
    """Nobody believes any more that the client serves there, so what is taken is somebody else's."""
    serves, over, taken = asyncio.Event(), asyncio.Event(), asyncio.Event()
    times: list[float] = []

    async def program() -> None:
        async with busway.connect("sim://b1:7420", "sim://b2:7420", name="c1", reconnect=(3.0,)) as bus:
            service, events = await bus.serve("only"), bus.events()
            serves.set()
            while (await anext(events)).kind != "resumed":
                pass
            times.append(world.loop.time())
            with pytest.raises(busway.ServiceTaken):
                await service.recv()
            times.append(world.loop.time())
        over.set()

    async def rival() -> None:
        async with busway.connect("sim://b3:7420", name="c2") as bus:
            while True:
                try:
                    async with bus.serve("only", lambda _: "another one's"):
                        taken.set()
                        await over.wait()
                        return
                except busway.ServiceTaken:
                    await asyncio.sleep(0.1)

    async def main() -> None:
        nodes = await started(world)
        world.launch("c1", "c1", program)
        await serves.wait()
        world.launch("c2", "c2", rival)
        await world.stop(nodes[0])
        await taken.wait()
        await over.wait()
        assert times[1] - times[0] < 1.0, "seconds after it came back; eight heartbeats are 8"

    world.run(main())


async def pins(bus: busway.Bus) -> list[str]:
    return [message.text for message in await bus.kept("config")]


def test_a_pin_that_was_taken_back_stays_away_after_restarts(world: World) -> None:
    """The node that was away still has it on its disk, and those that know better were started again meanwhile."""

    async def pin(bus: busway.Bus) -> None:
        await bus.pin("config", "old")

    async def unpin(bus: busway.Bus) -> None:
        assert await bus.unpin("config")

    async def main() -> None:
        nodes = await started(world, stores=True)
        await asked(world, nodes[:1], pin)
        await asyncio.sleep(1.0)
        world.crash(nodes[0])
        await asked(world, nodes[1:2], unpin)
        await asyncio.sleep(1.0)
        for node in nodes[1:]:
            await world.stop(node)
        for node in nodes:
            world.start(node)
        await whole(nodes)
        await asyncio.sleep(1.0)
        assert await asked(world, nodes, pins) == [[]] * 3
        await asked(world, nodes[2:], pin)
        await asyncio.sleep(1.0)
        for node in nodes:
            await world.stop(node)
            world.start(node)
        await whole(nodes)
        assert await asked(world, nodes, pins) == [["old"]] * 3

    world.run(main())
    clean(world)


def test_nodes_agree_on_a_pin_of_which_a_dead_one_told_only_some(world: World) -> None:
    async def pin(bus: busway.Bus) -> None:
        await bus.pin("config", "last will")

    async def main() -> None:
        nodes = await started(world)
        world.network.block("b1", "b2")
        await asked(world, nodes[:1], pin)
        await asyncio.sleep(0.2)
        world.crash(nodes[0], power=True)
        await asyncio.sleep(LONG)
        assert await asked(world, nodes[1:], pins) == [["last will"]] * 2

    world.run(main())
    clean(world)


def test_what_is_acknowledged_is_not_handed_out_as_a_copy(world: World) -> None:
    """A link was lost, so the other node has handed its messages out again; the client has them twice, and sees them once."""
    got: list[str] = []
    done = asyncio.Event()

    async def consume() -> None:
        async with busway.connect("sim://b1:7420") as bus, bus.channel("default", "work", window=4) as channel:
            while channel.pending < 4:
                await asyncio.sleep(0.1)
            world.network.connections("b1", "b2")[0].reset()
            await asyncio.sleep(10.0)  # they came again meanwhile
            try:
                while True:
                    message = await channel.recv(timeout=5.0)
                    await message.ack()
                    got.append(message.text)
            except TimeoutError:
                done.set()

    async def publish(bus: busway.Bus) -> None:
        for number in range(4):
            await bus.publish("jobs", str(number), durable=True)

    async def main() -> None:
        nodes = await started(world, 2)
        await asked(world, nodes[1:], publish)
        world.launch("consumer", "c1", consume)
        await done.wait()
        assert got == ["0", "1", "2", "3"]

    world.run(main())
    clean(world)


def test_a_message_of_a_broker_that_is_no_more_can_not_be_acknowledged(world: World) -> None:
    failed: list[type] = []

    async def consume() -> None:
        async with busway.connect("sim://b1:7420", reconnect=(0.1,)) as bus:
            await bus.publish("jobs", "1", durable=True)
            async with bus.channel("default", "work") as channel:
                message = await channel.recv()
                await asyncio.sleep(5.0)  # the broker is another one now
                try:
                    await message.ack()
                except busway.BusError as error:
                    failed.append(type(error))
                await bus.publish("jobs", "2", durable=True)
                assert (await channel.recv(timeout=5.0)).text == "2"
            failed.append(int)

    async def main() -> None:
        node = world.add_node("b1", SETTINGS, stores=False)
        world.start(node)
        await node.up.wait()
        world.launch("consumer", "c1", consume)
        await asyncio.sleep(1.0)
        world.crash(node)
        world.start(node)
        await asyncio.sleep(LONG)
        assert failed == [busway.StoreFailed, int]

    world.run(main())
    clean(world)


def test_a_channel_that_can_not_be_taken_back_now_is_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    got, over, ready = list[str](), asyncio.Event(), asyncio.Event()
    joined, refused = Channels.find_or_declare, list[float]()

    async def refuse(self: Channels, join: Join) -> ChannelDriver:
        if ready.is_set() and len(refused) < 3:
            refused.append(world.loop.time())
            raise busway.StoreFailed("its mirror may stand in for it", code=Code.STORE_FAILED)
        return await joined(self, join)

    monkeypatch.setattr(Channels, "find_or_declare", refuse)

    async def consume() -> None:
        async with busway.connect("sim://b1:7420", reconnect=(0.1,)) as bus:
            async with bus.channel("default", "work") as channel:
                ready.set()
                world.network.connections("consumer", "b1")[0].reset()
                message = await channel.recv(timeout=LONG)
                got.append(message.text)
                await message.ack()
        over.set()

    async def publish(bus: busway.Bus) -> None:
        await bus.publish("jobs", "1", durable=True)

    async def main() -> None:
        node = world.add_node("b1", SETTINGS, stores=False)
        world.start(node)
        await node.up.wait()
        world.launch("consumer", "consumer", consume)
        await ready.wait()
        await asyncio.sleep(1.0)
        await asked(world, [node], publish)
        await over.wait()
        assert got == ["1"]
        assert len(refused) == 3

    world.run(main())
    clean(world)
