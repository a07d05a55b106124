"""A simulated network: hosts, listeners, and connections whose bytes take virtual time. A World owns it.

Each direction between two hosts is a path with its own delay and bandwidth. Data sent over a blocked path arrives when
the path is unblocked, as after a TCP retransmission. Connections keep the contracts of TCP and asyncio: ordered bytes,
flow control, and one final connection_lost(). The same seed gives the same network.
"""

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Final

from busway.settings import KiB
from busway.testing.simulation.loop import VirtualLoop
from busway.testing.simulation.process import Process, current
from busway.testing.simulation.trace import Trace
from busway.testing.simulation.transport import SimulatedTransport
from busway.transport.address import Address
from busway.transport.schemes import Factory

_FIRST_PORT: Final = 40_000
_PACKET: Final = 1448
_MOMENT: Final = 0.02
"""Most seconds of transmission of a packet, except on very slow paths."""
_NO_PROCESS: Final = Context()
"""Context of callbacks for data in flight, which belongs to no process."""


@dataclass(slots=True, eq=False)
class Path:
    """The path from one host to another, in one direction."""

    delay: float
    jitter: float
    bandwidth: float
    """Bytes per second."""
    normal: tuple[float, float, float]
    """Delay, jitter and bandwidth without faults."""
    blocked: bool = False
    held: dict["SimulatedTransport | asyncio.Future[None]", int] = field(default_factory=dict)
    """Packets that wait while the path is blocked, by sender."""
    stopped: int = 0
    """The number of packets that were blocked."""
    carried: int = 0
    """Bytes that were sent."""
    free: float = 0.0
    """When the last byte was sent."""

    def arrival(self, now: float, size: int, chance: Random) -> float:
        """Return when data arrives that is sent now."""
        self.carried += size
        self.free = max(self.free, now) + size / self.bandwidth
        return self.free + self.delay + chance.random() * self.jitter


@dataclass(frozen=True, slots=True)
class _Listener:
    process: Process
    factory: Factory


class Network:
    """All hosts, paths and connections. It is the transport for addresses with the scheme `sim`."""

    def __init__(self, loop: VirtualLoop, chance: Random, trace: Trace) -> None:
        self.loop = loop
        self.chance = chance
        self.trace = trace
        self.delay = 0.001
        self.jitter = 0.001
        self.bandwidth = 1e8
        self.spread = 1.0
        """The ratio of the longest and the shortest delay of paths."""
        self.window = 64 * KiB
        """Most bytes of a connection in flight, or waiting for the receiver."""
        self.choppy = 0.0
        """The probability that data is split in two."""
        self.dark: set[str] = set()
        """Hosts without power."""
        self.refused = 0
        self.dialled: dict[str, float] = {}
        """When each host opened its last connection."""
        self.reached: dict[str, dict[str, None]] = {}
        """The processes to which each process has sent data."""
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._paths: dict[tuple[str, str], Path] = {}
        self._ends: dict[SimulatedTransport, None] = {}
        self._ports = _FIRST_PORT

    def path(self, here: str, there: str) -> Path:
        """Return the path between two hosts."""
        if (path := self._paths.get((here, there))) is None:
            longer = self.spread ** self.chance.random() if self.spread > 1.0 else 1.0
            normal = self.delay * longer, self.jitter * longer, self.bandwidth
            path = self._paths[here, there] = Path(*normal, normal)
        return path

    # Faults.

    def block(self, here: str, there: str) -> None:
        """Block the path from `here` to `there`. The other direction stays open."""
        self.path(here, there).blocked = True

    def unblock(self, here: str, there: str) -> None:
        """Unblock a path, and deliver its waiting packets."""
        path = self.path(here, there)
        path.blocked = False
        held, path.held = path.held, {}
        for waiting, count in held.items():
            if isinstance(waiting, asyncio.Future):
                if not waiting.done():
                    waiting.set_result(None)
                continue
            for _ in range(count):
                self.loop.call_at(
                    path.arrival(self.loop.time(), 0, self.chance), self.arrive, waiting, context=_NO_PROCESS
                )

    def heal(self) -> None:
        """Unblock all paths, and restore their speed."""
        for (here, there), path in list(self._paths.items()):
            path.delay, path.jitter, path.bandwidth = path.normal
            path.free = min(path.free, self.loop.time())
            if path.blocked:
                self.unblock(here, there)

    def connections(self, here: str, there: str) -> list[SimulatedTransport]:
        """Return the ends at `here` of the connections between two hosts."""
        return [end for end in self._ends if end.process.host == here and end.peer.process.host == there]

    def died(self, process: Process, *, reset: bool) -> None:
        """Close the connections of a dead process. `reset`: its host resets them; without power it can't."""
        for place, listener in list(self._listeners.items()):
            if listener.process is process:
                del self._listeners[place]
        for end in [end for end in self._ends if end.process is process]:
            end.vanish(reset=reset)

    # Listening and dialling, called by the transport layer.

    def listen(self, address: Address, factory: Factory) -> tuple[int, Callable[[], None]]:
        process = current()
        if address.host != process.host:
            raise OSError(errno.EADDRNOTAVAIL, f"{process.host} is not the host {address.host}")
        port = address.port or self._next_port()
        place = address.host, port
        if place in self._listeners:
            raise OSError(errno.EADDRINUSE, "another server listens at this address")
        listener = self._listeners[place] = _Listener(process, factory)
        self.trace.add(f"{process.name} listens on {address.host}:{port}")

        def close() -> None:
            if self._listeners.get(place) is listener:
                del self._listeners[place]

        return port, close

    async def dial(self, address: Address, factory: Factory) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        process = current()
        here, there = process.host, address.host
        await self._travel(here, there)
        listener = self._listeners.get((there, address.port))
        if there in self.dark:
            await self.loop.create_future()  # a host without power never refuses
        if listener is None or not listener.process.alive:
            await self._travel(there, here)
            self.refused += 1
            self.trace.add(f"{process.name} is refused by {address}")
            raise ConnectionRefusedError(errno.ECONNREFUSED, "no server listens at this address")
        client = SimulatedTransport(self, process, factory(), f"{here}:{self._next_port()}")
        server = SimulatedTransport(self, listener.process, listener.factory(), f"{there}:{address.port}")
        client.join(server)
        self._ends[client] = self._ends[server] = None
        self.dialled[here] = self.loop.time()
        self.trace.add(f"{process.name} connects {client.name} to {server.name}")
        self.loop.enter(server.process, server.made)
        try:
            await self._travel(there, here)
        except BaseException:
            client.abort()
            raise
        if not client.made():
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        return client, client.get_protocol()

    async def _travel(self, here: str, there: str) -> None:
        """Send a packet that belongs to no connection yet, and wait while the path is blocked."""
        path = self.path(here, there)
        while path.blocked:
            waiting = self.loop.create_future()
            path.stopped += 1
            path.held[waiting] = 1
            try:
                await waiting
            finally:
                path.held.pop(waiting, None)
        await asyncio.sleep(path.arrival(self.loop.time(), 0, self.chance) - self.loop.time())

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports

    # Called by connections.

    def first_write(self, end: SimulatedTransport) -> None:
        """Record that the process of this end sends data to its peer."""
        self.reached.setdefault(end.process.name, {})[end.peer.process.name] = None

    def send(self, end: SimulatedTransport, size: int) -> None:
        """Schedule the arrival of the next packet that this end has put in flight."""
        path = self.path(end.process.host, end.peer.process.host)
        end.latest = max(end.latest, path.arrival(self.loop.time(), size, self.chance))
        self.loop.call_at(end.latest, self.arrive, end, context=_NO_PROCESS)

    def arrive(self, end: SimulatedTransport) -> None:
        """Deliver the next packet of this end, unless the path is blocked."""
        path = self.path(end.process.host, end.peer.process.host)
        if path.blocked:
            path.stopped += 1
            path.held[end] = path.held.get(end, 0) + 1
        else:
            end.arrived()

    def pieces(self, end: SimulatedTransport, size: int) -> Iterator[int]:
        """Yield the sizes of packets for data: limited on slow paths, and split at random."""
        packet = max(_PACKET, int(self.path(end.process.host, end.peer.process.host).bandwidth * _MOMENT))
        while size > packet:
            yield packet
            size -= packet
        if size > 1 and self.choppy and self.chance.random() < self.choppy:
            first = self.chance.randrange(1, size)
            yield first
            size -= first
        yield size

    def over(self, end: SimulatedTransport) -> None:
        self._ends.pop(end, None)
