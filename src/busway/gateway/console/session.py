"""A console session: one browser tab with its WebSocket and its own client of the bus. A driver over aiohttp.

The session logs in, runs requests side by side, and sends answers and the rows of tails. A browser that reads slowly
stops its tails, not the broker.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import WSMsgType, web

from busway._core import __version__
from busway.client.bus import ClientOptions
from busway.errors import BusError, Closed
from busway.gateway.console.commands import Commands
from busway.gateway.console.rights import Rights
from busway.gateway.console.tail import Tails
from busway.gateway.json.statuses import BAD, FAILED, OK, UNAUTHORIZED, Refused, status_of

if TYPE_CHECKING:
    from busway.broker.server import Server

log = logging.getLogger("busway.gateway")

LOGIN: Final = 4001
"""The code of a WebSocket that the broker closes because its user must log in again."""
_PENDING: Final = 64
"""Requests of a session that run at a time."""
_STALL: Final = 30.0
"""Seconds within which the browser must read."""

_encode: Final = msgspec.json.Encoder().encode


class ConsoleSession:
    """One tab of a browser."""

    def __init__(self, server: "Server", socket: web.WebSocketResponse, rights: Rights) -> None:
        self._server = server
        self._socket = socket
        self._rights = rights
        self._commands: Commands | None = None
        """The commands of the client of the bus; None before the login."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve the tab until it disconnects."""
        async with AsyncExitStack() as stack:
            try:
                if self._rights.login == "none":
                    await self._enter(stack, self._rights.options())
                await self._send(self._hello())
                async for frame in self._socket:
                    if frame.type is WSMsgType.TEXT:
                        self._receive(stack, frame.data)
            except (ConnectionError, TimeoutError):
                log.debug("a console did not read its data and is closed")
            finally:
                for task in self._tasks:
                    task.cancel()

    async def _enter(self, stack: AsyncExitStack, options: ClientOptions) -> None:
        """Connect the session's client, which has the rights of its user. Raises BusError."""
        if self._commands is not None:
            raise Refused(BAD, "this session has logged in: open another one")
        bus = await stack.enter_async_context(self._server.connect(**options))
        tails = Tails(bus, self._send)
        stack.push_async_callback(tails.close)
        self._commands = Commands(bus, self._rights, tails, self._send)

    async def close(self) -> None:
        """The broker stops: tell the tab, which connects again."""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._socket.close(code=1001, message=b"the broker stops")

    def _hello(self) -> dict[str, Any]:
        return {
            "hello": {
                "version": __version__,
                "name": self._server.name,
                "guid": self._server.guid,
                "login": self._rights.login,
                "rights": self._rights.shown(),
            }
        }

    def _receive(self, stack: AsyncExitStack, text: str) -> None:
        if len(self._tasks) >= _PENDING:
            answer = self._answer(_ident(text), BAD, f"a console may have {_PENDING} requests at a time")
        else:
            answer = self._handle(stack, text)
        task = asyncio.get_running_loop().create_task(answer, name="busway console request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, stack: AsyncExitStack, text: str) -> None:
        ident: Any = None
        try:
            request = msgspec.json.decode(text)
            if not isinstance(request, dict):
                raise Refused(BAD, "a request is a JSON object")  # noqa: TRY301
            ident = request.get("id")
            if request.get("cmd") == "login":
                await self._enter(stack, self._rights.check(request, text))
                body: Any = self._rights.shown()
            elif self._commands is None:
                raise Refused(UNAUTHORIZED, "log in first")  # noqa: TRY301
            else:
                body = await self._commands.run(request)
        except (Refused, BusError, ValueError, TypeError, RecursionError) as error:
            await self._answer(ident, *status_of(error))
            if isinstance(error, Closed):  # the user was removed, or its rights were narrowed
                await self._socket.close(code=LOGIN, message=b"log in again")
        except Exception:
            log.exception("unexpected error in a request of the console")
            await self._answer(ident, FAILED, "unexpected error; the broker's log has its traceback")
        else:
            await self._answer(ident, OK, body)

    async def _answer(self, ident: Any, status: int, body: Any) -> None:
        with suppress(ConnectionError, TimeoutError):
            await self._send({"id": ident, "status": status, "body": body})

    async def _send(self, message: Mapping[str, Any]) -> None:
        data = _encode(message)
        try:
            async with asyncio.timeout(_STALL):
                await self._socket.send_frame(data, WSMsgType.TEXT)
        except TimeoutError:
            if (transport := self._socket.get_extra_info("transport")) is not None:
                transport.abort()
            raise


def _ident(text: str) -> Any:
    try:
        request = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return request.get("id") if isinstance(request, dict) else None
