"""Clients of this node at the channels of other nodes: a channel goes over the parts of its stream on all of them.

A driver. For each consumer here there is a seat at every other node that has the stream. When such a node says that it has something,
and the consumer has room, it is asked for as many as fit; what the consumer says of them is passed on.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from busway._core import Block
from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.frames import ACK, CHANNEL, LOST, TAKE, UNCHANNEL, Join, Take, What
from busway.broker.channels.manager import elsewhere
from busway.broker.channels.state.consumers import Who
from busway.cluster.node import Stranger
from busway.cluster.protocol import ANSWERED, CONSUME, ENDED, GIVEN, MISSING, MORE, SELF, NodeProtocolHandler
from busway.cluster.streams.remote import RemoteStream, RemoteStreams
from busway.errors import Code, LimitExceeded

if TYPE_CHECKING:
    from busway.broker.hub import Hub

T = TypeVar("T", bound=Hashable)


def shares(free: int, parties: Sequence[T], turn: int) -> dict[T, int]:
    """Divide so many places; with fewer places than parties the turn decides whose they are."""
    if free <= 0 or not parties:
        return {}
    each, over = divmod(free, len(parties))
    at = turn % len(parties)
    order = [*parties[at:], *parties[:at]]
    return {one: each + (number < over) for number, one in enumerate(order) if each or number < over}


log = logging.getLogger("busway.cluster")

_RETRY: Final = 1.0
_AGAIN: Final = 0.005
_NOBODY: Final = -2
"""In the place of a link that is gone."""
_TAKE: Final = struct.Struct("<II")
_ENTRY: Final = struct.Struct("<QIB3xI")
_RENEW: Final = _ENTRY.pack(0, 0, What.RENEW, 0)
_Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Spans: TypeAlias = list[tuple[_Offset, Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]]]
Told: TypeAlias = Callable[[int, int, str], None]
"""What is called with code, value and text of an answer."""

_encode = msgspec.msgpack.Encoder().encode
_READ: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    ANSWERED: msgspec.msgpack.Decoder(tuple[_Offset, _Offset, _Offset, str, _Offset]),
    GIVEN: msgspec.msgpack.Decoder(tuple[_Offset, _Spans, bytes]),
    MORE: msgspec.msgpack.Decoder(tuple[_Offset]),
    ENDED: msgspec.msgpack.Decoder(tuple[_Offset, str]),
    MISSING: msgspec.msgpack.Decoder(tuple[_Offset, _Offset]),
}


@dataclass(slots=True, eq=False)
class _RemoteChannel:
    """A consumer's place at another node."""

    number: int
    part: RemoteStream
    consumer: "_Consumer"
    conn: int
    open: bool = False
    ready: bool = False
    """That node has something."""
    granted: int = 0
    """It was asked for so many, and has not answered yet."""
    in_flight: int = 0

    @property
    def used(self) -> int:
        return self.in_flight + self.granted


@dataclass(slots=True, eq=False)
class _Consumer:
    who: Who
    join: Join
    driver: ChannelDriver
    seats: dict[str, _RemoteChannel] = field(default_factory=dict)
    turn: int = 0
    takes: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    ending: set[int] = field(default_factory=set)
    """Takes that were called off."""
    news: asyncio.Event = field(default_factory=asyncio.Event)


class RemoteConsumers(NodeProtocolHandler):
    """All consumers of this node that consume at others, too."""

    kinds = frozenset({ANSWERED, GIVEN, MORE, ENDED, MISSING})

    def __init__(self, hub: "Hub", parts: RemoteStreams, host: Callable[[int, bytes], object]) -> None:
        """`host` gets the frames for the channels that this node delivers from in the place of another one."""
        self._hub = hub
        self._host = host
        self._parts = parts
        self._consumers: dict[Who, _Consumer] = {}
        self._seats: dict[int, _RemoteChannel] = {}
        self._calls: dict[int, tuple[int, _RemoteChannel, Told]] = {}
        self._last = 0
        self._takes = 0
        self._stopped = False
        parts.watch(self.found)

    # Consumers of this node.

    def joined(self, who: Who, join: Join, driver: ChannelDriver) -> None:
        """A client consumes a channel, or changes the window of its consumer."""
        if (known := self._consumers.get(who)) is not None:
            known.join = join
            self._share(known)
            return
        consumer = self._consumers[who] = _Consumer(who, join, driver)
        for part in self._parts:
            if part.name == join.stream:
                self._sit(consumer, part)

    def left(self, who: Who, *, lost: bool = False) -> None:
        """A client left its channel, or its connection was lost."""
        if (consumer := self._consumers.pop(who, None)) is not None:
            for task in consumer.takes.values():
                task.cancel()
            for seat in list(consumer.seats.values()):
                self._leave(seat, lost=lost)

    def settle(self, who: Who, guid: str, call: int, kind: int, rest: bytes) -> None:
        """It says what became of messages of another node, by an ACK or a NACK."""
        consumer = self._consumers.get(who)
        seat = None if consumer is None else consumer.seats.get(guid)
        if seat is None or not seat.open:
            text = "the node that has stored it can't be reached now; it may be handed out again"
            self._hub.engine.result(who[0], call, Code.STORE_FAILED, 0, text)
            return

        def told(code: int, value: int, text: str) -> None:
            if self._consumers.get(who) is consumer:
                self._hub.engine.result(who[0], call, code, value, text)
                self._share(seat.consumer)

        self._ask(seat, kind, rest, told)

    def renew(self, who: Who) -> int:
        """It is alive: renew the leases of its messages of other nodes; how many it has, or may be about to have."""
        consumer = self._consumers.get(who)
        if consumer is None:
            return 0
        for seat in consumer.seats.values():
            if seat.open and seat.used:
                self._ask(seat, ACK, _RENEW, lambda *_: None)
        return sum(seat.used for seat in consumer.seats.values())

    def settled_here(self, who: Who) -> None:
        """It has said what became of messages of this node, so it may have room."""
        if (consumer := self._consumers.get(who)) is not None and consumer.seats:
            self._share(consumer)

    def more_here(self, who: Who) -> None:
        """This node has more for one that takes."""
        if (consumer := self._consumers.get(who)) is not None:
            consumer.news.set()

    def stop(self) -> None:
        """Ask for nothing more."""
        self._stopped = True

    # Takes.

    def take(self, who: Who, call: int, take: Take | int) -> bool:
        """It takes some, here and elsewhere. False: that is for this node alone to deal with."""
        consumer = self._consumers.get(who)
        if consumer is None:
            return False
        if isinstance(take, int):
            if take not in consumer.takes:
                return False
            consumer.ending.add(take)
            consumer.news.set()
            return True
        # Also if no other node is there: one may come while it waits.
        if len(consumer.takes) >= (most := self._hub.settings.pending):
            raise LimitExceeded(f"{most} takes wait already", code=Code.TOO_MANY_PENDING)
        task = self._hub.loop.create_task(self._taken(consumer, call, take), name="busway take")
        consumer.takes[call] = task
        task.add_done_callback(lambda _: consumer.takes.pop(call, None))
        return True

    async def _taken(self, consumer: _Consumer, call: int, take: Take) -> None:
        loop, got = self._hub.loop, 0
        until = loop.time() + take.timeout
        try:
            while True:
                consumer.news.clear()
                got += await self._take_here(consumer, take.most - got)
                seats = [seat for seat in consumer.seats.values() if seat.ready and not seat.granted]
                for seat in seats:
                    if got < take.most and seat.ready and not seat.granted:  # it may have gone meanwhile
                        got += await self._grant(seat, take.most - got)
                if got >= take.most or (got and not take.whole) or call in consumer.ending or loop.time() >= until:
                    break
                if consumer.news.is_set():  # said by this very look: what is there can't be handed out yet
                    await asyncio.sleep(_AGAIN)
                    continue
                try:
                    async with asyncio.timeout(None if until == inf else until - loop.time()):
                        await consumer.news.wait()
                except TimeoutError:
                    continue
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            self._hub.unexpected(error, self._hub.sessions.get(consumer.who[0]), "a take over several nodes")
            return
        consumer.ending.discard(call)
        if self._consumers.get(consumer.who) is consumer:
            self._hub.engine.result(consumer.who[0], call, Code.OK, got, "")
            self._hub.flush()

    async def _take_here(self, consumer: _Consumer, most: int) -> int:
        told: asyncio.Future[int] = self._hub.loop.create_future()
        self._takes -= 1  # numbers that no client gives
        self._hub.channels.take_here(consumer.who, self._takes, most, _teller(told))
        self._hub.flush()
        return await told

    async def _grant(self, seat: _RemoteChannel, most: int) -> int:
        told: asyncio.Future[int] = self._hub.loop.create_future()
        self._give(seat, most, _teller(told))
        self._hub.flush()
        return await told

    # Seats.

    def found(self, part: RemoteStream) -> None:
        """A node has a part of a stream, or has it no longer."""
        for consumer in list(self._consumers.values()):
            if consumer.join.stream == part.name:
                self._sit(consumer, part)

    def _sit(self, consumer: _Consumer, part: RemoteStream) -> None:
        conn = part.hander
        seat = consumer.seats.get(part.guid)
        if (
            conn is None
            or (seat is not None and seat.conn == conn)
            or self._consumers.get(consumer.who) is not consumer
        ):
            return
        if seat is not None:
            self._leave(seat)
        self._last += 1
        seat = consumer.seats[part.guid] = self._seats[self._last] = _RemoteChannel(self._last, part, consumer, conn)
        machine, join = consumer.driver.machine, consumer.join
        asked = {
            "stream": join.stream,
            "part": part.guid,
            "channel": join.channel,
            "window": 0,
            "create": join.create or not machine.config.delete_on_leave,
            "start": elsewhere(join.start),
            "settings": msgspec.to_builtins(machine.config, builtin_types=(bytes,)),
            "again": True,
        }
        self._ask(seat, CHANNEL, _encode(asked), lambda code, _, text: self._seated(seat, code, text))

    def _seated(self, seat: _RemoteChannel, code: int, text: str) -> None:
        if code == Code.OK:
            seat.open = True
        elif self._seats.get(seat.number) is seat:
            log.info("no seat at the channel %r of node %s: %s", seat.consumer.join.channel, seat.part.guid[:8], text)
            self._leave(seat)
            self._hub.loop.call_later(_RETRY, self._sit, seat.consumer, seat.part)

    def _leave(self, seat: _RemoteChannel, *, lost: bool = False) -> None:
        self._seats.pop(seat.number, None)
        if seat.consumer.seats.get(seat.part.guid) is seat:
            del seat.consumer.seats[seat.part.guid]
        if seat.conn != _NOBODY:
            self._last += 1
            self._send(seat.conn, CONSUME, self._last, _encode((UNCHANNEL, seat.number, LOST if lost else b"")))
            self._forget(seat)
        self._share(seat.consumer)

    def _forget(self, seat: _RemoteChannel) -> None:
        """Nothing more is heard of it."""
        seat.conn, seat.open, seat.ready, seat.granted, seat.in_flight = _NOBODY, False, False, 0, 0
        for number in [number for number, (_, one, _) in self._calls.items() if one is seat]:
            _, _, told = self._calls.pop(number)
            told(Code.STORE_FAILED, 0, "the node that has stored it is gone; it may be handed out again")

    # Links.

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - it is the same whenever
        for seat in [seat for seat in self._seats.values() if seat.conn == conn]:
            self._seats.pop(seat.number, None)
            if seat.consumer.seats.get(seat.part.guid) is seat:
                del seat.consumer.seats[seat.part.guid]
            self._forget(seat)
            self._share(seat.consumer)

    def room(self, conn: int) -> None:
        for who, consumer in self._consumers.items():
            if who[0] == conn and consumer.seats:
                self._share(consumer)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        try:
            said = _READ[kind].decode(body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Stranger(f"a seat: {error}") from error
        if kind == ANSWERED:
            self._answered(conn, number, *said)
            return
        seat = self._seats.get(number)
        if seat is None or seat.conn != conn:
            return  # left meanwhile
        if kind == GIVEN:
            self._given(seat, *said)
        elif kind == MORE:
            seat.ready, (seat.in_flight,) = True, said
            seat.consumer.news.set()
            self._share(seat.consumer)
        elif kind == MISSING:
            self._hub.engine.tell_gap(*seat.consumer.who, seat.part.number, *said)
        else:
            self._seats.pop(seat.number, None)
            seat.consumer.seats.pop(seat.part.guid, None)
            self._forget(seat)
            self._hub.loop.call_later(_RETRY, self._sit, seat.consumer, seat.part)

    def _answered(self, conn: int, call: int, number: int, code: int, value: int, text: str, in_flight: int) -> None:
        link, seat, told = self._calls.pop(call, (_NOBODY, None, None))
        if seat is None or told is None or link != conn or seat.number != number:
            return  # left meanwhile
        seat.in_flight = in_flight
        told(code, value, text)

    def _given(self, seat: _RemoteChannel, deliveries: int, spans: "_Spans", records: bytes) -> None:
        who = seat.consumer.who
        try:
            block = Block(records)
        except ValueError as error:
            raise Stranger(f"records for a seat: {error}") from error
        left = self._hub.engine.hand_records(*who, seat.part.number, block, spans, deliveries)[1]
        if left:  # by the clock here they have expired
            self._ask(seat, ACK, b"".join(_ENTRY.pack(start, count, 0, 0) for start, count in left), lambda *_: None)

    def _ask(self, seat: _RemoteChannel, kind: int, rest: bytes, told: Told) -> None:
        self._last += 1
        self._calls[self._last] = seat.conn, seat, told
        self._send(seat.conn, CONSUME, self._last, _encode((kind, seat.number, rest)))

    def _send(self, conn: int, kind: int, number: int, body: bytes) -> None:
        if conn == SELF:
            self._hub.loop.call_soon(self._host, number, body)
        else:
            self._hub.engine.node(conn, kind, number, body)

    # Places.

    def _share(self, consumer: _Consumer) -> None:
        """Whoever has something gets its share of the places that the consumer has free."""
        window, who, machine = consumer.join.window, consumer.who, consumer.driver.machine
        if not window or self._stopped or self._consumers.get(who) is not consumer:
            return
        here = machine.count_in_flight(who)
        far = sum(seat.used for seat in consumer.seats.values())
        ready = [seat for seat in consumer.seats.values() if seat.ready and seat.open and not seat.granted]
        if ready and not self._hub.engine.has_room(*who):
            self._hub.engine.want_room(*who)
            return
        if not ready:
            self._hub.channels.window(who, max(window - far, 0))
            return
        parties: list[_RemoteChannel | None] = [*ready, None] if machine.more else [*ready]
        given = shares(window - here - far, parties, consumer.turn)
        consumer.turn += 1
        for seat in ready:
            if count := given.get(seat, 0):
                self._give(seat, count, lambda _: self._share(consumer))
        self._hub.channels.window(who, here + given.get(None, 0))

    def _give(self, seat: _RemoteChannel, most: int, got: Callable[[int], object]) -> None:
        seat.granted, seat.ready = most, False

        def told(code: int, value: int, text: str) -> None:  # noqa: ARG001 - one signature
            seat.granted = 0
            got(value if code == Code.OK else 0)

        self._ask(seat, TAKE, _TAKE.pack(most, 0), told)


def _teller(future: "asyncio.Future[int]") -> Callable[[int], None]:
    def tell(got: int) -> None:
        if not future.done():  # whoever waited may have gone
            future.set_result(got)

    return tell
