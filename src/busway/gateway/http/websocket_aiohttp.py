"""WebSockets that aiohttp reads: where picows is not installed, or a connection had other requests before. A driver."""

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import WSMsgType, web

from busway.gateway.http.websocket import HIGH

if TYPE_CHECKING:
    from busway.gateway.http.door import JsonDoor
    from busway.gateway.http.websocket import Socket

_LOOK: Final = 0.02
"""Seconds between two looks at a client that is full."""


async def serve(door: "JsonDoor", request: web.Request) -> web.StreamResponse:
    """Speak with a client until it leaves."""
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
    """Read no more while it takes nothing, or much of what it asked for is under way."""
    while (socket.waiting >= pending or socket.full) and not socket.gone:  # noqa: ASYNC110, nobody tells
        await asyncio.sleep(_LOOK)


async def _watch(socket: "Socket", transport: asyncio.Transport) -> None:
    """See whether it takes what is written to it."""
    while True:
        await asyncio.sleep(_LOOK)
        waits = transport.get_write_buffer_size()
        if not socket.full and waits > HIGH:
            socket.pause()
        elif socket.full and waits < HIGH // 4:
            socket.resume()
