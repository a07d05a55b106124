"""Where the messages of a client are that came from another node with publishes that were not answered: asked of the nodes.

A driver. A node tells of what it has stored itself, and of what it has copies of. One that is asked about a client of its own lets go of it first: the
client is elsewhere, and nothing that is still on the way here may be stored after the answer. So what the node itself does not have is nowhere; what its
mirror does not have the node may have stored all the same, before it died, slept or was cut off.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from busway.broker.peers import Placements
from busway.broker.streams.stream import Stream
from busway.cluster.node import Node
from busway.cluster.protocol import PLACE, PLACED, NodeProtocolHandler
from busway.cluster.streams.messages import Place, Placed, Run, read
from busway.errors import BusError

if TYPE_CHECKING:
    from busway.broker.hub import Hub

PATIENCE: Final = 2.0
"""Seconds after which nobody waits for an answer any more."""
_HERE: Final = -1
_LOOK: Final = 0.02
"""Seconds between two looks whether what was stored is safe by now."""


@dataclass(slots=True)
class _Asking:
    """A question that is under way."""

    owners: set[str]
    """The nodes that it is about, as far as they have not answered."""
    left: dict[int, str]
    """Links that have not answered, and to whom they are."""
    over: "asyncio.Future[None]"
    guids: set[str] = field(default_factory=set)
    sure: set[str] = field(default_factory=set)
    """Nodes that have told of themselves."""
    runs: list[Run] = field(default_factory=list)

    def heard(self, conn: int, said: Placed) -> None:
        self.guids.update(said.guids)
        self.runs += said.runs
        owner = self.left.get(conn, "")
        if owner in said.guids:
            self.sure.add(owner)
        self.owners.discard(owner)
        self.gone(conn)

    def gone(self, conn: int) -> None:
        """Nothing more comes from there. A node that has answered knows best what it has; for one that can't, anybody may."""
        self.left.pop(conn, None)
        if not (self.owners and self.left) and not self.over.done():
            self.over.set_result(None)


class PublishLookup(NodeProtocolHandler):
    """The questions of one node, and its answers."""

    kinds = frozenset({PLACE, PLACED})

    def __init__(self, hub: "Hub", copies: Callable[[], Mapping[tuple[str, str], Stream]]) -> None:
        self._hub = hub
        self._copies = copies
        self._links: dict[int, str] = {}
        self._asking: dict[int, _Asking] = {}
        self._last = 0

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn] = node.guid

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - at whatever time
        self._links.pop(conn, None)
        for asking in self._asking.values():
            asking.gone(conn)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        if kind == PLACE:
            self._answer(conn, number, read(Place, body), self._hub.loop.time() + PATIENCE)
            return
        said = read(Placed, body)
        if (asking := self._asking.get(number)) is not None and conn in asking.left:
            asking.heard(conn, said)

    async def find(self, question: Place, within: float) -> Placements:
        """What is known of it here and at other nodes, in so many seconds."""
        hub = self._hub
        asking = _Asking(set(question.guids), self._links.copy(), hub.loop.create_future())
        if (here := self._look(question)) is not None:
            asking.heard(_HERE, here)
        self._last += 1
        number, packed = self._last, question.pack()
        self._asking[number] = asking
        for conn in self._links:
            hub.engine.node(conn, PLACE, number, packed)
        hub.flush()
        try:
            if self._links:
                await asyncio.wait([asking.over], timeout=within)
        finally:
            del self._asking[number]
        asked = question.guids
        runs = [msgspec.structs.astuple(run) for run in asking.runs]
        return Placements(asking.guids.intersection(asked), asking.sure.intersection(asked), runs)

    def _answer(self, conn: int, number: int, question: Place, until: float) -> None:
        """As soon as all that is stored is safe; too late, and nobody waits any more."""
        if conn not in self._links:
            return
        said = self._look(question)
        if said is not None:
            self._hub.engine.node(conn, PLACED, number, said.pack())
            self._hub.flush()
        elif self._hub.loop.time() < until:
            self._hub.loop.call_later(_LOOK, self._answer, conn, number, question, until)

    def _look(self, question: Place) -> Placed | None:
        """What this node can tell; None: not yet."""
        hub = self._hub
        known, failed, runs = set[str](), set[str](), list[Run]()
        parts = [(guid, stream) for (guid, _), stream in self._copies().items() if guid in question.guids]
        if hub.guid in question.guids:
            known.add(hub.guid)
            if (session := hub.present.get(question.session)) is not None:
                session.abort()
            parts += [(hub.guid, stream) for stream in hub.streams.by_name.values()]
        for guid, stream in parts:
            try:
                found = [
                    one for first, count in question.runs for one in stream.log.placed(question.session, first, count)
                ]
            except BusError:  # it is closed, or can't be read
                failed.add(guid)
                continue
            if any(offset >= stream.safe for _, offset, _ in found):
                return None
            known.add(guid)
            runs += _runs(guid, stream.name, found)
        return Placed(tuple(sorted(known - failed)), tuple(runs))


def _runs(guid: str, stream: str, found: Iterable[tuple[int, int, int]]) -> Iterator[Run]:
    """Those that follow each other in all three, as one."""
    begin, count = (0, 0, 0), 0
    for one in found:
        if count and one == (begin[0] + count, begin[1] + count, begin[2] + count):
            count += 1
            continue
        if count:
            yield Run(guid, stream, begin[0], count, *begin[1:])
        begin, count = one, 1
    if count:
        yield Run(guid, stream, begin[0], count, *begin[1:])
