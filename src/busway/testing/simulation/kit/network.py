"""A network that is not there: hosts, listeners, and connections whose bytes take virtual time.

Each direction between two hosts is a way of its own, with a delay, a bandwidth, and a switch: what is sent over a blocked way
arrives when it is open again, as TCP would send it again. Connections keep TCP's promises and asyncio's: bytes in order,
flow control, connection_lost() last and once. Chance comes from outside, so the same seed makes the same network.
"""

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Final

from busway.settings import KiB
from busway.testing.simulation.kit.loop import VirtualLoop
from busway.testing.simulation.kit.process import Process, current
from busway.testing.simulation.kit.trace import Trace
from busway.testing.simulation.kit.transport import SimulatedTransport
from busway.transport.address import Address
from busway.transport.schemes import Factory

_FIRST_PORT: Final = 40_000
_PACKET: Final = 1448
_MOMENT: Final = 0.02
"""Seconds that at most one packet is on a way, unless that is very slow."""
_NOBODY: Final = Context()
"""What is on its way belongs to no process."""


@dataclass(slots=True, eq=False)
class Path:
    """From one host to another."""

    delay: float
    jitter: float
    bandwidth: float
    """Bytes in a second."""
    normal: tuple[float, float, float]
    """The three when nothing is wrong."""
    blocked: bool = False
    held: dict["SimulatedTransport | asyncio.Future[None]", int] = field(default_factory=dict)
    """Who waits for so many arrivals until the way is open."""
    stopped: int = 0
    """How often something could not pass."""
    carried: int = 0
    """Bytes that were sent."""
    free: float = 0.0
    """When the last byte has left."""

    def arrival(self, now: float, size: int, chance: Random) -> float:
        """When something arrives that is sent now."""
        self.carried += size
        self.free = max(self.free, now) + size / self.bandwidth
        return self.free + self.delay + chance.random() * self.jitter


@dataclass(frozen=True, slots=True)
class _Listener:
    process: Process
    factory: Factory


class Network:
    """All hosts and what is between them. It carries addresses of the scheme `sim`."""

    def __init__(self, loop: VirtualLoop, chance: Random, trace: Trace) -> None:
        self.loop = loop
        self.chance = chance
        self.trace = trace
        self.delay = 0.001
        self.jitter = 0.001
        self.bandwidth = 1e8
        self.spread = 1.0
        """How many times as long one way takes as another one."""
        self.window = 64 * KiB
        """Bytes of a connection that are on their way or wait for the receiver."""
        self.choppy = 0.0
        """How often what is sent arrives in two parts."""
        self.dark: set[str] = set()
        """Hosts without power."""
        self.refused = 0
        self.dialled: dict[str, float] = {}
        """When the last connection of each host was made."""
        self.reached: dict[str, dict[str, None]] = {}
        """The processes to which each process has said something."""
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._ways: dict[tuple[str, str], Path] = {}
        self._ends: dict[SimulatedTransport, None] = {}
        self._ports = _FIRST_PORT

    def way(self, here: str, there: str) -> Path:
        """From here to there."""
        if (way := self._ways.get((here, there))) is None:
            longer = self.spread ** self.chance.random() if self.spread > 1.0 else 1.0
            normal = self.delay * longer, self.jitter * longer, self.bandwidth
            way = self._ways[here, there] = Path(*normal, normal)
        return way

    # What goes wrong.

    def block(self, here: str, there: str) -> None:
        """Nothing gets from here to there; the other direction is not touched."""
        self.way(here, there).blocked = True

    def unblock(self, here: str, there: str) -> None:
        """What was held up goes on."""
        way = self.way(here, there)
        way.blocked = False
        held, way.held = way.held, {}
        for waiting, count in held.items():
            if isinstance(waiting, asyncio.Future):
                if not waiting.done():
                    waiting.set_result(None)
                continue
            for _ in range(count):
                self.loop.call_at(way.arrival(self.loop.time(), 0, self.chance), self.arrive, waiting, context=_NOBODY)

    def heal(self) -> None:
        """From now on nothing is blocked, and every way is as fast as in the beginning."""
        for (here, there), way in list(self._ways.items()):
            way.delay, way.jitter, way.bandwidth = way.normal
            way.free = min(way.free, self.loop.time())
            if way.blocked:
                self.unblock(here, there)

    def connections(self, here: str, there: str) -> list[SimulatedTransport]:
        """The ends that are here, of the connections between these hosts."""
        return [end for end in self._ends if end.process.host == here and end.peer.process.host == there]

    def died(self, process: Process, *, reset: bool) -> None:
        """A process is dead. Its host says so to those who were connected, unless it has no power."""
        for place, listener in list(self._listeners.items()):
            if listener.process is process:
                del self._listeners[place]
        for end in [end for end in self._ends if end.process is process]:
            end.vanish(reset=reset)

    # Listening and dialling: these are called by the transport layer.

    def listen(self, address: Address, factory: Factory) -> tuple[int, Callable[[], None]]:
        process = current()
        if address.host != process.host:
            raise OSError(errno.EADDRNOTAVAIL, f"{process.host} is not the host {address.host}")
        port = address.port or self._next_port()
        place = address.host, port
        if place in self._listeners:
            raise OSError(errno.EADDRINUSE, "somebody else listens there")
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
            await self.loop.create_future()  # nobody is there to say no
        if listener is None or not listener.process.alive:
            await self._travel(there, here)
            self.refused += 1
            self.trace.add(f"{process.name} is refused by {address}")
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
        mine = SimulatedTransport(self, process, factory(), f"{here}:{self._next_port()}")
        its = SimulatedTransport(self, listener.process, listener.factory(), f"{there}:{address.port}")
        mine.join(its)
        self._ends[mine] = self._ends[its] = None
        self.dialled[here] = self.loop.time()
        self.trace.add(f"{process.name} connects {mine.name} to {its.name}")
        self.loop.enter(its.process, its.made)
        try:
            await self._travel(there, here)
        except BaseException:
            mine.abort()
            raise
        if not mine.made():
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        return mine, mine.get_protocol()

    async def _travel(self, here: str, there: str) -> None:
        """One packet that belongs to no connection yet; it is sent again until it gets through."""
        way = self.way(here, there)
        while way.blocked:
            waiting = self.loop.create_future()
            way.stopped += 1
            way.held[waiting] = 1
            try:
                await waiting
            finally:
                way.held.pop(waiting, None)
        await asyncio.sleep(way.arrival(self.loop.time(), 0, self.chance) - self.loop.time())

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports

    # What connections call.

    def speaks(self, end: SimulatedTransport) -> None:
        """It is about to say its first word."""
        self.reached.setdefault(end.process.name, {})[end.peer.process.name] = None

    def send(self, end: SimulatedTransport, size: int) -> None:
        """The next thing that this end has put in flight is on its way."""
        way = self.way(end.process.host, end.peer.process.host)
        end.latest = max(end.latest, way.arrival(self.loop.time(), size, self.chance))
        self.loop.call_at(end.latest, self.arrive, end, context=_NOBODY)

    def arrive(self, end: SimulatedTransport) -> None:
        """The next thing that this end has sent is there, if the way is open."""
        way = self.way(end.process.host, end.peer.process.host)
        if way.blocked:
            way.stopped += 1
            way.held[end] = way.held.get(end, 0) + 1
        else:
            end.arrived()

    def pieces(self, end: SimulatedTransport, size: int) -> Iterator[int]:
        """How what is sent at once is cut up: into packets where the way is slow, and else by chance."""
        packet = max(_PACKET, int(self.way(end.process.host, end.peer.process.host).bandwidth * _MOMENT))
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
