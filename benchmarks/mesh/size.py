"""How a mesh grows: links and bytes of interest of each node, as a formula and as what a simulated mesh really sends.

Real brokers in virtual time, with a client each. They can't see each other at first, so that everything is wanted before the first link is
there; then they are linked, and later one thing more is wanted and wanted no longer. docs/howto/cluster.md has the formula in words.
"""

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import permutations
from time import monotonic
from typing import Final

import msgspec

import busway
from busway.cluster.node import Node as Known, Sighting, pack_sightings
from busway.settings import Settings
from busway.testing.simulation.trace import Trace
from busway.testing.simulation.world import PORT, SCHEME, Node, World

_KINDS: Final = {b"\x41": "interest", b"\x40\x00\x02\x00": "members"}
"""Frames by how they begin, behind their length."""
FRAME: Final = 8
"""Bytes of an INTEREST frame besides its entries: length, kind, flags, count."""
ENTRY: Final = 16
"""Bytes of an entry besides the text of pattern, group and rules,"""
GONE: Final = 8
"""and of one that says that something is wanted no longer."""
MEMBERS: Final = 19
"""Bytes of a NODE frame that tells of other nodes, besides those."""
PORTION: Final = 60 << 10
"""Bytes of entries from which on the next go into another frame."""
MORE: Final = "one/thing/more/*"
_LINKED: Final = 300.0


# The formula.


def links(nodes: int) -> int:
    """Of each node; half of that, times the nodes, are all."""
    return nodes - 1


def told_first(nodes: int, patterns: Sequence[str]) -> int:
    """Bytes of interest that a node sends when it is linked to all others."""
    frames, size = 1, 0
    for pattern in patterns:
        if size >= PORTION:
            frames, size = frames + 1, 0
        size += ENTRY + len(pattern.encode())
    entries = sum(ENTRY + len(pattern.encode()) for pattern in patterns)
    return links(nodes) * (FRAME * frames + entries)


def told_later(nodes: int, pattern: str) -> int:
    """Bytes of interest that a node sends when its clients want one thing more, and later no longer."""
    return links(nodes) * (FRAME + ENTRY + len(pattern.encode()) + FRAME + GONE)


def told_members(nodes: int, size: int) -> int:
    """Bytes, at most, by which a node tells others of others while the whole mesh comes up; one node takes `size`.

    A new link is told of all that are known, and all other links are told of it.
    """
    lists, single = links(nodes), links(nodes) * (nodes - 2) // 2
    return lists * (MEMBERS + (nodes - 2) * size) + single * (MEMBERS + size)


# What is sent.


class Measured(msgspec.Struct, frozen=True):
    """What each node has sent to others; bytes are those of the node that has sent most."""

    nodes: int
    links: int
    """Of the node with most."""
    wants: int
    """Different subscriptions of the clients of each."""
    first: int
    """Bytes of interest by when all are linked,"""
    later: int
    """and of one thing more that is wanted and wanted no longer."""
    members: int
    """Bytes that tell of other nodes,"""
    sighting: int
    """of which one takes so many;"""
    said: int
    """and of everything that was said until all were linked."""
    seconds: float
    """That the simulation took."""


class Tap(Trace):
    """Sees what passes in a simulated network, and counts it by the sender's host and the kind of frame."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.sent: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._rest: defaultdict[str, bytes] = defaultdict(bytes)

    def add(self, what: str, data: bytes = b"") -> None:
        if not (way := re.fullmatch(r"(b\d+):\d+ > b\d+:\d+ data", what)):
            return
        data = self._rest[what] + data
        while len(data) >= 5 and len(data) >= (size := 4 + int.from_bytes(data[:4], "little")):
            self.sent[way[1]].update({"all": size, _KINDS.get(data[4:5], "") or _KINDS.get(data[4:8], "other"): size})
            data = data[size:]
        self._rest[what] = data

    def most(self, kind: str) -> int:
        """Bytes of one kind that were sent by the node that has sent most."""
        return max(kinds[kind] for kinds in self.sent.values())


def patterns(node: int, wants: int) -> list[str]:
    """What the clients of one node want, in all different from what others want."""
    return [f"plant/{node:02}/{number:04}/*/temperature" for number in range(wants)]


def measure(nodes: int, wants: int) -> Measured:
    """Simulate a mesh of so many nodes, whose clients want so many things each."""
    begin = monotonic()
    with World(f"a mesh of {nodes}") as world:
        tap = Tap()
        world.trace = world.network.trace = tap
        found: Measured = world.run(_grow(world, tap, nodes, wants))
    return msgspec.structs.replace(found, seconds=monotonic() - begin)


async def _grow(world: World, tap: Tap, count: int, wants: int) -> Measured:
    names = [f"b{number}" for number in range(count)]
    urls = [f"{SCHEME}://{name}:{PORT}" for name in names]
    nodes = [
        world.add_node(name, Settings(), stores=False, cluster=busway.Cluster(name="sim", servers=urls[:1]))
        for name in names
    ]
    for here, there in permutations(names, 2):
        world.network.block(here, there)
    asked, more = [asyncio.Event() for _ in nodes], [asyncio.Event() for _ in nodes]
    later = asyncio.Event()
    for number, node in enumerate(nodes):
        world.start(node)
        await node.up.wait()
        client = _Client(node, patterns(number, wants), asked[number], later, more[number])
        world.launch(f"c{number}", f"c{number}", client.main)
    for event in asked:
        await event.wait()
    world.network.heal()
    async with asyncio.timeout(_LINKED):
        while not all(_knows(node, count, wants) for node in nodes):  # noqa: ASYNC110 - they are asked from outside
            await asyncio.sleep(0.05)
    first, members, said = (tap.most(kind) for kind in ("interest", "members", "all"))
    later.set()
    for event in more:
        await event.wait()
    await asyncio.sleep(1.0)  # the last word is on its way
    server = nodes[-1].server
    assert server is not None
    seen = Known(server.guid, 1 << 62, "sim", names[-1], (urls[-1],), 1 << 62)
    return Measured(
        nodes=count,
        links=max(_stats(node)["links"] for node in nodes),
        wants=wants,
        first=first,
        later=tap.most("interest") - first,
        members=members,
        sighting=len(pack_sightings([Sighting(seen, linked=True)])) - 1,
        said=said,
        seconds=0.0,
    )


class _Client:
    """Wants something at once, and one thing more when it is told so."""

    def __init__(
        self, node: Node, wanted: list[str], asked: asyncio.Event, later: asyncio.Event, done: asyncio.Event
    ) -> None:
        self._node, self._wanted = node, wanted
        self._asked, self._later, self._done = asked, later, done

    async def main(self) -> None:
        async with busway.connect(self._node.url, learn=False) as bus:
            wanted = [await bus.subscribe(pattern) for pattern in self._wanted]
            self._asked.set()
            await self._later.wait()
            async with bus.subscribe(MORE, wait="cluster"):
                pass
            self._done.set()
            await asyncio.get_running_loop().create_future()
            del wanted


def _stats(node: Node) -> dict[str, int]:
    assert node.server is not None
    return node.server.stats()


def _knows(node: Node, nodes: int, wants: int) -> bool:
    """Whether it is linked to all, and has heard what all of their clients want."""
    stats = _stats(node)
    return stats["links"] == nodes - 1 and stats["subscriptions"] == nodes * wants
