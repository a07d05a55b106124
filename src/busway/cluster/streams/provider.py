"""Serves this node's streams and replicas to other nodes: announces them, and answers reads of their records.

An answer is sent after all live messages stored before it, and before those stored later. So a reader that has reached
the end gets every following message live.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from busway._core import Block, Selection, encode_records
from busway.broker.streams.stream import Stream
from busway.cluster.links.calls import Calls
from busway.cluster.node import Node
from busway.cluster.protocol import SELF, NodeProtocolHandler
from busway.cluster.streams.messages import ANNOUNCE, FIND, READ, Fetch, Fetched, Locate, Located, Part, Parts
from busway.common import environment
from busway.errors import Code, Rejected
from busway.settings import MiB

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime
    from busway.broker.streams.table import StreamTable

log = logging.getLogger("busway.cluster")

_AHEAD: Final = 4 * MiB
"""Bytes that may wait in the outbox of a link before it gets more answers."""
_HEAD: Final = 100
"""Bytes of an answer besides its records at most."""
_MOMENT: Final = 2**63 - 1
_SOON: Final = 0.05
"""Seconds until the next check whether records are written."""
_SELECTIONS: Final = 1024


@dataclass(slots=True, eq=False)
class _Reads:
    """The reads over one link: one begins after the other."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    room: asyncio.Event = field(default_factory=asyncio.Event)


class StreamProvider(NodeProtocolHandler):
    """The streams and replicas of one node, for other nodes."""

    def __init__(
        self,
        runtime: "Runtime",
        table: "StreamTable",
        calls: Calls,
        copies: Callable[[], Mapping[tuple[str, str], Stream]],
    ) -> None:
        self._runtime = runtime
        self._table = table
        self._calls = calls
        self._copies = copies
        """The replicas of other nodes' streams."""
        self._reads: defaultdict[int, _Reads] = defaultdict(_Reads)
        self._selections: dict[tuple[str, bytes], Selection] = {}
        calls.serve(READ, self._read)
        calls.serve(FIND, self._find)

    # Announcements.

    def opened(self, conn: int, node: Node) -> None:  # noqa: ARG002 - every node gets the list
        own = [self._part(self._runtime.guid, stream) for stream in self._table.by_name.values()]
        copies = [self._part(guid, stream) for (guid, _), stream in self._copies().items()]
        self._calls.tell(conn, ANNOUNCE, Parts((*own, *copies), whole=True))

    def start(self) -> None:
        """Announce replicas that existed before the start."""
        for (guid, _), stream in self._copies().items():
            self.copied(guid, stream)

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        if (reads := self._reads.pop(conn, None)) is not None:
            reads.room.set()

    def changed(self, stream: Stream, *, there: bool = True) -> None:
        """A stream was created, changed or removed."""
        self._announce(self._part(self._runtime.guid, stream, there=there))

    def copied(self, guid: str, stream: Stream, *, there: bool = True) -> None:
        """The replica of another node's stream was created, changed or removed."""
        self._announce(self._part(guid, stream, there=there))

    def _announce(self, part: Part) -> None:
        for conn in (SELF, *self._calls.nodes):
            self._calls.tell(conn, ANNOUNCE, Parts((part,)))

    def _part(self, guid: str, stream: Stream, *, there: bool = True) -> Part:
        return Part(guid, stream.name, stream.config.topics, stream.config.former, there)

    # Requests.

    def room(self, conn: int) -> None:
        if (reads := self._reads.get(conn)) is not None:
            reads.room.set()

    async def _turn(self, conn: int) -> None:
        """Wait until earlier reads of the link have begun, and its outbox has room."""
        reads, engine = self._reads[conn], self._runtime.engine
        async with reads.turn:
            await asyncio.sleep(0)  # reads of other links come in between
            while self._reads.get(conn) is reads and conn in self._calls.nodes and engine.pending(conn) >= _AHEAD:
                reads.room.clear()
                engine.want_room(conn)
                await reads.room.wait()

    def _stream(self, guid: str, name: str) -> Stream:
        if guid == self._runtime.guid and (stream := self._table.by_name.get(name)) is not None:
            return stream
        if (copy := self._copies().get((guid, name))) is not None:
            return copy
        raise Rejected(f"there is no stream {name!r} of node {guid}", code=Code.NO_STREAM)

    async def _read(self, conn: int, request: Fetch) -> Fetched:
        await self._turn(conn)
        runtime, stream = self._runtime, self._stream(request.guid, request.name)
        selection = self._selection(request.pattern, request.rules)
        await stream.readable()
        begin = min(request.offset, stream.safe)
        if begin >= stream.first:
            begin = min(max(stream.skip(begin, selection), begin), stream.safe)
        first, following, records = await stream.fetch(begin, request.most)  # the last wait before the answer
        following = max(following, first)
        if request.guid == runtime.guid and runtime.engine.delivered(stream.number) < following:
            # More records may have become safe during the read: send them live now, so that none is lost.
            runtime.handle(runtime.engine.commit(stream.number))
        gone = min(first, begin)
        chosen = _chosen(records, begin, selection)
        end = following >= stream.safe
        if end and request.guid == runtime.guid and following < runtime.engine.delivered(stream.number):
            # Records restored from the mirror are not all written yet. They will not be sent live.
            end = False
            if not chosen:
                await asyncio.sleep(_SOON)
                return await self._read(conn, request)
        if len(chosen) > self._calls.limit(conn) - _HEAD:
            if request.most > 1:  # the last record alone may be too long
                return await self._read(conn, msgspec.structs.replace(request, most=1))
            text = "stream %r: skipped a message of %d bytes, which is too long for another node"
            log.warning(text, stream.name, len(chosen))
            return Fetched(begin, following, max(following, request.offset), end, b"")
        return Fetched(gone, first, max(following, self._position(request, stream)), end, chosen)

    def _position(self, request: Fetch, stream: Stream) -> int:
        """The offset that the reader has reached. If the stream lost its end for good, its offsets are used again."""
        lost = request.guid == self._runtime.guid and not stream.awaited
        return min(request.offset, stream.log.next) if lost else request.offset

    async def _find(self, _: int, request: Locate) -> Located:
        stream = self._stream(request.guid, request.name)
        if request.kind == "new":
            return Located(stream.safe)
        if request.kind == "offset":
            place = max(request.value, stream.first)
            # A replica may lag behind its stream, and a stream behind the end that it will restore.
            whole = request.guid == self._runtime.guid and not stream.awaited
            return Located(min(place, stream.safe) if whole else place)
        if request.kind != "time":
            raise Rejected(f"unknown start position {request.kind!r}", code=Code.INVALID_SETTING)
        return Located(await stream.find_time(min(max(request.value, 0), _MOMENT)))

    def _selection(self, pattern: str, rules: bytes) -> Selection:
        if (selection := self._selections.get((pattern, rules))) is None:
            if len(self._selections) >= _SELECTIONS:
                self._selections.clear()
            selection = self._selections[pattern, rules] = Selection(pattern, rules)
        return selection


def _chosen(records: bytes, begin: int, selection: Selection) -> bytes:
    """The block reduced to the matching records, if these are less than half of it."""
    block = Block(records)
    spans = block.find(begin, selection, "", environment.time_ns())
    if 2 * sum(count for _, count in spans) >= len(block):
        return records
    rows = (block.get(offset) for start, count in spans for offset in range(start, start + count))
    return encode_records([row for row in rows if row is not None])
