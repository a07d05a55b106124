"""Plain HTTP clients of the JSON door: one answer per request, or a stream of messages for `sub`.

`routes.py` passes each request to `Handler` that is neither a page nor an upgrade to a WebSocket. A driver over
aiohttp.
"""

import asyncio
import base64
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from busway._core import Message
from busway.gateway.auth.users import HttpUser
from busway.gateway.cloudevents.http import UNREADABLE
from busway.gateway.http import request_parser
from busway.gateway.http.websocket import HIGH
from busway.gateway.json import envelope
from busway.gateway.json.envelope import FLAT, Ident, Malformed, Request
from busway.gateway.json.session import Session
from busway.gateway.json.statuses import BAD, FORBIDDEN, NO_CMD, OK, SLOWLY, TOO_LARGE
from busway.gateway.queues.round_robin import Subscriber

if TYPE_CHECKING:
    from busway.gateway.http.commands import Commands
    from busway.gateway.http.door import JsonDoor
    from busway.gateway.json.config import Http

log = logging.getLogger("busway.gateway")

USER: Final = web.RequestKey("user", HttpUser)
"""The user that sends a request, if it has logged in."""
_JSON: Final = "application/json"
_SSE: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
_READING: Final = frozenset({"query", "ping"})
"""Commands that change nothing. A `sub` and a `take` move the position of their channel."""
_PROTECTED: Final = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "date",
        "keep-alive",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of an answer that a service can't set; those of CORS come in addition."""
_KEEPALIVE: Final = 15.0
"""Seconds of silence after which a stream sends an empty line."""


class AnswerSession(Session):
    """The session of one request with one answer."""

    answers_all = True

    def __init__(self, commands: "Commands") -> None:
        super().__init__(commands)
        self.answered: asyncio.Future[tuple[int, Ident, int, Any, dict[str, Any]]] = (
            asyncio.get_running_loop().create_future()
        )
        self.done = asyncio.Event()
        """Set when the request has an answer or no longer runs."""

    def answer(self, form: int, ident: Ident, status: int, body: Any, head: dict[str, Any] | None = None) -> None:
        if not self.answered.done():
            self.answered.set_result((form, ident, status, body, head or {}))
        self.done.set()

    def relieved(self) -> None:
        if not self.waiting:
            self.done.set()


class StreamSession(Session):
    """The session of one subscription, which writes its messages to the HTTP response."""

    def __init__(self, commands: "Commands", *, events: bool) -> None:
        super().__init__(commands)
        self.events = events
        self.ready = asyncio.Event()
        self.finished = False
        self.decided = asyncio.Event()
        """Set when the subscription has succeeded or is refused."""
        self.refusal: tuple[int, Ident, int, Any, dict[str, Any]] | None = None
        """The answer if the subscription is refused."""
        self._out: list[bytes] = []
        self._size = 0

    def answer(self, form: int, ident: Ident, status: int, body: Any, head: dict[str, Any] | None = None) -> None:
        if status != OK and not self.decided.is_set():
            self.refusal = (form, ident, status, body, head or {})
        else:
            self._put(envelope.answer(form, ident, status, body, head), "event: reply\n")
        self.decided.set()

    def relieved(self) -> None:
        self.decided.set()

    def deliver(self, subscriber: Subscriber, message: Message) -> None:
        self._commands.counters.delivered += 1
        base, credit = subscriber.consumer.queue.base, subscriber.credit
        data = envelope.delivery(subscriber.form, subscriber.mq, subscriber.channel, message, base, credit)
        self._put(data, f"id: {(message.offset or 0) - base}\n")

    def ended(self, subscriber: Subscriber, status: int, text: str) -> None:
        super().ended(subscriber, status, text)
        self.finished = True

    def stop(self) -> None:
        super().stop()
        self.finished = True
        self.ready.set()

    def _put(self, data: bytes, head: str) -> None:
        self._out.append(b"%sdata: %s\n\n" % (head.encode(), data) if self.events else data + b"\n")
        self._size += len(data)
        if self._size > HIGH:
            self.full = True
        self.ready.set()

    def take(self) -> bytes:
        """Remove and return the queued data."""
        data = b"".join(self._out)
        self._out.clear()
        self._size = 0
        self.ready.clear()
        return data


class Handler:
    """Handles plain HTTP requests of the aiohttp application."""

    def __init__(self, door: "JsonDoor", commands: "Commands", settings: "Http") -> None:
        self._door = door
        self._commands = commands
        self._settings = settings

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await self._body(request)
            url = request.raw_path if request.raw_path.startswith("/") else request.rel_url.raw_path_qs
            parsed = request_parser.of(request.method, url, list(request.rel_url.query.items()), request.headers, body)
        except Malformed as error:
            return self._refused(error.form, error.ident, error.status, error.text)
        except web.HTTPRequestEntityTooLarge:
            text = f"the request is too large: it may have {self._settings.body} bytes"
            return self._refused(FLAT, None, TOO_LARGE, text)
        except UNREADABLE as error:
            return self._refused(FLAT, None, BAD, f"the request can't be read: {error}")
        except TimeoutError:
            text = f"the request is too slow: it must arrive within {self._settings.slow:g} s"
            return self._refused(FLAT, None, SLOWLY, text)
        if (
            request.method in {"GET", "HEAD"}
            and parsed.cmd not in _READING
            and self._door.origins.unproven(request.headers, changes=parsed.cmd is not None)
        ):
            text = (
                f"{parsed.cmd or 'a call'} by GET is refused: the browser does not report whether a page of another "
                "site sends it; use POST"
            )
            return self._refused(parsed.form, parsed.ident, FORBIDDEN, text)
        if parsed.cmd == "sub":
            return await self._stream(request, parsed)
        session = AnswerSession(self._commands)
        session.user = request.get(USER)
        try:
            session.receive(parsed)
            if session.idle and not session.waiting:
                session.done.set()
            if not self._always_answered(parsed):
                await session.done.wait()
                if not session.answered.done():
                    session.answer(parsed.form, parsed.ident, OK, None)
            answer = await session.answered
            if answer[2:4] == (BAD, NO_CMD) and request.method in {"GET", "HEAD"} and request.raw_path == "/":
                return web.Response(text=self._door.welcome())
            return _response(*answer, plain=parsed.plain)
        finally:
            session.close()

    @staticmethod
    def _always_answered(parsed: Request) -> bool:
        """Whether the request always gets an answer, from its command or from the timer of a call."""
        try:
            if parsed.cmd == "route":
                return parsed.flag("ack", False)
            return parsed.cmd != "pub" or parsed.is_call or parsed.flag("ack", True)
        except Malformed:  # the answer is this error
            return True

    def _refused(self, form: int, ident: Ident, status: int, text: str) -> web.Response:
        self._commands.counters.refused(status)
        return _response(form, ident, status, text, {})

    async def _body(self, request: web.Request) -> Any:
        async with asyncio.timeout(self._settings.slow):
            if request.content_type == "multipart/form-data":
                return await _parts(request, self._settings.body)
            return await request.read()

    async def _stream(self, request: web.Request, parsed: Request) -> web.StreamResponse:
        """Write the messages of a subscription as JSON lines or as server-sent events."""
        events = _SSE in request.headers.get("Accept", "")
        session = StreamSession(self._commands, events=events)
        session.user = request.get(USER)
        response: web.StreamResponse | None = None
        try:
            session.receive(parsed)
            await session.decided.wait()
            if session.refusal is not None:
                return _response(*session.refusal, plain=parsed.plain)
            response = web.StreamResponse(
                headers={"Content-Type": _SSE if events else _LINES, "Cache-Control": "no-store"}
            )
            await response.prepare(request)
            if request.method == "HEAD":
                return response
            await self._write(session, response)
        except (TimeoutError, ConnectionError):
            log.debug("a client did not read its subscription and is closed")
            if request.transport is not None:
                request.transport.abort()
        finally:
            session.close()
        assert response is not None
        return response

    async def _write(self, session: StreamSession, response: web.StreamResponse) -> None:
        while True:
            try:
                async with asyncio.timeout(_KEEPALIVE):
                    await session.ready.wait()
                data = session.take()
            except TimeoutError:
                data = b": \n\n" if session.events else b"\n"
            try:
                async with asyncio.timeout(self._settings.stall):
                    await response.write(data)
            except TimeoutError:
                self._commands.counters.slow += 1
                raise
            if session.full:
                session.room()
            if session.finished and not session.ready.is_set():
                break
        await response.write_eof()


def _response(
    form: int, ident: Ident, status: int, body: Any, head: Mapping[str, Any], *, plain: bool = False
) -> web.Response:
    """The HTTP response of an answer: its JSON, or if `plain` the body alone with control fields in HTTP headers."""
    empty = status in {204, 205, 304}
    shown = status if 200 <= status <= 999 and (plain or not empty) else OK
    reason = "No Data" if status == 604 else None
    if not plain:
        data = envelope.answer(form, ident, status, body, dict(head))
        return web.Response(status=shown, reason=reason, body=data, content_type=_JSON)
    if body is None or body is msgspec.UNSET or empty:
        kind, data = "text/plain; charset=utf8", b""
    elif type(body) is str:
        kind, data = "text/plain; charset=utf8", body.encode()
    elif type(body) is bytes:
        kind, data = "application/octet-stream", body
    else:
        kind, data = "application/json; charset=utf8", envelope.encoded(body)
    headers = {"Content-Type": kind}
    for key, value in {**head, "id": ident}.items():
        name = request_parser.printable(key)
        if name.lower() == "content-type":
            headers["Content-Type"] = request_parser.printable(value)
        elif name.lower() not in _PROTECTED and not name.lower().startswith("access-control-"):
            headers[name] = request_parser.printable(value)
    return web.Response(status=shown, reason=reason, body=data, headers=headers)


async def _parts(request: web.Request, most: int) -> dict[str, Any]:
    """The attributes and files of a multipart form."""
    attributes: dict[str, Any] = {}
    files: dict[str, list[dict[str, Any]]] = {}
    size = 0
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader) or not part.name:
                raise Malformed("a part of the form has no name")
            data = bytearray()
            while chunk := await part.read_chunk():
                data += chunk
                size += len(chunk)
                if size > most:
                    raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=size)
            if part.filename is None:
                attributes[part.name] = data.decode(errors="replace")
            else:
                kind = part.headers.get("Content-Type", "application/octet-stream")
                file = {"fileName": part.filename, "contentType": kind, "data": base64.b64encode(data).decode()}
                files.setdefault(part.name, []).append(file)
    except (ValueError, AssertionError, HttpProcessingError) as error:
        raise Malformed(f"the form can't be read: {error}") from None
    return {"attributes": attributes, "files": files}
