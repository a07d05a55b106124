"""In-process connections: a pair of asyncio transports that deliver to each other without a socket.

Both ends use the same protocol classes as over sockets. The transports keep asyncio's contract: write() never delivers
directly, a full queue calls pause_writing(), and connection_lost() is the last call and comes exactly once.
"""

# ruff: noqa: SLF001, the two ends of a connection access each other

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from busway.errors import ConnectFailed, ListenFailed
from busway.settings import KiB
from busway.transport.buffers import HIGH_WATER

_BATCH: Final = 1024 * KiB
"""Bytes that a callback delivers before it lets other callbacks of the event loop run."""


class MemoryTransport(asyncio.Transport):
    """One end of a connection. It queues written data until it delivers them to the peer's protocol."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.BufferedProtocol, name: str) -> None:
        super().__init__({"peername": name, "transport": "memory"})
        self._loop = loop
        self._protocol = protocol
        self._peer: MemoryTransport = self
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._high = HIGH_WATER
        self._low = HIGH_WATER // 4
        self._scheduled = False
        self._writing_paused = False
        self._reading_paused = False
        self._closing = False
        self._lost = False

    def join(self, peer: "MemoryTransport") -> None:
        """Connect the two ends."""
        self._peer, peer._peer = peer, self

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        view = memoryview(data)
        self._waiting.append(view)
        self._size += view.nbytes
        self._schedule()
        if self._size > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def _schedule(self) -> None:
        """Deliver in a later iteration of the event loop, unless the peer has paused reading."""
        if not self._scheduled and not self._lost and not self._peer._reading_paused:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._deliver_queue()
        if self._peer._scheduled:  # deliver the peer's answer in the same iteration, and further data in later ones
            self._peer._deliver_queue()

    def _deliver_queue(self) -> None:
        self._scheduled = False
        if self._lost:
            return
        peer = self._peer
        waiting = self._waiting
        budget = _BATCH
        while waiting and budget > 0 and not peer._reading_paused and not peer._lost:
            buffer = memoryview(peer._protocol.get_buffer(-1))
            size = 0
            while waiting and size < len(buffer):
                view = waiting.popleft()
                part = min(len(buffer) - size, view.nbytes)
                buffer[size : size + part] = view[:part]
                size += part
                if part < view.nbytes:
                    waiting.appendleft(view[part:])
            self._size -= size
            budget -= size
            try:
                peer._protocol.buffer_updated(size)
            except Exception as error:  # noqa: BLE001, as asyncio does: close the connection, call the loop's handler
                peer._fatal(error)
            if self._writing_paused and self._size <= self._low and not self._lost:
                self._writing_paused = False
                self._protocol.resume_writing()
        if waiting and not peer._lost:
            self._schedule()
        elif self._closing:
            self._end(None)

    def _fatal(self, error: Exception) -> None:
        context = {
            "message": "Fatal error on memory transport",
            "exception": error,
            "transport": self,
            "protocol": self._protocol,
        }
        self._loop.call_exception_handler(context)
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        """End this side: call connection_lost() of its protocol, and signal the end of data to the peer."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._waiting.clear()
        self._size = 0
        self._loop.call_soon(self._protocol.connection_lost, error)
        self._loop.call_soon(self._peer._ended_by_peer, error)

    def _ended_by_peer(self, error: Exception | None) -> None:
        if self._lost:
            return
        if error is not None:
            self._end(ConnectionResetError("the other end of the memory connection was lost"))
        elif not self._protocol.eof_received():
            self._waiting.clear()  # the peer no longer reads
            self._end(None)

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            if self._peer._waiting or self._peer._closing:
                self._peer._schedule()

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if self._waiting:
                self._schedule()
            else:
                self._end(None)

    def abort(self) -> None:
        self._end(None)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return self._size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (self._low, self._high)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        if not isinstance(protocol, asyncio.BufferedProtocol):
            raise TypeError("a memory connection needs a BufferedProtocol")
        self._protocol = protocol


class MemoryListener:
    """A memory address that a server listens on. Only clients in its event loop can connect."""

    def __init__(self, name: str, factory: Callable[[], asyncio.BufferedProtocol]) -> None:
        if name in _listeners:
            raise ListenFailed(f"memory:{name}: another server in this process listens at this address")
        self.name = name
        self.loop = asyncio.get_running_loop()
        self.factory = factory
        _listeners[name] = self

    def close(self) -> None:
        if _listeners.get(self.name) is self:
            del _listeners[self.name]


_listeners: dict[str, MemoryListener] = {}


def dial_memory(
    name: str, factory: Callable[[], asyncio.BufferedProtocol]
) -> tuple[asyncio.Transport, asyncio.BufferedProtocol]:
    """Connect a new protocol to a new protocol of the server that listens under this name."""
    listener = _listeners.get(name)
    loop = asyncio.get_running_loop()
    if listener is None:
        raise ConnectFailed(f"memory:{name}: no such server in this process")
    if listener.loop is not loop:
        raise ConnectFailed(f"memory:{name}: the server runs in another event loop; use a socket")
    client = MemoryTransport(loop, factory(), f"memory:{name}")
    server = MemoryTransport(loop, listener.factory(), "memory")
    client.join(server)
    server.get_protocol().connection_made(server)
    client.get_protocol().connection_made(client)
    return client, client._protocol
