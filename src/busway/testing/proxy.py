"""A proxy between client and server that breaks connections on demand: at a byte, at a frame, or at once. Tests use it.

It uses no clock: faults occur at a place in the stream of bytes, and `chunk` simulates a slow connection. The proxy
cannot see frames inside TLS, so there faults are placed by bytes.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from typing import Self

from busway.testing.proxy_faults import Fault, Flow, Way

_READ = 65536
_Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """A connection through the proxy."""

    def __init__(self, faults: tuple[Fault, ...] = (), chunk: int | None = None) -> None:
        self.up = Flow([fault for fault in faults if fault.way == "up"], chunk)
        self.down = Flow([fault for fault in faults if fault.way == "down"], chunk)
        self.closed = asyncio.Event()
        self._moves: dict[Way, asyncio.Event] = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._writers: list[asyncio.StreamWriter] = []
        for move in self._moves.values():
            move.set()

    def stall(self, way: Way) -> None:
        """Forward nothing more in this direction until release()."""
        self._moves[way].clear()

    def release(self, way: Way) -> None:
        """End a stall."""
        self._moves[way].set()

    def heal(self) -> None:
        """Drop all further faults and end stalls."""
        self.up.heal()
        self.down.heal()
        for move in self._moves.values():
            move.set()

    def cut(self) -> None:
        """Close the connection now. Data that was forwarded before still arrives."""
        self.closed.set()
        for writer in self._writers:
            writer.close()

    def reset(self) -> None:
        """Reset the connection now."""
        self.closed.set()
        for writer in self._writers:
            peer = writer.get_extra_info("socket")
            if not writer.transport.is_closing() and peer.family != socket.AF_UNIX:
                # With a linger time of zero the kernel sends RST instead of FIN.
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def run(self, client: _Pair, upstream: str) -> None:
        """Forward bytes in both directions until an end or a fault closes the connection."""
        self._writers.append(client[1])
        try:
            server = await _connect(upstream)
        except OSError:
            self.reset()  # a client sees a server that does not listen like one that crashed
            return
        self._writers.append(server[1])
        try:
            async with asyncio.TaskGroup() as pumps:
                running = [
                    pumps.create_task(self._pump("up", client[0], server[1])),
                    pumps.create_task(self._pump("down", server[0], client[1])),
                ]
                await self.closed.wait()
                for pump in running:
                    pump.cancel()
            self.cut()
            for writer in self._writers:
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        finally:
            for writer in self._writers:
                writer.transport.abort()

    async def _pump(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flow = self.up if way == "up" else self.down
        try:
            self._act(flow.due())
            while not self.closed.is_set():
                data = await reader.read(_READ)
                if not data:
                    break
                for step in flow.feed(data):
                    if isinstance(step, Fault):
                        self._act([step])
                        if self.closed.is_set():
                            return
                        continue
                    await self._moves[way].wait()
                    writer.write(step)
                    await writer.drain()
                    if flow.chunk:
                        await asyncio.sleep(0)  # let the receiver process the chunk alone
        except ConnectionError:
            self.reset()
        finally:
            self.closed.set()

    def _act(self, faults: list[Fault]) -> None:
        for fault in faults:
            if fault.kind == "cut":
                self.cut()
            elif fault.kind == "reset":
                self.reset()
            elif fault.kind == "stall":
                self.stall(fault.way)


class FaultProxy:
    """Listens at `address` and forwards every connection to `upstream`, with the planned faults.

    ```python
    async with busway.testing.FaultProxy(server.addresses[0]) as proxy:
        proxy.plan(busway.testing.cut("down", frame=3))        # the first connection ends after three frames
        async with busway.connect(proxy.address) as bus: ...
    ```
    """

    def __init__(self, upstream: str, *, listen: str | None = None, chunk: int | None = None) -> None:
        self.upstream = upstream
        self.chunk = chunk
        self.refusing = False
        self.refused = 0
        self.links: list[Link] = []
        self.address = listen or f"{'tls' if upstream.startswith('tls:') else 'tcp'}://127.0.0.1:0"
        self._plans: deque[tuple[Fault, ...]] = deque()
        self._arrival = asyncio.Condition()
        self._running: set[tuple[Link, asyncio.Task[None]]] = set()
        self._stack = contextlib.AsyncExitStack()

    def plan(self, *faults: Fault) -> None:
        """Plan the faults of the next connection without a plan. Further calls plan the connections after it."""
        self._plans.append(faults)

    async def link(self, index: int = -1) -> Link:
        """Wait for the connection with this index, or for the latest one (-1)."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: len(self.links) > max(index, 0))
            return self.links[index]

    def heal(self) -> None:
        """Drop all plans and further faults, and end stalls."""
        self.refusing = False
        self._plans.clear()
        for link in self.links:
            link.heal()

    def cut(self) -> None:
        """Close every connection now."""
        for link in self.links:
            if not link.closed.is_set():
                link.cut()

    def reset(self) -> None:
        """Reset every connection now."""
        for link in self.links:
            if not link.closed.is_set():
                link.reset()

    async def __aenter__(self) -> Self:
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        if self.address.startswith("unix:"):
            server: asyncio.Server = await asyncio.start_unix_server(self._arrived, self.address.removeprefix("unix:"))
        else:
            scheme, host, port = _parts(self.address)
            server = await asyncio.start_server(self._arrived, host, port)
            self.address = f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}"
        self._stack.callback(self._stop, server)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _stop(self, server: asyncio.Server) -> None:
        server.close()
        for link, task in list(self._running):
            link.reset()
            task.cancel()

    def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            self.refused += 1
            writer.transport.abort()
            return
        link = Link(self._plans.popleft() if self._plans else (), self.chunk)
        self.links.append(link)
        task = self._tasks.create_task(self._carry(link, (reader, writer)))
        self._running.add((link, task))
        task.add_done_callback(lambda _: self._running.discard((link, task)))

    async def _carry(self, link: Link, client: _Pair) -> None:
        async with self._arrival:
            self._arrival.notify_all()
        await link.run(client, self.upstream)


def _parts(address: str) -> tuple[str, str, int]:
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    return scheme, host.strip("[]"), int(port)


async def _connect(address: str) -> _Pair:
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    _, host, port = _parts(address)
    return await asyncio.open_connection(host, port)
