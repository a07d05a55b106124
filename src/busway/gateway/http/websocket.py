"""A WebSocket client of the JSON door: turns frames into requests, and writes answers and messages.

`websocket_reader.py` reads the frames. A client gets all its data of one turn of the loop in one write. While a client
reads nothing, the door sends it nothing and reads nothing from it: its messages stay in their channels, and its memory
is bounded.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from busway._core import Message
from busway.gateway.http import fast_publish
from busway.gateway.json import envelope
from busway.gateway.json.envelope import FLAT, Ident, Malformed
from busway.gateway.json.session import Session
from busway.gateway.queues.queues import Queue
from busway.gateway.queues.round_robin import Subscriber

if TYPE_CHECKING:
    from busway.gateway.http.commands import Commands

log = logging.getLogger("busway.gateway")

HIGH: Final = 256 * 1024
"""Bytes that the write buffer of a client may hold before the client counts as full."""
_CLOSE: Final = 0x88
GOING_AWAY: Final = 1001
TOO_BIG: Final = 1009
TOO_SLOW: Final = 1008
REVOKED: Final = 1008
_FLAT: Final = b'{"id":'
_HEADERS: Final = b'{"headers":{"id":'


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
        self._find = commands.recent.find
        self._put = commands.recent.put
        self._publish = commands.publisher.publish_frame if commands.open else None
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

    def acked(self, form: int, ident: bytes, queue: Queue, mq: str) -> None:
        if mq != queue.topic:
            super().acked(form, ident, queue, mq)
        elif not self.closed:
            data = (_HEADERS if form else _FLAT) + ident + queue.acked[form]
            if not (out := self.out):
                self.flushes.add(self)
            out.append(fast_publish.framed(len(data)) + data)

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
