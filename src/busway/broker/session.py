"""The session of one connection: passes its bytes to the engine, and manages its transport.

asyncio and the hub call it. It is the only Python object of a connection (subscriptions are in the engine), so it has
slots instead of a dictionary, and no buffer of its own.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from busway._core import Grants
from busway.authority.login import Peer
from busway.common import environment
from busway.errors import Code
from busway.transport import broker_buffer, tune
from busway.transport.other_protocols import asks_http, http_answer
from busway.transport.peer import certificate_of, peer_name, peer_uid
from busway.transport.tls import explain

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.broker")

GRACE: Final = 2.0
"""Seconds that a closing connection has to read the rest of its outbox."""
_CODES: Final = frozenset(Code)


class Session(asyncio.BufferedProtocol):
    """The driver between one transport and the engine."""

    __slots__ = (
        "_buffer",
        "_runtime",
        "_timer",
        "accepted",
        "checked",
        "client",
        "closing",
        "conn",
        "fault",
        "grants",
        "name",
        "node",
        "paused",
        "roles",
        "scheme",
        "served",
        "session",
        "transport",
        "user",
        "why",
    )

    transport: asyncio.Transport
    dialled = False
    """Whether this broker has made the connection."""
    _awaited = "HELLO"
    """The frame that the other end has to send first."""

    def __init__(self, runtime: "Runtime", scheme: str) -> None:
        self._runtime = runtime
        self._buffer = broker_buffer()
        self._timer: asyncio.TimerHandle | None = None
        self.scheme = scheme
        self.conn = -1
        self.client = 0
        self.session = 0
        self.name = ""
        """The name of the client. With users it begins with that of its user."""
        self.user = ""
        """The user; empty: the broker has no users, or the client is one of its own process."""
        self.roles: tuple[str, ...] = ()
        """The roles in the token of the user."""
        self.grants: Grants | None = None
        """What the user may do; None: everything."""
        self.node = False
        """Whether the other end is another broker."""
        self.accepted = False
        self.closing = False
        self.checked = True
        """Whether received bytes are checked before the engine gets them: at the beginning, and while closing."""
        self.paused = False
        self.served: dict[int, str] = {}
        """The topics of the client's services, by the numbers that the client has given them."""
        self.why = "lost"
        """Why the connection ended, as a metric label: "client" (it sent CLOSE), the code of a CLOSE, or "lost"."""
        self.fault = ""
        """Why the connection ended, as text; empty if this side knows no reason."""

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        tune(self.transport)
        runtime = self._runtime
        self.conn = self._enter(self.transport.write)
        self._timer = runtime.loop.call_later(runtime.settings.handshake, self._handshake_timeout)
        runtime.joined(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002, named by asyncio
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        runtime = self._runtime
        if environment.boottime() > runtime.waited_for:
            runtime.check_sleep()
        if self.checked and self._is_answered(nbytes):
            return
        try:
            events = runtime.engine.feed(self.conn, self._buffer, nbytes)
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            runtime.unexpected(error, self, "feeding the engine")
            return
        if events:
            runtime.handle(events)

    def _is_answered(self, nbytes: int) -> bool:
        """Handle bytes that the engine must not get: HTTP, and frames after a CLOSE. True: handled."""
        if self.closing:
            return True
        self.checked = False
        if not asks_http(bytes(self._buffer[: min(nbytes, 8)])):
            return False
        self._runtime.faults += 1
        self.why, self.fault = reason(Code.PROTOCOL), "an HTTP client came to a native address"
        log.info("%s of %s", self.fault, self.peer())
        self.closing = self.checked = True
        self._leave()
        self.transport.write(http_answer(self._runtime.http))
        if self._timer is not None:
            self._timer.cancel()
        # If it were closed at once while the client still sends, the answer could be lost by a reset.
        self._timer = self._runtime.loop.call_later(GRACE, self.transport.close)
        return True

    def pause_writing(self) -> None:
        # Called from inside a write of the engine's flush(), so its events have to wait for the next turn of the loop.
        if self.conn >= 0 and (events := self._runtime.engine.writing(self.conn, False)):
            self._runtime.loop.call_soon(self._runtime.handle, events)

    def resume_writing(self) -> None:
        if self.conn < 0:
            return
        if events := self._runtime.engine.writing(self.conn, True):
            self._runtime.handle(events)
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
        self._runtime.left(self)

    def _enter(self, write: Callable[[memoryview], object]) -> int:
        """Enter the connection into the engine. Returns its number. Links to other nodes override this."""
        return self._runtime.engine.connect(write)

    # The hub calls these.

    def admitted(self, client: int, session: int, name: str, *, proof: bool = False) -> None:
        """The handshake is done. With `proof`, the other broker still has to prove its key within the same time."""
        self.client = client
        self.session = session
        self.name = name
        self.accepted = True
        self._runtime.strangers.pop(self, None)
        if not proof:
            self.proved()

    def proved(self) -> None:
        """End the time limit of the handshake."""
        if self._timer is not None and not self.closing:
            self._timer.cancel()
            self._timer = None

    def close(self, code: int, text: str) -> None:
        """Send CLOSE, and end the connection once it is written."""
        if self.closing or self.conn < 0:
            return
        self._runtime.engine.close(self.conn, code, text)
        self.why, self.fault = reason(code), text
        self.end()

    def not_understood(self, text: str) -> str:
        """The text for a frame of the other end that the engine does not understand. Links override this."""
        return text

    def end(self) -> None:
        """End the connection once its outbox is empty, or after the grace period. A CLOSE was queued or received."""
        if self.closing or self.conn < 0:
            return
        self.closing = self.checked = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._runtime.loop.call_later(GRACE, self.transport.abort)
        self._runtime.ending(self)

    def flushed(self) -> None:
        """The engine has flushed: close the transport if this session is closing and its outbox is empty."""
        if self.conn >= 0:
            self._finish()

    def pause(self) -> None:
        """Stop reading, because this client publishes faster than a consumer reads."""
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
        """End the connection at once, without a CLOSE."""
        self.closing = self.checked = True
        self._leave()
        self.transport.abort()

    def peer(self) -> str:
        """The address of the other end; empty if the transport has none."""
        name: Any = self.transport.get_extra_info("peername")
        if isinstance(name, tuple):
            return f"{name[0]}:{name[1]}"
        return str(name) if name else ""

    def peer_host(self) -> str:
        """The IP address of the other end; empty if the transport has none."""
        name: Any = self.transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) and name else ""

    def login_peer(self) -> Peer:
        """What the transport proves about the other end."""
        uid = peer_uid(self.transport) if self.scheme == "unix" else None
        names, expires = certificate_of(self.transport)
        return Peer(self.scheme, uid=uid, certificates=names, expires=expires)

    def peer_name(self) -> str:
        """The name in the other end's certificate."""
        return peer_name(self.transport)

    def _handshake_timeout(self) -> None:
        self._timer = None
        awaited = "proof of the cluster's key" if self.accepted else self._awaited
        self.close(Code.HANDSHAKE, f"no {awaited} within {self._runtime.settings.handshake:g} s")
        self._runtime.flush()

    def _finish(self) -> None:
        if self._runtime.engine.pending(self.conn) == 0:
            self._leave()
            self.transport.close()

    def _leave(self) -> None:
        """Remove the connection from the engine, which may reuse its number."""
        conn, self.conn = self.conn, -1
        if conn >= 0:
            self._runtime.forget(conn)


def reason(code: int) -> str:
    """The name of a code, or "other" for an unknown number, so that the number of metric labels is limited."""
    return Code(code).name.lower() if code in _CODES else "other"
