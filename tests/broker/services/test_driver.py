"""Shared services through a running broker, seen by clients that know the page of the protocol only."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

import busway
from busway.errors import Code
from tests.support import wire
from tests.support.net import until
from tests.support.peer import Got, Peer
from tests.support.wire import ASKS, ERROR, SHARED

ME = 100


class House:
    """A server, a requester and providers 1, 2, 3, ..., all serving "sum" as service 7."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()

    async def open(self, *flags: int, **settings: Any) -> list[Peer]:
        server = busway.serve("tcp://127.0.0.1:0", settings=busway.Settings(**settings))
        self.server = await self.stack.enter_async_context(server)
        self.me = await self.peer(ME)
        providers = []
        for number, one in enumerate(flags, 1):
            peer = await self.peer(number, f"p{number}")
            assert (await peer.serve(7, "sum", one)).code == Code.OK
            providers.append(peer)
        return providers

    async def peer(self, session: int, name: str = "") -> Peer:
        peer = await Peer.join(self.server, session, name)
        self.stack.callback(peer.abort)
        return peer

    async def request(self, flags: int = 0, **more: Any) -> int:
        return await self.me.say("sum", b"[1,2]", flags, kind=wire.REQUEST, **more)

    async def pass_time(self, seconds: float) -> None:
        hub = self.server._hub
        hub.services.expire(hub.loop.time() + seconds)
        hub.flush()

    async def answer(self) -> Got:
        return await self.me.take(wire.REPLY)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    async with house.stack:
        yield house


async def call_of(provider: Peer, kind: int = wire.CALL) -> int:
    """The number of a CALL or ASK, which must be for service 7 and carry the request."""
    frame = await provider.frame()
    while provider.slots.learn(frame):
        frame = await provider.frame()
    assert frame.kind == kind, frame
    got = provider.slots.read(frame._replace(kind=wire.CALL))
    assert (got.ids, got.topic, got.payload) == ((7,), "sum", b"[1,2]")
    assert got.sender is not None
    assert got.sender[0] == wire.session(ME)
    return got.extra


async def test_cancel_and_the_death_of_the_requester_stop_it(house: House) -> None:
    one, two = await house.open(SHARED, SHARED)
    number = await house.request()
    call = await call_of(one)
    await house.me.send(wire.cancel(number))
    await house.me.nothing_more()
    assert house.server.stats()["shared_pending"] == 0
    await one.reply(call, b"oops", ERROR, Code.HANDLER_ERROR)
    await one.nothing_more()
    await two.nothing_more()
    await house.request()
    await house.request()
    await until(lambda: house.server.stats()["shared_pending"] == 2)
    house.me.abort()
    await until(lambda: house.server.stats()["shared_pending"] == 0)


async def test_who_gives_the_service_up_is_passed_by(house: House) -> None:
    one, two = await house.open(SHARED, SHARED)
    await house.request()
    call = await call_of(one)
    await one.send(wire.unserve(7, 90))
    assert (await one.result()).code == Code.OK
    for _ in range(3):
        await house.request()
        await two.reply(await call_of(two), b"two")
        assert (await house.answer()).payload == b"two"
    await one.reply(call, b"one")
    assert (await house.answer()).payload == b"one"


async def test_answers_to_what_nobody_asked(house: House) -> None:
    (one,) = await house.open(SHARED)
    stranger = await house.peer(66)
    await house.request()
    call = await call_of(one)
    for number in (call, call + 1, 1 << 63, (1 << 64) - 1):
        await stranger.reply(number, b"forged")
        await stranger.send(wire.accept(number))
    await stranger.nothing_more()
    assert house.server.stats()["shared_late"] == 4
    await one.reply(call, b"real")
    assert (await house.answer()).payload == b"real"
    assert house.server.stats()["errors"] == 0


async def test_the_figures_of_the_broker(house: House) -> None:
    one, two = await house.open(SHARED, SHARED | ASKS)
    for _ in range(3):
        await house.request()
        await one.reply(await call_of(one), b"oops", ERROR, Code.HANDLER_ERROR)
        await two.send(wire.accept(await call_of(two, wire.ASK)))
        await two.reply(await call_of(two), b"3")
        await house.answer()
    await house.me.say("$bus/info", b"", kind=wire.REQUEST)
    shared = msgspec.json.decode((await house.answer()).payload)["shared"]
    assert [(row["topic"], row["provider"], row["asks"], row["state"], row["calls"]) for row in shared] == [
        ("sum", "p1", False, "aside", 3),
        ("sum", "p2", True, "willing", 3),
    ]
    assert all(row["busy"] >= 0 for row in shared)


async def test_one_whose_connection_takes_nothing_more_is_passed_by(house: House) -> None:
    _, two = await house.open(SHARED, SHARED)
    hub = house.server._hub
    conns = {session.name: conn for conn, session in hub.sessions.items()}
    hub.engine.close(conns["p1"], Code.GOING_AWAY, "")
    body = wire.request(0, b"[1,2]", 5)
    hub.services.do(hub.services.asking.request(conns[""], 5, "sum", body, hub.loop.time()))
    hub.flush()
    await two.reply(await call_of(two), b"3")
    assert (await house.answer()).payload == b"3"


async def test_a_stop_waits_for_what_is_under_way(house: House) -> None:
    (one,) = await house.open(SHARED)
    await house.request()
    call = await call_of(one)
    stopping = house.server._hub.loop.create_task(house.server.stop(20.0))
    await one.expect(wire.AWAY)
    # It looks every ten milliseconds; this many looks and it is still there.
    end = house.server._hub.loop.time() + 0.1
    await until(lambda: house.server._hub.loop.time() > end)
    await one.reply(call, b"3")
    await house.me.expect(wire.AWAY)
    assert (await house.answer()).payload == b"3"
    await stopping
