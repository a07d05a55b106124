"""Rounds of a mesh whose nodes are killed and cut off while publishers and consumers are busy, and what is to be seen after each.

Three nodes and a mirror of the first, each on a host of its own, as are three publishers and three consumers of one channel. A round kills
a node, and cuts one off for a while: from everybody, from the other nodes, together with its clients, or in one direction only. The mirror is
sometimes promoted while its node is down. After each fault all clients have to come back by themselves, and what was acknowledged has to be
consumed.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import busway
from tests.chaos.cluster.history import Ledger, Place
from tests.chaos.cluster.network import Network, between
from tests.chaos.cluster.payloads import CHANNEL, STREAM
from tests.chaos.cluster.processes import PATIENCE, PORT, Client, Node, until
from tests.chaos.cluster.service import Outage, Service

NODES: Final = ("a", "b", "c", "mirror")
PUBLISHERS: Final = {"publisher-1": "a", "publisher-2": "b", "publisher-3": "c"}
CONSUMERS: Final = {"consumer-1": "b", "consumer-2": "c", "consumer-3": "mirror"}
"""And the node that each knows at first."""
CUTS: Final = ("from everybody", "from the nodes", "with its clients", "what it sends", "what it hears")
_PROMOTIONS: Final = 0.5
"""How often the mirror is promoted when its node was killed. The first time it always is."""
_ASKED: Final = 5
DOWN: Final = (0.5, 8.0)
"""Seconds that a killed node is gone: less and more than others need to notice."""


class Trial:
    """One mesh with its clients, in a folder and a network of its own."""

    def __init__(
        self, folder: Path, *, seed: int = 0, partition: float = 30.0, tell: Callable[[str], object] = print
    ) -> None:
        self.ledger, self.service = Ledger(), Service()
        self.faults = 0
        self.promotions = 0
        self._first_kill = True
        self._folder, self._partition, self._tell = folder, partition, tell
        self._chance = random.Random(seed)
        self._nodes: dict[str, Node] = {}
        self._clients: dict[str, Client] = {}

    async def run(self, rounds: int) -> None:
        """Raises AssertionError when a promise is broken."""
        with Network([*NODES, *PUBLISHERS, *CONSUMERS]) as network:
            self._network = network
            try:
                await self._start()
                for number in range(1, rounds + 1):
                    await self._round(number)
                await self._end()
            except BaseException:
                for node in self._nodes.values():
                    if node.log.exists():
                        self._tell(f"the end of the log of {node.host}:\n{node.end_of_log()}")
                raise
            finally:
                for one in self._everybody():
                    await one.abandon()

    async def _start(self) -> None:
        servers = [f"{self._network.address(host)}:{PORT}" for host in NODES]
        for host in NODES:
            flags = ("--mirror-of", NODES[0]) if host == "mirror" else ()
            self._nodes[host] = Node(self._network, host, self._folder, servers, *flags)
        await asyncio.gather(*(node.start() for node in self._nodes.values()))
        await self._linked()
        async with busway.connect(self._nodes["a"].door) as bus:
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        await bus.create_stream(STREAM, [f"{STREAM}/**"], safety="mirrored", max_age=None)
                        break
                    except busway.Rejected:  # the mirror has not come yet
                        await asyncio.sleep(0.05)
            await bus.create_channel(STREAM, CHANNEL, start="first", max_deliveries=0, backoff=[0.05, 0.5])
        for name, host in (PUBLISHERS | CONSUMERS).items():
            role = "publisher" if name in PUBLISHERS else "consumer"
            client = self._clients[name] = Client(self._network, role, name, self._nodes[host].url, self._note)
            await client.start()
        await self._well(time.monotonic())

    def _note(self, client: str, record: list[Any]) -> None:
        self.ledger.note(client, record)
        if record[0] in {"stored", "got"}:
            self.service.done(client, record[1])

    # Faults.

    async def _round(self, number: int) -> None:
        await self._fault(number, "killed", self._kill)
        how = self._chance.choice(CUTS)
        await self._fault(number, f"cut: {how}", lambda node: self._cut(node, how))

    async def _fault(self, number: int, what: str, strike: Callable[[Node], Awaitable[None]]) -> None:
        await asyncio.sleep(self._chance.uniform(0.5, 1.5))  # some work before it
        # Clients that went elsewhere stay there: a node that has more of them is struck more often.
        weights = [1 + len(self._at(node)) for node in self._nodes.values()]
        (node,) = self._chance.choices(list(self._nodes.values()), weights)
        struck = self._at(node)
        self.service.begin()
        await strike(node)
        self.faults += 1
        healed = time.monotonic()
        await self._well(healed)
        roles = {client.name: client.role for client in self._clients.values()}
        now = time.monotonic()
        outages = self.service.end(what, roles, struck, now)
        self._tell(f"round {number}: {node.host} {what}, well after {now - healed:.1f} s; {self._told(outages)}")

    async def _kill(self, node: Node) -> None:
        await node.kill()
        if node.host == NODES[0] and (self._first_kill or self._chance.random() < _PROMOTIONS):
            self._first_kill = False
            await self._promote(node)
        await asyncio.sleep(self._chance.uniform(*DOWN))
        await node.start()

    async def _promote(self, node: Node) -> None:
        """Promote the mirror, unless its copy is incomplete."""
        question = json.dumps({"node": node.host})
        async with busway.connect(self._nodes["mirror"].door, timeout=PATIENCE) as bus:
            for _ in range(_ASKED):
                try:
                    answer = await bus.request("$bus/cluster/promote", question, timeout=PATIENCE)
                except busway.ServiceError as error:
                    refused = str(error)
                    await asyncio.sleep(0.5)  # the mirror may not have noticed yet that the node is gone
                else:
                    self._tell(f"promoted: {answer.text}")
                    self.promotions += 1
                    return
        self._tell(f"not promoted: {refused}")

    async def _cut(self, node: Node, how: str) -> None:
        every = {*NODES, *PUBLISHERS, *CONSUMERS}
        own = self._at(node)
        ways = {
            "from everybody": between({node.host}, every - {node.host}),
            "from the nodes": between({node.host}, set(NODES) - {node.host}),
            "with its clients": between({node.host, *own}, every - {node.host, *own}),
            "what it sends": {(node.host, other) for other in every - {node.host}},
            "what it hears": {(other, node.host) for other in every - {node.host}},
        }
        self._network.cut(ways[how])
        await asyncio.sleep(self._partition)
        self._network.heal()

    def _everybody(self) -> list[Node | Client]:
        return [*self._clients.values(), *self._nodes.values()]

    def _at(self, node: Node) -> set[str]:
        """The clients that are connected to it."""
        return {client.name for client in self._clients.values() if client.at == node.url}

    def _told(self, outages: list[Outage]) -> str:
        worst = {role: max(one.seconds for one in outages if one.role == role) for role in ("publisher", "consumer")}
        return (
            f"publishers without service {worst['publisher']:.1f} s at most, consumers {worst['consumer']:.1f} s; "
            f"{len(self.ledger.stored)} stored, {len(self.ledger.acked)} acknowledged"
        )

    # What has to be so.

    async def _well(self, since: float) -> None:
        """Until the nodes are linked, every client is connected and has got on since then, and all that was stored before is consumed."""
        await self._linked()
        everybody = self._everybody()

        def late() -> list[str]:
            ones = [one for one in self._clients.values() if one.at is None or self.service.last(one.name) <= since]
            return [f"{one.name} at {one.at}" for one in ones]

        await until(lambda: not late(), lambda: f"not back: {', '.join(late())}", *everybody)
        await until(
            lambda: not self.ledger.missing(since),
            lambda: (
                f"{len(self.ledger.missing(since))} were not consumed, as {self._shown(self.ledger.missing(since))}"
            ),
            *everybody,
        )
        self._right(self.ledger.check())

    def _shown(self, payloads: list[str]) -> str:
        return ", ".join(f"{payload!r} at {self.ledger.stored[payload].place}" for payload in payloads[:3])

    async def _linked(self) -> None:
        async with asyncio.timeout(PATIENCE):
            for node in self._nodes.values():
                while await node.linked() != set(NODES) - {node.host}:
                    node.alive()
                    await asyncio.sleep(0.05)

    def _right(self, wrong: list[str]) -> None:
        assert not wrong, f"{len(wrong)} wrong, as: " + "; ".join(wrong[:5])

    async def _end(self) -> None:
        await asyncio.gather(*(self._clients[name].stop() for name in PUBLISHERS))
        consumers = [self._clients[name] for name in CONSUMERS]
        await until(
            lambda: not self.ledger.missing(), lambda: f"not consumed: {self._shown(self.ledger.missing())}", *consumers
        )
        await asyncio.gather(*(one.stop() for one in consumers))
        self._right(self.ledger.finish(await self._history()))
        await asyncio.gather(*(node.stop() for node in self._nodes.values()))

    async def _history(self) -> list[tuple[Place, str]]:
        """All that is stored anywhere, as a stranger reads it at one of the nodes."""
        wanted = {one.place for one in self.ledger.stored.values()} | set(self.ledger.handed)
        found: list[tuple[Place, str]] = []
        async with busway.connect(self._nodes[self._chance.choice(NODES)].door) as bus:
            async with bus.subscribe(f"{STREAM}/**", since="all") as everything:
                while wanted:
                    for message in await everything.take(1000, timeout=PATIENCE):
                        place = Place(message.broker or "", message.offset or 0)
                        found.append((place, message.payload.decode()))
                        wanted.discard(place)
                assert (everything.missed, everything.lost) == (0, 0)
        return found
