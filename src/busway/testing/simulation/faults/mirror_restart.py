"""A mirror that is killed and started again while it stands in for its node: it should go on, until the node is back."""

import asyncio
from typing import TYPE_CHECKING, Final

from busway.cluster.mesh import Mesh
from busway.testing.simulation.checker.final_read import until
from busway.testing.simulation.kit.world import Node, World

if TYPE_CHECKING:
    from busway.broker.hub import Hub

_TAKES: Final = 30.0
"""Seconds in which a mirror has begun to stand in, if it ever does."""
_LOOKS: Final = 1000
_LOOK: Final = 0.002
"""So often, and after so many seconds each, it is seen whether the node has something that is not done: else its mirror has nothing to hand out."""


async def restarted(world: World, node: Node, mirror: Node, lasts: float) -> bool:
    """The node is killed, then its mirror, as soon as that stands in; the node comes back when the mirror goes on. Whether it came to that."""
    for _ in range(_LOOKS):
        if undone(node):
            break
        await asyncio.sleep(_LOOK)
    guid = node.guid
    if not world.crash(node):
        return False  # whoever did that has it come back
    stood = False
    if await until(lambda: stands_in(mirror, guid), _TAKES):
        await asyncio.sleep(lasts / 2)
        stood = stands_in(mirror, guid) and world.crash(mirror)
        await asyncio.sleep(lasts / 2)
        world.start(mirror)
        await until(lambda: stands_in(mirror, guid), _TAKES)
        await asyncio.sleep(lasts)
    world.start(node)
    return stood


def stands_in(mirror: Node, guid: str) -> bool:
    """Whether it hands out of the channels of the node with this guid."""
    nodes = None if (hub := _hub(mirror)) is None else hub.peers.members
    return isinstance(nodes, Mesh) and guid in nodes.turns.figures()["stands_in_for"]


def undone(node: Node) -> bool:
    """Whether a channel of its own streams has something that is not acknowledged."""
    if (hub := _hub(node)) is None:
        return False
    own = [hub.channels.channels.get(stream.number, {}) for stream in hub.streams.by_name.values()]
    return any(handing.machine.floor < handing.stream.safe for channels in own for handing in channels.values())


def _hub(node: Node) -> "Hub | None":
    if node.server is None or not node.up.is_set():
        return None
    return node.server._running()  # noqa: SLF001, who looks into nodes has to open them
