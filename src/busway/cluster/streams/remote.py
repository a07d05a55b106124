"""The streams of other nodes, for subscribers of this node: which nodes have each, and the requests for its records.

`links` calls it for frames. Each node announces its streams. A subscription reads a remote stream in
portions, over the link to a node that has it. Requests without an answer are repeated when a link ends.
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
    """The read position of one subscription in one remote stream."""

    __slots__ = ("_on_ready", "_part", "_pattern", "_portion", "_requested", "_rules")

    def __init__(self, part: "RemoteStream", pattern: str, rules: bytes) -> None:
        self._part = part
        self._pattern = pattern
        self._rules = rules
        self._requested: tuple[int, int] | None = None
        """The offset and the number of bytes of the open request."""
        self._portion: tuple[int, Portion] | None = None
        self._on_ready: Callable[[], object] | None = None

    def read(self, offset: int, most: int, again: Callable[[], object]) -> Portion | None:
        """The records from `offset` on; None: they were requested, and `again` is called when they are here."""
        self._on_ready = again
        ready, self._portion = self._portion, None
        if ready is not None and ready[0] == offset:
            return ready[1]
        if self._requested is None or self._requested[0] != offset:
            self._requested = offset, most
            self._part.ask(self)
        return None

    def request(self) -> Fetch | None:
        """The open request; None: there is none."""
        if self._requested is None:
            return None
        return Fetch(self._part.guid, self._part.name, *self._requested, self._pattern, self._rules)

    def answer(self, request: Fetch, message: Fetched) -> None:
        """Accept the answer to a request."""
        if self._requested is None or self._requested[0] != request.offset:
            return  # the subscription has moved to another offset
        self._requested = None
        self._portion = request.offset, (message.gone, message.first, message.next, message.records, message.end)
        self._wake()

    def fail(self) -> None:
        """The records can't be read now: repeat the request."""
        self._requested = None
        self._wake()

    def stop(self) -> None:
        """The subscription has ended."""
        self._requested = self._on_ready = None
        self._part.readers.pop(self, None)

    def _wake(self) -> None:
        if self._on_ready is not None:
            self._on_ready()


@dataclass(slots=True, eq=False)
class RemoteStream:
    """The part of a stream at another node."""

    parts: "RemoteStreams"
    number: int
    guid: str
    name: str
    config: StreamConfig
    holders: dict[int, None] = field(default_factory=dict)
    """Links to nodes that have the part, that of its owner first."""
    readers: dict[RemoteCursor, None] = field(default_factory=dict)
    """Cursors whose request waits for a link."""
    places: list[tuple[str, int, Callable[[int], object]]] = field(default_factory=list)
    """Start positions whose lookup waits for a link."""

    @property
    def home(self) -> int | None:
        """The link to the node that owns the part."""
        conn = next(iter(self.holders), None)
        return conn if conn is not None and self.parts.guid_of(conn) == self.guid else None

    @property
    def deliverer(self) -> int | None:
        """The link to the node that delivers from its channels: the owner, or its mirror."""
        conn = self.parts.deliverer(self.guid)
        return conn if conn in self.holders else None

    def takes(self, pattern: str) -> bool:
        """Whether the stream may store topics that match the pattern."""
        return takes(self.config, pattern)

    def locate(self, kind: str, value: int, found: Callable[[int], object]) -> None:
        """Look up the offset of a start position and pass it to `found`."""
        self.places.append((kind, value, found))
        self.parts.ask(self)

    def reader(self, pattern: str, rules: bytes) -> RemoteCursor:
        return RemoteCursor(self, pattern, rules)

    def ask(self, reader: RemoteCursor) -> None:
        self.readers[reader] = None
        self.parts.ask(self)


class RemoteStreams(NodeProtocolHandler):
    """The streams of other nodes that this node knows."""

    kinds = frozenset({PARTS, FETCHED, LOCATED})

    def __init__(
        self,
        hub: "Hub",
        deliverer: Callable[[str], int | None],
        ask_here: Callable[[int, Fetch | Locate], None],
    ) -> None:
        """`deliverer` is the link to the node that delivers for a node; `ask_here` asks this node's replicas."""
        self._hub = hub
        self.deliverer = deliverer
        self._ask_here = ask_here
        self._parts: dict[tuple[str, str], RemoteStream] = {}
        self._links: dict[int, str] = {}
        self._fetching: dict[int, tuple[int, RemoteStream, RemoteCursor, Fetch]] = {}
        self._locating: dict[int, tuple[int, RemoteStream, str, int, Callable[[int], object]]] = {}
        self._last = 0
        self._asked: dict[int, int] = {}
        """The number of the last request, by link."""
        self._watchers: list[Callable[[RemoteStream], object]] = []
        self._next_poll: float | None = None

    def watch(self, watcher: "Callable[[RemoteStream], object]") -> None:
        """Register a callback for parts that were found, or that another node has or delivers now."""
        self._watchers.append(watcher)

    def turned(self, guid: str) -> None:
        """Another node delivers now from the channels of this one."""
        for part in [part for part in self._parts.values() if part.guid == guid]:
            for watcher in self._watchers:
                watcher(part)

    def find(self, guid: str, name: str) -> RemoteStream | None:
        """The part that a node has of a stream."""
        return self._parts.get((guid, name))

    def guids(self, name: str) -> set[str]:
        """The owners of the known parts of a stream; of all streams if `name` is empty."""
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
            self._announced(conn, read(Parts, body))
        elif kind == FETCHED:
            self._fetched(conn, number, read(Fetched, body))
        else:
            self._located(conn, number, read(Located, body))

    def heard_here(self, kind: int, number: int, message: Message) -> None:  # noqa: ARG002 - the type tells
        """Handle a message of this node's own provider."""
        if isinstance(message, Parts):
            self._announced(SELF, message)
        elif isinstance(message, Fetched):
            self._fetched(SELF, number, message)
        elif isinstance(message, Located):
            self._located(SELF, number, message)

    # Announcements.

    def _announced(self, conn: int, message: Parts) -> None:
        if message.whole:
            for part in self._parts.values():
                part.holders.pop(conn, None)
        for announced in message.parts:
            if announced.guid != self._hub.guid:
                self._update(conn, announced)

    def _update(self, conn: int, announced: Part) -> None:
        part = self._parts.get((announced.guid, announced.name))
        if part is None:
            if not announced.there:
                return
            try:
                number = self._hub.engine.remote_stream(bytes.fromhex(announced.guid), announced.name)
            except BusError as error:
                raise Stranger(str(error)) from error
            config = StreamConfig(name=announced.name, topics=announced.topics, former=announced.former)
            part = self._parts[announced.guid, announced.name] = RemoteStream(
                self, number, announced.guid, announced.name, config
            )
        elif not announced.there:
            self._lost(part, conn)
            return
        if self._links.get(conn) == announced.guid:
            part.config = StreamConfig(name=announced.name, topics=announced.topics, former=announced.former)
            part.holders = {conn: None} | part.holders
            # The owner may have stored more before this link was open; a replica sends no live messages.
            self._hub.engine.remote_behind(part.number)
        else:
            part.holders[conn] = None
            self._schedule_poll()
        self._hub.replays.found_remote(part)
        for watcher in self._watchers:
            watcher(part)
        self.ask(part)

    def _lost(self, part: RemoteStream, conn: int) -> None:
        """A link does not lead to the part any more."""
        if conn not in part.holders:
            return
        del part.holders[conn]
        for number in [number for number, fetch in self._fetching.items() if fetch[:2] == (conn, part)]:
            part.readers[self._fetching.pop(number)[2]] = None
        for number in [number for number, lookup in self._locating.items() if lookup[:2] == (conn, part)]:
            _, _, kind, value, found = self._locating.pop(number)
            part.places.append((kind, value, found))
        # Messages that came live are read from a replica from now on.
        self._hub.engine.remote_behind(part.number)
        for watcher in self._watchers:
            watcher(part)
        self.ask(part)
        self._schedule_poll()

    def _schedule_poll(self) -> None:
        if self._next_poll is None and any(part.holders and part.home is None for part in self._parts.values()):
            self._next_poll = self._hub.loop.time() + _RETRY
            self._hub.clock.arm()

    def deadline(self) -> float | None:
        return self._next_poll

    def expire(self, now: float) -> None:
        """Poll replicas for new records, since they send no live messages."""
        if self._next_poll is not None and now >= self._next_poll:
            self._next_poll = None
            for part in self._parts.values():
                if part.holders and part.home is None:
                    self._hub.engine.remote_behind(part.number)
            self._schedule_poll()
            self._hub.loop.call_soon(self._hub.flush)

    # Requests and answers.

    def ask(self, part: RemoteStream) -> None:
        """Send the waiting requests to a node that has the part."""
        conn = next(iter(part.holders), None)
        if conn is None:
            return
        readers, part.readers = part.readers, {}
        for reader in readers:
            if (request := reader.request()) is not None:
                self._last += 1
                self._fetching[self._last] = conn, part, reader, request
                self._send(conn, FETCH, self._last, request)
        places, part.places = part.places, []
        for kind, value, found in places:
            self._last += 1
            self._locating[self._last] = conn, part, kind, value, found
            self._send(conn, LOCATE, self._last, Locate(part.guid, part.name, kind, value))

    def _send(self, conn: int, kind: int, number: int, request: Fetch | Locate) -> None:
        self._asked[conn] = number
        if conn == SELF:
            self._ask_here(number, request)
        else:
            self._hub.engine.node(conn, kind, number, request.pack())

    def _fetched(self, conn: int, number: int, message: Fetched) -> None:
        if (fetch := self._fetching.get(number)) is None or fetch[0] != conn:
            self._check_late(conn, number)
            return
        del self._fetching[number]
        _, part, reader, request = fetch
        if message.error:
            log.warning("can't read stream %r of node %s: %s; will retry", part.name, part.guid[:8], message.error)
            self._hub.loop.call_later(_RETRY, reader.fail)
            return
        backwards = message.next < request.offset and part.home != conn  # only the owner may have lost its end
        if backwards or not message.gone <= message.first <= max(message.next, message.first):
            raise Stranger("answer with offsets in the wrong order")
        if part.home not in {None, conn}:  # the owner is linked now, and may have more than its replica
            reader.fail()
            return
        reader.answer(request, message)

    def _located(self, conn: int, number: int, message: Located) -> None:
        if (lookup := self._locating.get(number)) is None or lookup[0] != conn:
            self._check_late(conn, number)
            return
        del self._locating[number]
        _, part, kind, value, found = lookup
        if message.error:
            log.warning("can't read stream %r of node %s: %s; will retry", part.name, part.guid[:8], message.error)
            self._hub.loop.call_later(_RETRY, part.locate, kind, value, found)
            return
        found(message.offset)

    def _check_late(self, conn: int, number: int) -> None:
        """Check an answer without a request. It is late if the node has lost the stream, and else an error."""
        waits = number in self._fetching or number in self._locating  # for another link or another kind of request
        if waits or not 0 < number <= self._asked.get(conn, 0):
            raise Stranger("answer without a request")
