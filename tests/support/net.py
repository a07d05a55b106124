"""Servers and clients over one kind of transport, all of them closed when the test ends."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import busway

KINDS = ("memory", "unix", "tcp", "tls")
PATIENCE = 60.0
"""Seconds after which a test gives up; nothing is ever expected to take that long."""

T = TypeVar("T")


@dataclass(frozen=True)
class Certificates:
    """PEM files of a certificate authority, a server and a client."""

    ca: str
    server: str
    server_key: str
    client: str
    client_key: str
    stranger_ca: str

    @classmethod
    def make(cls, folder: Path) -> Self:
        import trustme

        authority, stranger = trustme.CA(), trustme.CA()
        server = authority.issue_cert("127.0.0.1", "localhost")
        client = authority.issue_cert("sensor-7.example")
        names = {name: str(folder / f"{name}.pem") for name in cls.__dataclass_fields__}
        authority.cert_pem.write_to_path(names["ca"])
        stranger.cert_pem.write_to_path(names["stranger_ca"])
        for each, name in ((server, "server"), (client, "client")):
            each.private_key_pem.write_to_path(names[f"{name}_key"])
            for index, pem in enumerate(each.cert_chain_pems):
                pem.write_to_path(names[name], append=index > 0)
        return cls(**names)


class Net:
    """One server (more if asked) and any number of clients on one transport."""

    def __init__(self, kind: str, folder: Path, certificates: Certificates) -> None:
        self.kind, self.folder, self.certificates = kind, folder, certificates
        self.stack = AsyncExitStack()
        self.server: busway.Server | None = None

    async def __aenter__(self) -> Self:
        await self.stack.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.stack.aclose()

    async def serve(self, **settings: Any) -> busway.Server:
        """Start the server with these settings."""
        # A number is the limit of the fields' bytes, anything else the server's own fields.
        own = [name for name in ("fields", "data") if name in settings and not isinstance(settings[name], int)]
        more = {name: settings.pop(name) for name in own}
        chosen = busway.Settings(**settings)
        server = busway.serve(*self.addresses(), settings=chosen, tls=self.server_tls(), **more)
        self.server = await self.stack.enter_async_context(server)
        return self.server

    def addresses(self) -> tuple[str, ...]:
        place = {"unix": f"unix:{self.folder / 'bus'}", "tcp": "tcp://127.0.0.1:0", "tls": "tls://127.0.0.1:0"}
        return (place[self.kind],) if self.kind in place else ()

    def server_tls(self) -> busway.TLS | None:
        if self.kind != "tls":
            return None
        return busway.TLS(cert=self.certificates.server, key=self.certificates.server_key)

    def client(self, **keywords: Any) -> busway.Bus:
        """A client that isn't connected yet."""
        assert self.server is not None
        if self.kind == "memory":
            return self.server.connect(**keywords)
        if self.kind == "tls":
            keywords.setdefault("tls", busway.TLS(ca=self.certificates.ca))
        return busway.connect(self.server.addresses[0], **keywords)

    async def connect(self, name: str = "", **keywords: Any) -> busway.Bus:
        """A connected client, of a server with the usual settings if none was started before."""
        if self.server is None:
            await self.serve()
        return await self.stack.enter_async_context(self.client(name=name, **keywords))


async def gather(subscription: busway.Subscription, count: int) -> list[busway.Message]:
    """Exactly so many messages."""
    return [await subscription.recv(timeout=PATIENCE) for _ in range(count)]


async def payloads(subscription: busway.Subscription, count: int) -> list[bytes]:
    return [message.payload for message in await gather(subscription, count)]


async def settle(*buses: busway.Bus) -> None:
    """After it, all that these clients published has been handled, and has arrived at those of them that subscribed.

    The first round trips prove the handling, the second ones the arrival: a PONG comes after all that was queued before it.
    """
    for _ in range(2):
        for bus in buses:
            await bus.flush(timeout=PATIENCE)


async def rest(subscription: busway.Subscription) -> list[busway.Message]:
    """What has arrived and was not taken yet."""
    return [await subscription.recv(timeout=PATIENCE) for _ in range(subscription.pending)]


async def arrived(subscription: busway.Subscription) -> list[busway.Message]:
    """What has arrived, of a subscription that ends with this: only taking tells what its predicates refuse."""
    await subscription.close()
    return [message async for message in subscription]


async def until(condition: Callable[[], object], tick: Callable[[], Awaitable[object]] | None = None) -> None:
    """Wait for a condition that nobody announces, such as a counter of the broker; gives up loudly.

    `tick` is what lets it come true (a round trip, say); without one the loop just turns.
    """
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await (tick() if tick is not None else asyncio.sleep(0.001))


async def within(awaitable: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it is true: for what another connection causes and nobody announces here."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.001)
