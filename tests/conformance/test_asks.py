"""`ask` is bounded: so many at a time, ten seconds each, and no longer than its service and its connection."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import busway
from busway.client.services import ask_callback
from tests.support.connection_events import next_event
from tests.support.net import PATIENCE, Net, settle, until, within

pytestmark = pytest.mark.both_loops


class Gate:
    """An `ask` that waits until it is told what to say, and knows how many wait and how they ended."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.calls = self.cancelled = 0
        self.open = asyncio.Event()
        self.stubborn = stubborn

    @property
    def waiting(self) -> int:
        return self.calls - self.cancelled

    async def __call__(self, message: busway.Message) -> bool:
        self.calls += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            if not self.stubborn:
                raise
            await self.open.wait()
        return True


@pytest.fixture
async def client(net: Net) -> AsyncIterator[busway.Bus]:
    return await net.connect("client")


def ask(client: busway.Bus, count: int = 1) -> "list[asyncio.Future[busway.Message]]":
    return [asyncio.ensure_future(client.request("s", timeout=None, each=PATIENCE)) for _ in range(count)]


async def test_no_more_asks_at_a_time_than_its_concurrency(net: Net, client: busway.Bus) -> None:
    """One more is answered at once, by no: who is busy is not willing."""
    bus, gate = await net.connect(), Gate()
    async with bus.serve("s", lambda message: b"yes", shared=True, ask=gate, concurrency=3):
        waiting = ask(client, 3)
        await until(lambda: gate.calls == 3)
        for _ in range(5):
            with pytest.raises(busway.NoResponders, match="1 asked"):
                await within(client.request("s", timeout=None, each=PATIENCE))
        assert gate.calls == 3
        gate.open.set()
        assert [reply.payload for reply in await within(asyncio.gather(*waiting))] == [b"yes"] * 3
        assert (await within(client.request("s"))).payload == b"yes"
    assert gate.calls == 4
    assert bus.errors == 0


async def test_one_that_is_busy_with_asks_leaves_the_request_to_the_next(net: Net, client: busway.Bus) -> None:
    busy, idle, gate = await net.connect("busy"), await net.connect("idle"), Gate()
    async with busy.serve("s", lambda message: b"busy", shared=True, ask=gate, concurrency=1):
        (first,) = ask(client)
        await until(lambda: gate.calls)
        async with idle.serve("s", lambda message: b"idle", shared=True, ask=lambda message: True):
            for _ in range(5):
                assert (await within(client.request("s"))).payload == b"idle"
        gate.open.set()
        assert (await within(first)).payload == b"busy"


async def test_asks_that_do_not_wait_are_never_too_many(net: Net, client: busway.Bus) -> None:
    bus = await net.connect()
    async with bus.serve("s", lambda message: b"yes", shared=True, ask=lambda message: True, concurrency=1):
        assert [reply.payload for reply in await within(asyncio.gather(*ask(client, 50)))] == [b"yes"] * 50


def test_ten_seconds_for_one_ask() -> None:
    assert ask_callback.LIMIT == 10.0


@pytest.mark.parametrize("stubborn", [False, True], ids=["cancelled", "stubborn"])
async def test_an_ask_that_takes_too_long_is_cancelled_reported_and_a_no(
    net: Net, client: busway.Bus, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    monkeypatch.setattr(ask_callback, "LIMIT", 0.05)
    errors: list[BaseException] = []
    bus, gate = await net.connect("bus", on_error=errors.append), Gate(stubborn=stubborn)
    async with bus.serve("s", lambda message: b"yes", shared=True, ask=gate, concurrency=1) as service:
        (asking,) = ask(client)
        await until(lambda: gate.cancelled)
        gate.open.set()
        with pytest.raises(busway.NoResponders):
            await within(asking)
        assert gate.cancelled == 1
        (error,) = errors
        assert isinstance(error, busway.Timeout)
        assert str(error) == "ask was cancelled: the function of 's' did not return within 0.05 s"
        assert bus.errors == 1
        await until(lambda: not service._asks)
        assert (await within(client.request("s"))).payload == b"yes", "there is room for the next"


async def test_an_own_time_limit_of_ask_is_reported_as_it_is(net: Net, client: busway.Bus) -> None:
    errors: list[BaseException] = []
    bus = await net.connect("bus", on_error=errors.append)

    async def late(message: busway.Message) -> bool:
        raise TimeoutError("the database is slow")

    async with bus.serve("s", lambda message: b"", shared=True, ask=late):
        with pytest.raises(busway.NoResponders):
            await within(client.request("s"))
    assert [str(error) for error in errors] == ["the database is slow"]


async def test_asks_end_with_their_service_before_its_handlers_do(net: Net, client: busway.Bus) -> None:
    bus, gate, work, working = await net.connect(drain=600), Gate(), asyncio.Event(), asyncio.Event()

    async def handler(message: busway.Message) -> bytes:
        working.set()
        await work.wait()
        return b"done"

    service = await bus.serve("s", handler, shared=True, ask=gate)
    gate.open.set()
    (first,) = ask(client)
    await within(working.wait())
    gate.open.clear()
    others = ask(client, 2)
    await until(lambda: gate.calls == 3)
    closing = asyncio.ensure_future(service.close())
    await until(lambda: gate.cancelled == 2)
    assert not closing.done()
    for one in others:
        with pytest.raises(busway.NoResponders):
            await within(one)
    work.set()
    await within(closing)
    assert (await within(first)).payload == b"done"
    assert (len(service._asks), bus.errors) == (0, 0)


async def test_asks_end_with_the_connection_they_came_by(net: Net, client: busway.Bus) -> None:
    """The service lives on, and is asked again when the connection is back."""
    bus, gate = await net.connect("bus", reconnect=[0.0]), Gate()
    events = bus.events()
    async with bus.serve("s", lambda message: b"yes", shared=True, ask=gate, concurrency=2) as service:
        waiting = ask(client, 2)
        await until(lambda: gate.calls == 2)
        for _ in range(2):
            assert bus._core.connection is not None
            bus._core.connection.fail(busway.Disconnected("cut"))
            await until(lambda: gate.waiting == 0)
            for one in waiting:
                with pytest.raises(busway.NoResponders):
                    await within(one)
            await next_event(events, "resumed")
            await until(lambda: not service._asks)
            before = gate.calls
            waiting = ask(client, 2)
            await until(lambda before=before: gate.calls == before + 2)
        gate.open.set()
        assert [reply.payload for reply in await within(asyncio.gather(*waiting))] == [b"yes"] * 2
    assert bus.errors == 0


async def test_services_that_come_and_go_leave_nothing_at_their_connection(net: Net, client: busway.Bus) -> None:
    bus, gate = await net.connect(), Gate()
    gate.open.set()

    async def ask(message: busway.Message) -> bool:
        await asyncio.sleep(0)
        return True

    for _ in range(5):
        async with bus.serve("s", lambda message: b"", shared=True, ask=ask):
            await within(client.request("s"))
    await settle(bus)
    assert bus._core.connection is not None
    assert not bus._core.connection.ended._callbacks
