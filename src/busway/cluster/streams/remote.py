"""Streams of other nodes, for those who subscribe here to what is stored there: who has them, and what was asked for.

A driver. Each node tells the others which streams it has. A subscription reads each by portions, asked for over the link of a
node that has it; what waits for an answer when a link ends is asked for again when somebody is there.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from busway.broker.peers import Portion
from busway.broker.streams.stream import takes
from busway.cluster.node import Node, Stranger
from busway.cluster.protocol import FETCH, FETCHED, LOCATE, LOCATED, PARTS, SELF, NodeProtocolHandler
from busway.cluster.streams.messages import Fetch, Fetched, Locate, Located, Message, Part, Parts, read
from busway.errors import BusError
from busway.streams import StreamConfig

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")

_RETRY: Final = 1.0


class RemoteCursor:
    """What one subscription reads of one stream."""

    __slots__ = ("_again", "_asked", "_here", "_part", "_pattern", "_rules")

    def __init__(self, part: "RemoteStream", pattern: str, rules: bytes) -> None:
        self._part = part
        self._pattern = pattern
        self._rules = rules
        self._asked: tuple[int, int] | None = None
        """The offset and the number of bytes that it waits for."""
        self._here: tuple[int, Portion] | None = None
        self._again: Callable[[], object] | None = None

    def read(self, offset: int, most: int, again: Callable[[], object]) -> Portion | None:
        self._again = again
        here, self._here = self._here, None
        if here is not None and here[0] == offset:
            return here[1]
        if self._asked is None or self._asked[0] != offset:
            self._asked = offset, most
            self._part.ask(self)
        return None

    def question(self) -> Fetch | None:
        """What it waits for."""
        if self._asked is None:
            return None
        return Fetch(self._part.guid, self._part.name, *self._asked, self._pattern, self._rules)

    def answer(self, question: Fetch, said: Fetched) -> None:
        if self._asked is None or self._asked[0] != question.offset:
            return  # it has gone elsewhere meanwhile
        self._asked = None
        self._here = question.offset, (said.gone, said.first, said.next, said.records, said.end)
        self._wake()

    def fail(self) -> None:
        """It can't be read now: it is asked for again."""
        self._asked = None
        self._wake()

    def stop(self) -> None:
        """Nobody waits any more."""
        self._asked = self._again = None
        self._part.readers.pop(self, None)

    def _wake(self) -> None:
        if self._again is not None:
            self._again()


@dataclass(slots=True, eq=False)
class RemoteStream:
    """A stream of another node."""

    parts: "RemoteStreams"
    number: int
    guid: str
    name: str
    config: StreamConfig
    holders: dict[int, None] = field(default_factory=dict)
    """Links to nodes that have it; that of its own node first."""
    readers: dict[RemoteCursor, None] = field(default_factory=dict)
    """Those that wait for somebody who has it."""
    places: list[tuple[str, int, Callable[[int], object]]] = field(default_factory=list)

    @property
    def home(self) -> int | None:
        """The link to the node that stores it."""
        conn = next(iter(self.holders), None)
        return conn if conn is not None and self.parts.guid_of(conn) == self.guid else None

    @property
    def hander(self) -> int | None:
        """The link to who hands it out: that node, or its mirror."""
        conn = self.parts.hander(self.guid)
        return conn if conn in self.holders else None

    def takes(self, pattern: str) -> bool:
        return takes(self.config, pattern)

    def locate(self, kind: str, value: int, found: Callable[[int], object]) -> None:
        self.places.append((kind, value, found))
        self.parts.ask(self)

    def reader(self, pattern: str, rules: bytes) -> RemoteCursor:
        return RemoteCursor(self, pattern, rules)

    def ask(self, reader: RemoteCursor) -> None:
        self.readers[reader] = None
        self.parts.ask(self)


class RemoteStreams(NodeProtocolHandler):
    """All streams of other nodes that are known here."""

    kinds = frozenset({PARTS, FETCHED, LOCATED})

    def __init__(
        self,
        hub: "Hub",
        deliverer: Callable[[str], int | None],
        ask_here: Callable[[int, Fetch | Locate], None],
    ) -> None:
        """`deliverer` is the link to the node that delivers from the channels of a node; `ask_here` asks this node's own copies."""
        self._hub = hub
        self.hander = deliverer
        self._ask_here = ask_here
        self._parts: dict[tuple[str, str], RemoteStream] = {}
        self._links: dict[int, str] = {}
        self._fetching: dict[int, tuple[int, RemoteStream, RemoteCursor, Fetch]] = {}
        self._locating: dict[int, tuple[int, RemoteStream, str, int, Callable[[int], object]]] = {}
        self._last = 0
        self._asked: dict[int, int] = {}
        """The last number that was asked on a link."""
        self._watchers: list[Callable[[RemoteStream], object]] = []
        self._next_look: float | None = None

    def watch(self, watcher: "Callable[[RemoteStream], object]") -> None:
        """Have it called when a part is found, or somebody else has it."""
        self._watchers.append(watcher)

    def turned(self, guid: str) -> None:
        """Somebody else hands out of the channels of a node."""
        for part in [part for part in self._parts.values() if part.guid == guid]:
            for watcher in self._watchers:
                watcher(part)

    def find(self, guid: str, name: str) -> RemoteStream | None:
        """The part that a node has of a stream."""
        return self._parts.get((guid, name))

    def guids(self, name: str) -> set[str]:
        """The nodes of which somebody has a stream of that name, or of any."""
        return {part.guid for part in self._parts.values() if part.holders and name in {"", part.name}}

    def __iter__(self) -> Iterator[RemoteStream]:
        return iter(self._parts.values())

    def guid_of(self, conn: int) -> str | None:
        return self._links.get(conn)

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn] = node.guid

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        self._links.pop(conn, None)
        for part in self._parts.values():
            self._lost(part, conn)
        self._asked.pop(conn, None)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        if kind == PARTS:
            self._told(conn, read(Parts, body))
        elif kind == FETCHED:
            self._fetched(conn, number, read(Fetched, body))
        else:
            self._located(conn, number, read(Located, body))

    def heard_here(self, kind: int, number: int, said: Message) -> None:  # noqa: ARG002 - the words tell
        """What this node has itself."""
        if isinstance(said, Parts):
            self._told(SELF, said)
        elif isinstance(said, Fetched):
            self._fetched(SELF, number, said)
        elif isinstance(said, Located):
            self._located(SELF, number, said)

    # Who has what.

    def _told(self, conn: int, said: Parts) -> None:
        if said.whole:
            for part in self._parts.values():
                part.holders.pop(conn, None)
        for one in said.parts:
            if one.guid != self._hub.guid:
                self._has(conn, one)

    def _has(self, conn: int, one: Part) -> None:
        part = self._parts.get((one.guid, one.name))
        if part is None:
            if not one.there:
                return
            try:
                number = self._hub.engine.far_stream(bytes.fromhex(one.guid), one.name)
            except BusError as error:
                raise Stranger(str(error)) from error
            config = StreamConfig(name=one.name, topics=one.topics, former=one.former)
            part = self._parts[one.guid, one.name] = RemoteStream(self, number, one.guid, one.name, config)
        elif not one.there:
            self._lost(part, conn)
            return
        if self._links.get(conn) == one.guid:
            part.config = StreamConfig(name=one.name, topics=one.topics, former=one.former)
            part.holders = {conn: None} | part.holders
            # It may have stored more before this link was open; the copy of another node tells nothing live.
            self._hub.engine.far_behind(part.number)
        else:
            part.holders[conn] = None
            self._look_later()
        self._hub.replays.found_far(part)
        for watcher in self._watchers:
            watcher(part)
        self.ask(part)

    def _lost(self, part: RemoteStream, conn: int) -> None:
        """That link leads to it no longer."""
        if conn not in part.holders:
            return
        del part.holders[conn]
        for number in [number for number, one in self._fetching.items() if one[:2] == (conn, part)]:
            part.readers[self._fetching.pop(number)[2]] = None
        for number in [number for number, one in self._locating.items() if one[:2] == (conn, part)]:
            _, _, kind, value, found = self._locating.pop(number)
            part.places.append((kind, value, found))
        # What was given live is read from now on, wherever it can be had.
        self._hub.engine.far_behind(part.number)
        for watcher in self._watchers:
            watcher(part)
        self.ask(part)
        self._look_later()

    def _look_later(self) -> None:
        if self._next_look is None and any(part.holders and part.home is None for part in self._parts.values()):
            self._next_look = self._hub.loop.time() + _RETRY
            self._hub.clock.arm()

    def deadline(self) -> float | None:
        return self._next_look

    def expire(self, now: float) -> None:
        """A copy tells nothing live, so it is looked at now and then."""
        if self._next_look is not None and now >= self._next_look:
            self._next_look = None
            for part in self._parts.values():
                if part.holders and part.home is None:
                    self._hub.engine.far_behind(part.number)
            self._look_later()
            self._hub.loop.call_soon(self._hub.flush)

    # Questions and answers.

    def ask(self, part: RemoteStream) -> None:
        """Ask whoever has it for what is waited for."""
        conn = next(iter(part.holders), None)
        if conn is None:
            return
        readers, part.readers = part.readers, {}
        for reader in readers:
            if (question := reader.question()) is not None:
                self._last += 1
                self._fetching[self._last] = conn, part, reader, question
                self._say(conn, FETCH, self._last, question)
        places, part.places = part.places, []
        for kind, value, found in places:
            self._last += 1
            self._locating[self._last] = conn, part, kind, value, found
            self._say(conn, LOCATE, self._last, Locate(part.guid, part.name, kind, value))

    def _say(self, conn: int, kind: int, number: int, question: Fetch | Locate) -> None:
        self._asked[conn] = number
        if conn == SELF:
            self._ask_here(number, question)
        else:
            self._hub.engine.node(conn, kind, number, question.pack())

    def _fetched(self, conn: int, number: int, said: Fetched) -> None:
        if (asked := self._fetching.get(number)) is None or asked[0] != conn:
            self._check_late(conn, number)
            return
        del self._fetching[number]
        _, part, reader, question = asked
        if said.error:
            log.warning("stream %r of node %s can't be read: %s", part.name, part.guid[:8], said.error)
            self._hub.loop.call_later(_RETRY, reader.fail)
            return
        back = said.next < question.offset and part.home != conn  # only its own node may have lost its end
        if back or not said.gone <= said.first <= max(said.next, said.first):
            raise Stranger("an answer that goes back")
        if part.home not in {None, conn}:  # the node itself is here meanwhile, and may have more than its copy
            reader.fail()
            return
        reader.answer(question, said)

    def _located(self, conn: int, number: int, said: Located) -> None:
        if (asked := self._locating.get(number)) is None or asked[0] != conn:
            self._check_late(conn, number)
            return
        del self._locating[number]
        _, part, kind, value, found = asked
        if said.error:
            log.warning("stream %r of node %s can't be read: %s", part.name, part.guid[:8], said.error)
            self._hub.loop.call_later(_RETRY, part.locate, kind, value, found)
            return
        found(said.offset)

    def _check_late(self, conn: int, number: int) -> None:
        """Nobody waits for this answer: whoever gave it said meanwhile that it has the stream no longer, or never was asked."""
        waits = number in self._fetching or number in self._locating  # for somebody else, or for something else
        if waits or not 0 < number <= self._asked.get(conn, 0):
            raise Stranger("an answer that nobody has asked for")


def _nobody(number: int, question: Fetch | Locate) -> None:
    """This node has nothing of others."""
