"""A WebSocket client of the JSON door: turns frames into requests, and writes answers and messages.

`websocket_picows.py` and `websocket_aiohttp.py` read the frames. A client gets all its data of one turn of the loop
in one write. While a client reads nothing, the door sends it nothing and reads nothing from it: its messages stay in
their channels, and its memory is bounded.
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
from busway.gateway.http.recent import RecentMessages
from busway.gateway.json import envelope
from busway.gateway.json.counters import Counters
from busway.gateway.json.envelope import FLAT, Ident, Malformed
from busway.gateway.json.session import Session
from busway.gateway.json.statuses import NOT_FOUND, Refused, status_of
from busway.gateway.queues.queues import Queue, Queues
from busway.gateway.queues.round_robin import Subscriber
from busway.positions import Position

if TYPE_CHECKING:
    from busway.gateway.http.commands import Commands

log = logging.getLogger("busway.gateway")

HIGH: Final = 256 * 1024
"""Bytes that the write buffer of a client may hold before the client counts as full."""
_CLOSE: Final = 0x88
GOING_AWAY: Final = 1001
TOO_BIG: Final = 1009
TOO_SLOW: Final = 1008
_encode: Final = msgspec.json.Encoder().encode
_FLAT: Final = b'{"id":'
_HEADERS: Final = b'{"headers":{"id":'
_ACKED: Final = [fast_publish.framed(size + len(_FLAT)) + _FLAT for size in range(1024)]
"""The beginning of the answer to a `pub`, by the length of the rest."""


class FastPublisher:
    """Publishes messages of the fast path: stores them, answers the client, and puts their JSON into the cache."""

    def __init__(self, bus: Bus, queues: Queues, counters: Counters, recent: RecentMessages) -> None:
        self._known = queues.known
        self._counters = counters
        self._recent = recent
        self._begin = bus.feed().reported(self._stored, self._refused).begin

    def begin(self, socket: "Socket", data: bytes) -> bool:
        """Publish the message of a frame. False: the general path must handle the frame."""
        pub = fast_publish.read(data, socket.sender)
        if pub is None:
            return False
        mq, payload, fields, ident, body, ack = pub
        queue = self._known(mq)
        if queue is None or queue.topic != mq:
            return False
        try:
            if not self._begin((queue.name, payload, fields, socket, queue, ident, body, ack)):
                return False
        except BusError:
            return False  # the general path reports it
        self._counters.quick += 1
        socket.form = FLAT
        socket.busy += 1
        return True

    def _stored(self, rows: list[Row], place: Position) -> None:
        """The stream has stored these messages, the first at `place`."""
        broker, stream, offset = place.broker, place.stream, place.offset
        put, framed = self._recent.put, _ACKED
        for _, _, _, socket, queue, ident, body, ack in rows:
            socket.busy -= 1
            if stream != queue.stream:  # the queue was removed at the same moment
                self._refuse(socket, ident, Refused(NOT_FOUND, f"MQ({queue.topic}) Not Found"))
            elif ack and not socket.closed:
                if not (out := socket.out):
                    socket.flushes.add(socket)
                acked = queue.acked[0]
                size = len(ident) + len(acked)
                head = framed[size] if size < len(framed) else fast_publish.framed(size + len(_FLAT)) + _FLAT
                out.append(head + ident + acked)
            put((broker, stream, offset), fast_publish.tail(socket.sent_by, ident, offset - queue.base, body))
            offset += 1
            if socket.paused:
                socket.relieved()

    def _refused(self, row: Row, error: BusError) -> None:
        socket: Socket = row[3]
        socket.busy -= 1
        self._refuse(socket, row[5], error)
        socket.relieved()

    def _refuse(self, socket: "Socket", ident: bytes, error: Exception) -> None:
        status, text = status_of(error)
        socket.refuse(FLAT, msgspec.json.decode(ident), status, text)


class FlushScheduler:
    """Flushes clients at the end of the next turn of the loop, so that deliveries and answers often share a write."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._dirty: list[Socket] = []

    def add(self, socket: "Socket") -> None:
        """Schedule a client that has data to write."""
        if not self._dirty:
            self._loop.call_soon(self._loop.call_soon, self._flush)
        self._dirty.append(socket)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for socket in dirty:
            socket.flush()


class Socket(Session):
    """A client that is connected by a WebSocket."""

    def __init__(
        self,
        commands: "Commands",
        pubs: FastPublisher,
        recent: RecentMessages,
        flushes: FlushScheduler,
        transport: asyncio.Transport,
        pending: int,
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(commands)
        self._transport = transport
        self.flushes = flushes
        self._pending = pending
        self._on_close = on_close
        self.out: list[bytes] = []
        self.paused = False
        """The door reads nothing from it."""
        self._loop = asyncio.get_running_loop()
        self.seen = self._loop.time()
        """Time of the last read from it or write to it."""
        self.full_since: float | None = None
        self.sender = fast_publish.packed(self.id)
        self.sent_by = fast_publish.sent_by(self.id)
        self._counters = commands.counters
        self._find = recent.find
        self._put = recent.put
        self._publish = pubs.begin if commands.open else None
        """The fast path; None if the door has keys, because then every request needs a signature check."""
        transport.set_write_buffer_limits(HIGH)

    # Requests.

    def frame(self, data: bytes | str) -> None:
        """Handle a message of the client."""
        if self._publish is not None and self._running is None and type(data) is bytes and self._publish(self, data):
            return
        try:
            request = envelope.parse(data)
        except Malformed as error:
            self.refuse(error.form, error.ident, error.status, error.text)
            return
        self.receive(request)

    def read(self) -> None:
        """All frames of one read are done; pause reading if the client is full or has too many requests."""
        self.seen = self._loop.time()
        if not self.paused and (self.full or self.waiting >= self._pending):
            self.paused = True
            self._transport.pause_reading()

    def relieved(self) -> None:
        if self.paused and not self.full and self.waiting < self._pending // 2 + 1 and not self._transport.is_closing():
            self.paused = False
            self._transport.resume_reading()

    # Answers and messages.

    def send(self, data: bytes) -> None:
        """Queue a text message."""
        out = self.out
        if not out:
            self.flushes.add(self)
        out.append(fast_publish.framed(len(data)) + data)

    def flush(self) -> None:
        """Write all queued messages."""
        if self.out:
            data = b"".join(self.out)
            self.out.clear()
            if not self._transport.is_closing():
                self.seen = self._loop.time()
                self._transport.write(data)

    def answer(self, form: int, ident: Ident, status: int, body: Any, head: dict[str, Any] | None = None) -> None:
        if not self.closed:
            self.send(envelope.answer(form, ident, status, body, head))

    def acked(self, form: int, ident: Ident, queue: Queue, mq: str) -> None:
        if self.closed:
            return
        if mq != queue.topic:
            super().acked(form, ident, queue, mq)
        else:
            self.send((_HEADERS if form else _FLAT) + _encode(ident) + queue.acked[form])

    def deliver(self, subscriber: Subscriber, message: Message) -> None:
        self._counters.delivered += 1
        if subscriber.form == FLAT and subscriber.credit is None:
            place = message.broker, message.stream, message.offset
            tail = self._find(place)
            if tail is None and (tail := fast_publish.plain(message, subscriber.consumer.queue.base)) is not None:
                self._put(place, tail)
            if tail is not None:
                if not (out := self.out):
                    self.flushes.add(self)
                prefix = subscriber.prefix
                out.append(fast_publish.framed(len(prefix) + len(tail)) + prefix + tail)
                return
        base = subscriber.consumer.queue.base
        self.send(
            envelope.delivery(subscriber.form, subscriber.mq, subscriber.channel, message, base, subscriber.credit)
        )

    # The transport.

    def pause(self) -> None:
        """The write buffer of the client is full."""
        self.full = True
        self.full_since = self._loop.time()

    def resume(self) -> None:
        """The write buffer of the client has room again."""
        if not self.closed:
            self.full_since = None
            self.room()
            self.relieved()

    def disconnect(self, code: int, reason: str) -> None:
        """Send the reason and close: at once if the client is full, else after writing its queued messages."""
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
        """Close the connection and drop the queued messages."""
        self._transport.abort()
        self.lost()

    def lost(self) -> None:
        """The connection is closed."""
        if not self.closed:
            self.close()
            self._on_close()
