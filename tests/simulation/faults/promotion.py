"""The faults in which an operator promotes the mirror of a node that is down or isolated; the fault injector calls them."""

import asyncio
from typing import Final

import msgspec

import busway
from busway.cluster.mesh import Mesh
from busway.errors import BusError
from busway.testing.simulation.world import Node, World
from tests.simulation.checker.final_read import until

_LOOKS: Final = 1000
"""How often to check for unacknowledged messages. Without them the mirror would have nothing to deliver."""
_LOOK: Final = 0.002
"""Seconds between these checks."""
_TRIES: Final = 30
"""How often the operator asks, a second apart."""


async def await_work(node: Node) -> None:
    """Wait until a channel of the node has unacknowledged messages, but not for long."""
    for _ in range(_LOOKS):
        if has_unacknowledged(node):
            return
        await asyncio.sleep(_LOOK)


async def promote(world: World, mirror: Node, guid: str) -> bool:
    """Promote the mirror in place of the node with this guid, unless the copy is incomplete."""
    over = asyncio.Event()
    promoted: list[bool] = []

    async def operate() -> None:
        question = msgspec.json.encode({"node": guid})
        for _ in range(_TRIES):
            try:
                async with busway.connect(mirror.url, name="operator", timeout=1.0, reconnect=None) as bus:
                    await bus.request("$bus/cluster/promote", question, timeout=10.0)
                promoted.append(True)
                break
            except BusError as error:
                world.trace.add(f"no promotion: {error}")
            await asyncio.sleep(1.0)
        over.set()

    world.launch(f"operator at {world.loop.time()}", "operator", operate)
    await over.wait()
    # The answer of a mirror that was killed just then is lost.
    return bool(promoted) or owns(mirror, guid)


def owns(node: Node, guid: str) -> bool:
    """True if a node owns the streams of the node with this guid."""
    nodes = node.hub.peers.members if node.up.is_set() and node.serves else None
    return isinstance(nodes, Mesh) and nodes.promotion.owners.get(guid).owner == node.guid != guid


async def isolated(mirror: Node, guid: str) -> bool:
    """Wait until the mirror has no link to the node. Return False if it is not linked to it any more otherwise."""
    return await until(lambda: mirror.up.is_set() and mirror.serves and guid not in _linked(mirror), 30.0)


def _linked(node: Node) -> dict[str, int]:
    nodes = node.hub.peers.members
    return nodes.members.linked if isinstance(nodes, Mesh) and nodes.links.started else {}


def has_unacknowledged(node: Node) -> bool:
    """True if a channel of the node's own streams has unacknowledged messages."""
    if not node.up.is_set() or not node.serves:
        return False
    hub = node.hub
    own = [hub.channels.channels.get(stream.number, {}) for stream in hub.streams.by_name.values()]
    return any(driver.machine.floor < driver.stream.safe for channels in own for driver in channels.values())
