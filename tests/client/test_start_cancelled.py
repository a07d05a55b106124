"""Connecting and starting, cancelled at every turn: nothing stays behind."""

import asyncio

import pytest

import busway
from tests.support.net import PATIENCE, Net, eventually, until, within

TURNS = 40


async def cancelled(turns: int, task: "asyncio.Future[object]") -> bool:
    """Cancel it after so many turns of the loop; whether it was done before."""
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


@pytest.mark.parametrize("kind", ["memory", "tcp"])
async def test_connecting(net: Net, kind: str) -> None:
    net.kind = kind
    server = await net.serve()
    finished = 0
    for turns in range(TURNS):
        bus = net.client(reconnect=(0,))
        if await cancelled(turns, asyncio.ensure_future(bus.__aenter__())):
            finished += 1
            assert bus.state == "connected"
        await within(bus.close())
        assert bus.state == "closed"
    await until(lambda: server.stats()["connections"] == 0)
    assert 0 < finished < TURNS
    async with net.client() as bus:
        assert await bus.publish("t", b"", confirm=True) == 0


async def test_starting_a_server() -> None:
    finished = 0
    for turns in range(10):
        server = busway.serve("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
        finished += await cancelled(turns, asyncio.ensure_future(server.start()))
        await within(server.stop())
    assert finished < 10


async def test_stopping_a_server_that_is_stopped_by_somebody_else(net: Net) -> None:
    server = await net.serve()
    bus = await net.connect(reconnect=None)
    subscription = await bus.subscribe("t")
    await within(asyncio.gather(server.stop(), server.stop(), server.stop()))
    await until(lambda: bus.state == "closed")
    assert subscription.closed


async def test_a_cancelled_stop_goes_on(net: Net) -> None:
    server = await net.serve()
    bus = await net.connect(reconnect=None)
    await cancelled(1, asyncio.ensure_future(server.stop()))
    await within(server.stop())
    await until(lambda: bus.state == "closed")


async def test_closing_from_several_tasks_at_once(net: Net) -> None:
    await net.serve()
    bus = await net.client()
    subscription = await bus.subscribe("t")
    await within(asyncio.gather(bus.close(), bus.close(), bus.drain(1), bus.close()))
    assert bus.state == "closed"
    assert subscription.closed


async def test_requests_under_way_are_answered_before_a_server_stops(net: Net) -> None:
    """AWAY, then what is in flight, then the end."""
    server = await net.serve(drain=PATIENCE)
    asker, service = await net.connect(reconnect=None), await net.connect(reconnect=None)
    offered = await service.serve("t")
    asking = asyncio.ensure_future(asker.request("t", timeout=PATIENCE))
    request = await offered.recv(timeout=PATIENCE)
    stopping = asyncio.ensure_future(server.stop())

    async def refused() -> bool:
        try:
            await asker.publish("t", b"")
        except busway.Disconnected:
            return True
        return False

    await eventually(refused)  # AWAY has arrived: no new publishes
    assert not stopping.done()
    await request.reply(b"just in time")
    assert (await within(asking)).payload == b"just in time"
    await within(stopping)


async def test_a_bus_that_was_never_entered(net: Net) -> None:
    await net.serve()
    bus = net.client()
    for call in (lambda: bus.publish("t", b""), lambda: bus.request("t"), lambda: bus.subscribe("t")):
        with pytest.raises(busway.BusError, match=r"connect|enter"):
            await call()
    await within(bus.close())
    with pytest.raises(busway.BusError):
        await bus


async def test_entering_a_connected_bus_again_changes_nothing(net: Net) -> None:
    bus = await net.connect()
    assert await bus is bus
    client = bus.server["client"]
    async with bus:
        assert bus.server["client"] == client
    assert bus.state == "closed"


def test_a_bus_and_a_server_can_be_made_without_a_loop() -> None:
    busway.connect("tcp://127.0.0.1:1")
    busway.serve("tcp://127.0.0.1:0")
