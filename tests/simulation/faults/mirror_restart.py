"""The fault that restarts a mirror while it has taken over from its node; the fault injector calls it.

The mirror should continue to deliver until the node is back.
"""

import asyncio
from typing import Final

from busway.cluster.mesh import Mesh
from busway.testing.simulation.world import Node, World
from tests.simulation.checker.final_read import until

_TAKES: Final = 30.0
"""Seconds within which a mirror takes over, if it does."""
_LOOKS: Final = 1000
"""How often to check for unacknowledged messages. Without them the mirror would have nothing to deliver."""
_LOOK: Final = 0.002
"""Seconds between these checks."""


async def restart_mirror(world: World, node: Node, mirror: Node, lasts: float) -> bool:
    """Kill the node, then its mirror after the take-over; restart the mirror, then the node.

    Return True if the mirror was killed after a take-over.
    """
    for _ in range(_LOOKS):
        if has_unacknowledged(node):
            break
        await asyncio.sleep(_LOOK)
    guid = node.guid
    if not world.crash(node):
        return False  # another fault killed it, and will restart it
    killed = False
    if await until(lambda: has_taken_over(mirror, guid), _TAKES):
        await asyncio.sleep(lasts / 2)
        killed = has_taken_over(mirror, guid) and world.crash(mirror)
        await asyncio.sleep(lasts / 2)
        world.start(mirror)
        await until(lambda: has_taken_over(mirror, guid), _TAKES)
        await asyncio.sleep(lasts)
    world.start(node)
    return killed


def has_taken_over(mirror: Node, guid: str) -> bool:
    """True if the mirror delivers from the channels of the node with this guid."""
    nodes = mirror.hub.peers.members if mirror.up.is_set() else None
    return isinstance(nodes, Mesh) and guid in nodes.ownership.figures()["stands_in_for"]


def has_unacknowledged(node: Node) -> bool:
    """True if a channel of the node's own streams has unacknowledged messages."""
    if not node.up.is_set():
        return False
    hub = node.hub
    own = [hub.channels.channels.get(stream.number, {}) for stream in hub.streams.by_name.values()]
    return any(driver.machine.floor < driver.stream.safe for channels in own for driver in channels.values())
