"""WebSocket reader over aiohttp: used without picows, and for a connection that had other requests before. A driver.

`routes.py` calls `serve` for each upgrade request.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import WSMsgType, web

from busway.gateway.http.websocket import HIGH

if TYPE_CHECKING:
    from busway.gateway.http.door import JsonDoor
    from busway.gateway.http.websocket import Socket

_LOOK: Final = 0.02
"""Seconds between two checks of the write buffer of a client."""


async def serve(door: "JsonDoor", request: web.Request) -> web.StreamResponse:
    """Serve a client until its WebSocket closes."""
    if (refusal := door.refusal(request.headers)) is not None:
        return web.Response(status=refusal[0], text=refusal[1])
    response = web.WebSocketResponse(max_msg_size=door.settings.body, compress=False)
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        return response
    socket = door.socket(transport)
    watch = asyncio.get_running_loop().create_task(_watch(socket, transport))
    try:
        async for message in response:
            if message.type in {WSMsgType.TEXT, WSMsgType.BINARY}:
                socket.frame(message.data)
                socket.seen = asyncio.get_running_loop().time()
                await _room(socket, door.settings.pending)
    finally:
        watch.cancel()
        socket.flush()
        socket.lost()
    return response


async def _room(socket: "Socket", pending: int) -> None:
    """Wait while the client is full or has too many unanswered requests."""
    while (socket.waiting >= pending or socket.full) and not socket.closed:  # noqa: ASYNC110, there is no event for it
        await asyncio.sleep(_LOOK)


async def _watch(socket: "Socket", transport: asyncio.Transport) -> None:
    """Pause and resume a client by the size of its write buffer."""
    while True:
        await asyncio.sleep(_LOOK)
        buffered = transport.get_write_buffer_size()
        if not socket.full and buffered > HIGH:
            socket.pause()
        elif socket.full and buffered < HIGH // 4:
            socket.resume()
