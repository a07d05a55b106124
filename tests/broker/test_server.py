"""The broker's own life: heartbeat, sessions, authentication, stop and start."""

import asyncio
import gc
from pathlib import Path

import pytest

import busway
from busway.testing import FaultProxy
from tests.support import wire
from tests.support.net import PATIENCE, Net, gather, until, within


async def test_a_silent_client_is_pinged_and_then_closed(net: Net) -> None:
    server = await net.serve(heartbeat=0.03)
    async with await wire.RawClient.welcomed(server.addresses[0], 7) as raw:
        got = await raw.frame()
        assert got.kind == wire.PING
        while got.kind == wire.PING:
            got = await raw.frame()
        assert got.kind == wire.CLOSE
        assert raw.slots.read(got)[0] == 6
        assert await raw.rest() == b""


async def test_a_client_that_answers_pings_stays(net: Net) -> None:
    server = await net.serve(heartbeat=0.03)
    async with await wire.RawClient.welcomed(server.addresses[0], 7) as raw:
        for _ in range(10):  # ten heartbeats long
            got = await raw.frame()
            assert got.kind == wire.PING
            await raw.send(wire.pong(wire.Reader().read(got)))
        await raw.send(wire.ping(99))
        while (got := await raw.frame()).kind == wire.PING:
            pass
        assert raw.slots.read(got) == 99


async def test_real_clients_outlive_many_heartbeats(net: Net) -> None:
    await net.serve(heartbeat=0.03)
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        with pytest.raises(busway.Timeout):
            await subscription.recv(timeout=0.4)
        assert bus.state == "connected"
        await bus.publish("t", b"x")
        assert (await gather(subscription, 1))[0].payload == b"x"


async def test_a_client_notices_a_silent_server(net: Net) -> None:
    """Bytes stop without an end of the connection: the client's own heartbeat finds out and reconnects."""
    server = await net.serve(heartbeat=0.03)
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        async with bus.subscribe("t") as subscription:
            link = await proxy.link()
            link.stall("down")
            kinds = []
            async with asyncio.timeout(PATIENCE):
                while "resumed" not in kinds:
                    kinds.append((await anext(events)).kind)
            assert "lost" in kinds
            await bus.publish("t", b"x")
            assert (await gather(subscription, 1))[0].payload == b"x"


async def test_a_slow_service_call_does_not_make_the_client_look_dead(net: Net) -> None:
    """The heartbeat doesn't share the fate of handlers."""
    await net.serve(heartbeat=0.03)
    server, client = await net.connect(), await net.connect()
    go = asyncio.Event()

    async def handler(message: busway.Message) -> bytes:
        await go.wait()
        return b"at last"

    async with server.serve("t", handler):
        asking = asyncio.ensure_future(client.request("t", timeout=PATIENCE))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await asyncio.shield(asking)
        go.set()
        assert (await asking).payload == b"at last"


async def test_authentication(net: Net) -> None:
    seen: list[busway.Caller] = []

    def check(caller: busway.Caller) -> bool:
        seen.append(caller)
        return caller.credentials == "right"

    await net.serve(authenticate=check)
    for credentials in (None, "wrong", b"right"):
        with pytest.raises(busway.Forbidden) as caught:
            await within(net.client(credentials=credentials).__aenter__())
        assert caught.value.code == 5
    bus = await net.connect("me", credentials=lambda: "right")
    assert await bus.publish("t", b"", confirm=True) == 0
    assert (seen[-1].name, seen[-1].transport) == ("me", "tcp")
    assert [caller.credentials for caller in seen] == [None, "wrong", b"right", "right"]


async def test_an_authentication_that_raises_refuses(net: Net) -> None:
    def check(caller: busway.Caller) -> bool:
        raise ZeroDivisionError

    await net.serve(authenticate=check)
    with pytest.raises(busway.BusError):
        await within(net.client(reconnect=None, timeout=2).__aenter__())


async def test_only_true_lets_a_client_in(net: Net) -> None:
    """Anything else that counts as true does not: a name is that of a user, and this broker has none."""
    await net.serve(authenticate=lambda caller: "yes")
    with pytest.raises(busway.Forbidden):
        await within(net.client().__aenter__())


async def test_authenticate_may_be_asynchronous(net: Net) -> None:
    async def later(caller: busway.Caller) -> bool:
        await asyncio.sleep(0)
        return caller.credentials == "open sesame"

    await net.serve(authenticate=later)
    bus = await within(net.client(credentials="open sesame").__aenter__())
    assert await bus.publish("t", b"", confirm=True) == 0
    with pytest.raises(busway.Forbidden):
        await within(net.client(credentials="open barley").__aenter__())


async def test_authenticate_has_a_time_limit_and_its_errors_refuse_the_client(net: Net) -> None:
    async def never(caller: busway.Caller) -> bool:
        if caller.credentials == "raise":
            raise RuntimeError("no directory")
        await asyncio.Event().wait()
        return True

    await net.serve(authenticate=never, handshake=0.2)
    for credentials in ("raise", "wait"):
        with pytest.raises(busway.BusError):
            await within(net.client(credentials=credentials, reconnect=None).__aenter__())


async def test_a_server_is_started_once(net: Net) -> None:
    server = await net.serve()
    with pytest.raises(busway.BusError):
        await server.start()
    await server.stop()
    await server.stop()
    with pytest.raises(busway.BusError):
        await server.start()


async def test_a_failed_start_leaves_nothing_open() -> None:
    async with busway.serve("tcp://127.0.0.1:0") as taken:
        busy = taken.addresses[0]
        server = busway.serve("tcp://127.0.0.1:0", busy)
        with pytest.raises(busway.BusError, match=busy.rpartition(":")[2]):
            await server.start()
        assert server.addresses == () or all("memory" not in each for each in server.addresses)


async def test_a_port_can_be_used_again_at_once() -> None:
    async with busway.serve("tcp://127.0.0.1:0") as first, busway.connect(first.addresses[0], reconnect=None) as bus:
        address = first.addresses[0]
        await bus.publish("t", b"", confirm=True)
        await first.stop()
    async with busway.serve(address) as second:
        assert second.addresses == (address,)


async def test_serve_forever_ends_with_the_server(net: Net) -> None:
    server = await net.serve()
    forever = asyncio.ensure_future(server.serve_forever())
    await asyncio.sleep(0)
    assert not forever.done()
    await server.stop()
    await within(forever)
    again = busway.serve()
    await again.start()
    forever = asyncio.ensure_future(again.serve_forever())
    await asyncio.sleep(0)
    forever.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forever
    with pytest.raises(busway.BusError):
        await again.connect(reconnect=None).__aenter__()


async def test_stop_ends_in_time_though_a_client_never_reads(net: Net) -> None:
    server = await net.serve(outbox=1 << 20, drain=0.1)
    raw = await wire.RawClient.welcomed(server.addresses[0], 7)
    await raw.send(wire.subscribe(1, 1, "t", policy=2))
    await raw.expect(wire.RESULT)
    raw.writer.transport.pause_reading()
    bus = await net.connect(reconnect=None)
    for _ in range(400):
        await bus.publish("t", b"x" * 65536)
    await bus.flush()
    await within(server.stop())
    raw.abort()


async def test_info_tells_of_every_connection(net: Net) -> None:
    server = await net.serve()
    one, two = await net.connect("one"), await net.connect("two")
    async with one.subscribe("a"), one.subscribe("b"), two.serve("c", lambda message: b""):
        info = await one.info()
        assert info["guid"] == server.guid
        by_name = {each["name"]: each for each in info["connections"]}
        assert (by_name["one"]["subscriptions"], by_name["two"]["services"]) == (2, 1)
        assert {each["transport"] for each in info["connections"]} == {"tcp"}
        assert info["stats"]["subscriptions"] == 2
        assert info["addresses"] == list(server.addresses)


async def test_counters_add_up(net: Net) -> None:
    server = await net.serve()
    one, two = await net.connect(), await net.connect()
    async with one.subscribe("t") as first, two.subscribe("t") as second:
        await one.publish_many("t", [b"x"] * 100)
        await gather(first, 100)
        await gather(second, 100)
        await one.publish("nobody", b"")
        await one.flush()
        stats = server.stats()
        assert stats["messages_received"] == 101
        assert stats["messages_delivered"] == 200
        assert stats["messages_unroutable"] == 1
        assert stats["messages_dropped"] == 0
    await one.close()
    await until(lambda: server.stats()["connections"] == 1)
    assert server.stats()["messages_delivered"] == 200


async def test_a_stopped_server_leaves_no_file_open(tmp_path: Path) -> None:
    """At once, not when Python frees the objects: a test suite starts hundreds of servers in one process."""

    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def once(folder: Path) -> None:
        async with busway.serve(data=folder) as server, server.connect() as bus:
            await bus.create_stream("orders", ["orders/**"])
            async with bus.channel("orders", "billing") as jobs:
                await bus.publish("orders/1", b"x", durable=True)
                await (await jobs.recv(timeout=PATIENCE)).ack()

    gc.disable()
    try:
        await once(tmp_path / "first")
        before = count()
        for number in range(3):
            await once(tmp_path / str(number))
        assert count() == before
    finally:
        gc.enable()
