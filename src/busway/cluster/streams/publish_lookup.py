"""Finds publishes that a client sent to another node without an answer, by asking the nodes that may have stored them.

`peers` calls it when a client moves to this node. A node answers for its own streams and for its replicas. It first
aborts the client's old session, so it stores no publish of the client after its answer. A publish that the owner does
not have is not stored. One that only its mirror lacks may still be stored at the owner.
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
"""Seconds after which an answer is too late."""
_HERE: Final = -1
_LOOK: Final = 0.02
"""Seconds between two checks whether stored records are safe."""


@dataclass(slots=True)
class _Lookup:
    """A lookup in progress."""

    owners: set[str]
    """The nodes in question that have not answered."""
    left: dict[int, str]
    """The links that have not answered, and the guids of their nodes."""
    done: "asyncio.Future[None]"
    guids: set[str] = field(default_factory=set)
    sure: set[str] = field(default_factory=set)
    """Nodes that have answered for their own streams."""
    runs: list[Run] = field(default_factory=list)

    def heard(self, conn: int, answer: Placed) -> None:
        self.guids.update(answer.guids)
        self.runs += answer.runs
        owner = self.left.get(conn, "")
        if owner in answer.guids:
            self.sure.add(owner)
        self.owners.discard(owner)
        self.gone(conn)

    def gone(self, conn: int) -> None:
        """No more answers come over this link. Without an owner's answer the lookup waits for all links."""
        self.left.pop(conn, None)
        if not (self.owners and self.left) and not self.done.done():
            self.done.set_result(None)


class PublishLookup(NodeProtocolHandler):
    """The lookups of one node, and its answers to other nodes."""

    kinds = frozenset({PLACE, PLACED})

    def __init__(self, hub: "Hub", copies: Callable[[], Mapping[tuple[str, str], Stream]]) -> None:
        self._hub = hub
        self._copies = copies
        self._links: dict[int, str] = {}
        self._lookups: dict[int, _Lookup] = {}
        self._last = 0

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn] = node.guid

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - at whatever time
        self._links.pop(conn, None)
        for lookup in self._lookups.values():
            lookup.gone(conn)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        if kind == PLACE:
            self._answer(conn, number, read(Place, body), self._hub.loop.time() + PATIENCE)
            return
        answer = read(Placed, body)
        if (lookup := self._lookups.get(number)) is not None and conn in lookup.left:
            lookup.heard(conn, answer)

    async def find(self, question: Place, within: float) -> Placements:
        """Look up publishes here and at the other nodes. Waits `within` seconds at most."""
        hub = self._hub
        lookup = _Lookup(set(question.guids), self._links.copy(), hub.loop.create_future())
        if (here := self._look(question)) is not None:
            lookup.heard(_HERE, here)
        self._last += 1
        number, packed = self._last, question.pack()
        self._lookups[number] = lookup
        for conn in self._links:
            hub.engine.node(conn, PLACE, number, packed)
        hub.flush()
        try:
            if self._links:
                await asyncio.wait([lookup.done], timeout=within)
        finally:
            del self._lookups[number]
        asked = question.guids
        runs = [msgspec.structs.astuple(run) for run in lookup.runs]
        return Placements(lookup.guids.intersection(asked), lookup.sure.intersection(asked), runs)

    def _answer(self, conn: int, number: int, question: Place, until: float) -> None:
        """Answer as soon as all stored records are safe, unless the time is over."""
        if conn not in self._links:
            return
        answer = self._look(question)
        if answer is not None:
            self._hub.engine.node(conn, PLACED, number, answer.pack())
            self._hub.flush()
        elif self._hub.loop.time() < until:
            self._hub.loop.call_later(_LOOK, self._answer, conn, number, question, until)

    def _look(self, question: Place) -> Placed | None:
        """The answer of this node; None: not all stored records are safe yet."""
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
                    entry
                    for first, count in question.runs
                    for entry in stream.log.placed(question.session, first, count)
                ]
            except BusError:  # the log is closed, or can't be read
                failed.add(guid)
                continue
            if any(offset >= stream.safe for _, offset, _ in found):
                return None
            known.add(guid)
            runs += _runs(guid, stream.name, found)
        return Placed(tuple(sorted(known - failed)), tuple(runs))


def _runs(guid: str, stream: str, found: Iterable[tuple[int, int, int]]) -> Iterator[Run]:
    """Join entries whose number, offset and sequence are consecutive into runs."""
    begin, count = (0, 0, 0), 0
    for entry in found:
        if count and entry == (begin[0] + count, begin[1] + count, begin[2] + count):
            count += 1
            continue
        if count:
            yield Run(guid, stream, begin[0], count, *begin[1:])
        begin, count = entry, 1
    if count:
        yield Run(guid, stream, begin[0], count, *begin[1:])
