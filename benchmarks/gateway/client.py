"""One WebSocket client of the load generators: asks for something and hears that it is done, then sends and counts."""

import asyncio
from typing import Any, Self

import msgspec
from picows import WSFrame, WSListener, WSTransport, ws_connect

from .wire import frame

_STATUS = b'"status":200'


class Client(WSListener):
    """Not yet at work: what comes answers what it has asked for."""

    def __init__(self) -> None:
        self.told: asyncio.Future[bytes] | None = None
        self._write: Any = None

    @classmethod
    async def connect(cls, port: int, *more: Any) -> Self:
        _, listener = await ws_connect(lambda: cls(*more), f"ws://127.0.0.1:{port}/")
        assert isinstance(listener, cls)
        return listener

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._write = transport.underlying_transport.write

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:  # noqa: ARG002, named by picows
        payload = frame.get_payload_as_bytes()
        if self.told is not None:
            self.told.set_result(payload)
            self.told = None
        else:
            self.came(payload)
            if frame.last_in_buffer:
                self.turn()

    def came(self, payload: bytes) -> None:
        """A message, or the acknowledgement of one."""

    def turn(self) -> None:
        """All that was there was looked at."""

    def write(self, data: bytes) -> None:
        """Send frames."""
        self._write(data)

    async def ask(self, **request: Any) -> None:
        """Something that has to be done before the work begins, or after it."""
        self.told = asyncio.get_running_loop().create_future()
        self.write(frame(msgspec.json.encode(request)))
        answer = await self.told
        if _STATUS not in answer:
            raise RuntimeError(f"{request}: {answer.decode()}")
