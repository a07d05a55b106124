"""WebSocket reader: picows reads the frames, and calls back for each one without a task or a queue in between. A driver.

`routes.py` calls `upgrade` for the request of a WebSocket, which may be the first of its connection or a later one.
"""

import logging
from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs, web
from picows import WSFrame, WSListener, WSMsgType, WSTransport
from picows.picows import WSAutoPingStrategy, WSProtocol  # type: ignore[attr-defined]

from busway.gateway.http.websocket import TOO_BIG

if TYPE_CHECKING:
    from busway.gateway.auth.users import HttpUser
    from busway.gateway.http.door import JsonDoor
    from busway.gateway.http.websocket import Socket

log = logging.getLogger("busway.gateway")

_TEXT: Final = WSMsgType.TEXT  # each lookup in the enum takes longer than the rest of the callback
_BINARY: Final = WSMsgType.BINARY
_MORE: Final = WSMsgType.CONTINUATION
_CLOSE: Final = WSMsgType.CLOSE


class Listener(WSListener):
    """Callbacks of picows for one WebSocket."""

    def __init__(self, door: "JsonDoor", user: "HttpUser | None") -> None:
        self._door = door
        self._user = user
        self._socket: Socket | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._socket = self._door.socket(transport.underlying_transport, self._user)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        socket = self._socket
        if socket is None:
            return
        kind = frame.msg_type
        if kind is _TEXT or kind is _BINARY:
            if frame.fin:
                socket.frame(frame.get_payload_as_bytes())
            else:
                self._fragment(frame)
        elif kind is _MORE:
            self._fragment(frame)
        elif kind is _CLOSE:
            socket.flush()
            transport.send_close(frame.get_close_code(), frame.get_close_message())
            transport.disconnect()
            return
        if frame.last_in_buffer:
            socket.read()

    def _fragment(self, frame: WSFrame) -> None:
        """Add one frame of a message that has several."""
        assert self._socket is not None
        self._parts.append(frame.get_payload_as_bytes())
        self._size += len(self._parts[-1])
        if self._size > self._door.settings.body:
            self._parts.clear()
            self._socket.disconnect(TOO_BIG, f"a message may have at most {self._door.settings.body} bytes")
        elif frame.fin:
            whole = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
            self._socket.frame(whole)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        del transport
        if self._socket is not None:
            self._socket.lost()

    def pause_writing(self) -> None:
        if self._socket is not None:
            self._socket.pause()

    def resume_writing(self) -> None:
        if self._socket is not None:
            self._socket.resume()


_SENT: Final = (hdrs.SEC_WEBSOCKET_VERSION, hdrs.SEC_WEBSOCKET_KEY)
"""Headers that picows checks and answers."""


def is_upgrade(request: web.Request) -> bool:
    """Whether a request asks for a WebSocket."""
    return request.method == hdrs.METH_GET and request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"


def upgrade(door: "JsonDoor", request: web.Request, user: "HttpUser | None") -> web.Response:
    """Move the connection of a request from aiohttp to picows, which sends the answer. The result is not sent then."""
    response, http, transport = web.Response(), request.protocol, request.transport
    if (refusal := door.refusal(request.headers)) is not None:
        response.set_status(refusal[0])
        response.text = refusal[1]
        response.force_close()
        return response
    if transport is None:  # the client has disconnected
        return response
    frames = http._message_tail  # noqa: SLF001, what the client has sent behind its request
    http.transport = None  # or aiohttp would close it
    http.connection_lost(None)
    protocol = _picows(door, user)
    transport.pause_reading()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    transport.resume_reading()
    _feed(protocol, _head(request) + frames)
    return response


def _picows(door: "JsonDoor", user: "HttpUser | None") -> Any:
    return WSProtocol(
        None,
        None,
        False,
        lambda _request: Listener(door, user),
        logging.getLogger("busway.gateway.picows"),
        True,
        door.settings.slow,
        False,
        10.0,
        10.0,
        WSAutoPingStrategy.PING_WHEN_IDLE,
        True,
        door.settings.body + 1024,
        None,
        16 * 1024,
    )


def _head(request: web.Request) -> bytes:
    """The request for picows, which accepts no other value in the header Connection beside `Upgrade`."""
    lines = ["GET / HTTP/1.1", "Upgrade: websocket"]
    options = ",".join(request.headers.getall(hdrs.CONNECTION, ())).split(",")
    if "upgrade" in {option.strip().lower() for option in options}:
        lines.append("Connection: Upgrade")
    lines += [f"{name}: {request.headers[name]}" for name in _SENT if name in request.headers]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def _feed(protocol: Any, data: bytes) -> None:
    """Give a buffered protocol data that was read before it was set."""
    while data:
        buffer = protocol.get_buffer(len(data))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
