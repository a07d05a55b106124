"""Routes of the console: its page for browsers, its files, and the WebSockets of its sessions. A driver over aiohttp.

`http/routes.py` adds them before the handler of commands. The page is at `/` for browsers and always at `/console`.
"""

import logging
from functools import cache
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web

from busway.gateway.auth.guard import Guard
from busway.gateway.console.assets import MISSING, Asset, Assets, Incomplete
from busway.gateway.console.rights import Rights
from busway.gateway.console.session import ConsoleSession
from busway.gateway.json.statuses import AWAY

if TYPE_CHECKING:
    from busway.broker.server import Server

log = logging.getLogger("busway.gateway")

PAGE: Final = "/console"
SOCKET: Final = "/console/socket"
SESSIONS: Final = 64
"""Tabs at a time."""
_BEAT: Final = 20.0
"""Seconds of silence after which a tab is pinged."""
_SAFE: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@cache
def _assets() -> Assets | None:
    """The files of the console; None if this build lacks some."""
    try:
        return Assets.load()
    except Incomplete as error:
        log.info("the console is not complete: %s", error)
        return None


class Console:
    """The console of one door."""

    def __init__(self, server: "Server", guard: Guard, largest: int) -> None:
        """`largest` is the size of the largest payload that a browser may send."""
        self._server = server
        self._guard = guard
        self._largest = largest
        self._sessions: set[ConsoleSession] = set()

    def routes(self) -> list[web.RouteDef]:
        """The routes of the page and of its files."""
        return [
            web.get(PAGE, self.page),
            web.get("/console/{digest:[0-9a-f]{16}}/{name:[a-zA-Z_./-]+}", self.file),
        ]

    @staticmethod
    def is_wanted(request: web.Request) -> bool:
        """Whether a browser opens the address of the door, and not a program that sends a command."""
        opened = request.method in {hdrs.METH_GET, hdrs.METH_HEAD} and request.raw_path == "/"
        return opened and "cmd" not in request.headers and "text/html" in request.headers.get(hdrs.ACCEPT, "")

    async def page(self, request: web.Request) -> web.Response:
        """The page, which loads everything else."""
        assets = _assets()
        if assets is None:
            return web.Response(text=MISSING, content_type="text/html", headers=_SAFE, status=AWAY)
        response = _response(request, assets.page)
        response.headers[hdrs.CACHE_CONTROL] = "no-cache"
        response.headers[hdrs.VARY] = "Accept, Accept-Encoding"
        response.headers["Content-Security-Policy"] = assets.policy
        return response

    async def file(self, request: web.Request) -> web.Response:
        """A file of the current digest. Another one is of an older or newer version of the console."""
        assets = _assets()
        found = None if assets is None else assets.files.get(request.match_info["name"])
        if assets is None or found is None or request.match_info["digest"] != assets.digest:
            raise web.HTTPNotFound(text="this version of the console has no such file")
        response = _response(request, found)
        response.headers[hdrs.CACHE_CONTROL] = "public, max-age=31536000, immutable"
        response.headers[hdrs.VARY] = "Accept-Encoding"
        return response

    async def socket(self, request: web.Request) -> web.StreamResponse:
        """The WebSocket of one tab."""
        if len(self._sessions) >= SESSIONS:
            raise web.HTTPServiceUnavailable(text=f"the limit of {SESSIONS} open consoles is reached: close one")
        socket = web.WebSocketResponse(heartbeat=_BEAT, max_msg_size=self._largest * 2, compress=False)
        await socket.prepare(request)
        session = ConsoleSession(self._server, socket, Rights(self._guard, self._server.authority))
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
        return socket

    async def close(self) -> None:
        """Close all tabs' connections; the tabs connect again."""
        for session in list(self._sessions):
            await session.close()


def _response(request: web.Request, asset: Asset) -> web.Response:
    headers = {hdrs.CONTENT_TYPE: asset.kind, **_SAFE}
    if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        return web.Response(body=asset.packed, headers=headers | {hdrs.CONTENT_ENCODING: "gzip"})
    return web.Response(body=asset.body, headers=headers)
