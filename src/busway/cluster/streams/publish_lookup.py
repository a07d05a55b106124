"""Finds publishes that a client sent to another node without an answer, by asking the nodes that may have stored them.

`peers` calls it when a client moves to this node. A node answers for its own streams and for its replicas. It first
aborts the client's old session, so it stores no publish of the client after its answer. A publish that the owner does
not have is not stored. One that only its mirror lacks may still be stored at the owner.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from busway.broker.peers import Placements
from busway.broker.streams.stream import Stream
from busway.cluster.links.calls import Calls
from busway.cluster.protocol import SELF
from busway.cluster.streams.messages import LOOK_UP, Place, Placed, Run
from busway.errors import BusError, StoreFailed

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime
    from busway.broker.streams.table import StreamTable

PATIENCE: Final = 2.0
"""Seconds after which an answer is too late."""
_LOOK: Final = 0.02
"""Seconds between two checks whether stored records are safe."""


@dataclass(slots=True)
class _Lookup:
    """A lookup in progress."""

    owner_of: Callable[[str], str]
    """The node that owns the streams of another one."""
    owners: set[str]
    """The nodes in question whose owners have not answered."""
    left: dict[int, str]
    """The links that have not answered, and the guids of their nodes."""
    done: "asyncio.Future[None]"
    guids: set[str] = field(default_factory=set)
    sure: set[str] = field(default_factory=set)
    """Nodes whose owners have answered."""
    runs: list[Run] = field(default_factory=list)

    def received(self, conn: int, answer: Placed | BusError) -> None:
        """A link has answered, or can't. Without an owner's answer the lookup waits for all links."""
        owner = self.left.pop(conn, "")
        if isinstance(answer, Placed):
            self.guids.update(answer.guids)
            self.runs += answer.runs
            sure = {guid for guid in answer.guids if self.owner_of(guid) == owner}
            self.sure |= sure
            self.owners -= sure
        if not (self.owners and self.left) and not self.done.done():
            self.done.set_result(None)


class PublishLookup:
    """The lookups of one node, and its answers to other nodes."""

    def __init__(
        self,
        runtime: "Runtime",
        table: "StreamTable",
        calls: Calls,
        copies: Callable[[], Mapping[tuple[str, str], Stream]],
        owner_of: Callable[[str], str],
    ) -> None:
        self._owner_of = owner_of
        self._runtime = runtime
        self._table = table
        self._calls = calls
        self._copies = copies
        calls.serve(LOOK_UP, self._answer)

    async def find(self, question: Place, within: float) -> Placements:
        """Look up publishes here and at the other nodes. Waits `within` seconds at most."""
        nodes = self._calls.nodes
        left = {SELF: self._runtime.guid} | {conn: node.guid for conn, node in nodes.items()}
        lookup = _Lookup(self._owner_of, set(question.guids), left, self._runtime.loop.create_future())
        here = self._look(question)
        lookup.received(SELF, StoreFailed("not safe yet") if here is None else here)
        open_calls = [self._calls.send(conn, LOOK_UP, question, partial(lookup.received, conn)) for conn in nodes]
        self._runtime.flush()
        try:
            if open_calls:
                await asyncio.wait([lookup.done], timeout=within)
        finally:
            for call in open_calls:
                call.cancel()
        asked = question.guids
        runs = [msgspec.structs.astuple(run) for run in lookup.runs]
        return Placements(lookup.guids.intersection(asked), lookup.sure.intersection(asked), runs)

    async def _answer(self, _: int, question: Place) -> Placed:
        """Answer as soon as all stored records are safe, unless the time is over."""
        until = self._runtime.loop.time() + PATIENCE
        while (answer := self._look(question)) is None:
            if self._runtime.loop.time() >= until:
                raise StoreFailed("the stored messages are not safe yet")
            await asyncio.sleep(_LOOK)
        return answer

    def _look(self, question: Place) -> Placed | None:
        """The answer of this node; None: not all stored records are safe yet."""
        own = self._runtime.guid
        known, failed, runs = set[str](), set[str](), list[Run]()
        parts = [(guid, stream) for (guid, _), stream in self._copies().items() if guid in question.guids]
        if own in question.guids:
            known.add(own)
            if (session := self._runtime.present.get(question.session)) is not None:
                session.abort()
            parts += [(own, stream) for stream in self._table.by_name.values()]
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
