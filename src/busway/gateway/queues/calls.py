"""Calls of services by clients of the JSON door: to services of the bus, and to clients of the door that serve a queue.

`http/commands.py` starts each call. A service of the bus gets a request. A client of the door gets the call as a
message of its queue, and answers with the command `route`. Every call is answered exactly once, with an error if
necessary.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote

from busway.client.bus import Bus
from busway.errors import NoResponders
from busway.gateway.auth.guard import Guard
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

GONE_TEXT: Final = "the service disconnected before it answered"
_PARTS: Final = 8
"""Parts of a path that may be parameters of a service of the bus."""


class PendingCall(NamedTuple):
    """A call in flight to a client of the door."""

    session: "Session"
    form: int
    timer: asyncio.TimerHandle
    stream: str
    """The stream of the queue that got the call."""


class Calls:
    """The calls in flight."""

    def __init__(
        self, bus: Bus, queues: Queues, services: "DoorServices", settings: Http, guard: Guard, publish: Publish
    ) -> None:
        self._bus = bus
        self._queues = queues
        self._services = services
        self._settings = settings
        self._guard = guard
        self._publish = publish
        self._pending: dict[tuple[str, Ident], PendingCall] = {}

    def begin(self, session: "Session", request: Request) -> None:
        """Start a call, which runs in the background. Raises Refused."""
        seconds = min(request.seconds("timeout") or self._settings.call, self._settings.longest)
        name = _name(request)
        queue, mq, targets = self._by_name(request) if request.url is None else self._by_url(request)
        if queue is not None:
            if not any(self._guard.may(request, "request", topic) for topic in (mq, *(topic for topic, _ in targets))):
                raise self._guard.refusal("request", name)
            request.head["mq"] = mq
            session.background(request, self._call_queue(session, request, queue, mq, seconds))
        else:
            session.background(request, self._call_bus(session, request, targets, seconds))

    def _by_name(self, request: Request) -> tuple[Queue | None, str, list[tuple[str, Any]]]:
        """Target of a call by module and method: a queue, or services of the bus with their parameters."""
        mq = request.text("mq")
        params = request.head.get("params", request.body)
        if mq is not None and (queue := self._queues.find(mq)) is not None and queue.topic is not None:
            return queue, mq, []
        topic = _name(request)
        if (found := self._services.match("/" + topic)) is not None and not found.rest:
            return self._queues.get(found.mq), found.mq, [(topic, None)]
        return None, "", [(topic, [] if params is UNSET or params is None else params)]

    def _by_url(self, request: Request) -> tuple[Queue | None, str, list[tuple[str, Any]]]:
        """Target of a call by URL: the queue of the longest bound URL, a queue, or services with their parameters."""
        path, _, query = (request.url or "").partition("?")
        parts = [unquote(part) for part in path.split("/") if part]
        found = self._services.match("/".join(parts)) if parts else self._services.root
        if found is not None and (queue := self._served(found.mq)) is not None:
            request.address_by_url(found.url)
            return queue, found.mq, [(found.url.strip("/"), None)]
        mq, count = self._queue_of(request, parts)
        if mq is not None and (queue := self._served(mq)) is not None:
            if request.called is not None:
                request.address_by_name(mq, count)
                request.url = None  # module and method replace it
            return queue, mq, []
        more, whole = request.more, request.whole
        if request.called is None and request.body is not UNSET and request.body not in (None, ""):
            whole = type(request.body) is list
            more = request.body if whole else [request.body]
        return None, "", list(candidates(parts, query, more, whole=whole))

    def _served(self, mq: str) -> Queue | None:
        """The queue with the name `mq`, if it takes calls."""
        queue = self._queues.find(mq)
        return queue if queue is not None and queue.topic is not None else None

    def _queue_of(self, request: Request, parts: list[str]) -> tuple[str | None, int]:
        """The queue that the request names, or the queue at the beginning of its path with the number of its parts."""
        explicit = request.text("mq") if request.called is None else request.called.mq
        if explicit is not None:
            return explicit, 0
        for count in range(min(len(parts), _PARTS), 1, -1):
            if self._services.serves(topic := "/".join(parts[:count])):
                return topic, count
        if parts and self._queues.find(parts[0]) is not None:
            return parts[0], 1
        return None, 0

    # Calls to clients of the door.

    async def _call_queue(self, session: "Session", request: Request, queue: Queue, mq: str, seconds: float) -> None:
        if not await self._services.served(queue):
            raise Refused(NOT_FOUND, f"MQ({mq}) has no service now: no client subscribes to it")
        key = session.id, request.ident
        self._forget(key)
        session.busy += 1
        timer = asyncio.get_running_loop().call_later(seconds, self._timed_out, key, seconds)
        form = HEADERS if request.plain else request.form
        self._pending[key] = PendingCall(session, form, timer, queue.stream)
        try:
            await self._publish(queue, request, session.id)
        except BaseException:
            self._forget(key)
            raise

    def route(self, session: "Session", target: "Session", request: Request) -> None:
        """Send the answer of a service, which `session` has sent, to the caller `target`."""
        key = target.id, request.ident
        call = self._pending.get(key)
        form = target.form if call is None else call.form
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

    def _timed_out(self, key: tuple[str, Ident], seconds: float) -> None:
        if (call := self._forget(key)) is not None:
            call.session.answer(call.form, key[1], LATE, f"the service did not answer within {seconds:g} s")

    def pending(self, stream: str) -> bool:
        """Whether a call to the service of a queue is in flight."""
        return any(call.stream == stream for call in self._pending.values())

    def unserved(self, stream: str) -> None:
        """The service of a queue has disconnected: answer its calls in flight with an error."""
        for key in [key for key, call in self._pending.items() if call.stream == stream]:
            if (call := self._forget(key)) is not None:
                call.session.refuse(call.form, key[1], GONE, GONE_TEXT)

    def _forget(self, key: tuple[str, Ident]) -> PendingCall | None:
        if (call := self._pending.pop(key, None)) is not None:
            call.timer.cancel()
            call.session.busy -= 1
            call.session.relieved()
        return call

    def disconnected(self, session: "Session") -> None:
        """A caller has disconnected: forget its calls."""
        for key in [key for key in self._pending if key[0] == session.id] if session.busy else ():
            self._forget(key)

    # Calls to services of the bus.

    async def _call_bus(
        self, session: "Session", request: Request, targets: list[tuple[str, Any]], seconds: float
    ) -> None:
        fields: dict[str, Any] = {"id": request.ident, "sender": session.id}
        if (url := request.called.url if request.called is not None else request.url) is not None:
            fields |= {"url": url, "verb": request.called.verb if request.called is not None else request.verb}
            fields = {name: value for name, value in fields.items() if value is not None}
        allowed = [(name, params) for name, params in targets if self._guard.may(request, "request", name)]
        if targets and not allowed:
            raise self._guard.refusal("request", targets[0][0])
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
        root = self._services.root if request.url is not None else None
        if root is not None and (queue := self._served(root.mq)) is not None:
            if not self._guard.may(request, "request", ""):
                raise self._guard.refusal("request", root.url)
            request.address_by_url(root.url)
            request.head["mq"] = root.mq
            await self._call_queue(session, request, queue, root.mq, seconds)
            return
        raise Refused(NOT_FOUND, _not_found(request))


def candidates(parts: list[str], query: str, more: list[Any], *, whole: bool) -> Iterator[tuple[str, list[Any]]]:
    """The services that a path may name, the longest name first, each with its parameters.

    The parameters are the rest of the path and `more`, or only `more` if it is the `whole`. The members of the query
    are one further parameter at the end.
    """
    named = dict(parse_qsl(query))
    for end in range(len(parts), max(len(parts) - _PARTS, 0), -1):
        params = more if whole else [*parts[end:], *more]
        yield "/".join(parts[:end]), [*params, named] if named else params


def _name(request: Request) -> str:
    """The topic of the called service, if its name is the whole URL. Raises Malformed."""
    if request.url is None:
        parts = [request.text("mq"), request.text("module"), request.text("method")]
    else:
        parts = [unquote(part) for part in request.url.partition("?")[0].split("/")]
    return "/".join(part.strip("/") for part in parts if part)


def _status(request: Request) -> int:
    status = request.status
    if type(status) is str and status.isascii() and status.isdigit():
        status = int(status)
    if status is None:
        return OK
    if type(status) is not int or not 100 <= status <= 999:
        raise Refused(BAD, "status must be a number from 100 to 999")
    return status


def _not_found(request: Request) -> str:
    if request.form == FLAT and request.url is None:
        return f"module={request.head.get('module') or ''}, method={request.head.get('method') or ''} Not Found"
    return f"{request.url} Not Found"
