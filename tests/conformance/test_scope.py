"""Scopes at a broker without a cluster: its own clients are all clients, so the scope remote reaches none."""

import pytest

import busway
from tests.support.net import Net, payloads, settle

pytestmark = pytest.mark.both_loops


async def test_of_messages(net: Net) -> None:
    sender, receiver = await net.connect(), await net.connect()
    async with receiver.subscribe("t") as inbox:
        for scope in ("global", "local", "remote"):
            await sender.publish("t", f"plain {scope}", scope=scope)
            count = await sender.publish("t", f"confirmed {scope}", scope=scope, confirm=True)
            assert count == (scope != "remote")
            await sender.publish_many("t", ["many", {"json": scope}], scope=scope)
            await sender.publish_many([("t", f"pair {scope}")], scope=scope)
        await settle(sender, receiver)
        got = await payloads(inbox, inbox.pending)
    wanted: list[bytes] = []
    for scope in ("global", "local"):
        wanted += [f"plain {scope}".encode(), f"confirmed {scope}".encode(), b"many"]
        wanted += [f'{{"json":"{scope}"}}'.encode(), f"pair {scope}".encode()]
    assert got == wanted


async def test_of_pushes(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("jobs") as jobs:
        await bus.push("jobs", b"1", scope="local")
        with pytest.raises(busway.NoConsumers):
            await bus.push("jobs", b"2", scope="remote")
        await bus.push("jobs", b"3")
        assert await payloads(jobs, 2) == [b"1", b"3"]


@pytest.mark.parametrize("shared", [False, True])
async def test_of_requests(net: Net, shared: bool) -> None:
    bus = await net.connect()
    async with bus.serve("sum", lambda _: b"3", shared=shared):
        assert (await bus.request("sum", scope="local")).payload == b"3"
        assert [one.payload for one in await bus.request_all("sum", scope="local")] == [b"3"]
        with pytest.raises(busway.NoResponders):
            await bus.request("sum", scope="remote")
        with pytest.raises(busway.NoResponders):
            await bus.request_all("sum", scope="remote")
        with pytest.raises(busway.NoResponders):
            [reply async for reply in bus.request_many("sum", {"typed": 1}, scope="remote")]


@pytest.mark.parametrize("shared", [False, True])
async def test_of_services(net: Net, shared: bool) -> None:
    bus = await net.connect()
    async with bus.serve("sum", lambda _: b"3", shared=shared, scope="local"):
        assert (await bus.request("sum")).payload == b"3"
    async with bus.serve("sum", lambda _: b"3", shared=shared, scope="remote"):
        with pytest.raises(busway.NoResponders):
            await bus.request("sum")
        with pytest.raises(busway.NoResponders):
            await bus.request_all("sum")


async def test_of_subscriptions(net: Net) -> None:
    bus = await net.connect()
    await bus.post("state", b"kept")
    async with bus.subscribe("**", scope="local") as local, bus.subscribe("**", scope="remote") as remote:
        await bus.publish("t", b"live")
        await settle(bus)
        assert await payloads(local, 2) == [b"kept", b"live"]
        assert remote.pending == 0


async def test_waiting_for_a_cluster_of_one(net: Net) -> None:
    bus = await net.connect()
    await bus.post("t", b"kept")
    async with (
        bus.subscribe("t", wait="cluster", notify=True) as inbox,
        bus.serve("sum", lambda _: b"3", wait="cluster"),
    ):
        await bus.publish("t", b"live")
        assert [(await inbox.recv(timeout=60)).kind for _ in range(3)] == ["post", "notify", "publish"]
        assert (await bus.request("sum")).payload == b"3"


async def test_what_can_not_be_meant(net: Net) -> None:
    bus = await net.connect()
    for verb in (bus.publish, bus.push, bus.request, bus.request_all, bus.publish_many):
        more = ([b"x"],) if verb == bus.publish_many else ()
        with pytest.raises(ValueError, match="scope must be one of 'global', 'local', 'remote', not 'near'"):
            await verb("t", *more, scope="near")  # type: ignore[operator]
        with pytest.raises(TypeError, match="scope must be"):
            await verb("t", *more, scope=1)  # type: ignore[operator]
    for make in (bus.subscribe, bus.serve, bus.request_many):
        with pytest.raises(ValueError, match="scope must be"):
            make("t", scope="near")  # type: ignore[operator]
    for begin in (bus.subscribe, bus.serve):
        with pytest.raises(ValueError, match='wait must be "cluster" or None'):
            begin("t", wait="all")  # type: ignore[operator]
        with pytest.raises(TypeError, match="wait must be"):
            begin("t", wait=True)  # type: ignore[operator]


async def test_a_stored_message_is_for_everybody(net: Net) -> None:
    """Told before it leaves the client, so a broker need not have a stream for it."""
    bus = await net.connect()
    with pytest.raises(ValueError, match="durable=True takes no scope"):
        await bus.publish("orders/1", b"x", durable=True, scope="local")
    with pytest.raises(ValueError, match="durable=True takes no scope"):
        await bus.publish_many("orders/1", [b"x"], durable=True, scope="remote")  # type: ignore[call-overload]


async def test_a_kept_message_is_for_everybody(net: Net) -> None:
    bus = await net.connect()
    for verb in (bus.post, bus.pin):
        with pytest.raises(TypeError, match="scope"):
            await verb("t", b"x", scope="local")  # type: ignore[call-arg]
    # Also to clients of other makes.
    number = bus._core.session.send(0x10, "t", b"x", flags=0x08 | 0x02, each=1)
    with pytest.raises(busway.Rejected, match="a retained message is for all nodes"):
        await bus._core.result(number)
    assert await bus.kept() == []
