"""A node that has slept reads nothing of clients that may be elsewhere by now."""

import asyncio
import logging
import os
import signal
from contextlib import AsyncExitStack

import pytest

import busway
from tests.support.cluster import Cluster
from tests.support.mirror_processes import is_mirrored, make_mirrored
from tests.support.net import until, within

QUICK = ("--heartbeat", "1s")
COUNT = 50


@pytest.mark.timeout(180)
async def test_what_a_client_sent_to_a_process_that_was_stopped_is_stored_elsewhere_alone(processes):
    a = await processes("a", *QUICK)
    b = await processes("b", *QUICK, "--servers", a.address, "--mirror-of", "a")
    await processes("c", *QUICK, "--servers", f"{a.address},{b.address}")
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(busway.connect(a.address, timeout=20.0))
        await make_mirrored(bus)
        await is_mirrored(bus, "orders")
        await until(lambda: len(bus.servers) == 3)
        first = await bus.publish("orders/1", b"first", durable=True)
        events = bus.events()
        os.kill(a._process.pid, signal.SIGSTOP)
        try:
            answers = [asyncio.ensure_future(bus.publish("orders/1", b"x", durable=True)) for _ in range(COUNT)]
            places = await within(asyncio.gather(*answers))
        finally:
            os.kill(a._process.pid, signal.SIGCONT)
        assert first.broker not in {one.broker for one in places}
        # Who comes now is read after all that lay there.
        late = await stack.enter_async_context(busway.connect(a.address, learn=False, timeout=20.0))
        last = await within(late.publish("orders/1", b"last", durable=True))
        assert (last.broker, last.offset) == (first.broker, first.offset + 1)
        while (event := await within(anext(events))).kind != "doubtful":
            pass
        assert event.count == COUNT, "its mirror can't know what it had stored"


async def test_clients_over_sockets_come_back_and_others_stay(cluster: Cluster, caplog):
    a, b = await cluster.several(2)
    far = await cluster.client(a, learn=False, timeout=60.0, reconnect=(0.0, 0.1))
    near = await cluster.stack.enter_async_context(a.connect(name="near"))
    hub = a._hub
    link = next(session for session in hub.everyone if session.node)
    lost = far._core.connection
    with caplog.at_level(logging.WARNING, "busway.broker"):
        hub.runtime.waited_for = 0.0
        place = await within(far.publish("t", b"x", durable=True))
    assert "1 clients have to reconnect" in caplog.text
    assert far._core.connection is not lost
    assert (place.broker, place.offset, hub.streams.by_name["default"].log.next) == (a.guid, 0, 1)
    assert near.state == "connected"
    assert hub.present[near._core.session_id].conn >= 0
    assert link.conn >= 0
    assert hub.runtime.ended["tcp", "idle"] == 1
    await until(lambda: hub.runtime.waited_for < float("inf"))
    assert b.stats()["doubtful"] == 0


async def test_a_broker_alone_ends_no_connection():
    """Its clients have nowhere else to go."""
    async with busway.serve("tcp://127.0.0.1:0", settings=busway.Settings(heartbeat=0.05)) as server:
        beats = server._hub.loop.time() + 0.1
        await until(lambda: server._hub.loop.time() > beats)
        assert server._hub.runtime.waited_for == float("inf")
