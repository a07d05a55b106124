"""Consumes from the channels of other nodes for clients of this node. A channel spans the parts of its stream.

The broker's channels call it for clients. Each consumer here has a remote channel at every other node that has the
stream. When such a node announces messages and the consumer has room, this node takes as many as fit. Acknowledgements
of the consumer are forwarded.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from busway._core import Block
from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.frames import ACK, CHANNEL, LOST, TAKE, UNCHANNEL, Join, Take, What
from busway.broker.channels.manager import for_other_nodes
from busway.broker.channels.state.consumers import Who
from busway.cluster.channels.messages import FRAME, NEWS, Ended, Frame, Given, Missing, More, News, Result
from busway.cluster.links.calls import Calls, Pending
from busway.cluster.node import Stranger
from busway.cluster.protocol import NodeProtocolHandler
from busway.cluster.streams.remote import RemoteStream, RemoteStreams
from busway.errors import BusError, Code, Disconnected, LimitExceeded

if TYPE_CHECKING:
    from busway.broker.channels.consumers import ChannelConsumers
    from busway.broker.runtime import Runtime

T = TypeVar("T", bound=Hashable)


def shares(free: int, parties: Sequence[T], turn: int) -> dict[T, int]:
    """Divide `free` places among the parties. With fewer places than parties `turn` decides who gets one."""
    if free <= 0 or not parties:
        return {}
    each, over = divmod(free, len(parties))
    begin = turn % len(parties)
    order = [*parties[begin:], *parties[:begin]]
    return {party: each + (number < over) for number, party in enumerate(order) if each or number < over}


log = logging.getLogger("busway.cluster")

_RETRY: Final = 1.0
_AGAIN: Final = 0.005
_CLOSED: Final = -2
"""Stands for a link that has ended."""
_TAKE: Final = struct.Struct("<II")
_ENTRY: Final = struct.Struct("<QIB3xI")
_RENEW: Final = _ENTRY.pack(0, 0, What.RENEW, 0)
Answered: TypeAlias = Callable[[int, int, str], None]
"""Called with code, value and text of an answer."""

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True, eq=False)
class _RemoteChannel:
    """The channel of one consumer at another node."""

    number: int
    part: RemoteStream
    consumer: "_Consumer"
    conn: int
    open: bool = False
    ready: bool = False
    """That node has messages for this consumer."""
    granted: int = 0
    """Messages of a take that has no answer yet."""
    in_flight: int = 0
    calls: set[Pending[Result]] = field(default_factory=set)
    """The open calls."""

    @property
    def used(self) -> int:
        return self.in_flight + self.granted


@dataclass(slots=True, eq=False)
class _Consumer:
    """A consumer of this node, with its remote channels."""

    who: Who
    join: Join
    driver: ChannelDriver
    remotes: dict[str, _RemoteChannel] = field(default_factory=dict)
    turn: int = 0
    takes: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    ending: set[int] = field(default_factory=set)
    """Takes that were cancelled."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class RemoteConsumers(NodeProtocolHandler):
    """The consumers of this node that also consume at other nodes."""

    def __init__(
        self, runtime: "Runtime", calls: Calls, local: "Callable[[], ChannelConsumers]", parts: RemoteStreams
    ) -> None:
        """`local` returns the consumers at this broker's own channels."""
        self._runtime = runtime
        self._local = local
        self._calls = calls
        self._parts = parts
        self._consumers: dict[Who, _Consumer] = {}
        self._remotes: dict[int, _RemoteChannel] = {}
        self._last = 0
        self._takes = 0
        self._stopped = False
        parts.watch(self.found)
        calls.on(NEWS, self._news)

    # Consumers of this node.

    def joined(self, who: Who, join: Join, driver: ChannelDriver) -> None:
        """A client consumes a channel, or changes the window of its consumer."""
        if (known := self._consumers.get(who)) is not None:
            known.join = join
            self._divide(known)
            return
        consumer = self._consumers[who] = _Consumer(who, join, driver)
        for part in self._parts:
            if part.name == join.stream:
                self._open(consumer, part)

    def left(self, who: Who, *, lost: bool = False) -> None:
        """A client left its channel, or its connection was lost."""
        if (consumer := self._consumers.pop(who, None)) is not None:
            for task in consumer.takes.values():
                task.cancel()
            for remote in list(consumer.remotes.values()):
                self._close(remote, lost=lost)

    def acknowledge(self, who: Who, guid: str, call: int, kind: int, rest: bytes) -> None:
        """Forward an ACK or a NACK of a consumer to the node that has the messages."""
        consumer = self._consumers.get(who)
        remote = None if consumer is None else consumer.remotes.get(guid)
        if remote is None or not remote.open:
            text = "the node that stores the message can't be reached now; the message may be redelivered"
            self._runtime.engine.result(who[0], call, Code.STORE_FAILED, 0, text)
            return

        def answered(code: int, value: int, text: str) -> None:
            if self._consumers.get(who) is consumer:
                self._runtime.engine.result(who[0], call, code, value, text)
                self._divide(remote.consumer)

        self._ask(remote, kind, rest, answered)

    def renew(self, who: Who) -> int:
        """Renew the leases of a consumer's messages of other nodes. Returns their number, with those being taken."""
        consumer = self._consumers.get(who)
        if consumer is None:
            return 0
        for remote in consumer.remotes.values():
            if remote.open and remote.used:
                self._ask(remote, ACK, _RENEW, lambda *_: None)
        return sum(remote.used for remote in consumer.remotes.values())

    def acknowledged_here(self, who: Who) -> None:
        """A consumer acknowledged messages of this node, so it may have room."""
        if (consumer := self._consumers.get(who)) is not None and consumer.remotes:
            self._divide(consumer)

    def more_here(self, who: Who) -> None:
        """This node has more messages for a consumer that takes."""
        if (consumer := self._consumers.get(who)) is not None:
            consumer.changed.set()

    def stop(self) -> None:
        """Stop taking messages."""
        self._stopped = True

    # Takes.

    def take(self, who: Who, call: int, take: Take | int) -> bool:
        """Take messages here and at other nodes. False: the local channel alone handles the take."""
        consumer = self._consumers.get(who)
        if consumer is None:
            return False
        if isinstance(take, int):
            if take not in consumer.takes:
                return False
            consumer.ending.add(take)
            consumer.changed.set()
            return True
        # Also without another node: one may be linked while the take waits.
        if len(consumer.takes) >= (most := self._runtime.settings.pending):
            raise LimitExceeded(
                f"{most} takes of this consumer wait already (setting pending)", code=Code.TOO_MANY_PENDING
            )
        task = self._runtime.loop.create_task(self._take_all(consumer, call, take), name="busway take")
        consumer.takes[call] = task
        task.add_done_callback(lambda _: consumer.takes.pop(call, None))
        return True

    async def _take_all(self, consumer: _Consumer, call: int, take: Take) -> None:
        loop, got = self._runtime.loop, 0
        until = loop.time() + take.timeout
        try:
            while True:
                consumer.changed.clear()
                got += await self._take_here(consumer, take.most - got)
                remotes = [remote for remote in consumer.remotes.values() if remote.ready and not remote.granted]
                for remote in remotes:
                    if got < take.most and remote.ready and not remote.granted:  # the remote channel may have closed
                        got += await self._grant(remote, take.most - got)
                if got >= take.most or (got and not take.whole) or call in consumer.ending or loop.time() >= until:
                    break
                if consumer.changed.is_set():  # the takes above set it: messages can't be delivered yet
                    await asyncio.sleep(_AGAIN)
                    continue
                try:
                    async with asyncio.timeout(None if until == inf else until - loop.time()):
                        await consumer.changed.wait()
                except TimeoutError:
                    continue
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            self._runtime.unexpected(error, self._runtime.sessions.get(consumer.who[0]), "a take over several nodes")
            return
        consumer.ending.discard(call)
        if self._consumers.get(consumer.who) is consumer:
            self._runtime.engine.result(consumer.who[0], call, Code.OK, got, "")
            self._runtime.flush()

    async def _take_here(self, consumer: _Consumer, most: int) -> int:
        taken: asyncio.Future[int] = self._runtime.loop.create_future()
        self._takes -= 1  # numbers that no client uses
        self._local().take_here(consumer.who, self._takes, most, _resolver(taken))
        self._runtime.flush()
        return await taken

    async def _grant(self, remote: _RemoteChannel, most: int) -> int:
        taken: asyncio.Future[int] = self._runtime.loop.create_future()
        self._take_remote(remote, most, _resolver(taken))
        self._runtime.flush()
        return await taken

    # Remote channels.

    def found(self, part: RemoteStream) -> None:
        """The nodes that have a part of a stream have changed."""
        for consumer in list(self._consumers.values()):
            if consumer.join.stream == part.name:
                self._open(consumer, part)

    def _open(self, consumer: _Consumer, part: RemoteStream) -> None:
        conn = part.deliverer
        remote = consumer.remotes.get(part.guid)
        if (
            conn is None
            or (remote is not None and remote.conn == conn)
            or self._consumers.get(consumer.who) is not consumer
        ):
            return
        if remote is not None:
            self._close(remote)
        self._last += 1
        remote = consumer.remotes[part.guid] = self._remotes[self._last] = _RemoteChannel(
            self._last, part, consumer, conn
        )
        machine, join = consumer.driver.machine, consumer.join
        asked = {
            "stream": join.stream,
            "part": part.guid,
            "channel": join.channel,
            "window": 0,
            "create": join.create or not machine.config.delete_on_leave,
            "start": for_other_nodes(join.start),
            "settings": msgspec.to_builtins(machine.config, builtin_types=(bytes,)),
            "again": True,
        }
        self._ask(remote, CHANNEL, _encode(asked), lambda code, _, text: self._opened(remote, code, text))

    def _opened(self, remote: _RemoteChannel, code: int, text: str) -> None:
        if code == Code.OK:
            remote.open = True
        elif self._remotes.get(remote.number) is remote:
            log.info(
                "can't consume from channel %r at node %s now: %s",
                remote.consumer.join.channel,
                remote.part.guid[:8],
                text,
            )
            self._close(remote)
            self._runtime.loop.call_later(_RETRY, self._open, remote.consumer, remote.part)

    def _close(self, remote: _RemoteChannel, *, lost: bool = False) -> None:
        self._remotes.pop(remote.number, None)
        if remote.consumer.remotes.get(remote.part.guid) is remote:
            del remote.consumer.remotes[remote.part.guid]
        if remote.conn != _CLOSED:
            self._calls.send(remote.conn, FRAME, Frame(UNCHANNEL, remote.number, LOST if lost else b""), lambda _: None)
            self._fail_calls(remote)
        self._divide(remote.consumer)

    def _fail_calls(self, remote: _RemoteChannel) -> None:
        """Close a remote channel and fail its open calls."""
        remote.conn, remote.open, remote.ready, remote.granted, remote.in_flight = _CLOSED, False, False, 0, 0
        for call in list(remote.calls):
            call.finish(Disconnected("the link to the node that stores the message has ended"))

    # Links.

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        for remote in [remote for remote in self._remotes.values() if remote.conn == conn]:
            self._remotes.pop(remote.number, None)
            if remote.consumer.remotes.get(remote.part.guid) is remote:
                del remote.consumer.remotes[remote.part.guid]
            self._fail_calls(remote)
            self._divide(remote.consumer)

    def room(self, conn: int) -> None:
        for who, consumer in self._consumers.items():
            if who[0] == conn and consumer.remotes:
                self._divide(consumer)

    def _news(self, conn: int, _: int, news: News) -> None:
        remote = self._remotes.get(news.consumer)
        if remote is None or remote.conn != conn:
            return  # it was closed
        match news:
            case Given():
                self._received(remote, news)
            case More():
                remote.ready, remote.in_flight = True, news.in_flight
                remote.consumer.changed.set()
                self._divide(remote.consumer)
            case Missing():
                self._runtime.engine.send_gap(*remote.consumer.who, remote.part.number, news.begin, news.end)
            case Ended():
                self._remotes.pop(remote.number, None)
                remote.consumer.remotes.pop(remote.part.guid, None)
                self._fail_calls(remote)
                self._runtime.loop.call_later(_RETRY, self._open, remote.consumer, remote.part)

    def _received(self, remote: _RemoteChannel, given: Given) -> None:
        who = remote.consumer.who
        try:
            block = Block(given.records)
        except ValueError as error:
            raise Stranger(f"invalid records for a remote consumer: {error}") from error
        left = self._runtime.engine.deliver_records(*who, remote.part.number, block, given.spans, given.deliveries)[1]
        if left:  # they have expired by this node's clock
            self._ask(remote, ACK, b"".join(_ENTRY.pack(start, count, 0, 0) for start, count in left), lambda *_: None)

    def _ask(self, remote: _RemoteChannel, kind: int, rest: bytes, answered: Answered) -> None:
        def done(result: Result | BusError) -> None:
            remote.calls.discard(call)
            if isinstance(result, BusError):
                answered(Code.STORE_FAILED, 0, f"{result.reason}; the message may be redelivered")
            else:
                remote.in_flight = result.in_flight
                answered(result.code, result.value, result.text)

        call = self._calls.send(remote.conn, FRAME, Frame(kind, remote.number, rest), done)
        remote.calls.add(call)

    # Window.

    def _divide(self, consumer: _Consumer) -> None:
        """Divide the free places in a consumer's window among the nodes that have messages."""
        window, who, machine = consumer.join.window, consumer.who, consumer.driver.machine
        if not window or self._stopped or self._consumers.get(who) is not consumer:
            return
        local_count = machine.count_in_flight(who)
        remote_count = sum(remote.used for remote in consumer.remotes.values())
        ready = [remote for remote in consumer.remotes.values() if remote.ready and remote.open and not remote.granted]
        if ready and not self._runtime.engine.has_room(*who):
            self._runtime.engine.want_room(*who)
            return
        if not ready:
            self._local().window(who, max(window - remote_count, 0))
            return
        parties: list[_RemoteChannel | None] = [*ready, None] if machine.more else [*ready]
        divided = shares(window - local_count - remote_count, parties, consumer.turn)
        consumer.turn += 1
        for remote in ready:
            if count := divided.get(remote, 0):
                self._take_remote(remote, count, lambda _: self._divide(consumer))
        self._local().window(who, local_count + divided.get(None, 0))

    def _take_remote(self, remote: _RemoteChannel, most: int, got: Callable[[int], object]) -> None:
        remote.granted, remote.ready = most, False

        def answered(code: int, value: int, text: str) -> None:  # noqa: ARG001 - one signature
            remote.granted = 0
            got(value if code == Code.OK else 0)

        self._ask(remote, TAKE, _TAKE.pack(most, 0), answered)


def _resolver(future: "asyncio.Future[int]") -> Callable[[int], None]:
    """A callback that sets the result of a future, unless that is cancelled."""

    def resolve(got: int) -> None:
        if not future.done():
            future.set_result(got)

    return resolve
