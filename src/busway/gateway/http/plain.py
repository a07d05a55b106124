"""Plain HTTP clients of the JSON door: a request, one answer, or for `sub` a stream of them. A driver over aiohttp."""

import asyncio
import base64
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from busway._core import Message
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

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
_LOOKING: Final = frozenset({"query", "ping"})
"""Commands that change nothing. A `sub` and a `take` move their channel."""
_OURS: Final = frozenset(
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
"""Headers of an answer that a service has no say in, besides those of CORS."""
_BREATH: Final = 15.0
"""Seconds after which a silent stream says that it is still there."""


class Once(Session):
    """A request that is answered once."""

    answers_all = True

    def __init__(self, commands: "Commands") -> None:
        super().__init__(commands)
        self.answered: asyncio.Future[tuple[int, Ident, int, Any, dict[str, Any]]] = (
            asyncio.get_running_loop().create_future()
        )
        self.settled = asyncio.Event()
        """Nothing is under way any more."""

    def answer(self, form: int, ident: Ident, status: int, body: Any, head: dict[str, Any] | None = None) -> None:
        if not self.answered.done():
            self.answered.set_result((form, ident, status, body, head or {}))
        self.settled.set()

    def relieved(self) -> None:
        if not self.waiting:
            self.settled.set()


class Stream(Session):
    """A subscription whose messages are written one after the other."""

    def __init__(self, commands: "Commands", *, events: bool) -> None:
        super().__init__(commands)
        self.events = events
        self.ready = asyncio.Event()
        self.over = False
        self.begun = asyncio.Event()
        """It is known whether there is a subscription."""
        self.refusal: tuple[int, Ident, int, Any, dict[str, Any]] | None = None
        """Why there is none."""
        self._out: list[bytes] = []
        self._size = 0

    def answer(self, form: int, ident: Ident, status: int, body: Any, head: dict[str, Any] | None = None) -> None:
        if status != OK and not self.begun.is_set():
            self.refusal = (form, ident, status, body, head or {})
        else:
            self._put(envelope.answer(form, ident, status, body, head), "event: reply\n")
        self.begun.set()

    def relieved(self) -> None:
        self.begun.set()

    def deliver(self, one: Subscriber, message: Message) -> None:
        self._commands.counters.delivered += 1
        base = one.tap.queue.base
        data = envelope.delivery(one.form, one.mq, one.channel, message, base, one.credit)
        self._put(data, f"id: {(message.offset or 0) - base}\n")

    def ended(self, one: Subscriber, status: int, text: str) -> None:
        super().ended(one, status, text)
        self.over = True

    def stop(self) -> None:
        super().stop()
        self.over = True
        self.ready.set()

    def _put(self, data: bytes, head: str) -> None:
        self._out.append(b"%sdata: %s\n\n" % (head.encode(), data) if self.events else data + b"\n")
        self._size += len(data)
        if self._size > HIGH:
            self.full = True
        self.ready.set()

    def take(self) -> bytes:
        """What waits to be written."""
        data = b"".join(self._out)
        self._out.clear()
        self._size = 0
        self.ready.clear()
        return data


class Handler:
    """Answers the requests of an aiohttp application."""

    def __init__(self, door: "JsonDoor", commands: "Commands", settings: "Http") -> None:
        self._door = door
        self._commands = commands
        self._settings = settings

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await self._body(request)
            url = request.raw_path if request.raw_path.startswith("/") else request.rel_url.raw_path_qs
            asked = request_parser.of(request.method, url, list(request.rel_url.query.items()), request.headers, body)
        except Malformed as error:
            return self._refused(error.form, error.ident, error.status, error.text)
        except web.HTTPRequestEntityTooLarge:
            return self._refused(FLAT, None, TOO_LARGE, f"a request has at most {self._settings.body} bytes")
        except UNREADABLE as error:
            return self._refused(FLAT, None, BAD, f"the request can't be read: {error}")
        except TimeoutError:
            return self._refused(FLAT, None, SLOWLY, f"a request has to be there within {self._settings.slow:g} s")
        if (
            request.method in {"GET", "HEAD"}
            and asked.cmd not in _LOOKING
            and self._door.origins.unproven(request.headers, changes=asked.cmd is not None)
        ):
            text = f"a browser may send {asked.cmd or 'a call'} by GET only if it says that no page of another site asks: use POST"
            return self._refused(asked.form, asked.ident, FORBIDDEN, text)
        if asked.cmd == "sub":
            return await self._stream(request, asked)
        session = Once(self._commands)
        try:
            session.receive(asked)
            if session.idle and not session.waiting:
                session.settled.set()
            if not self._waits(asked):
                await session.settled.wait()
                if not session.answered.done():
                    session.answer(asked.form, asked.ident, OK, None)
            answer = await session.answered
            if answer[2:4] == (BAD, NO_CMD) and request.method in {"GET", "HEAD"} and request.raw_path == "/":
                return web.Response(text=self._door.welcome())
            return _response(*answer, plain=asked.plain)
        finally:
            session.close()

    @staticmethod
    def _waits(asked: Request) -> bool:
        """Whether it is answered in any case: by whoever does it, or by the timer of a call."""
        try:
            if asked.cmd == "route":
                return asked.flag("ack", False)
            return asked.cmd != "pub" or asked.is_call or asked.flag("ack", True)
        except Malformed:  # which it is told
            return True

    def _refused(self, form: int, ident: Ident, status: int, text: str) -> web.Response:
        self._commands.counters.refused(status)
        return _response(form, ident, status, text, {})

    async def _body(self, request: web.Request) -> Any:
        async with asyncio.timeout(self._settings.slow):
            if request.content_type == "multipart/form-data":
                return await _parts(request, self._settings.body)
            return await request.read()

    async def _stream(self, request: web.Request, asked: Request) -> web.StreamResponse:
        """Messages of a subscription as they come: lines of JSON, or events."""
        events = _EVENTS in request.headers.get("Accept", "")
        session = Stream(self._commands, events=events)
        response: web.StreamResponse | None = None
        try:
            session.receive(asked)
            await session.begun.wait()
            if session.refusal is not None:
                return _response(*session.refusal, plain=asked.plain)
            response = web.StreamResponse(
                headers={"Content-Type": _EVENTS if events else _LINES, "Cache-Control": "no-store"}
            )
            await response.prepare(request)
            if request.method == "HEAD":
                return response
            await self._write(session, response)
        except (TimeoutError, ConnectionError):
            log.debug("a client has not taken what it subscribed to")
            if request.transport is not None:
                request.transport.abort()
        finally:
            session.close()
        assert response is not None
        return response

    async def _write(self, session: Stream, response: web.StreamResponse) -> None:
        while True:
            try:
                async with asyncio.timeout(_BREATH):
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
            if session.over and not session.ready.is_set():
                break
        await response.write_eof()


def _response(
    form: int, ident: Ident, status: int, body: Any, head: Mapping[str, Any], *, plain: bool = False
) -> web.Response:
    """An answer, in its form: JSON, or if it is `plain` the headers of HTTP and the body alone."""
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
        elif name.lower() not in _OURS and not name.lower().startswith("access-control-"):
            headers[name] = request_parser.printable(value)
    return web.Response(status=shown, reason=reason, body=data, headers=headers)


async def _parts(request: web.Request, most: int) -> dict[str, Any]:
    """The attributes and files of a form."""
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
                one = {"fileName": part.filename, "contentType": kind, "data": base64.b64encode(data).decode()}
                files.setdefault(part.name, []).append(one)
    except (ValueError, AssertionError, HttpProcessingError) as error:
        raise Malformed(f"a form that can't be read: {error}") from None
    return {"attributes": attributes, "files": files}
