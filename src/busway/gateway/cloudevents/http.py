"""CloudEvents at `/events`: POST publishes them, GET gives those of a topic as they come or in batches.

A driver over event_messages.py. The bus is the caller's: each request enters what `connect` gives, and leaves it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Final, TypeAlias

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
Allow: TypeAlias = Callable[[web.Request, Verb, Collection[str]], Awaitable[None]]
"""With all topics of a request at once: it is signed once."""
Told: TypeAlias = Callable[[Exception], tuple[int, str]]

UNREADABLE: Final = (web.RequestPayloadError, HttpProcessingError)
"""What aiohttp raises for a body that is not what its headers say."""
SLOW: Final = 30.0
STALL: Final = 30.0
POSITION: Final = "Busway-Position"
"""The header of a batch that tells how far it goes; as `since` it goes on from there."""
_MOST: Final = 10_000
"""Events of one batch."""
_LONGEST: Final = 300.0
"""Seconds that a batch may be waited for."""
_WAIT: Final = 10.0
_LINGER: Final = 0.05
"""Seconds that a batch which is not full waits for one more event: those that were published together come together."""
_SIGN: Final = 15.0
"""Seconds after which a stream without events gets a comment, so that nobody on the way takes it for dead."""
_LOOK: Final = 1.0
"""Seconds after which it is seen that a reader without events has gone."""
_LIMIT: Final = 4096
_LIMIT_BYTES: Final = 4 * MiB
"""What waits for a slow reader of live events; it is told what it misses."""
_CHUNK: Final = 64

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


def told(error: Exception) -> tuple[int, str]:
    """Status and text for what went wrong."""
    if isinstance(error, Refused | EventError):
        return error.status, str(error)
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500), str(error)


def routes(
    app: web.Application,
    connect: Connect,
    *,
    allow: Allow | None = None,
    tell: Told = told,
    slow: float = SLOW,
    stall: float = STALL,
) -> list[web.RouteDef]:
    """The routes of CloudEvents. `allow` raises Refused if a request may not do what it asks for.

    A request has to be there within `slow` seconds. A reader that takes nothing for `stall` seconds of what is written for it is
    disconnected. Streams end with the application.
    """
    slow, stall = check_seconds("slow", slow, zero=False), check_seconds("stall", stall, zero=False)
    doors = _Doors(connect, allow, tell, slow, stall)
    app.on_shutdown.append(doors.close)
    return [
        web.post("/events", doors.post),
        web.get("/events", doors.nothing),
        web.post("/events/{topic:(?s:.+)}", doors.post),
        web.get("/events/{topic:(?s:.+)}", doors.get),
    ]


class _Doors:
    def __init__(self, connect: Connect, allow: Allow | None, tell: Told, slow: float, stall: float) -> None:
        self._slow = slow
        self._stall = stall
        self._connect = connect
        self._allow = allow
        self._tell = tell
        self._open: set[Subscription] = set()

    async def close(self, _: web.Application) -> None:
        """End all streams."""
        for found in list(self._open):
            await found.close()

    async def nothing(self, _: web.Request) -> web.Response:
        """Events of no topic."""
        return web.json_response({"error": "which events? GET /events/PATTERN, such as /events/orders/*"}, status=400)

    async def post(self, request: web.Request) -> web.Response:
        """Publish the events of a request: all of them, or none if one can't be understood."""
        try:
            durable = _flag(request, "durable")
            async with asyncio.timeout(self._slow):
                body = await request.read()
            events = decode(request.headers, body)
            messages = [to_message(event, request.match_info.get("topic")) for event in events]
            if self._allow is not None:
                await self._allow(request, "publish", {topic for topic, _, _ in messages})
            positions: list[str] = []
            async with self._connect() as bus:
                for topic, payload, fields in messages:
                    if durable:
                        place = await bus.publish(topic, payload, fields=fields, durable=True)
                        positions.append(str(place))
                    else:
                        await bus.publish(topic, payload, fields=fields, confirm=True)
        except web.HTTPRequestEntityTooLarge as error:
            return self._sorry(Refused(TOO_LARGE, error.text or "the request is too large"))
        except UNREADABLE as error:
            return self._sorry(Refused(BAD, f"the request can't be read: {error}"))
        except TimeoutError:
            return self._sorry(Refused(SLOWLY, f"a request has to be there within {self._slow:g} s"))
        except (BusError, Refused, ValueError, TypeError) as error:
            return self._sorry(error)
        answer: dict[str, Any] = {"published": len(messages)}
        return web.json_response({**answer, "positions": positions} if durable else answer)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """The events of a topic: those to come, or stored ones first."""
        try:
            pattern = check_pattern(request.match_info["topic"])
            if self._allow is not None:
                await self._allow(request, "subscribe", [pattern])
            since = _since(request.headers.get("Last-Event-ID") or request.query.get("since"))
            batch = "max" in request.query or "wait" in request.query or BATCH in request.headers.get("Accept", "")
            most, wait = _number(request, "max", 100, _MOST), _seconds(request, "wait", _WAIT)
            async with (
                self._connect() as bus,
                bus.subscribe(
                    pattern, since=since, policy="drop_oldest", limit=_LIMIT, limit_bytes=_LIMIT_BYTES
                ) as found,
            ):
                return await (_batch(found, most, wait) if batch else self._stream(request, found))
        except (BusError, Refused, ValueError, TypeError) as error:
            return self._sorry(error)

    async def _stream(self, request: web.Request, found: Subscription) -> web.StreamResponse:
        """Server-sent events. From here on errors are told in the stream."""
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        self._open.add(found)
        try:
            await response.write(b": ready\n\n")
            silent = 0.0
            while not _gone(request):
                try:
                    messages = await found.take(_CHUNK, timeout=_LOOK)
                except Timeout:
                    silent += _LOOK
                    if silent >= _SIGN:
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
                        position = str(found.position)
                    parts.append(
                        _sse(to_json(from_message(message)), identity=position if message is messages[-1] else "")
                    )
                await self._write(response, b"".join(parts))
        except BusError as error:
            status, text = self._tell(error)
            log.debug("a stream of events ends: %s %s", status, text)
            await response.write(_sse(text.encode(), "error"))
        except ConnectionError:
            log.debug("a reader of events has gone")
        except TimeoutError:
            log.info("a reader of events took nothing for %g s, and is disconnected", self._stall)
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._open.discard(found)
        return response

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self._stall):
            await response.write(data)

    def _sorry(self, error: Exception) -> web.Response:
        status, text = self._tell(error)
        return web.json_response({"error": text}, status=status)


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _batch(found: Subscription, most: int, wait: float) -> web.Response:
    """Wait for the first event, then take what is there, and each that follows within a moment of the one before."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    messages: list[Message] = []
    try:
        messages = await found.take(most, timeout=wait)
        while len(messages) < most:
            await asyncio.sleep(0)  # a backlog comes in blocks
            left = max(min(_LINGER, until - loop.time()), 0.0)
            messages += await found.take(most - len(messages), timeout=left)
    except Timeout:
        pass
    headers = {"Cache-Control": "no-store", "Content-Type": BATCH}
    if position := str(found.position):
        headers[POSITION] = position
    if missed := sum(message.missed for message in messages):
        headers["Busway-Missed"] = str(missed)
    return web.Response(body=to_batch(from_message(message) for message in messages), headers=headers)


def _sse(data: bytes, event: str = "", identity: str = "") -> bytes:
    """One server-sent event; line breaks in it are those between members of JSON."""
    head = (f"event: {event}\n" if event else "") + (f"id: {identity}\n" if identity else "")
    return head.encode() + b"".join(b"data: " + line + b"\n" for line in data.splitlines()) + b"\n"


def _since(text: str | None) -> Since | None:
    """As subscribe() takes it; a time as RFC 3339 writes it, too."""
    if not text:
        return None
    since: Since = text
    if "T" in text:
        try:
            since = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign that was not written as %2B
        except ValueError:
            raise ValueError(f"since: {text!r} is no time") from None
    elif "," in text or ":" in text:
        since = text.replace(" ", "+")
    encode_since(since)
    return since


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "0").lower()
    if value not in {"0", "1", "true", "false", ""}:
        raise ValueError(f"{name} must be 0 or 1, not {value!r}")
    return value in {"1", "true", ""}


def _number(request: web.Request, name: str, usual: int, most: int) -> int:
    text = request.query.get(name, str(usual))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= most):
        raise ValueError(f"{name} must be a whole number from 1 to {most}, not {text!r}")
    return int(text)


def _seconds(request: web.Request, name: str, usual: float) -> float:
    text = request.query.get(name, str(usual))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _LONGEST:
        raise ValueError(f"{name} must be a number of seconds from 0 to {_LONGEST:g}, not {text!r}")
    return value
