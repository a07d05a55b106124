"""The link dies at every frame boundary, and at every byte, of a busy exchange, in both directions.

Whatever it was in the middle of: in the end every subscription and service of the client is live again or has visibly
failed, and the broker knows of nothing else.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

import busway
from busway.testing import Fault, FaultProxy, cut, garble, reset
from tests.support.net import PATIENCE, Net, eventually, until

SEEN = re.compile(r"connected(,lost,resumed)*,closed")


class Exchange:
    """A client that does a bit of everything, and says afterwards what it believes to have."""

    def __init__(self, bus: busway.Bus) -> None:
        self.bus = bus
        self.subscriptions: dict[str, busway.Subscription] = {}
        self.services: dict[str, busway.Service] = {}
        self.failures: list[busway.BusError] = []
        self.frames = self.bytes = (0, 0)  # what it took, up and down

    async def attempt(self, operation: Awaitable[Any]) -> Any:
        """Its result; an error of the bus is noted: whoever called has been told."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await operation
        except busway.BusError as error:
            self.failures.append(error)
            return None

    async def subscribe(self, pattern: str, **options: Any) -> None:
        if (subscription := await self.attempt(self.bus.subscribe(pattern, **options))) is not None:
            self.subscriptions[pattern] = subscription

    async def serve(self, topic: str) -> None:
        if (service := await self.attempt(self.bus.serve(topic, lambda message: b"served"))) is not None:
            self.services[topic] = service

    async def run(self) -> None:
        await self.subscribe("a/*")
        await self.subscribe("b", group="g")
        await self.serve("s")
        await self.attempt(self.bus.publish("a/1", b"own"))
        await self.attempt(self.bus.publish("a/2", b"own", confirm=True))
        await self.attempt(self.bus.request("s", b"self", timeout=PATIENCE))
        await self.attempt(self.bus.request("witness", b"other", timeout=PATIENCE))
        await self.attempt(self.bus.push("b", b"job", timeout=PATIENCE))
        await self.subscribe("re:c/.*", policy="drop_oldest", echo=False)
        if (leaving := self.subscriptions.pop("b", None)) is not None:
            await self.attempt(leaving.close())
        await self.attempt(self.bus.publish_many("a/3", [b"1", b"2", b"3"]))
        await self.serve("s/2")
        await self.attempt(self.bus.flush(timeout=PATIENCE))


@pytest.fixture
async def witness(request: pytest.FixtureRequest, net: Net) -> AsyncIterator[busway.Bus]:
    """A client with a connection of its own, which nobody cuts; over TCP unless the test says otherwise."""
    net.kind = getattr(request, "param", "tcp")
    await net.serve()
    bus = await net.connect("witness")
    async with bus.serve("witness", lambda message: b"seen"):
        yield bus


async def check(net: Net, witness: busway.Bus, exchange: Exchange, proxy: FaultProxy) -> None:
    """Live again or visibly failed."""
    bus = exchange.bus
    proxy.heal()  # what follows only looks; a fault that has happened has closed its link already

    async def connected() -> bool:
        try:
            await bus.flush(timeout=PATIENCE)
        except busway.Disconnected:
            return False
        return True

    await eventually(connected)
    topics = {"a/*": "a/probe", "b": "b", "re:c/.*": "c/probe"}
    live = 0
    for pattern, subscription in exchange.subscriptions.items():
        assert await witness.publish(topics[pattern], b"probe", confirm=True) in (0, 1)
        try:
            while (await subscription.recv(timeout=PATIENCE)).payload != b"probe":
                pass
            live += 1
        except busway.Timeout:
            pytest.fail(f"the subscription {pattern} is deaf and doesn't know it")
        except busway.BusError:
            pass  # visibly failed
    for topic, service in exchange.services.items():
        try:
            assert (await witness.request(topic, timeout=PATIENCE)).payload == b"served"
        except busway.NoResponders:
            assert service.closed, f"the service {topic} is gone and doesn't know it"
    for topic in {"s", "s/2"} - set(exchange.services):
        with pytest.raises(busway.NoResponders):
            await witness.request(topic, timeout=PATIENCE)
    server = net.server
    assert server is not None
    await until(lambda: server.stats()["connections"] == 2)
    assert server.stats()["subscriptions"] == live
    assert server.stats()["errors"] == 0


async def play(net: Net, witness: busway.Bus, *faults: Fault) -> tuple[FaultProxy, Exchange | None]:
    """The exchange through a proxy whose first connection has these faults."""
    assert net.server is not None
    listen = f"unix:{net.folder / 'proxy'}" if net.kind == "unix" else None
    async with FaultProxy(net.server.addresses[0], listen=listen) as proxy:
        proxy.plan(*faults)
        tls = busway.TLS(ca=net.certificates.ca) if net.kind == "tls" else None
        bus = busway.connect(proxy.address, name="tested", reconnect=(0, 0, 0.001), timeout=PATIENCE, tls=tls)
        events = bus.events()
        try:
            await bus
        except busway.ConnectFailed:
            return proxy, None  # it never came to a bus: visible enough
        exchange = Exchange(bus)
        await exchange.run()
        exchange.frames = proxy.links[0].up.frames, proxy.links[0].down.frames
        exchange.bytes = proxy.links[0].up.bytes, proxy.links[0].down.bytes
        await check(net, witness, exchange, proxy)
        await bus.close()
        kinds = [event.kind async for event in events]
    assert SEEN.fullmatch(",".join(kind for kind in kinds if kind not in {"rejected", "missed"})), kinds
    for error in exchange.failures:
        assert isinstance(error, busway.Disconnected), f"{error!r} is not what a lost connection looks like"
    return proxy, exchange


async def undisturbed(net: Net, witness: busway.Bus) -> Exchange:
    proxy, exchange = await play(net, witness)
    assert exchange is not None
    assert not exchange.failures
    assert len(proxy.links) == 1
    return exchange


async def test_without_a_fault(net: Net, witness: busway.Bus) -> None:
    exchange = await undisturbed(net, witness)
    assert set(exchange.subscriptions) == {"a/*", "re:c/.*"}
    assert set(exchange.services) == {"s", "s/2"}
    assert min(exchange.frames) > 15


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("fault", [cut, reset])
async def test_at_every_frame_boundary(net: Net, witness: busway.Bus, way: Any, fault: Any) -> None:
    count = (await undisturbed(net, witness)).frames[way == "down"]
    told = reconnected = 0
    for place in range(count):
        proxy, exchange = await play(net, witness, fault(way, frame=place))
        told += exchange is None or bool(exchange.failures)
        reconnected += len(proxy.links) > 1
    assert told > count // 4  # the faults did hit
    assert reconnected > count // 2


@pytest.mark.parametrize("way", ["up", "down"])
async def test_at_every_byte(net: Net, witness: busway.Bus, way: Any) -> None:
    count = (await undisturbed(net, witness)).bytes[way == "down"]
    for place in range(1, count):
        await play(net, witness, cut(way, byte=place))


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("witness", ["unix"], indirect=True)
async def test_at_every_frame_boundary_over_unix(net: Net, witness: busway.Bus, way: Any) -> None:
    for place in range((await undisturbed(net, witness)).frames[way == "down"]):
        await play(net, witness, cut(way, frame=place))


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("fault", [cut, reset])
@pytest.mark.parametrize("witness", ["tls"], indirect=True)
async def test_at_many_bytes_over_tls(net: Net, witness: busway.Bus, way: Any, fault: Any) -> None:
    """Within the handshake of TLS, within its records, and between them."""
    for place in range(1, (await undisturbed(net, witness)).bytes[way == "down"], 61):
        await play(net, witness, fault(way, byte=place))


@pytest.mark.parametrize("way", ["up", "down"])
async def test_garbled_bytes(net: Net, witness: busway.Bus, way: Any) -> None:
    """Damage of lengths and kinds is noticed by one side or the other, which then ends the connection."""
    count = (await undisturbed(net, witness)).frames[way == "down"]
    for place in range(2, count, 2):
        assert net.server is not None
        async with FaultProxy(net.server.addresses[0]) as proxy:
            proxy.plan(garble(way, frame=place, size=6))
            bus = busway.connect(proxy.address, name="tested", reconnect=(0, 0, 0.001), timeout=PATIENCE)
            try:
                await bus
            except busway.BusError:
                continue
            exchange = Exchange(bus)
            await exchange.run()
            await check(net, witness, exchange, proxy)
            await bus.close()


async def test_again_and_again(net: Net, witness: busway.Bus) -> None:
    """Each of the first twenty connections dies after a few frames more than the one before."""
    assert net.server is not None
    async with FaultProxy(net.server.addresses[0]) as proxy:
        proxy.plan()
        bus = await busway.connect(proxy.address, name="tested", reconnect=(0, 0, 0.001), timeout=PATIENCE)
        exchange = Exchange(bus)
        await exchange.subscribe("a/*")
        await exchange.serve("s")
        for place in range(20):
            proxy.plan(cut("down", frame=place // 2) if place % 2 else cut("up", frame=place // 2))
        proxy.cut()
        await check(net, witness, exchange, proxy)
        await bus.close()
