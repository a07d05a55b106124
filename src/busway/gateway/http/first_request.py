"""Time limit of the first request of a connection, for which aiohttp has none. A driver.

`door.py` creates one for each connection. When the head of the request is complete, aiohttp gets the connection.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from busway.gateway.http.door import JsonDoor

_END: Final = b"\r\n\r\n"
_SPACE: Final = 0x20
"""No HTTP request begins with a byte below this. Native clients and TLS do, and aiohttp refuses them at once."""


class FirstRequest(asyncio.Protocol):
    """The first protocol of a connection."""

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
        readable = min(self._data[:4], default=_SPACE) >= _SPACE and len(self._data) < self._door.settings.head
        if readable and _END not in self._data:
            return
        self._finish()
        protocol = self._door.plain()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._data)

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
