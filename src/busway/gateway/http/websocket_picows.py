"""WebSocket reader over picows: takes connections whose first request is an upgrade, and passes all others to aiohttp.

`door.py` uses it for every connection if picows is installed. picows calls back for each frame without a task or a
queue in between. Without picows, and for an upgrade after other requests, `websocket_aiohttp.py` reads the frames. A
driver.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, WSUpgradeResponse
from picows.common import WSUpgradeResponseWithListener
from picows.picows import WSAutoPingStrategy, WSProtocol  # type: ignore[attr-defined]

from busway.gateway.http.websocket import TOO_BIG

if TYPE_CHECKING:
    from busway.gateway.http.door import JsonDoor
    from busway.gateway.http.websocket import Socket

log = logging.getLogger("busway.gateway")

_END: Final = b"\r\n\r\n"
_TEXT: Final = WSMsgType.TEXT  # each lookup in the enum takes longer than the rest of the callback
_BINARY: Final = WSMsgType.BINARY
_MORE: Final = WSMsgType.CONTINUATION
_CLOSE: Final = WSMsgType.CLOSE


class Listener(WSListener):
    """Callbacks of picows for one WebSocket."""

    def __init__(self, door: "JsonDoor") -> None:
        self._door = door
        self._socket: Socket | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._socket = self._door.socket(transport.underlying_transport)

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


_SPACE: Final = 0x20
"""No HTTP request begins with a byte below this. Native clients and TLS do, and aiohttp refuses them at once."""


class ProtocolSwitch(asyncio.Protocol):
    """The first protocol of a connection: reads the first request and switches to picows or aiohttp."""

    def __init__(self, door: "JsonDoor") -> None:
        self._door = door
        self._transport: Any = None
        self._data = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._door.new_connections.add(self)
        self._timer = asyncio.get_running_loop().call_later(self._door.settings.slow, transport.close)

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(_END)
        if end < 0 and min(self._data[:4], default=_SPACE) >= _SPACE and len(self._data) < self._door.settings.head:
            return
        self._finish()
        head = self._data[: end + 2].lower()
        upgrade = end >= 0 and head.startswith(b"get ") and b"\r\nupgrade: websocket\r\n" in head
        transport, data, self._data = self._transport, self._data, b""
        protocol = self._picows() if upgrade else self._door.plain()
        transport.pause_reading()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.resume_reading()
        if upgrade:
            feed(protocol, data)
        else:
            protocol.data_received(data)

    def _picows(self) -> Any:
        return WSProtocol(
            None,
            None,
            False,
            self._listen,
            logging.getLogger("busway.gateway.picows"),
            True,
            self._door.settings.slow,
            False,
            10.0,
            10.0,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            True,
            self._door.settings.body + 1024,
            None,
            16 * 1024,
        )

    def _listen(self, request: WSUpgradeRequest) -> Any:
        if (refusal := self._door.refusal(request.headers)) is not None:
            status, text = refusal
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(status, text.encode()), None)
        return Listener(self._door)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._finish()

    def abort(self) -> None:
        """Close a connection whose first request is not complete."""
        self._transport.abort()
        self._finish()

    def _finish(self) -> None:
        self._door.new_connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()


def feed(protocol: Any, data: bytes) -> None:
    """Give a buffered protocol the data that was read before it was set."""
    while data:
        buffer = protocol.get_buffer(len(data))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
