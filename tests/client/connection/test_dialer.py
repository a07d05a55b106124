"""Which of several servers is taken: one that is silent costs the others nothing, one that is slow has its time."""

import asyncio
import socket
from contextlib import ExitStack, asynccontextmanager

import pytest

import busway
from busway.client.connection import dialer
from busway.client.connection.dialer import Dialer
from tests.support.net import PATIENCE, within

AGES = 600.0
"""Seconds; nobody has the patience to wait for even a share of them."""
NOBODY = "tcp://127.0.0.1:1"


def black_hole(stack: ExitStack) -> str:
    """An address at which attempts to connect are lost, as those to a host that is gone."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    for _ in range(8):  # the kernel takes one or two that nobody accepts, and drops the rest
        one = stack.enter_context(socket.socket())
        one.settimeout(0.2)
        try:
            one.connect(listener.getsockname())
        except TimeoutError:
            return f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    raise AssertionError("all were taken")


@asynccontextmanager
async def speaking(talk):
    """A server that deals with its connections by this function; its address."""
    tasks = set()

    async def arrived(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(arrived, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def mute(reader, writer):
    await asyncio.Event().wait()


def relay(address, held):
    """To a server, when it may be."""

    async def carry(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def talk(reader, writer):
        await held.wait()
        there = await asyncio.open_connection(*address.removeprefix("tcp://").split(":"))
        await asyncio.gather(carry(reader, there[1]), carry(there[0], writer), return_exceptions=True)

    return talk


@pytest.fixture
async def server():
    async with busway.serve("tcp://127.0.0.1:0") as server:
        yield server


@pytest.mark.parametrize("holes", [1, 5])
async def test_servers_that_are_silent_cost_the_others_nothing(server, holes):
    with ExitStack() as stack:
        silent = [black_hole(stack) for _ in range(holes)]
        async with await within(busway.connect(*silent, server.addresses[0], timeout=AGES).open()) as bus:
            assert bus.url == server.addresses[0]


async def test_servers_that_refuse_are_passed_at_once(server):
    refusing = [f"tcp://127.0.0.1:{port}" for port in range(1, 9)]
    async with await within(busway.connect(*refusing, server.addresses[0], timeout=AGES).open()) as bus:
        assert bus.url == server.addresses[0]


async def test_one_that_takes_connections_and_says_nothing_leaves_time_for_the_next(server):
    async with speaking(mute) as silent:
        async with await within(busway.connect(silent, server.addresses[0], timeout=2.0).open()) as bus:
            assert bus.url == server.addresses[0]


async def test_when_all_are_silent_all_are_named():
    with ExitStack() as stack:
        async with speaking(mute) as silent:
            urls = [black_hole(stack), silent, NOBODY]
            with pytest.raises(busway.ConnectFailed) as caught:
                await within(busway.connect(*urls, timeout=1.0).open())
    assert all(url in str(caught.value) for url in urls)


async def test_a_slow_one_has_its_time_beside_many_that_were_not_tried():
    async def dial(url, timeout):
        return url

    async with Dialer([f"s{number}" for number in range(10)], dial, AGES) as round_:
        assert await round_.next() == ("s0", "s0")
        assert round_.handshake_timeout > AGES / 3
        assert len(round_._untried) == 9, "who answers at once is the only one that is dialled"


async def test_the_first_that_answers_is_taken_and_the_others_are_called_off(monkeypatch):
    monkeypatch.setattr(dialer, "STAGGER", 0.0)
    gone, answer = [], asyncio.Event()

    async def dial(url, timeout):
        try:
            await (answer if url == "b" else asyncio.Event()).wait()
        except asyncio.CancelledError:
            gone.append(url)
            raise
        return url

    async with Dialer(["a", "b", "c"], dial, AGES) as round_:
        asking = asyncio.ensure_future(round_.next())
        while len(round_._dialling) < 3:
            await asyncio.sleep(0)
        answer.set()
        assert await within(asking) == ("b", "b")
    assert sorted(gone) == ["a", "c"]


async def test_all_that_fails_is_given_and_then_nothing():
    async def dial(url, timeout):
        if url == "odd":
            raise RuntimeError(url)
        raise busway.ConnectFailed(url)

    async with Dialer(["a", "odd", "c"], dial, AGES) as round_:
        found = [await within(round_.next()) for _ in range(4)]
    assert [one and (one[0], type(one[1])) for one in found] == [
        ("a", busway.ConnectFailed),
        ("odd", RuntimeError),
        ("c", busway.ConnectFailed),
        None,
    ]


async def test_what_another_server_says_meanwhile_is_not_heard(server, monkeypatch):
    """Both are dialled at once, and one speaks out of turn while the other one is greeted."""
    monkeypatch.setattr(dialer, "STAGGER", 0.0)
    held = asyncio.Event()

    async def chatter(reader, writer):
        writer.write(b"\x40\x00\x00\x00\x00")  # a frame of which most is missing
        await writer.drain()
        await asyncio.sleep(0.1)  # it has arrived then, or else the test sees nothing wrong
        held.set()
        await asyncio.Event().wait()

    async with speaking(relay(server.addresses[0], held)) as slow, speaking(chatter) as loud:
        bus = await within(busway.connect(slow, loud, timeout=PATIENCE, learn=False).open())
        async with bus:
            assert bus.url == slow


async def test_coming_back_past_a_silent_server(server):
    """The same holds after a lost connection: what was first in the list is gone without a word."""
    with ExitStack() as stack:
        silent = black_hole(stack)
        first = await busway.serve("tcp://127.0.0.1:0").start()
        bus = await busway.connect(
            first.addresses[0], silent, server.addresses[0], timeout=AGES, reconnect=[0.01], learn=False
        )
        async with bus:
            events = bus.events()
            await first.stop()

            async def back():
                async for event in events:
                    if event.kind == "resumed":
                        return event.url
                return None

            assert await within(back()) == server.addresses[0]


async def test_one_that_is_thrown_away_waits_for_nothing():
    """As by a loop that runs no more: who waits then is told of as a coroutine that ignored GeneratorExit."""
    dialled: list[asyncio.Task[None] | None] = []

    async def dial(url, timeout):
        dialled.append(asyncio.current_task())
        await asyncio.Event().wait()

    async def reach():
        async with Dialer(["a", "b"], dial, AGES) as round_:
            await round_.next()

    coroutine = reach()
    coroutine.send(None)
    await asyncio.sleep(0)
    coroutine.close()
    (task,) = dialled
    await asyncio.wait([task])
    assert task.cancelled()
