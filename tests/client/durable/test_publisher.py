"""Durable publishes over connections that end at every frame and byte, and with the broker.

Each publish has exactly one outcome: it is told a place, and is stored there, once.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import busway
from busway.positions import Position
from busway.testing import Fault, FaultProxy, cut, reset, stall
from tests.support.net import PATIENCE, Net, until, within


class Conversation:
    """A client that stores messages one by one, side by side and many at once, and reads them too."""

    def __init__(self, bus: busway.Bus, topic: str) -> None:
        self.bus, self.topic = bus, topic
        self.outcomes: dict[bytes, Position | busway.BusError] = {}
        self.reader: busway.Subscription | None = None

    async def run(self) -> None:
        try:
            self.reader = await within(self.bus.subscribe(self.topic, since="all").start())
        except busway.BusError:
            pass  # told; it is none of those that are looked at
        await self.store(b"alone")
        await asyncio.gather(*(self.store(b"side %d" % number) for number in range(4)))
        await self.store_many([b"many %d" % number for number in range(4)])
        await self.store(b"last", fields={"n": 1}, expires="1h")

    async def store(self, payload: bytes, **more: Any) -> None:
        assert payload not in self.outcomes
        try:
            self.outcomes[payload] = await within(self.bus.publish(self.topic, payload, durable=True, **more))
        except busway.BusError as error:
            self.outcomes[payload] = error

    async def store_many(self, payloads: list[bytes]) -> None:
        try:
            placed = await within(self.bus.publish_many(self.topic, payloads, durable=True))
            self.outcomes |= dict(zip(payloads, placed, strict=True))
        except busway.BusError as error:
            self.outcomes |= dict.fromkeys(payloads, error)


class Stage:
    """A server with a witness; each play is on a topic of its own."""

    def __init__(self, net: Net, data: Path | None) -> None:
        self.net, self.data, self.count = net, data, 0
        self.server: busway.Server | None = None

    async def start(self) -> None:
        self.server = await self.net.serve(**({} if self.data is None else {"data": self.data}))

    async def restart(self, proxy: FaultProxy) -> None:
        """The broker dies and comes back on the same folder; nobody gets through meanwhile."""
        assert self.server is not None
        proxy.refusing = True
        proxy.cut()
        await self.server.stop(drain=0)
        await self.start()
        proxy.upstream = self.server.addresses[0]
        proxy.refusing = False

    async def play(self, *faults: Fault, restart: bool = False) -> tuple[FaultProxy, Conversation]:
        """The conversation through a proxy whose first connection has these faults."""
        assert self.server is not None
        self.count += 1
        async with FaultProxy(self.server.addresses[0]) as proxy:
            proxy.plan(*faults)
            async with busway.connect(proxy.address, name="tested", reconnect=(0, 0, 0.001), timeout=PATIENCE) as bus:
                conversation = Conversation(bus, f"t/{self.count}")
                running = asyncio.ensure_future(conversation.run())
                if restart:
                    await within((await proxy.link(0)).closed.wait())
                    await self.restart(proxy)
                await running
                await self.check(conversation)
        return proxy, conversation

    async def check(self, conversation: Conversation) -> None:
        stored: list[busway.Message] = []
        async with self.net.client() as witness:
            end = await within(witness.publish(conversation.topic, b"end", durable=True))
            async with witness.subscribe(conversation.topic, since="all") as everything:
                while not stored or stored[-1].position != end:
                    stored.append(await everything.recv(timeout=PATIENCE))
        assert [message.sequence for message in stored] == list(range(1, len(stored) + 1))
        places = {message.payload: message.position for message in stored[:-1]}
        assert len(places) == len(stored) - 1, "something is stored twice"
        told = {payload: place for payload, place in conversation.outcomes.items() if isinstance(place, Position)}
        assert places == told, (places, conversation.outcomes)
        assert len(told) == 10, f"a lost connection is no reason to fail: {conversation.outcomes}"
        if (reader := conversation.reader) is not None:
            got = [await reader.recv(timeout=PATIENCE) for _ in stored]
            assert [message.position for message in got] == [message.position for message in stored]
            assert (reader.pending, reader.missed, reader.lost) == (0, 0, 0)


@pytest.fixture(params=["memory", "disk"])
async def stage(request: pytest.FixtureRequest, net: Net, tmp_path: Path) -> Stage:
    stage = Stage(net, tmp_path / "data" if request.param == "disk" else None)
    await stage.start()
    return stage


def stored(conversation: Conversation) -> int:
    return sum(isinstance(outcome, Position) for outcome in conversation.outcomes.values())


async def test_undisturbed(stage: Stage) -> None:
    proxy, conversation = await stage.play()
    assert (len(proxy.links), stored(conversation), conversation.reader is not None) == (1, 10, True)


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("fault", [cut, reset])
async def test_at_every_frame(stage: Stage, way: Any, fault: Any) -> None:
    proxy, _ = await stage.play()
    count = (proxy.links[0].up if way == "up" else proxy.links[0].down).frames
    assert count > 8
    came_back = 0
    for place in range(2 if way == "up" else 1, count):
        proxy, _ = await stage.play(fault(way, frame=place))
        came_back += len(proxy.links) > 1
    assert came_back > count // 2  # the faults did hit


@pytest.mark.parametrize("way", ["up", "down"])
async def test_at_every_byte(net: Net, way: Any) -> None:
    stage = Stage(net, None)
    await stage.start()
    proxy, _ = await stage.play()
    flow = proxy.links[0].up if way == "up" else proxy.links[0].down
    begin = 200 if way == "up" else 600  # behind the handshake
    assert flow.bytes > begin + 300
    for place in range(begin, flow.bytes, 7):
        await stage.play(cut(way, byte=place))


@pytest.mark.parametrize("way", ["up", "down"])
async def test_with_a_restart_of_the_broker(net: Net, tmp_path: Path, way: Any) -> None:
    """What was acknowledged, and what was stored without the publisher hearing of it, is there once."""
    stage = Stage(net, tmp_path / "data")
    await stage.start()
    proxy, _ = await stage.play()
    count = (proxy.links[0].up if way == "up" else proxy.links[0].down).frames
    for place in range(2, count - 2):
        await stage.play(cut(way, frame=place), restart=True)


async def test_an_acknowledgement_that_was_lost_with_the_broker_is_given_again(net: Net, tmp_path: Path) -> None:
    stage = Stage(net, tmp_path / "data")
    await stage.start()
    assert stage.server is not None
    async with FaultProxy(stage.server.addresses[0]) as proxy:
        async with busway.connect(proxy.address, reconnect=(0, 0, 0.001), timeout=PATIENCE) as bus:
            async with net.client() as witness, witness.subscribe("t") as live:
                (await proxy.link()).stall("down")
                publishing = asyncio.ensure_future(bus.publish("t", b"once", durable=True))
                message = await live.recv(timeout=PATIENCE)  # so it is stored
            assert not publishing.done()
            await stage.restart(proxy)
            assert await within(publishing) == message.position
            assert (await bus.publish("t", b"next", durable=True)).sequence == 2


async def test_what_waits_for_its_answer_fails_when_the_bus_is_closed(net: Net) -> None:
    await net.serve()
    assert net.server is not None
    async with FaultProxy(net.server.addresses[0]) as proxy:
        proxy.plan(stall("up", frame=1))
        bus = await busway.connect(proxy.address, drain=0.05, timeout=PATIENCE)
        waiting = [asyncio.ensure_future(bus.publish("t", b"", durable=True)) for _ in range(5)]
        many = asyncio.ensure_future(bus.publish_many("t", [b""] * 2000, durable=True))
        await asyncio.sleep(0)
        await bus.close()
        for outcome in await asyncio.gather(*waiting, many, return_exceptions=True):
            assert isinstance(outcome, busway.Closed)


async def test_without_reconnecting_they_fail_with_the_connection(net: Net) -> None:
    await net.serve()
    assert net.server is not None
    async with FaultProxy(net.server.addresses[0]) as proxy:
        proxy.plan(stall("down", frame=1))
        bus = await busway.connect(proxy.address, reconnect=None, timeout=PATIENCE)
        waiting = [asyncio.ensure_future(bus.publish("t", b"", durable=True)) for _ in range(5)]
        await until(lambda: proxy.links[0].up.frames > 5)
        proxy.cut()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, busway.BusError)
        await bus.close()


async def test_more_than_may_wait_makes_publishers_wait(net: Net) -> None:
    """What is kept for sending again is bounded; a publisher that is over it waits, and loses nothing."""
    await net.serve()
    assert net.server is not None
    async with FaultProxy(net.server.addresses[0]) as proxy:
        async with busway.connect(proxy.address, reconnect=(0, 0, 0.001), timeout=PATIENCE) as bus:
            payload = b"\0" * (1 << 20)
            storing = [asyncio.ensure_future(bus.publish("t", payload, durable=True)) for _ in range(80)]
            await until(storing[0].done)
            proxy.cut()
            outcomes = await asyncio.gather(*storing, return_exceptions=True)
            places = [place for place in outcomes if isinstance(place, Position)]
            assert len({place.offset for place in places}) == len(outcomes), outcomes


async def test_many_on_their_way_into_two_streams_by_turns(net: Net) -> None:
    """All of them are sent again, known to be stored, and get their first places."""
    await net.serve()
    assert net.server is not None
    async with FaultProxy(net.server.addresses[0]) as proxy:
        async with busway.connect(proxy.address, reconnect=(0, 0, 0.001), timeout=PATIENCE) as bus:
            await bus.create_stream("odd", ["odd"])
            (await proxy.link()).stall("down")
            storing = [bus.publish(("even", "odd")[number % 2], b"", durable=True) for number in range(6000)]
            async with net.client() as witness:
                for name in ("default", "odd"):
                    stream = await witness.stream(name)
                    while (await stream.info()).next < 3000:
                        await asyncio.sleep(0)
                proxy.cut()
                places = await within(asyncio.gather(*storing))
                assert [place.offset for place in places] == [number // 2 for number in range(6000)]
                assert [info.count for info in await witness.streams()] == [3000, 3000]


async def test_what_waits_to_be_stored_is_bounded_also_without_payloads(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker does not answer: publishers wait, whatever they send."""
    monkeypatch.setattr("busway.client.durable.publisher._MAX_BYTES", 1 << 20)
    await net.serve()
    assert net.server is not None
    async with FaultProxy(net.server.addresses[0]) as proxy:
        async with busway.connect(proxy.address, reconnect=(0, 0, 0.001), timeout=PATIENCE) as bus:
            (await proxy.link()).stall("down")
            storing = [asyncio.ensure_future(bus.publish("t", b"", durable=True)) for _ in range(6000)]
            many = asyncio.ensure_future(bus.publish_many("t", [b""] * 6000, durable=True))
            await until(lambda: proxy.links[0].up.frames > 4000)
            assert len(bus._durable) <= 4096 + 1
            proxy.reset()
            placed = [*await within(asyncio.gather(*storing)), *await within(many)]
    assert sorted(position.offset for position in placed) == list(range(12_000))
