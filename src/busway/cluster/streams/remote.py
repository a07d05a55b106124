"""The streams of other nodes, for subscribers of this node: which nodes have each, and the requests for its records.

Each node announces its streams. A subscription reads a remote stream in portions, over the link to a node that has it.
Requests without an answer are repeated when a link ends.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from busway.broker.peers import Portion
from busway.broker.streams.stream import takes
from busway.cluster.links.calls import Call, Calls, Pending
from busway.cluster.node import Stranger
from busway.cluster.protocol import NodeProtocolHandler
from busway.cluster.streams.messages import ANNOUNCE, FIND, READ, Fetch, Fetched, Locate, Part, Parts
from busway.errors import BusError
from busway.streams import StreamConfig

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime
    from busway.broker.streams.replay import Replays

log = logging.getLogger("busway.cluster")

_RETRY: Final = 1.0


class RemoteCursor:
    """The read position of one subscription in one remote stream."""

    __slots__ = ("_on_ready", "_part", "_pattern", "_portion", "_requested", "_rules")

    call: Call[Any, Any] = READ

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

    def request(self) -> Fetch:
        """The open request."""
        return Fetch(self._part.guid, self._part.name, *(self._requested or (0, 1)), self._pattern, self._rules)

    def answered(self, conn: int, request: Fetch, message: Fetched) -> None:
        """Accept an answer. Raises Stranger."""
        home = self._part.home
        if message.next < request.offset and home != conn:  # only the owner may have lost its end
            raise Stranger("answer with offsets in the wrong order")
        if home not in {None, conn}:  # the owner is linked now, and may have more than its replica
            self.repeat()
            return
        self._requested = None
        self._portion = request.offset, (message.gone, message.first, message.next, message.records, message.end)
        self._wake()

    def repeat(self) -> None:
        """The records can't be read now: repeat the request."""
        self._requested = None
        self._wake()

    def stop(self) -> None:
        """The subscription has ended."""
        self._requested = self._on_ready = None
        self._part.forget(self)

    def _wake(self) -> None:
        if self._on_ready is not None:
            self._on_ready()


@dataclass(slots=True, eq=False)
class Question:
    """One call to a node that has a remote stream, repeated until it has an answer."""

    part: "RemoteStream"
    call: Call[Any, Any]
    content: Fetch | Locate
    done: Callable[[Any], object]
    stopped: bool = False

    def request(self) -> Fetch | Locate:
        return self.content

    def answered(self, conn: int, request: Any, message: Any) -> None:  # noqa: ARG002 - any answer is good
        self.done(message)

    def repeat(self) -> None:
        if not self.stopped:
            self.part.ask(self)

    def stop(self) -> None:
        """The answer is not needed any more."""
        self.stopped = True
        self.part.forget(self)


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
    waiting: dict[RemoteCursor | Question, None] = field(default_factory=dict)
    """Those whose request waits for a link."""
    asked: dict[RemoteCursor | Question, tuple[int, Pending[Any]]] = field(default_factory=dict)
    """Those whose request is open, with its link."""

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
        message = Locate(self.guid, self.name, kind, value)
        self.ask(Question(self, FIND, message, lambda located: found(located.offset)))

    def reader(self, pattern: str, rules: bytes) -> RemoteCursor:
        return RemoteCursor(self, pattern, rules)

    def ask(self, asker: RemoteCursor | Question) -> None:
        """Send the request of a cursor or lookup, in place of its earlier one."""
        self.forget(asker)
        self.waiting[asker] = None
        self.parts.ask(self)

    def forget(self, asker: RemoteCursor | Question) -> None:
        self.waiting.pop(asker, None)
        if (asked := self.asked.pop(asker, None)) is not None:
            asked[1].cancel()


class RemoteStreams(NodeProtocolHandler):
    """The streams of other nodes that this node knows."""

    def __init__(
        self,
        runtime: "Runtime",
        calls: Calls,
        replays: "Callable[[], Replays]",
        deliverer: Callable[[str], int | None],
    ) -> None:
        """`replays` returns the replays of this broker; `deliverer`, the link to the node that delivers for a node."""
        self._runtime = runtime
        self._calls = calls
        self._replays = replays
        self.deliverer = deliverer
        self._parts: dict[tuple[str, str], RemoteStream] = {}
        self._watchers: list[Callable[[RemoteStream], object]] = []
        self._next_poll: float | None = None
        calls.on(ANNOUNCE, self._announced)

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
        node = self._calls.nodes.get(conn)
        return None if node is None else node.guid

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        for part in self._parts.values():
            self._lost(part, conn)

    # Announcements.

    def _announced(self, conn: int, _: int, message: Parts) -> None:
        if message.whole:
            for part in self._parts.values():
                part.holders.pop(conn, None)
        for announced in message.parts:
            if announced.guid != self._runtime.guid:
                self._update(conn, announced)

    def _update(self, conn: int, announced: Part) -> None:
        part = self._parts.get((announced.guid, announced.name))
        if part is None:
            if not announced.there:
                return
            try:
                number = self._runtime.engine.remote_stream(bytes.fromhex(announced.guid), announced.name)
            except BusError as error:
                raise Stranger(str(error)) from error
            config = StreamConfig(name=announced.name, topics=announced.topics, former=announced.former)
            part = self._parts[announced.guid, announced.name] = RemoteStream(
                self, number, announced.guid, announced.name, config
            )
        elif not announced.there:
            self._lost(part, conn)
            return
        if self.guid_of(conn) == announced.guid:
            part.config = StreamConfig(name=announced.name, topics=announced.topics, former=announced.former)
            part.holders = {conn: None} | part.holders
            # The owner may have stored more before this link was open; a replica sends no live messages.
            self._runtime.engine.remote_behind(part.number)
        else:
            part.holders[conn] = None
            self._schedule_poll()
        self._replays().found_remote(part)
        for watcher in self._watchers:
            watcher(part)
        self.ask(part)

    def _lost(self, part: RemoteStream, conn: int) -> None:
        """A link does not lead to the part any more."""
        if conn not in part.holders:
            return
        del part.holders[conn]
        for asker in [asker for asker, (link, _) in part.asked.items() if link == conn]:
            part.forget(asker)
            part.waiting[asker] = None
        # Messages that came live are read from a replica from now on.
        self._runtime.engine.remote_behind(part.number)
        for watcher in self._watchers:
            watcher(part)
        self.ask(part)
        self._schedule_poll()

    def _schedule_poll(self) -> None:
        if self._next_poll is None and any(part.holders and part.home is None for part in self._parts.values()):
            self._next_poll = self._runtime.loop.time() + _RETRY
            self._runtime.arm()

    def deadline(self) -> float | None:
        return self._next_poll

    def expire(self, now: float) -> None:
        """Poll replicas for new records, since they send no live messages."""
        if self._next_poll is not None and now >= self._next_poll:
            self._next_poll = None
            for part in self._parts.values():
                if part.holders and part.home is None:
                    self._runtime.engine.remote_behind(part.number)
            self._schedule_poll()
            self._runtime.loop.call_soon(self._runtime.flush)

    # Requests and answers.

    def ask(self, part: RemoteStream) -> None:
        """Send the waiting requests to a node that has the part."""
        conn = next(iter(part.holders), None)
        if conn is None:
            return
        waiting, part.waiting = part.waiting, {}
        for asker in waiting:
            request: Any = asker.request()
            answered = partial(self._answered, part, conn, asker, request)
            part.asked[asker] = conn, self._calls.send(conn, asker.call, request, answered)

    def _answered(
        self, part: RemoteStream, conn: int, asker: RemoteCursor | Question, request: Any, result: Any
    ) -> None:
        part.asked.pop(asker, None)
        if isinstance(result, BusError):
            log.warning("can't read stream %r of node %s: %s; will retry", part.name, part.guid[:8], result.reason)
            self._runtime.loop.call_later(_RETRY, asker.repeat)
        else:
            asker.answered(conn, request, result)
