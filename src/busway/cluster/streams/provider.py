"""Serves this node's streams and replicas to other nodes: announces them, and answers reads of their records.

`links` calls it for frames. An answer is sent after all live messages stored before it, and before those
stored later. So a reader that has reached the end gets every following message live.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from busway._core import Block, Selection, encode_records
from busway.broker.streams.stream import Stream
from busway.cluster.node import Node, Stranger
from busway.cluster.protocol import FETCH, FETCHED, LOCATE, LOCATED, PARTS, SELF, NodeProtocolHandler
from busway.cluster.streams.messages import Fetch, Fetched, Locate, Located, Message, Part, Parts, read
from busway.common import environment
from busway.errors import BusError, Code, Rejected
from busway.settings import KiB, MiB

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")

_AHEAD: Final = 4 * MiB
"""Bytes that may wait in the outbox of a link before it gets more answers."""
_MOST: Final = 65_536
"""Requests of one node that may wait."""
_TURN: Final = 8
"""Requests that are answered before the next link has its turn."""
_LONGER: Final = 500 * KiB
"""Approximate bytes by which frames of a link may exceed those of clients."""
_MOMENT: Final = 2**63 - 1
_SOON: Final = 0.05
"""Seconds until the next check whether records are written."""
_SELECTIONS: Final = 1024


class StreamProvider(NodeProtocolHandler):
    """The streams and replicas of one node, for other nodes."""

    kinds = frozenset({FETCH, LOCATE})

    def __init__(
        self,
        hub: "Hub",
        copies: Callable[[], Mapping[tuple[str, str], Stream]],
        here: Callable[[int, int, Message], None],
    ) -> None:
        self._hub = hub
        self._copies = copies
        """The replicas of other nodes' streams."""
        self._here = here
        """Receives the answers for clients of this node."""
        self._links: dict[int, deque[tuple[int, Fetch | Locate]]] = {SELF: deque()}
        self._most: dict[int, int] = {}
        """The longest frame that the node of a link accepts."""
        self._scheduled: set[int] = set()
        self._selections: dict[tuple[str, bytes], Selection] = {}

    # Announcements.

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn], self._most[conn] = deque(), node.frame + _LONGER
        own = [self._part(self._hub.guid, stream) for stream in self._hub.streams.by_name.values()]
        copies = [self._part(guid, stream) for (guid, _), stream in self._copies().items()]
        self._hub.engine.node(conn, PARTS, 0, Parts((*own, *copies), whole=True).pack())

    def start(self) -> None:
        """Announce replicas that existed before the start."""
        for (guid, _), stream in self._copies().items():
            self.copied(guid, stream)

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._links.pop(conn, None)
        self._most.pop(conn, None)

    def changed(self, stream: Stream, *, there: bool = True) -> None:
        """A stream was created, changed or removed."""
        self._announce(self._part(self._hub.guid, stream, there=there))

    def copied(self, guid: str, stream: Stream, *, there: bool = True) -> None:
        """The replica of another node's stream was created, changed or removed."""
        part = self._part(guid, stream, there=there)
        self._announce(part)
        self._here(PARTS, 0, Parts((part,)))

    def _announce(self, part: Part) -> None:
        message = Parts((part,)).pack()
        for conn in self._links:
            if conn != SELF:
                self._hub.engine.node(conn, PARTS, 0, message)

    def _part(self, guid: str, stream: Stream, *, there: bool = True) -> Part:
        return Part(guid, stream.name, stream.config.topics, stream.config.former, there)

    # Requests.

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        waiting = self._links[conn]
        if len(waiting) >= _MOST:
            raise Stranger(f"more than {_MOST} requests wait")
        waiting.append((number, read(Fetch, body) if kind == FETCH else read(Locate, body)))
        self._schedule(conn)

    def ask_here(self, number: int, request: Fetch | Locate) -> None:
        """Serve a client of this node from a replica."""
        self._links[SELF].append((number, request))
        self._schedule(SELF)

    def room(self, conn: int) -> None:
        if self._links.get(conn):
            self._schedule(conn)

    def _schedule(self, conn: int) -> None:
        if conn not in self._scheduled:
            self._scheduled.add(conn)
            self._hub.loop.call_soon(self._work, conn)

    def _work(self, conn: int) -> None:
        self._scheduled.discard(conn)
        waiting = self._links.get(conn)
        if waiting is None:
            return
        for _ in range(min(_TURN, len(waiting))):
            if conn != SELF and self._hub.engine.pending(conn) >= _AHEAD:
                self._hub.engine.want_room(conn)
                break
            number, request = waiting.popleft()
            self._answer(conn, number, request)
        else:
            if waiting:
                self._schedule(conn)
        self._hub.flush()

    def _answer(self, conn: int, number: int, request: Fetch | Locate) -> None:
        message: Message | None
        try:
            stream = self._stream(request.guid, request.name)
            if isinstance(request, Fetch):
                message = self._fetch(conn, number, request, stream)
            else:
                message = self._locate(conn, number, request, stream)
        except BusError as error:
            reason = error.reason
            message = Fetched(0, 0, 0, False, b"", reason) if isinstance(request, Fetch) else Located(0, reason)
        if message is not None:
            self._send(conn, number, message)

    def _send(self, conn: int, number: int, message: Message) -> None:
        kind = FETCHED if isinstance(message, Fetched) else LOCATED
        if conn == SELF:
            self._here(kind, number, message)
        elif conn in self._links:
            self._hub.engine.node(conn, kind, number, message.pack(), ordered=kind == FETCHED)

    def _stream(self, guid: str, name: str) -> Stream:
        if guid == self._hub.guid and (stream := self._hub.streams.by_name.get(name)) is not None:
            return stream
        if (copy := self._copies().get((guid, name))) is not None:
            return copy
        raise Rejected(f"there is no stream {name!r} of node {guid}", code=Code.NO_STREAM)

    def _fetch(self, conn: int, number: int, request: Fetch, stream: Stream) -> Fetched | None:
        hub = self._hub
        selection = self._selection(request.pattern, request.rules)
        begin = min(request.offset, stream.safe)
        if begin >= stream.first:
            begin = min(max(stream.skip(begin, selection), begin), stream.safe)
        again = _Retry(self, conn, number, request)
        found = stream.read(begin, request.most, again)
        if found is None:
            return None
        first, following, records = found
        following = max(following, first)
        if request.guid == hub.guid and hub.engine.delivered(stream.number) < following:
            # More records may have become safe during the read: send them live now, so that none is lost.
            hub.handle(hub.engine.commit(stream.number))
        gone = min(first, begin)
        chosen = _chosen(records, begin, selection)
        end = following >= stream.safe
        if end and request.guid == hub.guid and following < hub.engine.delivered(stream.number):
            # Records restored from the mirror are not all written yet. They will not be sent live.
            end = False
            if not chosen:
                hub.loop.call_later(_SOON, self.again, conn, number, request)
                return None
        if len(chosen) > self._most.get(conn, len(chosen)):
            if request.most > 1:  # the last record alone may be too long
                return self._fetch(conn, number, msgspec.structs.replace(request, most=1), stream)
            text = "stream %r: skipped a message of %d bytes, which is too long for another node"
            log.warning(text, stream.name, len(chosen))
            return Fetched(begin, following, max(following, request.offset), end, b"")
        return Fetched(gone, first, max(following, self._position(request, stream)), end, chosen)

    def _position(self, request: Fetch, stream: Stream) -> int:
        """The offset that the reader has reached. If the stream lost its end for good, its offsets are used again."""
        lost = request.guid == self._hub.guid and not stream.awaited
        return min(request.offset, stream.log.next) if lost else request.offset

    def _locate(self, conn: int, number: int, request: Locate, stream: Stream) -> Located | None:
        if request.kind == "new":
            return Located(stream.safe)
        if request.kind == "offset":
            place = max(request.value, stream.first)
            # A replica may lag behind its stream, and a stream behind the end that it will restore.
            whole = request.guid == self._hub.guid and not stream.awaited
            return Located(min(place, stream.safe) if whole else place)
        if request.kind != "time":
            raise Rejected(f"unknown start position {request.kind!r}", code=Code.INVALID_SETTING)
        moment = min(max(request.value, 0), _MOMENT)
        offset = stream.begin_at(moment, lambda found: self._send_located(conn, number, found))
        return None if offset is None else Located(offset)

    def _send_located(self, conn: int, number: int, offset: int) -> None:
        self._send(conn, number, Located(offset))
        self._hub.flush()

    def again(self, conn: int, number: int, request: Fetch) -> None:
        """Answer a request whose records were loaded meanwhile."""
        if (waiting := self._links.get(conn)) is not None:
            waiting.appendleft((number, request))
            self._schedule(conn)

    def _selection(self, pattern: str, rules: bytes) -> Selection:
        if (selection := self._selections.get((pattern, rules))) is None:
            if len(self._selections) >= _SELECTIONS:
                self._selections.clear()
            selection = self._selections[pattern, rules] = Selection(pattern, rules)
        return selection


class _Retry:
    """Callback that repeats a request when its records are loaded."""

    __slots__ = ("_conn", "_number", "_provider", "_request")

    def __init__(self, provider: StreamProvider, conn: int, number: int, request: Fetch) -> None:
        self._provider = provider
        self._conn = conn
        self._number = number
        self._request = request

    def __call__(self) -> None:
        self._provider.again(self._conn, self._number, self._request)


def _chosen(records: bytes, begin: int, selection: Selection) -> bytes:
    """The block reduced to the matching records, if these are less than half of it."""
    block = Block(records)
    spans = block.find(begin, selection, "", environment.time_ns())
    if 2 * sum(count for _, count in spans) >= len(block):
        return records
    rows = (block.get(offset) for start, count in spans for offset in range(start, start + count))
    return encode_records([row for row in rows if row is not None])
