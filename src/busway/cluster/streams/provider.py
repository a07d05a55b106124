"""The streams of this node for others: tells which there are, and gives those who ask what they ask for.

A driver. An answer goes out behind everything that was stored before and is wanted there, and is heard before what follows: so who
has read to the end knows that all else comes by itself.
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
"""Bytes that may wait for a link before it is given more."""
_MOST: Final = 65_536
"""Questions of one node that may wait."""
_TURN: Final = 8
"""Questions that are answered before everybody else has a turn."""
_LONGER: Final = 500 * KiB
"""Bytes that frames of a link may be longer than those of clients, about."""
_MOMENT: Final = 2**63 - 1
_SOON: Final = 0.05
"""Seconds after which it is looked again whether something is written."""
_SELECTIONS: Final = 1024


class StreamProvider(NodeProtocolHandler):
    """What other nodes are given of this one's streams."""

    kinds = frozenset({FETCH, LOCATE})

    def __init__(
        self,
        hub: "Hub",
        copies: Callable[[], Mapping[tuple[str, str], Stream]],
        here: Callable[[int, int, Message], None],
    ) -> None:
        self._hub = hub
        self._copies = copies
        """What is here of other nodes."""
        self._here = here
        """Hears what clients of this node have asked for."""
        self._links: dict[int, deque[tuple[int, Fetch | Locate]]] = {SELF: deque()}
        self._most: dict[int, int] = {}
        """Bytes that the node of a link takes at once."""
        self._planned: set[int] = set()
        self._selections: dict[tuple[str, bytes], Selection] = {}

    # What there is.

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn], self._most[conn] = deque(), node.frame + _LONGER
        own = [self._part(self._hub.guid, stream) for stream in self._hub.streams.by_name.values()]
        copies = [self._part(guid, stream) for (guid, _), stream in self._copies().items()]
        self._hub.engine.node(conn, PARTS, 0, Parts((*own, *copies), whole=True).pack())

    def start(self) -> None:
        """Have those copies known that were there before."""
        for (guid, _), stream in self._copies().items():
            self.copied(guid, stream)

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._links.pop(conn, None)
        self._most.pop(conn, None)

    def changed(self, stream: Stream, *, there: bool = True) -> None:
        """A stream has come, has other topics, or is gone."""
        self._tell(self._part(self._hub.guid, stream, there=there))

    def copied(self, guid: str, stream: Stream, *, there: bool = True) -> None:
        """The same of the copy of another node's stream."""
        part = self._part(guid, stream, there=there)
        self._tell(part)
        self._here(PARTS, 0, Parts((part,)))

    def _tell(self, part: Part) -> None:
        said = Parts((part,)).pack()
        for conn in self._links:
            if conn != SELF:
                self._hub.engine.node(conn, PARTS, 0, said)

    def _part(self, guid: str, stream: Stream, *, there: bool = True) -> Part:
        return Part(guid, stream.name, stream.config.topics, stream.config.former, there)

    # What is asked for.

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        waiting = self._links[conn]
        if len(waiting) >= _MOST:
            raise Stranger(f"{_MOST} questions wait already")
        waiting.append((number, read(Fetch, body) if kind == FETCH else read(Locate, body)))
        self._plan(conn)

    def ask_here(self, number: int, question: Fetch | Locate) -> None:
        """A client of this node wants something of a copy."""
        self._links[SELF].append((number, question))
        self._plan(SELF)

    def room(self, conn: int) -> None:
        if self._links.get(conn):
            self._plan(conn)

    def _plan(self, conn: int) -> None:
        if conn not in self._planned:
            self._planned.add(conn)
            self._hub.loop.call_soon(self._work, conn)

    def _work(self, conn: int) -> None:
        self._planned.discard(conn)
        waiting = self._links.get(conn)
        if waiting is None:
            return
        for _ in range(min(_TURN, len(waiting))):
            if conn != SELF and self._hub.engine.pending(conn) >= _AHEAD:
                self._hub.engine.want_room(conn)
                break
            number, question = waiting.popleft()
            self._answer(conn, number, question)
        else:
            if waiting:
                self._plan(conn)
        self._hub.flush()

    def _answer(self, conn: int, number: int, question: Fetch | Locate) -> None:
        said: Message | None
        try:
            stream = self._stream(question.guid, question.name)
            if isinstance(question, Fetch):
                said = self._fetch(conn, number, question, stream)
            else:
                said = self._locate(conn, number, question, stream)
        except BusError as error:
            why = error.reason
            said = Fetched(0, 0, 0, False, b"", why) if isinstance(question, Fetch) else Located(0, why)
        if said is not None:
            self._say(conn, number, said)

    def _say(self, conn: int, number: int, said: Message) -> None:
        kind = FETCHED if isinstance(said, Fetched) else LOCATED
        if conn == SELF:
            self._here(kind, number, said)
        elif conn in self._links:
            self._hub.engine.node(conn, kind, number, said.pack(), ordered=kind == FETCHED)

    def _stream(self, guid: str, name: str) -> Stream:
        if guid == self._hub.guid and (stream := self._hub.streams.by_name.get(name)) is not None:
            return stream
        if (copy := self._copies().get((guid, name))) is not None:
            return copy
        raise Rejected(f"there is no stream {name!r} of {guid}", code=Code.NO_STREAM)

    def _fetch(self, conn: int, number: int, question: Fetch, stream: Stream) -> Fetched | None:
        hub = self._hub
        selection = self._selection(question.pattern, question.rules)
        begin = min(question.offset, stream.safe)
        if begin >= stream.first:
            begin = min(max(stream.skip(begin, selection), begin), stream.safe)
        again = _Again(self, conn, number, question)
        found = stream.read(begin, question.most, again)
        if found is None:
            return None
        first, following, records = found
        following = max(following, first)
        if question.guid == hub.guid and hub.engine.delivered(stream.number) < following:
            # More may have become safe while it was read: what goes out live behind this answer must not be in it, nor be missing.
            hub.handle(hub.engine.commit(stream.number))
        gone = min(first, begin)
        chosen = _chosen(records, begin, selection)
        end = following >= stream.safe
        if end and question.guid == hub.guid and following < hub.engine.delivered(stream.number):
            # Of what it got back from its mirror the rest is not written yet, and does not come live then.
            end = False
            if not chosen:
                hub.loop.call_later(_SOON, self.again, conn, number, question)
                return None
        if len(chosen) > self._most.get(conn, len(chosen)):
            if question.most > 1:  # perhaps it is only the last one
                return self._fetch(conn, number, msgspec.structs.replace(question, most=1), stream)
            log.warning("stream %r: a message of %d bytes is too long for another node", stream.name, len(chosen))
            return Fetched(begin, following, max(following, question.offset), end, b"")
        return Fetched(gone, first, max(following, self._place(question, stream)), end, chosen)

    def _place(self, question: Fetch, stream: Stream) -> int:
        """Where who asks has read to. If this is its own node, and has lost its end for good, what comes next has these offsets again."""
        lost = question.guid == self._hub.guid and not stream.awaited
        return min(question.offset, stream.log.next) if lost else question.offset

    def _locate(self, conn: int, number: int, question: Locate, stream: Stream) -> Located | None:
        if question.kind == "new":
            return Located(stream.safe)
        if question.kind == "offset":
            place = max(question.value, stream.first)
            # A copy may have less than came from its node, and a node less than it will have again.
            whole = question.guid == self._hub.guid and not stream.awaited
            return Located(min(place, stream.safe) if whole else place)
        if question.kind != "time":
            raise Rejected(f"{question.kind!r} is no place to begin", code=Code.INVALID_SETTING)
        moment = min(max(question.value, 0), _MOMENT)
        offset = stream.begin_at(moment, lambda found: self._found(conn, number, found))
        return None if offset is None else Located(offset)

    def _found(self, conn: int, number: int, offset: int) -> None:
        self._say(conn, number, Located(offset))
        self._hub.flush()

    def again(self, conn: int, number: int, question: Fetch) -> None:
        """What somebody asked for was fetched from where it is kept."""
        if (waiting := self._links.get(conn)) is not None:
            waiting.appendleft((number, question))
            self._plan(conn)

    def _selection(self, pattern: str, rules: bytes) -> Selection:
        if (selection := self._selections.get((pattern, rules))) is None:
            if len(self._selections) >= _SELECTIONS:
                self._selections.clear()
            selection = self._selections[pattern, rules] = Selection(pattern, rules)
        return selection


class _Again:
    """Asks once more when what is to be read is here."""

    __slots__ = ("_conn", "_lending", "_number", "_question")

    def __init__(self, lending: StreamProvider, conn: int, number: int, question: Fetch) -> None:
        self._lending = lending
        self._conn = conn
        self._number = number
        self._question = question

    def __call__(self) -> None:
        self._lending.again(self._conn, self._number, self._question)


def _chosen(records: bytes, begin: int, selection: Selection) -> bytes:
    """The block without what is not asked for, if that is most of it."""
    block = Block(records)
    spans = block.find(begin, selection, "", environment.time_ns())
    if 2 * sum(count for _, count in spans) >= len(block):
        return records
    rows = (block.get(offset) for start, count in spans for offset in range(start, start + count))
    return encode_records([row for row in rows if row is not None])
