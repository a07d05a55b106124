"""Plans faults from a seed, and injects them into a world; scenarios call it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Protocol

from busway.testing.simulation.network import Path
from busway.testing.simulation.process import Process
from busway.testing.simulation.transport import SimulatedTransport
from busway.testing.simulation.world import Node, World
from tests.simulation.faults.promotion import await_work, isolated, promote

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
"""Faults in a world with one broker."""
LINKS: Final = ("link cut", "link reset", "link half-open", "link one-way", "link blocked", "link slow")
UNPOWERED: Final = "mirrored node without power"
LOST: Final = "mirrored node lost"
LOSSES: Final = (UNPOWERED, LOST)
REPLACED: Final = "mirrored node replaced"
OVERTHROWN: Final = "isolated node replaced"
PROMOTIONS: Final = (REPLACED, OVERTHROWN)
MIRROR: Final = (*LOSSES, *PROMOTIONS)
"""Faults of a node whose mirror has all acknowledged data: the node loses data, or its mirror is promoted."""
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
"""Faults between nodes, or of several nodes."""
KINDS: Final = (*SINGLE, *CLUSTER)
_SLEEP: Final = 3
"""How many times longer than other faults a suspension lasts, so that clients and links often time out."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A planned fault of a broker, a client, or the network between them."""

    at: float
    """Seconds after the start of the programs."""
    kind: str
    node: str
    client: str
    lasts: float
    other: str = ""
    """Another node, in a cluster."""
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
    """Choose `count` faults of these kinds, in the order of their times."""
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
    """The programs of a world, by the names of their hosts."""

    def process(self, client: str) -> Process:
        """Return the current or last process of a host."""

    def replace(self, client: str) -> None:
        """Start a new program on a host."""


class FaultInjector:
    """Injects planned faults into a world."""

    def __init__(
        self, world: World, processes: HasProcesses, victim: str | None = None, mirror: str | None = None
    ) -> None:
        self.happened: Counter[str] = Counter()
        """Faults that took effect, by kind."""
        self._world = world
        self._processes = processes
        self.replaced: dict[str, str] = {}
        """The nodes that were replaced, by the guid that they had."""
        self._victim = victim
        """The node for faults of MIRROR."""
        self._mirror = mirror
        """The mirror of that node."""
        self._network = world.network

    async def carry_out(self, faults: list[Fault]) -> None:
        """Inject the faults, each at its time. Return when the last one is over."""
        async with asyncio.TaskGroup() as running:
            for fault in faults:
                running.create_task(self._inject(fault), name=f"fault {fault.kind}")

    async def _inject(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        if fault.kind in MIRROR:
            if self._victim is None or self._mirror is None:
                return
            fault = replace(fault, node=self._victim, other=self._mirror)
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
                return self._each(client, host, lambda end: end.peer.lose_silently())
            case "half-open broker":
                return self._each(client, host, SimulatedTransport.lose_silently)
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
                return self._each(here, there, SimulatedTransport.lose_silently)
            case "link one-way":
                return await self._blocked(fault, (here, there))
            case "link blocked":
                return await self._blocked(fault, (here, there), (there, here))
            case "link slow":
                return await self._slow(fault, (here, there))
            case "link flaps":
                return await self._flaps(fault)
            case "node cut off":
                paths = [path for name in names if name != here for path in ((here, name), (name, here))]
                return await self._blocked(fault, *paths)
            case "split" | "split one-way":
                paths = [(one, two) for one in names if one in fault.side for two in names if two not in fault.side]
                back = [] if fault.kind == "split one-way" else [(two, one) for one, two in paths]
                return await self._blocked(fault, *paths, *back)
            case "node sleeps":
                return await self._sleeps(fault, node)
            case "two killed":
                both = await asyncio.gather(self._killed(fault, node), self._killed(fault, self._world.nodes[there]))
                return all(both)
            case "mirrored node without power":
                return await self._killed(fault, node, power=True)
            case "mirrored node lost":
                return self._world.lose(node)
            case "mirrored node replaced" | "isolated node replaced":
                return await self._replaced(fault, node, self._world.nodes[there])
            case _:
                paths = [path for name in names if name != here for path in ((here, name), (name, here))]
                async with asyncio.TaskGroup() as running:
                    blocked = running.create_task(self._blocked(fault, *paths), name="cut off")
                    killed = running.create_task(self._killed(replace(fault, lasts=fault.lasts / 2), node), name="kill")
                return blocked.result() and killed.result()

    async def _replaced(self, fault: Fault, node: Node, mirror: Node) -> bool:
        """Kill or isolate a node, promote its mirror, and let the node return."""
        await await_work(node)
        guid = node.guid
        paths = [
            path for name in self._world.nodes if name != node.name for path in ((node.name, name), (name, node.name))
        ]
        kills = fault.kind == REPLACED
        if kills and not self._world.crash(node):
            return False  # another fault killed it, and will restart it
        for path in () if kills else paths:
            self._network.block(*path)
        if await isolated(mirror, guid) and await promote(self._world, mirror, guid):
            self.replaced[guid] = node.name
        await asyncio.sleep(fault.lasts)
        for path in () if kills else paths:
            self._network.unblock(*path)
        if kills:
            self._world.start(node)
        return guid in self.replaced

    def _home(self, fault: Fault) -> str:
        """Return the node that the client is connected to, or the planned one if it has no connection."""
        hosts = (host for host in self._world.nodes if self._network.connections(fault.client, host))
        return next(hosts, fault.node)

    async def _killed(self, fault: Fault, node: Node, *, power: bool = False) -> bool:
        crashed = self._world.crash(node, power=power)
        await asyncio.sleep(fault.lasts)
        self._world.start(node)
        return crashed

    async def _sleeps(self, fault: Fault, node: Node) -> bool:
        """Suspend a broker for a while. Another fault may kill it in that time."""
        if not self._world.suspend(node):
            return False
        process = node.process
        await asyncio.sleep(_SLEEP * fault.lasts)
        if node.process is process:
            self._world.wake(node)
        return True

    async def _flaps(self, fault: Fault) -> bool:
        """Reset a link repeatedly."""
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

    async def _blocked(self, fault: Fault, *paths: tuple[str, str]) -> bool:
        before = sum(self._network.path(*path).stopped for path in paths)
        for path in paths:
            self._network.block(*path)
        await asyncio.sleep(fault.lasts)
        for path in paths:  # this may also unblock a path that another fault has blocked
            self._network.unblock(*path)
        return sum(self._network.path(*path).stopped for path in paths) > before

    async def _slow(self, fault: Fault, between: tuple[str, str]) -> bool:
        paths = [self._network.path(*between), self._network.path(between[1], between[0])]
        before = sum(path.carried for path in paths)
        with _slowed(paths):
            await asyncio.sleep(fault.lasts)
        return sum(path.carried for path in paths) > before

    async def _client_killed(self, fault: Fault) -> bool:
        killed = self._world.kill(self._processes.process(fault.client))
        await asyncio.sleep(fault.lasts)
        if killed:
            self._processes.replace(fault.client)
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
def _slowed(paths: list[Path]) -> Iterator[None]:
    before = [(path.delay, path.jitter, path.bandwidth) for path in paths]
    for path in paths:
        path.delay, path.jitter, path.bandwidth = 0.3, 0.5, 3000.0
    try:
        yield
    finally:
        for path, (delay, jitter, bandwidth) in zip(paths, before, strict=True):
            path.delay, path.jitter, path.bandwidth = delay, jitter, bandwidth
