"""CloudEvents endpoint `/events`: POST publishes events, GET reads those of a topic as a stream or in batches.

`http/routes.py` adds its routes to the application of the JSON door. Each request uses the bus from the context manager
that `connect` returns. A driver over `mapping.py`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from busway.client.bus import Bus
from busway.client.subscriptions.subscription import Subscription
from busway.common.checks import check_seconds
from busway.errors import BusError, Closed, Disconnected, Forbidden, LimitExceeded, StoreFailed, Timeout
from busway.gateway.auth.grants import Verb
from busway.gateway.cloudevents.event import BATCH, EventError, decode, to_batch, to_json
from busway.gateway.cloudevents.mapping import from_message, to_message
from busway.gateway.json.statuses import BAD, SLOWLY, TOO_LARGE, Refused
from busway.message import Message
from busway.positions import Since, encode_since
from busway.settings import MiB
from busway.topic import check_pattern

log = logging.getLogger("busway.gateway")

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Bus]]
StatusOf: TypeAlias = Callable[[Exception], tuple[int, str]]

UNREADABLE: Final = (web.RequestPayloadError, HttpProcessingError)
"""Errors that aiohttp raises for a body that contradicts its headers."""
SLOW: Final = 30.0
STALL: Final = 30.0
POSITION: Final = "Busway-Position"
"""The header with the position after a batch. The next request passes it as `since`."""
_MOST: Final = 10_000
"""Most events of one batch."""
_LONGEST: Final = 300.0
"""Longest time to wait for a batch, in seconds."""
_WAIT: Final = 10.0
_LINGER: Final = 0.05
"""Seconds for which a batch that is not full waits for one more event, so that it gets events published together."""
_KEEPALIVE: Final = 15.0
"""Seconds of silence after which a stream gets a comment, so that no proxy closes it."""
_LOOK: Final = 1.0
"""Seconds between two checks whether a reader of a silent stream has disconnected."""
_LIMIT: Final = 4096
"""Most queued events of a slow reader. It gets the number of the events that it misses."""
_LIMIT_BYTES: Final = 4 * MiB
"""Most bytes of queued events of a slow reader."""
_CHUNK: Final = 64
"""Most events of one write to a stream."""


class Allow(Protocol):
    """Checks who sends a request for all its topics in one call, because a request has one signature."""

    def __call__(
        self, request: web.Request, verb: Verb, topics: Collection[str], *, stored: bool
    ) -> Awaitable[None]: ...


_STATUS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (Forbidden, 403),
    (LimitExceeded, 413),
    (StoreFailed, 503),
    (Timeout, 504),
    (Closed, 503),
    (Disconnected, 503),
    (ValueError, 400),
    (TypeError, 400),
)


def status_of(error: Exception) -> tuple[int, str]:
    """Status and text of the answer for an error."""
    if isinstance(error, Refused | EventError):
        return error.status, str(error)
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500), str(error)


def routes(
    app: web.Application,
    connect: Connect,
    *,
    allow: Allow | None = None,
    to_status: StatusOf = status_of,
    slow: float = SLOW,
    stall: float = STALL,
) -> list[web.RouteDef]:
    """The routes of CloudEvents. `allow` raises Refused if the key of a request does not allow it.

    A request must arrive within `slow` seconds. A reader that reads nothing for `stall` seconds is disconnected.
    Streams end with the application.
    """
    slow, stall = check_seconds("slow", slow, zero=False), check_seconds("stall", stall, zero=False)
    handlers = _Handlers(connect, allow, to_status, slow, stall)
    app.on_shutdown.append(handlers.close)
    return [
        web.post("/events", handlers.post),
        web.get("/events", handlers.no_topic),
        web.post("/events/{topic:(?s:.+)}", handlers.post),
        web.get("/events/{topic:(?s:.+)}", handlers.get),
    ]


class _Handlers:
    def __init__(self, connect: Connect, allow: Allow | None, to_status: StatusOf, slow: float, stall: float) -> None:
        self._slow = slow
        self._stall = stall
        self._connect = connect
        self._allow = allow
        self._to_status = to_status
        self._open: set[Subscription] = set()

    async def close(self, _: web.Application) -> None:
        """End all streams."""
        for subscription in list(self._open):
            await subscription.close()

    async def no_topic(self, _: web.Request) -> web.Response:
        """Refuse a GET without a topic."""
        text = "the topic is missing: use GET /events/PATTERN, such as /events/orders/*"
        return web.json_response({"error": text}, status=400)

    async def post(self, request: web.Request) -> web.Response:
        """Publish the events of a request: all of them, or none if one is invalid."""
        try:
            durable = _flag(request, "durable")
            async with asyncio.timeout(self._slow):
                body = await request.read()
            events = decode(request.headers, body)
            messages = [to_message(event, request.match_info.get("topic")) for event in events]
            if self._allow is not None:
                await self._allow(request, "publish", {topic for topic, _, _ in messages}, stored=durable)
            positions: list[str] = []
            async with self._connect() as bus:
                for topic, payload, fields in messages:
                    if durable:
                        place = await bus.publish(topic, payload, fields=fields, durable=True)
                        positions.append(str(place))
                    else:
                        await bus.publish(topic, payload, fields=fields, confirm=True)
        except web.HTTPRequestEntityTooLarge as error:
            return self._error(Refused(TOO_LARGE, error.text or "the request is too large"))
        except UNREADABLE as error:
            return self._error(Refused(BAD, f"the request can't be read: {error}"))
        except TimeoutError:
            return self._error(Refused(SLOWLY, f"the request is too slow: it must arrive within {self._slow:g} s"))
        except (BusError, Refused, ValueError, TypeError) as error:
            return self._error(error)
        answer: dict[str, Any] = {"published": len(messages)}
        return web.json_response({**answer, "positions": positions} if durable else answer)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Send the events of a topic: new ones, or with `since` the stored ones first."""
        try:
            pattern = check_pattern(request.match_info["topic"])
            since = _since(request.headers.get("Last-Event-ID") or request.query.get("since"))
            if self._allow is not None:
                await self._allow(request, "subscribe", [pattern], stored=since is not None)
            batch = "max" in request.query or "wait" in request.query or BATCH in request.headers.get("Accept", "")
            most, wait = _number(request, "max", 100, _MOST), _seconds(request, "wait", _WAIT)
            async with (
                self._connect() as bus,
                bus.subscribe(
                    pattern, since=since, policy="drop_oldest", limit=_LIMIT, limit_bytes=_LIMIT_BYTES
                ) as subscription,
            ):
                return await (_batch(subscription, most, wait) if batch else self._stream(request, subscription))
        except (BusError, Refused, ValueError, TypeError) as error:
            return self._error(error)

    async def _stream(self, request: web.Request, subscription: Subscription) -> web.StreamResponse:
        """Write server-sent events. The stream also carries errors, because the status is already sent."""
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        self._open.add(subscription)
        try:
            await response.write(b": ready\n\n")
            silent = 0.0
            while not _disconnected(request):
                try:
                    messages = await subscription.take(_CHUNK, timeout=_LOOK)
                except Timeout:
                    silent += _LOOK
                    if silent >= _KEEPALIVE:
                        silent = 0.0
                        await self._write(response, b": still here\n\n")
                    continue
                silent = 0.0
                position = ""
                parts: list[bytes] = []
                for message in messages:
                    if message.missed:
                        parts.append(_sse(str(message.missed).encode(), "missed"))
                    if message.position is not None:
                        position = str(subscription.position)
                    parts.append(
                        _sse(to_json(from_message(message)), identity=position if message is messages[-1] else "")
                    )
                await self._write(response, b"".join(parts))
        except BusError as error:
            status, text = self._to_status(error)
            log.debug("a stream of events ends: %s %s", status, text)
            await response.write(_sse(text.encode(), "error"))
        except ConnectionError:
            log.debug("a reader of events has disconnected")
        except TimeoutError:
            log.info("disconnecting a reader of events that read nothing for %g s", self._stall)
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._open.discard(subscription)
        return response

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self._stall):
            await response.write(data)

    def _error(self, error: Exception) -> web.Response:
        status, text = self._to_status(error)
        return web.json_response({"error": text}, status=status)


def _disconnected(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _batch(subscription: Subscription, most: int, wait: float) -> web.Response:
    """Wait for the first event, then take each that follows within a moment of the one before."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    messages: list[Message] = []
    try:
        messages = await subscription.take(most, timeout=wait)
        while len(messages) < most:
            await asyncio.sleep(0)  # a backlog arrives in blocks
            timeout = max(min(_LINGER, deadline - loop.time()), 0.0)
            messages += await subscription.take(most - len(messages), timeout=timeout)
    except Timeout:
        pass
    headers = {"Cache-Control": "no-store", "Content-Type": BATCH}
    if position := str(subscription.position):
        headers[POSITION] = position
    if missed := sum(message.missed for message in messages):
        headers["Busway-Missed"] = str(missed)
    return web.Response(body=to_batch(from_message(message) for message in messages), headers=headers)


def _sse(data: bytes, event: str = "", identity: str = "") -> bytes:
    """One server-sent event. Line breaks in its data are only those between members of JSON."""
    head = (f"event: {event}\n" if event else "") + (f"id: {identity}\n" if identity else "")
    return head.encode() + b"".join(b"data: " + line + b"\n" for line in data.splitlines()) + b"\n"


def _since(text: str | None) -> Since | None:
    """The argument `since` of subscribe(), from the text of the request; a time may have the form of RFC 3339."""
    if not text:
        return None
    since: Since = text
    if "T" in text:
        try:
            since = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign that was not written as %2B
        except ValueError:
            raise ValueError(f"since: {text!r} is not a time of RFC 3339") from None
    elif "," in text or ":" in text:
        since = text.replace(" ", "+")
    encode_since(since)
    return since


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "0").lower()
    if value not in {"0", "1", "true", "false", ""}:
        raise ValueError(f"{name} must be 0 or 1, not {value!r}")
    return value in {"1", "true", ""}


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= most):
        raise ValueError(f"{name} must be a whole number from 1 to {most}, not {text!r}")
    return int(text)


def _seconds(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _LONGEST:
        raise ValueError(f"{name} must be a number of seconds from 0 to {_LONGEST:g}, not {text!r}")
    return value
