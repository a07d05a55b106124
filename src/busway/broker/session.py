"""One client's connection, seen from the broker: bytes to the engine, and the life of the transport.

There is one of these per connection and it is all Python keeps of it (subscriptions live in the engine), so it has
slots, no dictionary, and no buffer of its own.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from busway.common import environment
from busway.errors import Code
from busway.transport import broker_buffer, tune
from busway.transport.other_protocols import asks_http, http_answer
from busway.transport.tls import explain, peer_name

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.broker")

GRACE: Final = 2.0
"""Seconds a closing connection has to take what is left for it."""
_CODES: Final = frozenset(Code)


class Session(asyncio.BufferedProtocol):
    """Driver between one transport and the engine."""

    __slots__ = (
        "_buffer",
        "_hub",
        "_timer",
        "accepted",
        "checked",
        "client",
        "closing",
        "conn",
        "fault",
        "name",
        "node",
        "paused",
        "scheme",
        "served",
        "session",
        "transport",
        "why",
    )

    transport: asyncio.Transport
    _awaited = "HELLO"
    """What begins the conversation."""

    def __init__(self, hub: "Hub", scheme: str) -> None:
        self._hub = hub
        self._buffer = broker_buffer()
        self._timer: asyncio.TimerHandle | None = None
        self.scheme = scheme
        self.conn = -1
        self.client = 0
        self.session = 0
        self.name = ""
        self.node = False
        """Another broker is at the other end."""
        self.accepted = False
        self.closing = False
        self.checked = True
        """Whether it is looked at what comes before the engine does: at the beginning, and once it is closing."""
        self.paused = False
        self.served: dict[int, str] = {}
        """Topics of the services that it was allowed, by the numbers it has given them."""
        self.why = "lost"
        """How it ended, for the counters: "client" if that said so, the name of the code it was told, or else it was lost."""
        self.fault = ""
        """The same in words, as far as this side knows any."""

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        tune(self.transport)
        hub = self._hub
        self.conn = self._enter(self.transport.write)
        self._timer = hub.loop.call_later(hub.settings.handshake, self._silent)
        hub.joined(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002, named by asyncio
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        hub = self._hub
        if environment.boottime() > hub.clock.waited_for:
            hub.clock.look()
        if self.checked and self._is_answered(nbytes):
            return
        try:
            events = hub.engine.feed(self.conn, self._buffer, nbytes)
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            hub.unexpected(error, self, "feeding the engine")
            return
        if events:
            hub.handle(events)

    def _is_answered(self, nbytes: int) -> bool:
        """Whether the engine needs not know: HTTP at a native address, or what a connection says after its CLOSE."""
        if self.closing:
            return True
        self.checked = False
        if not asks_http(bytes(self._buffer[: min(nbytes, 8)])):
            return False
        self._hub.faults += 1
        self.why, self.fault = reason(Code.PROTOCOL), "an HTTP client came to a native address"
        log.info("%s of %s", self.fault, self.peer())
        self.closing = self.checked = True
        self._leave()
        self.transport.write(http_answer(self._hub.http))
        if self._timer is not None:
            self._timer.cancel()
        # Closed at once, it could be reset before the client has read the answer, if it still sends.
        self._timer = self._hub.loop.call_later(GRACE, self.transport.close)
        return True

    def pause_writing(self) -> None:
        # Called from inside a write of the engine's flush(), so whatever follows from it has to wait for the next turn.
        if self.conn >= 0 and (events := self._hub.engine.writing(self.conn, False)):
            self._hub.loop.call_soon(self._hub.handle, events)

    def resume_writing(self) -> None:
        if self.conn < 0:
            return
        if events := self._hub.engine.writing(self.conn, True):
            self._hub.handle(events)
        if self.closing:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            log.debug("connection %s of %r: %s", self.client, self.name, exc)
            self.fault = self.fault or (
                explain(exc) if isinstance(exc, ssl.SSLError) else f"the connection was lost: {exc}"
            )
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._leave()
        self._hub.left(self)

    def _enter(self, write: Callable[[memoryview], object]) -> int:
        """The engine's number of this connection; others begin otherwise."""
        return self._hub.engine.connect(write)

    # The hub calls these.

    def admitted(self, client: int, session: int, name: str, *, proof: bool = False) -> None:
        """The handshake is over, but for the proof if another broker has to give one; the time of the handshake is for that, too."""
        self.client = client
        self.session = session
        self.name = name
        self.accepted = True
        if not proof:
            self.proved()

    def proved(self) -> None:
        """Nothing of the handshake is left to wait for."""
        if self._timer is not None and not self.closing:
            self._timer.cancel()
            self._timer = None

    def close(self, code: int, text: str) -> None:
        """Say CLOSE, then end once it is written."""
        if self.closing or self.conn < 0:
            return
        self._hub.engine.close(self.conn, code, text)
        self.why, self.fault = reason(code), text
        self.end()

    def not_understood(self, text: str) -> str:
        """What is wrong with what the other side says, for people."""
        return text

    def end(self) -> None:
        """CLOSE is queued or the client has said it: end once the outbox is empty, or when the time of grace is over."""
        if self.closing or self.conn < 0:
            return
        self.closing = self.checked = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._hub.loop.call_later(GRACE, self.transport.abort)
        self._hub.ending(self)

    def flushed(self) -> None:
        """The engine has flushed: a closing connection may be done."""
        if self.conn >= 0:
            self._finish()

    def pause(self) -> None:
        """Read no more: this client publishes faster than somebody else reads."""
        if not self.paused:
            self.paused = True
            if not self.transport.is_closing():
                self.transport.pause_reading()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def abort(self) -> None:
        """End now, without a word."""
        self.closing = self.checked = True
        self._leave()
        self.transport.abort()

    def peer(self) -> str:
        """The other end's address, as far as the transport knows one."""
        name: Any = self.transport.get_extra_info("peername")
        if isinstance(name, tuple):
            return f"{name[0]}:{name[1]}"
        return str(name) if name else ""

    def peer_name(self) -> str:
        """The name in the other end's certificate."""
        return peer_name(self.transport)

    def _silent(self) -> None:
        self._timer = None
        awaited = "proof of the cluster's key" if self.accepted else self._awaited
        self.close(Code.HANDSHAKE, f"no {awaited} within {self._hub.settings.handshake:g} s")
        self._hub.flush()

    def _finish(self) -> None:
        if self._hub.engine.pending(self.conn) == 0:
            self._leave()
            self.transport.close()

    def _leave(self) -> None:
        """Take the connection out of the engine, which may use its number again."""
        conn, self.conn = self.conn, -1
        if conn >= 0:
            self._hub.forget(conn)


def reason(code: int) -> str:
    """The name of a code, of which there are few, whatever number another program comes up with."""
    return Code(code).name.lower() if code in _CODES else "other"
