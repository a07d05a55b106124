"""What goes wrong in a world, and when: a plan from a seed, and the hand that carries it out and counts what took effect."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Protocol

from busway.testing.simulation.faults.mirror_restart import restarted
from busway.testing.simulation.kit.network import Path
from busway.testing.simulation.kit.process import Process
from busway.testing.simulation.kit.transport import SimulatedTransport
from busway.testing.simulation.kit.world import Node, World

NETWORK: Final = (
    "cut",
    "reset",
    "half-open client",
    "half-open broker",
    "one-way up",
    "one-way down",
    "partition",
    "slow",
)
BROKER: Final = ("broker killed", "broker restarted")
POWER: Final = "broker without power"
CLIENT: Final = "client killed"
DISK: Final = ("disk full", "disk fails", "disk slow")
SINGLE: Final = (*NETWORK, *BROKER, POWER, CLIENT, *DISK)
"""What can go wrong with one broker."""
LINKS: Final = ("link cut", "link reset", "link half-open", "link one-way", "link blocked", "link slow")
UNPOWERED: Final = "mirrored node without power"
LOST: Final = "mirrored node lost"
LOSSES: Final = (UNPOWERED, LOST)
RESTARTED: Final = "mirror restarted while standing in"
MIRROR: Final = (*LOSSES, RESTARTED)
"""What can go wrong with a node of which there is a copy of all that it has acknowledged: it loses that, or is away while its mirror has trouble, too."""
CLUSTER: Final = (
    *LINKS,
    "node cut off",
    "split",
    "split one-way",
    "two killed",
    "killed while cut off",
    "link flaps",
    "node sleeps",
    *MIRROR,
)
"""What can go wrong between nodes, or with several of them."""
KINDS: Final = (*SINGLE, *CLUSTER)
_SLEEP: Final = 3
"""So many times as long as other faults sleeps last, so that clients and links often don't bear them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong at a time, with a broker or with what is between it and a client, for a while."""

    at: float
    """Seconds after the programs have begun."""
    kind: str
    node: str
    client: str
    lasts: float
    other: str = ""
    """Another node, of those that have others."""
    side: frozenset[str] = frozenset()
    """The nodes on one side of a split."""


def plan(
    chance: Random,
    *,
    count: int,
    within: float,
    longest: float,
    nodes: list[str],
    clients: list[str],
    kinds: tuple[str, ...],
) -> list[Fault]:
    """So many faults of these kinds, in the order of their times."""
    faults = []
    for _ in range(count):
        lasts = longest * chance.random() ** 3  # mostly short
        kind, node, client = chance.choice(kinds), chance.choice(nodes), chance.choice(clients)
        at, other, side = within * chance.random(), "", frozenset[str]()
        if len(nodes) > 1:
            other = chance.choice([name for name in nodes if name != node])
            side = frozenset(chance.sample(nodes, chance.randrange(1, len(nodes))))
        faults.append(Fault(at, kind, node, client, lasts, other, side))
    return sorted(faults, key=lambda fault: fault.at)


class HasProcesses(Protocol):
    """Who plays: the programs of a world, by the names of their hosts."""

    def process(self, client: str) -> Process:
        """The one that runs there, or ran last."""

    def replace(self, client: str) -> None:
        """Start a new program there."""


class FaultInjector:
    """Carries out plans in one world."""

    def __init__(self, world: World, cast: HasProcesses, victim: str | None = None, heir: str | None = None) -> None:
        self.happened: Counter[str] = Counter()
        """Faults that really had something to go wrong with."""
        self._world = world
        self._cast = cast
        self._victim = victim
        """The node that can bear what is in MIRROR,"""
        self._heir = heir
        """and its mirror."""
        self._network = world.network

    async def carry_out(self, faults: list[Fault]) -> None:
        """All of them, each at its time; returns when the last is over."""
        async with asyncio.TaskGroup() as running:
            for fault in faults:
                running.create_task(self._one(fault), name=f"fault {fault.kind}")

    async def _one(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        if fault.kind in MIRROR:
            if self._victim is None or self._heir is None:
                return
            fault = replace(fault, node=self._victim, other=self._heir)
        node = self._world.nodes[fault.node]
        self._world.trace.add(f"fault: {fault.kind}, {fault.client} and {fault.node}, {fault.lasts:.3f} s")
        if await self._act(fault, node):
            self.happened[fault.kind] += 1

    async def _act(self, fault: Fault, node: Node) -> bool:
        if fault.kind in CLUSTER:
            return await self._among_nodes(fault, node)
        if fault.kind in NETWORK:
            fault = replace(fault, node=self._home(fault))
        client, host = fault.client, fault.node
        match fault.kind:
            case "cut":
                return self._each(client, host, SimulatedTransport.cut)
            case "reset":
                return self._each(client, host, SimulatedTransport.reset)
            case "half-open client":
                return self._each(client, host, lambda end: end.peer.fall())
            case "half-open broker":
                return self._each(client, host, SimulatedTransport.fall)
            case "one-way up":
                return await self._blocked(fault, (client, host))
            case "one-way down":
                return await self._blocked(fault, (host, client))
            case "partition":
                return await self._blocked(fault, (client, host), (host, client))
            case "slow":
                return await self._slow(fault, (client, host))
            case "client killed":
                return await self._client_killed(fault)
            case "broker restarted":
                stopped = await self._world.stop(node)
                await asyncio.sleep(fault.lasts)
                self._world.start(node)
                return stopped
            case "broker killed" | "broker without power":
                return await self._killed(fault, node, power=fault.kind == POWER)
            case _:
                return await self._disk(fault, node)

    async def _among_nodes(self, fault: Fault, node: Node) -> bool:
        here, there = fault.node, fault.other
        names = list(self._world.nodes)
        match fault.kind:
            case "link cut":
                return self._each(here, there, SimulatedTransport.cut)
            case "link reset":
                return self._each(here, there, SimulatedTransport.reset)
            case "link half-open":
                return self._each(here, there, SimulatedTransport.fall)
            case "link one-way":
                return await self._blocked(fault, (here, there))
            case "link blocked":
                return await self._blocked(fault, (here, there), (there, here))
            case "link slow":
                return await self._slow(fault, (here, there))
            case "link flaps":
                return await self._flaps(fault)
            case "node cut off":
                ways = [way for name in names if name != here for way in ((here, name), (name, here))]
                return await self._blocked(fault, *ways)
            case "split" | "split one-way":
                ways = [(one, two) for one in names if one in fault.side for two in names if two not in fault.side]
                back = [] if fault.kind == "split one-way" else [(two, one) for one, two in ways]
                return await self._blocked(fault, *ways, *back)
            case "node sleeps":
                return await self._sleeps(fault, node)
            case "two killed":
                both = await asyncio.gather(self._killed(fault, node), self._killed(fault, self._world.nodes[there]))
                return all(both)
            case "mirrored node without power":
                return await self._killed(fault, node, power=True)
            case "mirrored node lost":
                return self._world.lose(node)
            case "mirror restarted while standing in":
                return await restarted(self._world, node, self._world.nodes[there], fault.lasts)
            case _:
                ways = [way for name in names if name != here for way in ((here, name), (name, here))]
                async with asyncio.TaskGroup() as running:
                    blocked = running.create_task(self._blocked(fault, *ways), name="cut off")
                    killed = running.create_task(self._killed(replace(fault, lasts=fault.lasts / 2), node), name="kill")
                return blocked.result() and killed.result()

    def _home(self, fault: Fault) -> str:
        """The node where that client is now; if it is nowhere, any."""
        hosts = (host for host in self._world.nodes if self._network.connections(fault.client, host))
        return next(hosts, fault.node)

    async def _killed(self, fault: Fault, node: Node, *, power: bool = False) -> bool:
        crashed = self._world.crash(node, power=power)
        await asyncio.sleep(fault.lasts)
        self._world.start(node)
        return crashed

    async def _sleeps(self, fault: Fault, node: Node) -> bool:
        """As a process that is stopped; it may be killed meanwhile."""
        if not self._world.suspend(node):
            return False
        process = node.process
        await asyncio.sleep(_SLEEP * fault.lasts)
        if node.process is process:
            self._world.wake(node)
        return True

    async def _flaps(self, fault: Fault) -> bool:
        """A link that ends again as soon as it is there."""
        times = 0
        for _ in range(5):
            times += self._each(fault.node, fault.other, SimulatedTransport.reset)
            await asyncio.sleep(fault.lasts / 5)
        return times > 1

    def _each(self, client: str, host: str, act: Callable[[SimulatedTransport], object]) -> bool:
        ends = self._network.connections(client, host)
        for end in ends:
            act(end)
        return bool(ends)

    async def _blocked(self, fault: Fault, *ways: tuple[str, str]) -> bool:
        before = sum(self._network.way(*way).stopped for way in ways)
        for way in ways:
            self._network.block(*way)
        await asyncio.sleep(fault.lasts)
        for way in ways:  # what another fault blocks as well is open before its time
            self._network.unblock(*way)
        return sum(self._network.way(*way).stopped for way in ways) > before

    async def _slow(self, fault: Fault, between: tuple[str, str]) -> bool:
        ways = [self._network.way(*between), self._network.way(between[1], between[0])]
        before = sum(way.carried for way in ways)
        with _slowed(ways):
            await asyncio.sleep(fault.lasts)
        return sum(way.carried for way in ways) > before

    async def _client_killed(self, fault: Fault) -> bool:
        killed = self._world.kill(self._cast.process(fault.client))
        await asyncio.sleep(fault.lasts)
        if killed:
            self._cast.replace(fault.client)
        return killed

    async def _disk(self, fault: Fault, node: Node) -> bool:
        disk, failed = node.disk, node.disk.failed
        if fault.kind == "disk slow":
            before, disk.pace = disk.pace, 0.3
            await asyncio.sleep(fault.lasts)
            disk.pace = min(before, 0.001)
            return True
        disk.fail(room=100 if fault.kind == "disk full" else None, sync=fault.kind == "disk fails")
        await asyncio.sleep(fault.lasts)
        disk.fail()
        return disk.failed > failed


@contextmanager
def _slowed(ways: list[Path]) -> Iterator[None]:
    before = [(way.delay, way.jitter, way.bandwidth) for way in ways]
    for way in ways:
        way.delay, way.jitter, way.bandwidth = 0.3, 0.5, 3000.0
    try:
        yield
    finally:
        for way, (delay, jitter, bandwidth) in zip(ways, before, strict=True):
            way.delay, way.jitter, way.bandwidth = delay, jitter, bandwidth
