"""Shared services through a running broker, seen by clients that know the page of the protocol only."""

import os
import signal
import subprocess
import sys
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
from tests.support.wire import ASKS, END, ERROR, FIELDS, GATHER, PARTIAL, SHARED

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


async def test_the_least_busy_gets_it_without_being_asked(house: House) -> None:
    one, two = await house.open(SHARED, SHARED)
    for provider in (one, two):
        number = await house.request()
        await provider.reply(await call_of(provider), b"3")
        got = await house.answer()
        assert (got.number, got.payload, got.flags, got.code) == (number, b"3", 0, 0)


async def test_asked_first_and_the_first_to_say_yes_gets_it(house: House) -> None:
    one, two, three = await house.open(*[SHARED | ASKS] * 3)
    await house.request()
    asks = [await call_of(peer, wire.ASK) for peer in (one, two, three)]
    await one.send(wire.accept(asks[0], Code.REFUSED))
    await one.nothing_more()
    await three.send(wire.accept(asks[2]))
    call = await call_of(three)
    assert call == asks[2]
    await two.send(wire.accept(asks[1]))
    await two.nothing_more()
    await three.reply(call, b"3")
    assert (await house.answer()).payload == b"3"
    await two.nothing_more()
    await house.me.nothing_more()


async def test_it_fails_over_on_error_death_and_timeout(house: House) -> None:
    peers = await house.open(*[SHARED] * 4, provider_timeout=60.0)
    await house.request()
    await peers[0].reply(await call_of(peers[0]), b"oops", ERROR, Code.HANDLER_ERROR)
    await call_of(peers[1])
    peers[1].abort()
    late = await call_of(peers[2])  # and says nothing for a minute
    await house.pass_time(60.0)
    await peers[3].reply(await call_of(peers[3]), b"at last")
    assert (await house.answer()).payload == b"at last"
    await peers[2].reply(late, b"too late")
    await peers[2].nothing_more()
    await house.me.nothing_more()
    assert house.server.stats()["shared_late"] == 1


async def test_the_last_error_when_nobody_is_left(house: House) -> None:
    (one,) = await house.open(SHARED)
    await house.request()
    await one.reply(await call_of(one), b"oops", ERROR, Code.HANDLER_ERROR)
    got = await house.answer()
    assert (got.flags, got.code, got.payload) == (ERROR, Code.HANDLER_ERROR, b"oops")


async def test_nobody_is_willing(house: House) -> None:
    one, two = await house.open(SHARED | ASKS, SHARED | ASKS)
    await house.request()
    for peer in (one, two):
        await peer.send(wire.accept(await call_of(peer, wire.ASK), Code.REFUSED))
    got = await house.answer()
    assert (got.flags, got.code) == (ERROR, Code.NO_RESPONDERS)
    assert b"2 asked" in got.payload


async def test_all_who_are_willing_answer(house: House) -> None:
    one, two, three, four = await house.open(SHARED, SHARED | ASKS, SHARED | ASKS, SHARED)
    nameless = await house.peer(0xABC)
    await nameless.serve(7, "sum")
    number = await house.request(GATHER)
    await two.send(wire.accept(await call_of(two, wire.ASK)))
    await three.send(wire.accept(await call_of(three, wire.ASK), Code.REFUSED))
    got = []
    for peer, payload in ((two, b"2"), (nameless, b"n"), (one, b"1")):
        await peer.reply(await call_of(peer), payload)
        got.append(await house.answer())
    await call_of(four)
    four.abort()
    got.append(await house.answer())
    assert {one.number for one in got} == {number}
    assert [one.flags for one in got] == [PARTIAL | FIELDS] * 3 + [ERROR | FIELDS]
    assert [one.fields[".id"] for one in got] == ["p2", f"{wire.session(0xABC):016x}", "p1", "p4"]
    assert [one.code for one in got] == [0, 0, 0, Code.SERVICE_GONE]
    await house.me.nothing_more()


async def test_replies_in_parts(house: House) -> None:
    (one,) = await house.open(SHARED)
    await house.request()
    call = await call_of(one)
    await one.reply(call, b"1", PARTIAL)
    await one.reply(call, b"2", PARTIAL)
    await one.reply(call, b"", END)
    got = [await house.answer() for _ in range(3)]
    assert [(one.flags, one.payload) for one in got] == [(PARTIAL, b"1"), (PARTIAL, b"2"), (END, b"")]


async def test_the_requesters_limits(house: House) -> None:
    one, two = await house.open(SHARED, SHARED, provider_timeout=60.0)
    waits = await house.request()
    first = await call_of(one)
    await house.request(each=5, aux=120)
    await call_of(two)
    await call_of(one)  # after 50 ms
    got = await house.answer()
    assert (got.flags, got.code) == (ERROR, Code.SERVICE_GONE)
    await one.reply(first, b"3")
    assert (await house.answer()).number == waits
    await house.request(aux=50)
    got = await house.answer()
    assert got.code == Code.SERVICE_GONE
    assert b"0.05 s that the requester gave" in got.payload


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


async def test_alone_and_shared_do_not_mix(house: House) -> None:
    (one,) = await house.open(SHARED)
    other = await house.peer(50)
    assert (await other.serve(1, "sum", 0)).code == Code.SERVICE_TAKEN
    assert (await other.serve(1, "mine", 0)).code == Code.OK
    assert (await one.serve(8, "mine", SHARED)).code == Code.SERVICE_TAKEN
    await one.send(wire.unserve(7, 90))
    await one.result()
    await house.request()
    assert (await house.answer()).code == Code.NO_RESPONDERS
    assert (await other.serve(2, "sum", 0)).code == Code.OK


async def test_a_topic_with_a_leading_slash_is_the_same(house: House) -> None:
    await house.open()
    one = await house.peer(1)
    assert (await one.serve(7, "/sum")).code == Code.OK
    await house.request()
    await one.reply(await call_of(one), b"3")
    assert (await house.answer()).payload == b"3"


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


PROVIDER = """
import asyncio, sys
sys.path.insert(0, ".")
from tests.support.peer import Peer
from tests.support import wire

async def main(address):
    class Server:
        addresses = (address,)
    peer = await Peer.join(Server, 0xDEAD, "doomed")
    await peer.serve(7, "sum", wire.SHARED)
    print("serves", flush=True)
    await peer.take(wire.CALL)
    print("works", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("flags", [0, GATHER])
async def test_a_provider_killed_in_the_middle_of_its_work(house: House, flags: int) -> None:
    await house.open()
    command = [sys.executable, "-c", PROVIDER, house.server.addresses[0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            loop = house.server._hub.loop
            assert await loop.run_in_executor(None, process.stdout.readline) == "serves\n"
            second = await house.peer(2, "second")
            await second.serve(7, "sum")
            await house.request(flags)
            assert await loop.run_in_executor(None, process.stdout.readline) == "works\n"
            os.kill(process.pid, signal.SIGKILL)
            if flags:
                dead = await house.answer()
                assert (dead.fields, dead.code) == ({".id": "doomed"}, Code.SERVICE_GONE)
            await second.reply(await call_of(second), b"3")
            assert (await house.answer()).payload == b"3"
        finally:
            process.kill()


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
