"""A WebSocket client of the JSON door, apart from how its frames are read: requests in, answers and messages out.

What goes out in one turn of the loop leaves in one write. A client that takes nothing is given nothing: its messages stay in
their channels, and it is not read from either, so it costs a bounded amount of memory.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway._core import Message
from busway.client.bus import Bus
from busway.client.durable.in_flight import Row
from busway.errors import BusError
from busway.gateway.http import fast_publish
from busway.gateway.http.recent import Recent
from busway.gateway.json import envelope
from busway.gateway.json.counters import Counters
from busway.gateway.json.envelope import FLAT, Ident, Malformed
from busway.gateway.json.session import Session
from busway.gateway.json.statuses import NOT_FOUND, Refused, told
from busway.gateway.queues.queues import Queue, Queues
from busway.gateway.queues.round_robin import Subscriber
from busway.positions import Position

if TYPE_CHECKING:
    from busway.gateway.http.commands import Commands

log = logging.getLogger("busway.gateway")

HIGH: Final = 256 * 1024
"""Bytes that may wait to be written to a client before it counts as full."""
_CLOSE: Final = 0x88
GOING_AWAY: Final = 1001
TOO_BIG: Final = 1009
TOO_SLOW: Final = 1008
_encode: Final = msgspec.json.Encoder().encode
_FLAT: Final = b'{"id":'
_HEADERS: Final = b'{"headers":{"id":'
_ACKED: Final = [fast_publish.framed(size + len(_FLAT)) + _FLAT for size in range(1024)]
"""How the answer to a `pub` begins, by the length of the rest."""


class Pubs:
    """What clients publish the short way: stored, answered, and remembered for those who get it in the same moment."""

    def __init__(self, bus: Bus, queues: Queues, counters: Counters, recent: Recent) -> None:
        self._known = queues.known
        self._counters = counters
        self._recent = recent
        self._begin = bus.feed().teller(self._stored, self._refused).begin

    def begin(self, socket: "Socket", data: bytes) -> bool:
        """Publish what a frame says, if it can go the short way."""
        pub = fast_publish.read(data, socket.sender)
        if pub is None:
            return False
        mq, payload, fields, ident, body, answered = pub
        queue = self._known(mq)
        if queue is None or queue.topic != mq:
            return False
        try:
            if not self._begin((queue.name, payload, fields, socket, queue, ident, body, answered)):
                return False
        except BusError:
            return False  # the long way tells it
        self._counters.quick += 1
        socket.form = FLAT
        socket.busy += 1
        return True

    def _stored(self, rows: list[Row], place: Position) -> None:
        """These are stored, one after the other."""
        broker, stream, offset = place.broker, place.stream, place.offset
        put, framed = self._recent.put, _ACKED
        for _, _, _, socket, queue, ident, body, answered in rows:
            socket.busy -= 1
            if stream != queue.stream:  # it was removed at the same moment
                self._refuse(socket, ident, Refused(NOT_FOUND, f"MQ({queue.topic}) Not Found"))
            elif answered and not socket.gone:
                if not (out := socket.out):
                    socket.flushes.add(socket)
                acked = queue.acked[0]
                size = len(ident) + len(acked)
                head = framed[size] if size < len(framed) else fast_publish.framed(size + len(_FLAT)) + _FLAT
                out.append(head + ident + acked)
            put((broker, stream, offset), fast_publish.tail(socket.sent_by, ident, offset - queue.base, body))
            offset += 1
            if socket.held:
                socket.relieved()

    def _refused(self, row: Row, error: BusError) -> None:
        socket: Socket = row[3]
        socket.busy -= 1
        self._refuse(socket, row[5], error)
        socket.relieved()

    def _refuse(self, socket: "Socket", ident: bytes, error: Exception) -> None:
        status, text = told(error)
        socket.refuse(FLAT, msgspec.json.decode(ident), status, text)


class Flushes:
    """Writes what waits for clients at the end of the next turn: what is delivered for a message often leaves with its answer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._dirty: list[Socket] = []

    def add(self, one: "Socket") -> None:
        if not self._dirty:
            self._loop.call_soon(self._loop.call_soon, self._flush)
        self._dirty.append(one)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for one in dirty:
            one.flush()


class Socket(Session):
    """A client over a WebSocket."""

    def __init__(
        self,
        commands: "Commands",
        pubs: Pubs,
        recent: Recent,
        flushes: Flushes,
        transport: asyncio.Transport,
        pending: int,
        gone: Callable[[], None],
    ) -> None:
        super().__init__(commands)
        self._transport = transport
        self.flushes = flushes
        self._pending = pending
        self._gone = gone
        self.out: list[bytes] = []
        self.held = False
        """It is not read from."""
        self._loop = asyncio.get_running_loop()
        self.seen = self._loop.time()
        """When it last said or took something."""
        self.full_since: float | None = None
        self.sender = fast_publish.packed(self.id)
        self.sent_by = fast_publish.sent_by(self.id)
        self._counters = commands.counters
        self._find = recent.find
        self._put = recent.put
        self._publish = pubs.begin if commands.open else None
        """The short way, if nobody has to sign anything."""
        transport.set_write_buffer_limits(HIGH)

    # In.

    def frame(self, data: bytes | str) -> None:
        """A message has arrived."""
        if self._publish is not None and self._running is None and type(data) is bytes and self._publish(self, data):
            return
        try:
            request = envelope.parse(data)
        except Malformed as error:
            self.refuse(error.form, error.ident, error.status, error.text)
            return
        self.receive(request)

    def read(self) -> None:
        """All that was there is dealt with."""
        self.seen = self._loop.time()
        if not self.held and (self.full or self.waiting >= self._pending):
            self.held = True
            self._transport.pause_reading()

    def relieved(self) -> None:
        if self.held and not self.full and self.waiting < self._pending // 2 + 1 and not self._transport.is_closing():
            self.held = False
            self._transport.resume_reading()

    # Out.

    def send(self, data: bytes) -> None:
        out = self.out
        if not out:
            self.flushes.add(self)
        out.append(fast_publish.framed(len(data)) + data)

    def flush(self) -> None:
        """Write what waits."""
        if self.out:
            data = b"".join(self.out)
            self.out.clear()
            if not self._transport.is_closing():
                self.seen = self._loop.time()
                self._transport.write(data)

    def answer(self, form: int, ident: Ident, status: int, body: Any, head: dict[str, Any] | None = None) -> None:
        if not self.gone:
            self.send(envelope.answer(form, ident, status, body, head))

    def acked(self, form: int, ident: Ident, queue: Queue, mq: str) -> None:
        if self.gone:
            return
        if mq != queue.topic:
            super().acked(form, ident, queue, mq)
        else:
            self.send((_HEADERS if form else _FLAT) + _encode(ident) + queue.acked[form])

    def deliver(self, one: Subscriber, message: Message) -> None:
        self._counters.delivered += 1
        if one.form == FLAT and one.credit is None:
            place = message.broker, message.stream, message.offset
            tail = self._find(place)
            if tail is None and (tail := fast_publish.plain(message, one.tap.queue.base)) is not None:
                self._put(place, tail)
            if tail is not None:
                if not (out := self.out):
                    self.flushes.add(self)
                begin = one.begin
                out.append(fast_publish.framed(len(begin) + len(tail)) + begin + tail)
                return
        self.send(envelope.delivery(one.form, one.mq, one.channel, message, one.tap.queue.base, one.credit))

    # Its socket.

    def pause(self) -> None:
        """Much waits to be written."""
        self.full = True
        self.full_since = self._loop.time()

    def resume(self) -> None:
        """Little waits to be written."""
        if not self.gone:
            self.full_since = None
            self.room()
            self.relieved()

    def part(self, code: int, reason: str) -> None:
        """Tell it why, and close: at once if it takes nothing, else when it has what waits for it."""
        if self._transport.is_closing():
            return
        self.flush()
        text = reason.encode()[:120]
        self._transport.write(bytes((_CLOSE, len(text) + 2)) + code.to_bytes(2) + text)
        if self.full:
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close it, whatever waits."""
        self._transport.abort()
        self.lost()

    def lost(self) -> None:
        """The socket is gone."""
        if not self.gone:
            self.close()
            self._gone()
