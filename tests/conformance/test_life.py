"""Life of a connection: facts of the handshake, draining, stopping, sessions."""

import asyncio

import pytest

import busway
from tests.support.net import PATIENCE, Net, eventually, gather, payloads, settle, within

pytestmark = pytest.mark.both_loops(every=True)


async def test_what_a_client_knows_of_itself_and_the_server(net: Net) -> None:
    bus = await net.connect("alice")
    assert net.server is not None
    assert (bus.name, bus.state, bus.closed) == ("alice", "connected", False)
    assert bus.server["guid"] == net.server.guid
    assert (await net.connect()).server["client"] == bus.server["client"] + 1
    assert bus.server["limits"]["frame"] == 8 << 20
    assert set(bus.server["limits"]) >= {
        "frame",
        "topic",
        "fields",
        "subscriptions",
        "outbox",
        "topics",
        "senders",
        "pending",
    }
    if net.kind != "memory":
        assert bus.url == net.server.addresses[0]
    assert await bus.rtt() >= 0
    info = await bus.info()
    assert info["guid"] == net.server.guid
    await bus.close()
    assert (bus.state, bus.closed) == ("closed", True)


async def test_await_instead_of_async_with(net: Net) -> None:
    await net.serve()
    bus = await net.client()
    subscription = await bus.subscribe("t")
    service = await bus.serve("s", lambda message: b"ok")
    await bus.publish("t", b"x")
    assert await payloads(subscription, 1) == [b"x"]
    assert (await bus.request("s")).payload == b"ok"
    await service.close()
    with pytest.raises(busway.NoResponders):
        await bus.request("s")
    await subscription.close()
    assert await bus.publish("t", b"x", confirm=True) == 0
    await bus.close()


async def test_everything_fails_clearly_once_closed(net: Net) -> None:
    bus = await net.connect()
    subscription = await bus.subscribe("t")
    await bus.close()
    await bus.close()  # twice is fine
    for call in (
        lambda: bus.publish("t", b""),
        lambda: bus.publish("t", b"", confirm=True),
        lambda: bus.publish_many("t", [b""]),
        lambda: bus.push("t"),
        lambda: bus.request("t"),
        lambda: bus.subscribe("u"),
        lambda: bus.serve("u", lambda message: b""),
        bus.flush,
        bus.info,
        bus.rtt,
        subscription.recv,
    ):
        with pytest.raises(busway.Closed):
            await within(call())


async def test_what_was_published_before_leaving_arrives(net: Net) -> None:
    receiver = await net.connect()
    async with receiver.subscribe("t") as subscription:
        async with net.client() as leaver:
            for number in range(2000):
                await leaver.publish("t", str(number))
        assert await payloads(subscription, 2000) == [b"%d" % number for number in range(2000)]


async def test_leaving_lets_running_handlers_finish(net: Net) -> None:
    publisher = await net.connect()
    started, go, finished = asyncio.Event(), asyncio.Event(), []

    async def handler(message: busway.Message) -> None:
        started.set()
        await go.wait()
        finished.append(message.payload)

    leaver = await net.client()
    await leaver.subscribe("t", handler=handler)
    await publisher.publish("t", b"work")
    await within(started.wait())
    closing = asyncio.ensure_future(leaver.close())
    await settle(publisher)
    assert not closing.done()
    go.set()
    await within(closing)
    assert finished == [b"work"]


async def test_leaving_answers_the_requests_that_are_under_way(net: Net) -> None:
    client = await net.connect()
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(message: busway.Message) -> bytes:
        started.set()
        await go.wait()
        return b"done"

    leaver = await net.client()
    await leaver.serve("t", handler)
    asking = asyncio.ensure_future(client.request("t", timeout=PATIENCE))
    await within(started.wait())
    closing = asyncio.ensure_future(leaver.close())
    await settle(client)
    go.set()
    assert (await asking).payload == b"done"
    await within(closing)
    with pytest.raises(busway.NoResponders):
        await client.request("t")


async def test_drain_with_a_time_limit_ends(net: Net) -> None:
    publisher = await net.connect()
    started = asyncio.Event()
    ended: list[str] = []

    async def handler(message: busway.Message) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    leaver = await net.client()
    await leaver.subscribe("t", handler=handler)
    await publisher.publish("t", b"work")
    await within(started.wait())
    await within(leaver.drain(0.01))
    await within(leaver.close())
    assert leaver.state == "closed"
    assert ended == ["cancelled"]


async def test_a_stopping_server_tells_its_clients(net: Net) -> None:
    server = await net.serve()
    bus = await net.connect(reconnect=None)
    subscription = await bus.subscribe("t")
    kinds = []

    async def watch() -> None:
        async for event in bus.events():
            kinds.append(event.kind)

    watching = asyncio.ensure_future(watch())
    await bus.flush()
    await within(server.stop())
    await within(watching)
    assert kinds[-1] == "closed"
    assert bus.state == "closed"
    with pytest.raises(busway.BusError) as caught:
        await subscription.recv(timeout=PATIENCE)
    assert not isinstance(caught.value, busway.Timeout)
    with pytest.raises(busway.BusError):
        await bus.publish("t", b"")


async def test_a_stopping_server_first_delivers_what_it_has(net: Net) -> None:
    server = await net.serve()
    receiver, publisher = await net.connect(reconnect=None), await net.connect(reconnect=None)
    subscription = await receiver.subscribe("t")
    await publisher.publish_many("t", [str(number) for number in range(5000)])
    await publisher.flush()
    await within(server.stop())
    assert await payloads(subscription, 5000) == [b"%d" % number for number in range(5000)]


async def test_a_stopped_server_lets_no_request_hang(net: Net) -> None:
    server = await net.serve()
    bus, service = await net.connect(reconnect=None), await net.connect(reconnect=None, drain=0)
    offered = await service.serve("t")
    asking = asyncio.ensure_future(bus.request("t", timeout=None))
    await offered.recv(timeout=PATIENCE)
    await within(server.stop(drain=0))
    with pytest.raises(busway.BusError):
        await within(asking)


async def test_the_events_of_a_quiet_life(net: Net) -> None:
    await net.serve()
    bus = net.client(name="a")
    events = bus.events()
    await bus
    assert (await within(anext(events))).kind == "connected"
    await bus.close()
    assert (await within(anext(events))).kind == "closed"
    with pytest.raises(StopAsyncIteration):
        await within(anext(events))


async def test_many_clients_come_and_go(net: Net) -> None:
    publisher = await net.connect()
    assert net.server is not None
    for _ in range(5):
        async with asyncio.TaskGroup() as tasks:

            async def visit() -> None:
                async with net.client() as bus, bus.subscribe("t") as subscription:
                    await gather(subscription, 1)

            visits = [tasks.create_task(visit()) for _ in range(10)]

            async def everybody() -> bool:
                await publisher.publish("t", b"x")
                return all(visit.done() for visit in visits)

            await eventually(everybody)

    async def alone() -> bool:
        return len((await publisher.info())["connections"]) == 1

    await eventually(alone)
    stats = net.server.stats()
    assert (stats["connections"], stats["subscriptions"]) == (1, 0)


async def test_two_servers_in_one_process_do_not_know_each_other(net: Net) -> None:
    first = await net.connect()
    async with busway.serve() as other, other.connect() as second:
        async with second.subscribe("**"):
            assert await first.publish("t", b"", confirm=True) == 0
            assert await second.publish("t", b"", confirm=True) == 1
        assert first.server["guid"] != second.server["guid"]
