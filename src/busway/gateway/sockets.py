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
from busway.client.storing import Telling
from busway.errors import BusError
from busway.gateway import envelope, quick
from busway.gateway.envelope import FLAT, Ident, Malformed
from busway.gateway.queues import Queue
from busway.gateway.rings import Subscriber
from busway.gateway.session import Session
from busway.gateway.statuses import NOT_FOUND, Refused, told

if TYPE_CHECKING:
    from busway.gateway.commands import Commands

log = logging.getLogger("busway.gateway")

HIGH: Final = 256 * 1024
"""Bytes that may wait to be written to a client before it counts as full."""
_TURNS: Final = 1
"""Turns of the loop that a write waits: what a message is answered with and what is delivered for it leave together."""
_TEXT: Final = 0x81
_CLOSE: Final = 0x88
GOING_AWAY: Final = 1001
TOO_BIG: Final = 1009
TOO_SLOW: Final = 1008
_encode: Final = msgspec.json.Encoder().encode
_FLAT: Final = b'{"id":'
_HEADERS: Final = b'{"headers":{"id":'


class Ack(Telling):
    """A message of a client, which is told that it is stored."""

    __slots__ = ("_answered", "_ident", "_queue", "_socket")

    def __init__(self, socket: "Socket", queue: Queue, pub: quick.Pub) -> None:
        self.topic = queue.name
        _, self._ident, self.payload, self.fields, self._answered = pub
        self.sent = 0
        self._socket = socket
        self._queue = queue

    def stored(self, broker: str, stream: str, offset: int, sequence: int) -> None:
        del broker, offset, sequence
        socket, queue = self._socket, self._queue
        socket.busy -= 1
        if stream != queue.stream:  # it was removed at the same moment
            self._refuse(Refused(NOT_FOUND, f"MQ({queue.topic}) Not Found"))
            return
        if self._answered and not socket.gone:
            socket.send(_FLAT + self._ident + queue.acked[0])
        if socket.held:
            socket.relieved()

    def refused(self, error: BusError) -> None:
        self._socket.busy -= 1
        self._refuse(error)
        self._socket.relieved()

    def _refuse(self, error: Exception) -> None:
        status, text = told(error)
        self._socket.refuse(FLAT, msgspec.json.decode(self._ident), status, text)


class Flushes:
    """Writes what waits for clients at the end of a turn."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._dirty: list[Socket] = []
        self._turns = 0

    def add(self, one: "Socket") -> None:
        if not self._dirty:
            self._turns = _TURNS
            self._loop.call_soon(self._flush)
        self._dirty.append(one)

    def _flush(self) -> None:
        if self._turns:
            self._turns -= 1
            self._loop.call_soon(self._flush)
            return
        dirty, self._dirty = self._dirty, []
        for one in dirty:
            one.flush()


class Socket(Session):
    """A client over a WebSocket."""

    def __init__(
        self,
        commands: "Commands",
        flushes: Flushes,
        transport: asyncio.Transport,
        pending: int,
        gone: Callable[[], None],
    ) -> None:
        super().__init__(commands)
        self._transport = transport
        self._flushes = flushes
        self._pending = pending
        self._gone = gone
        self._out: list[bytes] = []
        self.held = False
        """It is not read from."""
        self._loop = asyncio.get_running_loop()
        self.seen = self._loop.time()
        """When it last said or took something."""
        self.full_since: float | None = None
        self._sender = quick.packed(self.id)
        self._store = commands.store
        self._counters = commands.counters
        self._quick = commands.open
        """Whether nobody has to sign anything."""
        transport.set_write_buffer_limits(HIGH)

    # In.

    def frame(self, data: bytes | str) -> None:
        """A message has arrived."""
        if self._quick and self._running is None and type(data) is bytes:
            pub = quick.read(data, self._sender)
            if pub is not None and (queue := self._commands.queues.known(pub[0])) is not None and pub[0] == queue.topic:
                self.form = FLAT
                try:
                    sent = self._store(Ack(self, queue, pub))
                except BusError:
                    sent = False  # the long way tells it
                if sent:
                    self._counters.quick += 1
                    self.busy += 1
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
        out = self._out
        if not out:
            self._flushes.add(self)
        size = len(data)
        if size < 126:
            out.append(bytes((_TEXT, size)))
        elif size < 65_536:
            out.append(bytes((_TEXT, 126, size >> 8, size & 255)))
        else:
            out.append(bytes((_TEXT, 127)) + size.to_bytes(8))
        out.append(data)

    def flush(self) -> None:
        """Write what waits."""
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
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
            self.send(quick.delivery(one.begin, one.mq, one.channel, message))
        else:
            self.send(envelope.delivery(one.form, one.mq, one.channel, message, one.credit))

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
