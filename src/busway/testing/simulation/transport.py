"""One end of a simulated connection: an asyncio transport with the behaviour of TCP. `Network.dial()` creates pairs.

Up to a window of written data is in flight; the rest waits in the transport. An end whose process is dead answers with
a reset, as its host's kernel would. An end that was lost silently answers nothing.
"""

# ruff: noqa: SLF001, the two ends of a connection access each other

import asyncio
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

from busway.testing.simulation.process import Process
from busway.transport.buffers import HIGH_WATER

if TYPE_CHECKING:
    from busway.testing.simulation.network import Network


class Kind(Enum):
    """The type of a packet."""

    DATA = "data"
    END = "end"
    RESET = "reset"


class SimulatedTransport(asyncio.Transport):
    """One end of a connection. Network.dial() creates both ends."""

    def __init__(self, network: "Network", process: Process, protocol: asyncio.BufferedProtocol, name: str) -> None:
        super().__init__({"transport": "sim"})
        self.process = process
        self.name = name
        self.peer: SimulatedTransport = self
        self.latest = 0.0
        """When the last packet arrives."""
        self.silent = True
        """True before the first write."""
        self.hole = False
        """True if all packets to this end are lost."""
        self._network = network
        self._loop = network.loop
        self._protocol = protocol
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._flight: deque[tuple[Kind, bytes]] = deque()
        self._flying = 0
        self._inbox: deque[tuple[Kind, bytes]] = deque()
        self._made = False
        self._early: list[tuple[Kind, bytes]] = []
        """Packets that arrived before connection_made()."""
        self._high = HIGH_WATER
        self._low = HIGH_WATER // 4
        self._writing_paused = False
        self._reading_paused = False
        self._closing = False
        self._ended = False
        self._lost = False
        self._gone = False

    def join(self, peer: "SimulatedTransport") -> None:
        """Connect the two ends."""
        self.peer, peer.peer = peer, self
        for end in (self, peer):
            host, _, port = end.peer.name.rpartition(":")
            end._extra["peername"] = host, int(port)  # type: ignore[attr-defined]

    def made(self) -> bool:
        """Call connection_made() of the protocol. Return False if the connection is already lost."""
        if self._lost:
            return False
        self._made = True
        try:
            self._protocol.connection_made(self)
        except Exception as error:  # noqa: BLE001, as asyncio does: close the connection, call the loop's handler
            self._fatal(error)
        early, self._early = self._early, []
        for kind, data in early:
            self._receive(kind, data)
        return True

    # Sending.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        if self.silent:
            self.silent = False
            self._network.first_write(self)
        self._waiting.append(bytes(data))
        self._size += len(self._waiting[-1])
        self._pump()
        if self._size > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def _pump(self) -> None:
        """Send waiting data that fits in the window, then the end. A small remainder of the window stays unused."""
        window = self._network.window
        while self._waiting and (self._flying == 0 or window - self._flying >= window // 4):
            data = self._waiting.popleft()
            if len(data) > window - self._flying:
                self._waiting.appendleft(data[window - self._flying :])
                data = data[: window - self._flying]
            at = 0
            for size in self._network.pieces(self, len(data)):
                self._put(Kind.DATA, data[at : at + size])
                at += size
            self._size -= len(data)
        if self._closing and not self._waiting and not self._ended:
            self._ended = True
            self._put(Kind.END)
            self._lose(None)

    def _put(self, kind: Kind, data: bytes = b"") -> None:
        self._flying += len(data)
        self._flight.append((kind, data))
        self._network.send(self, len(data))

    def arrived(self) -> None:
        """Process the next packet of this end at the other host."""
        kind, data = self._flight.popleft()
        peer, network = self.peer, self._network
        if peer.hole or peer.process.host in network.dark:
            network.trace.add(f"{self.name} > {peer.name} {kind.value} is lost", data)
            return
        network.trace.add(f"{self.name} > {peer.name} {kind.value}", data)
        if peer._gone or (peer._lost and kind is Kind.DATA):
            if kind is not Kind.RESET:
                peer._put(Kind.RESET)
            return
        self._loop.enter(peer.process, peer._receive, kind, data)

    def _acked(self, size: int) -> None:
        self._flying -= size
        if self._waiting or self._writing_paused:
            self._loop.call_soon(self._go_on, context=self.process.context)

    def _go_on(self) -> None:
        if self._lost:
            return
        self._pump()
        if self._writing_paused and self._size <= self._low and not self._lost:
            self._writing_paused = False
            self._protocol.resume_writing()

    # Receiving.

    def _receive(self, kind: Kind, data: bytes) -> None:
        if self._lost:
            return
        if not self._made:
            self._early.append((kind, data))
            return
        if kind is Kind.RESET:
            self._lose(ConnectionResetError("connection reset by peer"))
            return
        self._inbox.append((kind, data))
        self._hand_over()

    def _hand_over(self) -> None:
        inbox = self._inbox
        while inbox and not self._reading_paused and not self._lost:
            kind, data = inbox.popleft()
            try:
                if kind is Kind.END:
                    if not self._closing and not self._protocol.eof_received():
                        self.close()
                    continue
                if not self._closing:
                    rest = self._feed(data)
                    if rest:
                        inbox.appendleft((kind, rest))
                    self.peer._acked(len(data) - len(rest))
                else:
                    self.peer._acked(len(data))
            except Exception as error:  # noqa: BLE001, as in made()
                self._fatal(error)

    def _feed(self, data: bytes) -> bytes:
        """Pass data to the protocol. Return the rest if the protocol pauses reading."""
        at = 0
        while at < len(data) and not self._reading_paused and not self._closing:
            buffer = memoryview(self._protocol.get_buffer(-1))
            size = min(len(buffer), len(data) - at)
            buffer[:size] = data[at : at + size]
            at += size
            self._protocol.buffer_updated(size)
        return data[at:] if not self._closing else b""

    def _fatal(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "Fatal error on simulated transport", "exception": error, "protocol": self._protocol}
        )
        self.abort()

    # The end.

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._waiting.clear()
        self._inbox.clear()
        self._size = 0
        if self._made:
            self._loop.call_soon(self._protocol.connection_lost, error, context=self.process.context)
        self._network.over(self)

    def vanish(self, *, reset: bool) -> None:
        """End this side without a callback, since its process is dead. With `reset` its host resets the connection."""
        if self._gone:
            return
        was_lost = self._lost
        self._gone = self._lost = self._closing = True
        self._waiting.clear()
        self._inbox.clear()
        self._network.over(self)
        if reset and not was_lost:
            self._put(Kind.RESET)

    def cut(self) -> None:
        """Close the connection at both ends. Data in flight is lost."""
        for end in (self, self.peer):
            self._loop.enter(end.process, end._receive, Kind.END, b"")

    def reset(self) -> None:
        """Reset the connection at both ends. Data in flight is lost."""
        for end in (self, self.peer):
            self._loop.enter(end.process, end._receive, Kind.RESET, b"")

    def lose_silently(self) -> None:
        """Lose the connection at this end only. The other end never learns of it."""
        self.hole = True
        self._lose(ConnectionResetError("connection reset by peer"))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._pump()

    def abort(self) -> None:
        if not self._lost:
            self._put(Kind.RESET)
            self._lose(None)

    def is_closing(self) -> bool:
        return self._closing

    # Flow.

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            if self._inbox:
                self._loop.call_soon(self._hand_over, context=self.process.context)

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

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
            raise TypeError("a simulated connection needs a BufferedProtocol")
        self._protocol = protocol
