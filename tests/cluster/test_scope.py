"""How far messages and requests go over nodes on real sockets, and subscriptions that every node knows of."""

import asyncio

import pytest

import busway
import busway.sync
from tests.support.cluster import FAST, says, until
from tests.support.net import eventually

SCOPES = ("global", "local", "remote")


class Price(busway.Protocol, prefix="price"):
    value: int


class Total(busway.Protocol):
    value: int


class Sum(busway.Protocol[Total], prefix="sum"):
    numbers: list[int]


async def test_a_message_goes_as_far_as_it_says_and_comes_from_where_it_is_wanted(cluster):
    a, b = await cluster.several(2)
    enter = cluster.stack.enter_async_context
    near, far = await cluster.client(a), await cluster.client(b)
    inboxes = {
        (where, scope): await enter(client.subscribe("t", scope=scope, wait="cluster"))
        for where, client in (("near", near), ("far", far))
        for scope in SCOPES
    }
    feed = await cluster.client(a)
    for scope in SCOPES:
        await feed.publish("t", scope, scope=scope)
    assert await feed.publish("t", "confirmed", scope="remote", confirm=True) == 1
    await feed.publish("t", "end")
    ends = {("near", "remote"), ("far", "local")}
    got = {key: [one.text for one in await until(inbox)] for key, inbox in inboxes.items() if key not in ends}
    assert got == {
        ("near", "global"): ["global", "local"],
        ("near", "local"): ["global", "local"],
        ("far", "global"): ["global", "remote", "confirmed"],
        ("far", "remote"): ["global", "remote", "confirmed"],
    }
    assert [inboxes[key].pending for key in ends] == [0, 0]


async def test_a_push_with_a_scope(cluster):
    a, b = await cluster.several(2)
    near, far, feed = await cluster.client(a), await cluster.client(b), await cluster.client(a)
    async with near.subscribe("jobs") as here, far.subscribe("jobs", wait="cluster") as there:
        for number in range(3):
            await feed.push("jobs", str(number), scope="remote")
            await feed.push("jobs", str(number), scope="local")
        for inbox in (here, there):
            assert [(await inbox.recv(timeout=60)).text for _ in range(3)] == ["0", "1", "2"]
            assert inbox.pending == 0
    with pytest.raises(busway.NoConsumers):
        await feed.push("jobs", b"x", scope="local")


@pytest.mark.parametrize("shared", [False, True])
async def test_a_request_with_a_scope(cluster, shared):
    a, b = await cluster.several(2)
    near, far, asker = (
        await cluster.client(a, name="near"),
        await cluster.client(b, name="far"),
        await cluster.client(a),
    )
    async with far.serve("where", says("far"), shared=shared, wait="cluster"):
        with pytest.raises(busway.NoResponders):
            await asker.request("where", scope="local")
        assert (await asker.request("where", scope="remote", timeout=60)).text == "far"
        more = {"scope": "global" if shared else "local"}
        async with near.serve("where", says("near"), shared=shared, **more):
            for scope, who in (("global", "near"), ("local", "near"), ("remote", "far")):
                assert (await asker.request("where", scope=scope, timeout=60)).text == who
                replies = await asker.request_all("where", scope=scope, timeout=60)
                everybody = ["far", "near"] if shared and scope == "global" else [who]
                assert sorted(reply.sender for reply in replies) == everybody


@pytest.mark.parametrize("shared", [False, True])
async def test_a_service_with_a_scope(cluster, shared):
    a, b = await cluster.several(2)
    provider, near, far = await cluster.client(a), await cluster.client(a), await cluster.client(b)
    async with provider.serve("where", says("a"), shared=shared, scope="local", wait="cluster"):
        assert (await near.request("where", timeout=60)).text == "a"
        with pytest.raises(busway.NoResponders):
            await far.request("where", timeout=60)
        async with far.serve("where", says("b")):  # local ones are in nobody's way
            assert (await far.request("where", timeout=60)).text == "b"
    async with provider.serve("where", says("a"), shared=shared, scope="remote", wait="cluster"):
        assert (await far.request("where", timeout=60)).text == "a"
        with pytest.raises(busway.NoResponders):
            await near.request("where", timeout=60)


async def test_posts_of_another_node_are_remote(cluster):
    a, b = await cluster.several(2)
    near, far, reader = await cluster.client(a), await cluster.client(b), await cluster.client(a)
    await near.post("state/near", b"near")
    await far.post("state/far", b"far")

    async def known():
        return len(await reader.kept()) == 2

    await eventually(known)
    for scope, wanted in (("global", {"near", "far"}), ("local", {"near"}), ("remote", {"far"})):
        async with reader.subscribe("state/*", scope=scope, notify=True) as states:
            got = set()
            while (message := await states.recv(timeout=60)).kind != "notify":
                got.add(message.text)
            assert got == wanted


async def test_that_posts_of_a_dead_node_are_gone_is_told_to_those_who_saw_them(cluster):
    settings = busway.Settings(grace=0.2)
    a = await cluster.start(settings=settings)
    b = await cluster.start(a, settings=settings)
    await cluster.whole()
    near, far = await cluster.client(a), await cluster.client(b, reconnect=None)
    await far.post("state", b"far")

    async def known():
        return len(await near.kept()) == 1

    await eventually(known)
    async with (
        near.subscribe("state", scope="remote", watch=True) as remote,
        near.subscribe("state", scope="local", watch=True) as local,
    ):
        assert (await remote.recv(timeout=60)).text == "far"
        for session in list(b._hub.everyone):  # as if its host had lost power
            session.abort()
        b._close_listeners()
        assert (await remote.recv(timeout=60)).kind == "withdrawn"
        await near.publish("state", b"end")
        assert (await local.recv(timeout=60)).text == "end", "it had nothing to lose"


async def test_what_waited_for_a_connection_keeps_its_scope(cluster, tmp_path):
    a = await cluster.start()
    b = await cluster.start(a)
    await cluster.whole()
    near, far = await cluster.client(a, reconnect=FAST), await cluster.client(b)
    feed = await cluster.client(a, reconnect=FAST, offline=busway.Buffer())
    async with near.subscribe("t") as here, far.subscribe("t", wait="cluster") as there:
        events = feed.events()
        next(one for one in a._hub.sessions.values() if one.session == feed._core.session_id).abort()
        async with asyncio.timeout(60):
            async for event in events:
                if event.kind == "lost":
                    break
        assert feed.state == "lost"
        for scope in SCOPES:
            await feed.publish("t", scope, scope=scope)
        assert len(feed._core.offline_buffer) == 3
        async with asyncio.timeout(60):
            async for event in events:
                if event.kind == "resumed":
                    break
        await feed.publish("t", "end")
        assert [one.text for one in await until(here)] == ["global", "local"]
        assert [one.text for one in await until(there)] == ["global", "remote"]


async def test_typed_messages_and_requests_with_a_scope(cluster):
    a, b = await cluster.several(2)
    near, far, feed = await cluster.client(a), await cluster.client(b), await cluster.client(a)
    async with (
        near.subscribe(Price, "eth", scope="local") as here,
        far.subscribe(Price, "eth", wait="cluster") as there,
        far.serve(Sum, "", lambda asked: Total(sum(asked.numbers)), shared=True, wait="cluster"),
    ):
        await feed.publish("eth", Price(1), scope="remote")
        await feed.publish("eth", Price(2))
        assert (await here.recv(timeout=60)).value == Price(2)
        assert [(await there.recv(timeout=60)).value for _ in range(2)] == [Price(1), Price(2)]
        assert await feed.request("", Sum([1, 2]), scope="remote", timeout=60) == Total(3)
        with pytest.raises(busway.NoResponders):
            await feed.request("", Sum([1, 2]), scope="local")


async def test_the_blocking_face(cluster):
    a, b = await cluster.several(2)

    def work():
        with busway.sync.connect(a.addresses[0]) as near, busway.sync.connect(b.addresses[0]) as far:
            with far.subscribe("t", wait="cluster") as there, near.subscribe("t", scope="local") as here:
                near.publish("t", b"1", scope="remote")
                near.publish_many("t", [b"2"], scope="local")
                near.push("t", b"3", scope="remote")
                assert [there.recv(timeout=60).payload for _ in range(2)] == [b"1", b"3"]
                assert here.recv(timeout=60).payload == b"2"
            with far.serve("sum", lambda _: b"3", shared=True, scope="remote", wait="cluster"):
                assert near.request("sum", scope="remote", timeout=60).payload == b"3"
                assert [one.payload for one in near.request_all("sum", scope="remote", timeout=60)] == [b"3"]
                assert [one.payload for one in near.request_many("sum", timeout=60)] == [b"3"]
                with pytest.raises(busway.NoResponders):
                    far.request("sum")

    await asyncio.to_thread(work)


async def test_every_node_knows_a_subscription_that_waits(cluster):
    servers = await cluster.several(4)
    feeds = [await cluster.client(server) for server in servers]
    client = await cluster.client(servers[0])
    for number in range(20):
        async with client.subscribe(f"t/{number}", wait="cluster"):
            counts = [await feed.publish(f"t/{number}", b"x", confirm=True) for feed in feeds]
            assert counts == [1, 1, 1, 1]
        async with client.serve(f"s/{number}", says("yes"), shared=number % 2 == 0, wait="cluster"):
            for feed in feeds:
                assert (await feed.request(f"s/{number}", timeout=60)).text == "yes"


async def test_many_that_wait_at_once_share_a_round(cluster):
    a, b = await cluster.several(2)
    client = await cluster.client(a)
    pings = []
    ping = a._hub.peers.members._barrier._ping

    def counted(conn, token):
        pings.append(token)
        ping(conn, token)

    a._hub.peers.members._barrier._ping = counted
    subscriptions = [client.subscribe(f"t/{number}", wait="cluster") for number in range(200)]
    await asyncio.gather(*(one.start() for one in subscriptions))
    assert 1 <= len(pings) < 50
    feed = await cluster.client(b)
    for number in range(200):
        assert await feed.publish(f"t/{number}", b"x", confirm=True) == 1


async def test_a_backlog_and_a_wait(cluster):
    """Messages may come before every node knows; none is missed."""
    a, _b = await cluster.several(2)
    client = await cluster.client(a)
    await client.create_stream("orders", topics=["orders/**"], store="memory")
    await client.publish("orders/1", b"stored", durable=True)
    async with client.subscribe("orders/**", since="all", wait="cluster") as orders:
        await client.publish("orders/1", b"live", durable=True)
        assert [(await orders.recv(timeout=60)).text for _ in range(2)] == ["stored", "live"]


async def test_a_node_that_dies_is_not_waited_for(cluster):
    a, b, _c = await cluster.several(3)
    client = await cluster.client(a)
    links = [session for session in b._hub.sessions.values() if session.node]
    for link in links:  # it hears nothing any more
        link.transport.pause_reading()
    waiting = asyncio.create_task(client.subscribe("t", wait="cluster").start())

    async def asked():
        return bool(a._hub.peers.members._barrier._left)

    await eventually(asked)
    assert not waiting.done()
    for link in links:
        link.abort()
    await asyncio.wait_for(waiting, 60)
