"""Calls of services through the JSON door: to services of the bus, and to clients of the door that serve a queue.

A service of the bus is asked as any client asks it. One of the door gets the call as a message of its queue and answers it with
`route`, to the session that the message came from. Whatever happens, a call is answered once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote

from busway.client.bus import Bus
from busway.errors import NoResponders
from busway.gateway.auth.guard import Guard
from busway.gateway.http import request_parser
from busway.gateway.json import bodies
from busway.gateway.json.config import Http
from busway.gateway.json.envelope import FLAT, HEADERS, UNSET, Ident, Request
from busway.gateway.json.statuses import BAD, FORBIDDEN, GONE, LATE, NOT_FOUND, OK, Refused
from busway.gateway.queues.queues import Queue, Queues
from busway.topic import check_topic, is_reserved

if TYPE_CHECKING:
    from busway.gateway.json.session import Session
    from busway.gateway.queues.services import DoorServices

Publish: TypeAlias = Callable[[Queue, Request, str], Coroutine[Any, Any, Any]]

WENT: Final = "the service went away before it answered"
_PARTS: Final = 8
"""Parts of a path that may be parameters of a service of the bus."""


class Expected(NamedTuple):
    """A call that somebody waits for."""

    session: "Session"
    form: int
    timer: asyncio.TimerHandle
    stream: str
    """Of the queue that it was put in."""


class Calls:
    """What is asked and was not answered yet."""

    def __init__(
        self, bus: Bus, queues: Queues, offers: "DoorServices", settings: Http, guard: Guard, publish: Publish
    ) -> None:
        self._bus = bus
        self._queues = queues
        self._offers = offers
        self._settings = settings
        self._guard = guard
        self._publish = publish
        self._expected: dict[tuple[str, Ident], Expected] = {}

    def begin(self, session: "Session", request: Request) -> None:
        """Ask a service; its answer comes when it comes. Raises Refused."""
        seconds = min(request.seconds("timeout") or self._settings.call, self._settings.longest)
        name = _name(request)
        queue, mq, asked = self._by_name(request) if request.url is None else self._by_url(request)
        if queue is not None:
            if not any(self._guard.may(request, "request", topic) for topic in (mq, *(topic for topic, _ in asked))):
                raise self._guard.refusal("request", name)
            request.head["mq"] = mq
            session.beside(request, self._queued(session, request, queue, mq, seconds))
        else:
            session.beside(request, self._native(session, request, asked, seconds))

    def _by_name(self, request: Request) -> tuple[Queue | None, str, list[tuple[str, Any]]]:
        """Who is asked by module and method: a queue, by a URL of its or not, or services of the bus."""
        mq = request.text("mq")
        params = request.head.get("params", request.body)
        if mq is not None and (queue := self._queues.find(mq)) is not None and queue.topic is not None:
            return queue, mq, []
        topic = _name(request)
        if (found := self._offers.match("/" + topic)) is not None and not found.rest:
            return self._queues.get(found.mq), found.mq, [(topic, None)]
        return None, "", [(topic, [] if params is UNSET or params is None else params)]

    def _by_url(self, request: Request) -> tuple[Queue | None, str, list[tuple[str, Any]]]:
        """Who is asked by a URL: the longest one that a client has bound, a queue, or services of the bus."""
        path, _, query = (request.url or "").partition("?")
        parts = [unquote(part) for part in path.split("/") if part]
        found = self._offers.match("/".join(parts)) if parts else self._offers.root
        if found is not None and (queue := self._served(found.mq)) is not None:
            request_parser.by_url(request, found.url)
            return queue, found.mq, [(found.url.strip("/"), None)]
        mq, count = self._queue_of(request, parts)
        if mq is not None and (queue := self._served(mq)) is not None:
            if request.called is not None:
                request_parser.by_name(request, mq, count)
                request.url = None  # its module and method say it
            return queue, mq, []
        more, whole = request.more, request.whole
        if request.called is None and request.body is not UNSET and request.body not in (None, ""):
            whole = type(request.body) is list
            more = request.body if whole else [request.body]
        return None, "", list(candidates(parts, query, more, whole=whole))

    def _served(self, mq: str) -> Queue | None:
        """A queue that takes calls."""
        queue = self._queues.find(mq)
        return queue if queue is not None and queue.topic is not None else None

    def _queue_of(self, request: Request, parts: list[str]) -> tuple[str | None, int]:
        """The queue that a path begins with, and how many of its parts that is; or the one that the request names."""
        explicit = request.text("mq") if request.called is None else request.called.mq
        if explicit is not None:
            return explicit, 0
        for count in range(min(len(parts), _PARTS), 1, -1):
            if self._offers.serves(topic := "/".join(parts[:count])):
                return topic, count
        if parts and self._queues.find(parts[0]) is not None:
            return parts[0], 1
        return None, 0

    # A client of the door serves.

    async def _queued(self, session: "Session", request: Request, queue: Queue, mq: str, seconds: float) -> None:
        if not await self._offers.served(queue):
            raise Refused(NOT_FOUND, f"MQ({mq}) has no service at the moment")
        key = session.id, request.ident
        self._forget(key)
        session.busy += 1
        timer = asyncio.get_running_loop().call_later(seconds, self._late, key, seconds)
        form = HEADERS if request.plain else request.form
        self._expected[key] = Expected(session, form, timer, queue.stream)
        try:
            await self._publish(queue, request, session.id)
        except BaseException:
            self._forget(key)
            raise

    def route(self, session: "Session", target: "Session", request: Request) -> None:
        """Pass an answer on."""
        key = target.id, request.ident
        expected = self._expected.get(key)
        form = target.form if expected is None else expected.form
        head = {
            name: value
            for name, value in request.head.items()
            if name
            not in {"ack", "apiKey", "signature", "status", "target", "source", "recver", "sender", "mq", "channel"}
        }
        if form == FLAT:
            head |= {"recver": target.id, "sender": session.id}
        body = None if request.body is UNSET else request.body
        self._forget(key)
        target.answer(form, request.ident, _status(request), body, head)

    def _late(self, key: tuple[str, Ident], seconds: float) -> None:
        if (expected := self._forget(key)) is not None:
            expected.session.answer(expected.form, key[1], LATE, f"no answer of the service within {seconds:g} s")

    def pending(self, stream: str) -> bool:
        """Whether somebody waits for an answer of a queue's service."""
        return any(one.stream == stream for one in self._expected.values())

    def unserved(self, stream: str) -> None:
        """The service of a queue has gone: who waits for it is told."""
        for key in [key for key, one in self._expected.items() if one.stream == stream]:
            if (expected := self._forget(key)) is not None:
                expected.session.refuse(expected.form, key[1], GONE, WENT)

    def _forget(self, key: tuple[str, Ident]) -> Expected | None:
        if (expected := self._expected.pop(key, None)) is not None:
            expected.timer.cancel()
            expected.session.busy -= 1
            expected.session.relieved()
        return expected

    def left(self, session: "Session") -> None:
        """Nobody waits for its answers any more."""
        for key in [key for key in self._expected if key[0] == session.id] if session.busy else ():
            self._forget(key)

    # A service of the bus.

    async def _native(self, session: "Session", request: Request, asked: list[tuple[str, Any]], seconds: float) -> None:
        fields: dict[str, Any] = {"id": request.ident, "sender": session.id}
        if (url := request.called.url if request.called is not None else request.url) is not None:
            fields |= {"url": url, "verb": request.called.verb if request.called is not None else request.verb}
            fields = {name: value for name, value in fields.items() if value is not None}
        allowed = [one for one in asked if self._guard.may(request, "request", one[0])]
        if asked and not allowed:
            raise self._guard.refusal("request", asked[0][0])
        for name, params in allowed:
            topic = check_topic(name, wildcards=False)
            if is_reserved(topic):
                raise Refused(FORBIDDEN, f"{topic} belongs to the broker")
            payload = params if type(params) is bytes else bodies.payload_of(params)[0]
            try:
                reply = await self._bus.request(topic, payload, fields=fields, timeout=seconds)
            except NoResponders:
                continue
            body, coded = bodies.body_of(reply.payload)
            if coded and request.plain:
                body, coded = reply.payload, False
            session.answer(request.form, request.ident, OK, body, {"encoding": bodies.BASE64} if coded else None)
            return
        root = self._offers.root if request.url is not None else None
        if root is not None and (queue := self._served(root.mq)) is not None:
            if not self._guard.may(request, "request", ""):
                raise self._guard.refusal("request", root.url)
            request_parser.by_url(request, root.url)
            request.head["mq"] = root.mq
            await self._queued(session, request, queue, root.mq, seconds)
            return
        raise Refused(NOT_FOUND, _nobody(request))


def candidates(parts: list[str], query: str, more: list[Any], *, whole: bool) -> Iterator[tuple[str, list[Any]]]:
    """The services that a path may mean, the longest first, each with its parameters.

    Those are what is left of the path and what was given besides, or that alone if it is the whole; what the query says
    is one more at the end.
    """
    named = dict(parse_qsl(query))
    for end in range(len(parts), max(len(parts) - _PARTS, 0), -1):
        params = more if whole else [*parts[end:], *more]
        yield "/".join(parts[:end]), [*params, named] if named else params


def _name(request: Request) -> str:
    """The topic of the service that is asked, if all of a URL is its name. Raises Malformed."""
    if request.url is None:
        parts = [request.text("mq"), request.text("module"), request.text("method")]
    else:
        parts = [unquote(part) for part in request.url.partition("?")[0].split("/")]
    return "/".join(one.strip("/") for one in parts if one)


def _status(request: Request) -> int:
    status = request.status
    if type(status) is str and status.isascii() and status.isdigit():
        status = int(status)
    if status is None:
        return OK
    if type(status) is not int or not 100 <= status <= 999:
        raise Refused(BAD, "status must be a number from 100 to 999")
    return status


def _nobody(request: Request) -> str:
    if request.form == FLAT and request.url is None:
        return f"module={request.head.get('module') or ''}, method={request.head.get('method') or ''} Not Found"
    return f"{request.url} Not Found"
