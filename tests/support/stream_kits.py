"""Kits of a broker with a stream in a store of each kind, which can be stopped and started again on its data."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import busway
from busway.broker.streams.stream import Stream
from busway.common.durations import seconds
from busway.errors import StoreFailed
from busway.positions import Position
from tests.support.net import PATIENCE, until, within
from tests.support.relay import Relay

STORES = ("memory", "disk", "sqlite", "postgresql")


class Place:
    """One server over a Unix socket. The stream `orders` takes `orders/**`; with more settings others can be made."""

    def __init__(self, kind: str, folder: Path, url: str | None = None) -> None:
        self.kind = kind
        self.folder = folder
        self.lasting = kind != "memory"
        self.address = f"unix:{folder / 'bus'}"
        self.stores = {} if url is None else {"named": url}
        self.store: dict[str, Any] = {"store": kind if kind in {"memory", "disk"} else "named" if url else "db"}
        self.server: busway.Server
        self._clients = AsyncExitStack()
        self._buses: list[busway.Bus] = []
        self._running = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await within(self._clients.aclose())
        await self.stop()

    async def start(self) -> None:
        data = self.folder / "data" if self.lasting else None
        self.server = await within(busway.serve(self.address, data=data, stores=self.stores).start())
        self._running = True

    async def stop(self) -> None:
        if self._running:
            self._running = False
            await within(self.server.stop(drain=PATIENCE))
            assert self.server.stats()["errors"] == 0, "the broker has logged an error of its own"

    async def restart(self) -> None:
        """The clients are back when it returns, if they can be."""
        await self.stop()
        await self.start()
        await until(lambda: all(bus.state == "connected" for bus in self._buses))

    @property
    def hub(self) -> Any:
        return self.server._hub

    async def make(self, name: str = "orders", **settings: Any) -> Stream:
        """As the broker has it; `topics` are those below its name."""
        async with self.server.connect() as bus:
            await within(bus.create_stream(name, [f"{name}/**"], **self.store, **settings))
        return self.stream(name)

    async def remove(self, name: str = "orders") -> None:
        async with self.server.connect() as bus:
            await within(bus.remove_stream(name))

    def stream(self, name: str = "orders") -> Stream:
        stream: Stream = self.hub.streams.get(name)
        return stream

    async def trim(self, name: str, later: str, first: int) -> None:
        """Remove what is old after that time, until this offset or one behind it is the first. A disk may need several looks."""
        stream = self.stream(name)
        clock = time.time_ns() + int(seconds("later", later) * 10**9)

        async def look() -> None:
            stream.trim(clock)
            await asyncio.sleep(0.001)

        await look()
        await until(lambda: stream.first >= first, look)

    async def connect(self, name: str = "", address: str | None = None, **settings: Any) -> busway.Bus:
        bus = busway.connect(address or self.address, name=name, reconnect=(0.01,), **settings)
        if address is None:
            self._buses.append(bus)
        return await self._clients.enter_async_context(bus)

    async def stored(self, topic: str = "orders/**", since: Any = "all", count: int | None = None) -> list[Any]:
        """What a new client gets of the backlog: all up to its last message, or so many."""
        found: list[Any] = []
        async with (
            busway.connect(self.address) as bus,
            bus.subscribe(topic, since=since) as subscription,
        ):
            while not (found and found[-1].last) and (count is None or len(found) < count):
                found += await subscription.take(timeout=PATIENCE)
        return found


def vanish(relay: Relay) -> None:
    relay.refuse = True
    relay.cut()


async def stores_again(bus: busway.Bus, payload: bytes) -> Position:
    """Publish until it is taken."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await bus.publish("orders/a", payload, durable=True)
            except StoreFailed:
                await asyncio.sleep(0.01)
