"""Routes of the JSON door: pages, events, metrics and the handler of commands, as an aiohttp application. A driver.

`door.py` builds the application. Commands and calls may have any path except those of the pages.
"""

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from prometheus_client.core import Metric

from busway.broker.admin.services import INFO
from busway.client.bus import Bus
from busway.client.typed.protocol import declared
from busway.gateway.auth.grants import Key, Verb
from busway.gateway.cloudevents import http
from busway.gateway.console import routes as console
from busway.gateway.console.routes import Console
from busway.gateway.documents import asyncapi, openapi, pages
from busway.gateway.http import websocket_reader
from busway.gateway.http.plain import USER, Handler
from busway.gateway.json.statuses import FORBIDDEN, MISDIRECTED, UNAUTHORIZED, Refused
from busway.gateway.monitoring import health
from busway.gateway.monitoring.metrics import counter, gauge

if TYPE_CHECKING:
    from busway.broker.server import Server
    from busway.gateway.http.door import JsonDoor

http_log: Final = logging.getLogger("busway.gateway.http.plain")
"""Logger for aiohttp. It drops errors about invalid HTTP, which clients get as an answer."""
http_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], http.UNREADABLE)))

_PAGES: Final = frozenset(
    {"/healthz", "/readyz", "/metrics", "/services", "/openapi.json", "/asyncapi.json", console.PAGE}
)
"""Pages that change nothing. The door always answers them; pages of other origins may link to, but not read them."""
_HEALTH: Final = frozenset({"/healthz", "/readyz"})
"""Pages that need no user. The page and the files of the console need none, too: its sessions log in."""
_SIGNED: Final = ("apiKey", "signature", "timestamp", "id")


def application(door: "JsonDoor", server: "Server") -> web.Application:
    """The aiohttp application of a door."""
    routes = Routes(door, server)
    app = web.Application(client_max_size=door.settings.body, middlewares=[routes.check_origin])
    app.on_response_prepare.append(routes.add_cors_headers)
    app.add_routes(health.routes(server, more=routes.metrics))
    allow = routes.allow if door.guard.active else None
    app.add_routes(http.routes(app, routes.bus, allow=allow, slow=door.settings.slow, stall=door.settings.stall))
    app.add_routes(door.console.routes())
    app.add_routes(
        [
            web.get("/services", routes.services),
            web.get("/openapi.json", routes.openapi),
            web.get("/asyncapi.json", routes.asyncapi),
            web.route("*", "/{path:.*}", routes.handle),
        ]
    )
    return app


class Routes:
    """The request handlers of a door."""

    def __init__(self, door: "JsonDoor", server: "Server") -> None:
        self._door = door
        self._server = server
        self._handler = Handler(door, door.commands, door.settings)
        self._openapi = openapi.document(title=server.name, keys=door.guard.active)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handle a command or a call, or a browser that opens the address of the door."""
        if self._opens_console(request):
            return await self._door.console.page(request)
        return await self._handler(request)

    def _opens_console(self, request: web.Request) -> bool:
        """Whether a browser opens the address of the door. A service that is bound to `/` takes precedence."""
        return Console.is_wanted(request) and self._door.commands.services.root is None

    def _needs_no_user(self, request: web.Request) -> bool:
        page = request.match_info.handler in {self._door.console.page, self._door.console.file}
        return page or request.path in _HEALTH or self._opens_console(request)

    # Hosts and origins.

    @web.middleware
    async def check_origin(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Refuse requests for other hosts, and requests of web pages that may not call the door.

        A WebSocket of the protocol may have any path but that of the console, so its request goes to no other handler.
        """
        if websocket_reader.is_upgrade(request):
            if (refusal := self._door.refusal(request.headers)) is None:
                if request.path == console.SOCKET:
                    return await self._door.console.socket(request)
                try:
                    user = await self._door.identify(request)
                except Refused as error:
                    return _login(error)
                return websocket_reader.upgrade(self._door, request, user)
            if request.path == console.SOCKET:
                return _refused(*refusal)
            return websocket_reader.upgrade(self._door, request, None)
        if (text := self._door.origins.misdirected(request.headers)) is not None:
            return _refused(MISDIRECTED, text)
        origin = request.headers.get("Origin")
        if request.method == "OPTIONS" and origin is not None and "Access-Control-Request-Method" in request.headers:
            response = web.Response(status=204 if self._door.origins.shares(origin) else FORBIDDEN)
            response.headers["Access-Control-Allow-Methods"] = "GET, POST, PUT, DELETE, OPTIONS"
            if (requested := request.headers.get("Access-Control-Request-Headers")) is not None:
                response.headers["Access-Control-Allow-Headers"] = requested
            response.headers["Access-Control-Max-Age"] = "600"
            return response
        public = request.method in {"GET", "HEAD"} and (request.path in _PAGES or self._opens_console(request))
        if not public and (refusal := self._door.refusal(request.headers)) is not None:
            return _refused(*refusal)
        try:
            user = await self._door.identify(request) if not self._needs_no_user(request) else None
            if user is not None:
                request[USER] = user
            if request.path == "/metrics":
                self._look(request)
        except Refused as error:
            return _login(error) if error.status == UNAUTHORIZED else _refused(error.status, error.text)
        answer: web.StreamResponse = await handler(request)
        return answer

    def _look(self, request: web.Request) -> None:
        """Refuse a page about the broker unless the user may observe it."""
        if self._door.users is None:
            return
        user = request.get(USER)
        if user is None:
            raise Refused(UNAUTHORIZED, "log in with the header Authorization")
        if not user.may("observe", INFO):
            raise Refused(FORBIDDEN, f"user may not observe {INFO}")

    async def add_cors_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers that let a web page of an allowed origin read the answer."""
        origin = request.headers.get("Origin")
        if origin is not None and self._door.origins.shares(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "*"
            response.headers["Vary"] = "Origin"

    # Events.

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """The connection of the door to the bus, for one request."""
        assert self._door.bus is not None
        yield self._door.bus

    async def allow(self, request: web.Request, verb: Verb, topics: Iterable[str], *, stored: bool) -> None:
        """Refuse a request for events whose user or key does not allow the topics, or that has neither.

        With `stored` the events are stored, or stored ones are read.
        """
        if (user := request.get(USER)) is not None:
            wanted = {"publish": "store" if stored else "publish", "subscribe": "subscribe"}[verb]
            for topic in topics:
                if not user.may(wanted, topic) or (stored and verb == "subscribe" and not user.may("read", topic)):
                    raise self._door.guard.refusal(verb, topic)
            return
        key = await self._key(request, verb, request.match_info.get("topic", ""))
        for topic in topics:
            self._door.guard.demand(key, verb, topic)

    async def _key(self, request: web.Request, verb: str, topic: str = "") -> Key:
        """The key that signed a request; its headers or its query hold the key and the signature.

        The signed message has the headers form. It contains the verb, the topic in the URL, the event attributes that
        are HTTP headers, and the body as text, or as bytes if it is not UTF-8.
        """
        head: dict[str, Any] = {
            name: value
            for name in _SIGNED
            if (value := request.headers.get(name) or request.query.get(name)) is not None
        }
        head |= {name.lower(): value for name, value in request.headers.items() if name.lower().startswith("ce-")}
        signed: dict[str, Any] = {"headers": head | {"cmd": verb} | ({"mq": topic} if topic else {})}
        if body := await request.read():
            try:
                signed["body"] = body.decode()
            except UnicodeDecodeError:
                signed["body"] = body
        return self._door.guard.signed(signed)

    # Pages.

    async def services(self, request: web.Request) -> web.Response:
        """The services that can be called, as modules and methods."""
        if (refusal := await self._unsigned(request, "services")) is not None:
            return refusal
        queues = {topic: mq for topic, mq, _ in self._door.commands.services.listed()}
        topics = {topic: queues.get(topic) for topic in (*self._server.services(), *queues)}
        found = pages.modules(topics.items())
        if "text/html" in request.headers.get("Accept", ""):
            return web.Response(text=pages.page(self._server.name, found), content_type="text/html")
        return web.json_response(found)

    async def openapi(self, request: web.Request) -> web.Response:
        """The OpenAPI document of the port."""
        del request
        return web.json_response(self._openapi)

    async def asyncapi(self, request: web.Request) -> web.Response:
        """The AsyncAPI document of the bus."""
        if (refusal := await self._unsigned(request, "asyncapi")) is not None:
            return refusal
        document = asyncapi.document(
            self._server.overview(),
            services=self._server.services(),
            protocols=declared(),
            http=self._door.address,
        )
        return web.json_response(document)

    async def _unsigned(self, request: web.Request, cmd: str) -> web.Response | None:
        if self._door.guard.active:
            try:
                if USER in request:
                    self._look(request)
                else:
                    await self._key(request, cmd)
            except Refused as error:
                return _refused(error.status, error.text)
        return None

    def metrics(self) -> Iterable[Metric]:
        """The metrics of the door."""
        figures = self._door.figures()
        requests = {(cmd,): count for cmd, count in figures["requests"].items()}
        refused = {(status,): count for status, count in figures["refusals"].items()}
        yield gauge("busway_http_websockets", "WebSocket clients of the door.", figures["sockets"])
        yield gauge("busway_http_channels", "Channels that the door consumes for its clients.", figures["channels"])
        yield counter("busway_http_requests", "Requests, by command.", requests, ["command"])
        yield counter("busway_http_refused", "Refused requests, by status.", refused, ["status"])
        yield counter(
            "busway_http_forbidden", "Requests whose key is missing, wrong or insufficient.", figures["forbidden"]
        )
        yield counter("busway_http_messages_delivered", "Messages delivered to clients.", figures["delivered"])
        yield counter("busway_http_slow_closed", "Clients closed because they read nothing.", figures["slow"])


def _login(error: Refused) -> web.Response:
    """The answer to a request with wrong credentials, or without any."""
    response = _refused(error.status, error.text)
    response.headers["WWW-Authenticate"] = 'Basic realm="busway", charset="UTF-8"'
    return response


def _refused(status: int, text: str) -> web.Response:
    return web.json_response({"id": None, "status": status, "body": text}, status=status)
