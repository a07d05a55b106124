"""The JSON door of a server: opens the port for HTTP and WebSocket, accepts clients, and drains them at the stop.

`busway.serve(http=...)` creates it, and the server opens and closes it. A driver.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from busway._core import __version__
from busway.broker.exposure import CLOSED, HTTP, Exposure
from busway.client.bus import Bus
from busway.errors import ListenFailed
from busway.gateway.auth.guard import Guard, Keys
from busway.gateway.auth.users import HttpUser, HttpUsers
from busway.gateway.console.routes import Console
from busway.gateway.http.commands import Commands
from busway.gateway.http.first_request import FirstRequest
from busway.gateway.http.origins import Origins
from busway.gateway.http.routes import application, http_log
from busway.gateway.http.websocket import GOING_AWAY, REVOKED, TOO_SLOW, FlushScheduler, Socket
from busway.gateway.json.config import Http, host_port
from busway.gateway.json.statuses import AWAY, FORBIDDEN, MISDIRECTED
from busway.gateway.queues.queues import Queues
from busway.transport.interfaces import is_exposed

if TYPE_CHECKING:
    from busway.broker.server import Server

log = logging.getLogger("busway.gateway")

_SWEEP: Final = 0.5
"""Seconds between two checks for silent and stalled clients."""

_LINGER: Final = 2.0
"""Seconds for which aiohttp reads the rest of a refused request, so that its client can read the answer."""


class JsonDoor:
    """The JSON door: its listener, its clients and its connection to the bus."""

    kind = "http"

    def __init__(
        self, server: "Server", settings: Http, keys: Keys | None = None, *, exposure: Exposure = CLOSED
    ) -> None:
        self._server = server
        self._exposure = exposure
        self.settings = settings
        self.closing = False
        self.users = None if server.authority.policy is None else HttpUsers(server.authority)
        self.guard = Guard(keys, users=self.users is not None)
        self._host, self._port = host_port(settings.address)
        self.origins = Origins(self._host, settings.hosts, settings.cors)
        self.console = Console(server, self.guard, settings.body)
        self._sockets: set[Socket] = set()
        self.new_connections: set[FirstRequest] = set()
        """Connections whose first request is not complete."""
        self._empty = asyncio.Event()
        self._empty.set()
        self.bus: Bus | None = None
        self._commands: Commands | None = None
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The URL of the door."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def welcome(self) -> str:
        """The text for people who open the address in a browser."""
        native = " or ".join(self._server.addresses) or "it only within its process"
        return (
            f"Busway {__version__}: the HTTP and WebSocket port of the broker {self._server.name!r}.\n\n"
            f"{self.address}/console    the console, in a browser\n"
            f"curl '{self.address}/?cmd=ping'\n"
            "/services        services that can be called\n"
            "/openapi.json    description of this port\n"
            "/asyncapi.json   description of the streams and topics\n"
            "/healthz, /readyz, /metrics\n\n"
            f"Native clients connect to {native}.\n"
        )

    @property
    def commands(self) -> Commands:
        """The commands of the open door."""
        assert self._commands is not None
        return self._commands

    def figures(self) -> dict[str, Any]:
        """Its counters and its numbers of clients and channels."""
        counters = self.commands.counters
        return {
            "sockets": len(self._sockets),
            "requests": dict(counters.requests),
            "refusals": {str(status): count for status, count in counters.refusals.items()},
            "forbidden": self.guard.refused + (0 if self.users is None else self.users.refused),
            "delivered": counters.delivered,
            "slow": counters.slow,
            "channels": len(self.commands.consumers),
        }

    # From start to stop.

    async def open(self) -> None:
        """Connect to the bus, and listen. Raises ListenFailed."""
        loop = asyncio.get_running_loop()
        if not self.guard.active and await is_exposed(self._host):
            self._exposure.open(HTTP, self.address, "keys")
        self.bus = await self._server.connect(name="json").open()
        self._flushes = FlushScheduler()
        queues = Queues(self._server, self.bus, self.settings)
        self._commands = Commands(self.bus, queues, self.settings, self.guard)
        self._runner = web.AppRunner(
            application(self, self._server),
            access_log=None,
            logger=http_log,
            handler_cancellation=True,
            shutdown_timeout=1.0,
            lingering_time=_LINGER,
            max_line_size=self.settings.head,
            max_field_size=self.settings.head,
        )
        await self._runner.setup()
        try:
            self._listener = await loop.create_server(
                lambda: FirstRequest(self), self._host, self._port, reuse_address=True
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
            raise ListenFailed(f"can't listen on {self.address}: {reason}") from error
        self._port = self._listener.sockets[0].getsockname()[1]
        self._sweeper = loop.create_task(self._sweep(), name="busway http sweep")

    async def close(self, seconds: float) -> None:
        """Stop listening, disconnect the clients after their queued data, and close the bus, within `seconds`."""
        self.closing = True
        deadline = asyncio.get_running_loop().time() + seconds
        if self._listener is not None:
            self._listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.new_connections):
            connection.abort()
        for socket in list(self._sockets):
            socket.disconnect(GOING_AWAY, "the broker stops")
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.console.close()
                await self._empty.wait()
        for socket in list(self._sockets):
            socket.abort()
        if self._commands is not None:
            for session in list(self._commands.sessions.values()):
                session.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._commands is not None:
            await self._commands.close()
        if self.bus is not None:
            await self.bus.drain(max(deadline - asyncio.get_running_loop().time(), 0.1))

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP)
            now = loop.time()
            self.commands.consumers.sweep(now)
            self._revoke()
            for socket in list(self._sockets):
                if socket.full_since is not None and now - socket.full_since > self.settings.stall:
                    self.commands.counters.slow += 1
                    log.warning("closing a WebSocket client that read nothing for %g s", self.settings.stall)
                    socket.disconnect(TOO_SLOW, "too slow")
                elif now - socket.seen > self.settings.idle:
                    socket.disconnect(GOING_AWAY, f"silent for {self.settings.idle:g} s")

    def _revoke(self) -> None:
        """End the sessions of users that have lost something."""
        for session in list(self.commands.sessions.values()):
            if isinstance(session.user, HttpUser) and (why := session.user.lost):
                if isinstance(session, Socket):
                    session.disconnect(REVOKED, why)
                else:
                    session.stop()

    # Connections.

    def plain(self) -> Any:
        """The HTTP protocol of aiohttp for a connection."""
        assert self._runner is not None
        assert self._runner.server is not None
        return self._runner.server()

    async def identify(self, request: web.Request) -> HttpUser | None:
        """The user that sends a request; None: the door has no users, or the request does not log in."""
        if self.users is None:
            return None
        name = request.transport.get_extra_info("peername") if request.transport is not None else None
        return await self.users.identify(request.headers, str(name[0]) if isinstance(name, tuple) else "")

    def socket(self, transport: Any, user: HttpUser | None) -> Socket:
        """The session of a new WebSocket client."""
        socket = Socket(
            self.commands,
            self._flushes,
            transport,
            self.settings.pending,
            lambda: self._remove_socket(socket),
        )
        socket.user = user
        self._sockets.add(socket)
        self._empty.clear()
        return socket

    def _remove_socket(self, socket: Socket) -> None:
        self._sockets.discard(socket)
        if not self._sockets:
            self._empty.set()

    def refusal(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Status and text if a request is refused unread; else None.

        The door refuses a request for another host, while it closes, above its limit of clients, and from a page of
        an origin that may not call it.
        """
        if (text := self.origins.misdirected(headers)) is not None:
            return MISDIRECTED, text
        if self.closing:
            return AWAY, "the broker stops"
        if len(self._sockets) >= self.settings.clients:
            return AWAY, f"the limit of {self.settings.clients} clients is reached"
        if self.origins.foreign(headers):
            return (
                FORBIDDEN,
                f"pages of {headers.get('Origin') or 'other origins'} may not call the door (setting cors)",
            )
        return None
