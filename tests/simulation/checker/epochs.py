"""Checks that no message of a channel is acknowledged under two epochs, and that in the end each stream has one owner.

The checker observes the acknowledgements that the brokers of a world confirm. Only those count for which the broker
waited for its mirror: an acknowledgement at the level `written` is promised by one node only.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from busway.broker.channels.acks import Acks
from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.frames import Entry, What
from busway.broker.channels.state.consumers import Who
from busway.broker.channels.state.progress import Span
from busway.cluster.mesh import Mesh
from busway.testing.simulation.world import Node, World

_FINAL: Final = {What.ACK}


class Place(NamedTuple):
    """A message of a channel: the node that stored it, its stream, its offset, and the channel."""

    part: str
    stream: str
    offset: int
    channel: str


class Confirmed(NamedTuple):
    """A confirmed acknowledgement: the epoch and the node that confirmed it."""

    epoch: int
    node: str


class Epochs:
    """The acknowledgements of all brokers of a world, while it is entered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[tuple[Acks, Who, int], tuple[ChannelDriver, list[Span]]] = {}
        """Acknowledgements that are not confirmed yet."""
        self._confirmed: dict[Place, Confirmed] = {}
        self._twice: list[str] = []

    def __enter__(self) -> Self:
        epochs, acknowledge, answer = self, Acks.acknowledge, Acks._answer
        self._before = acknowledge, answer

        def acknowledging(acks: Acks, consumer: Who, driver: ChannelDriver, call: int, entries: list[Entry]) -> None:
            spans = [(entry.start, entry.many) for entry in entries if entry.what in _FINAL]
            epochs._open[acks, consumer, call] = driver, spans
            acknowledge(acks, consumer, driver, call, entries)

        def answering(acks: Acks, consumer: Who, call: int, good: int, left: list[Span]) -> None:
            if (found := epochs._open.pop((acks, consumer, call), None)) is not None:
                epochs._confirm(acks._runtime.guid, *found, left)
            answer(acks, consumer, call, good, left)

        Acks.acknowledge, Acks._answer = acknowledging, answering  # type: ignore[method-assign, assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Acks.acknowledge, Acks._answer = self._before  # type: ignore[method-assign]

    def _confirm(self, guid: str, driver: ChannelDriver, spans: list[Span], late: list[Span]) -> None:
        stream, part = driver.stream, driver.stream.copied or guid
        node = next(node for node in self._world.nodes.values() if node.server is not None and node.server.guid == guid)
        if stream.config.safety != "mirrored" or (part == guid and not stream.mirrored):
            return
        now = Confirmed(epoch_of(node.hub, part), node.name)
        unconfirmed = set(_offsets(late))
        for offset in set(_offsets(spans)) - unconfirmed:
            place = Place(part, stream.name, offset, driver.name)
            before = self._confirmed.setdefault(place, now)
            if before != now:
                self._twice.append(
                    f"offset {offset} of {part[:8]} is acknowledged under the epoch {before.epoch} at {before.node},"
                    f" and under the epoch {now.epoch} at {now.node}"
                )

    def problems(self) -> list[str]:
        """Messages that were acknowledged under two epochs."""
        return self._twice


def _offsets(spans: Sequence[Span]) -> Iterator[int]:
    return (offset for start, count in spans for offset in range(start, start + count))


def epoch_of(hub: Any, part: str) -> int:
    """The epoch under which a broker delivers from the channels of a node."""
    return int(hub.peers.members.promotion.owners.get(part).epoch)


def owners_of(nodes: Sequence[Node]) -> Iterator[str]:
    """Find streams that two nodes own, and nodes that still own streams of which another node has been promoted."""
    owners: dict[str, str] = {}
    for node in nodes:
        mesh = node.hub.peers.members
        assert isinstance(mesh, Mesh), "the node is in a cluster"
        for part in (node.hub.guid, *mesh.promotion.held):
            if part in owners:
                yield f"{node.name} and {owners[part]} own the streams of {part[:8]}"
            owners[part] = node.name
    for node in nodes:
        mesh = node.hub.peers.members
        assert isinstance(mesh, Mesh), "the node is in a cluster"
        for known in mesh.promotion.owners.known:
            if known.guid in owners and owners[known.guid] != next(
                (o.name for o in nodes if o.hub.guid == known.owner), ""
            ):
                yield f"{owners[known.guid]} owns the streams of {known.guid[:8]}, and {node.name} knows another owner"
