"""Services across nodes on real sockets: shared ones, asking, fail-over, gathering, listeners, and exclusive topics."""

import asyncio

import pytest

import busway
from tests.support.cluster import knows, says, served, until
from tests.support.net import eventually


async def serve(cluster, server, topic, handler, name="", **more):
    """A client of its own that serves."""
    client = await cluster.client(server, name=name, drain=0.1)
    await cluster.stack.enter_async_context(client.serve(topic, handler, shared=True, **more))
    return client


async def hangs(message):
    await asyncio.Event().wait()


async def fails(message):
    raise busway.HandlerError("not today")


async def test_local_providers_first_then_those_of_other_nodes(cluster):
    a, b, _c = await cluster.several(3)
    asker = await cluster.client(a)
    await serve(cluster, b, "where", says("far"))
    await served(a, "where", 1)
    assert (await asker.request("where", timeout=60)).text == "far"
    near = await serve(cluster, a, "where", says("near"))
    assert {(await asker.request("where", timeout=60)).text for _ in range(10)} == {"near"}
    await near.close()
    assert (await asker.request("where", timeout=60)).text == "far"


async def test_the_willing_one_is_found_on_whatever_node_it_is(cluster):
    servers = await cluster.several(3)
    asked = []

    def mine(name):
        def willing(message):
            asked.append(name)
            return message.text == name

        return willing

    for server in servers:
        for which in "xy":
            name = f"{server.name}{which}"
            await serve(cluster, server, "where", says(name), ask=mine(name))
    asker = await cluster.client(servers[0])
    await served(servers[0], "where", 4)
    for name in ("node-0y", "node-1x", "node-2y"):
        asked.clear()
        assert (await asker.request("where", name, timeout=60)).text == name
        here = [one for one in asked if one.startswith("node-0")]
        assert len(here) == 2
        assert len(asked) == len(set(asked)), "nobody is asked twice"
    with pytest.raises(busway.NoResponders, match="nobody is willing"):
        await asker.request("where", "node-9", timeout=60)


async def test_it_fails_over_among_the_providers_of_a_node_and_then_to_the_next_node(cluster):
    a, b, c = await cluster.several(3)
    asker = await cluster.client(a)
    await serve(cluster, a, "sum", fails)
    await serve(cluster, b, "sum", hangs)
    await serve(cluster, b, "sum", hangs)
    await serve(cluster, c, "sum", fails)
    await serve(cluster, c, "sum", says("at last"))
    await served(a, "sum", 3)
    for _ in range(2):
        assert (await asker.request("sum", timeout=60, each=0.5)).text == "at last"


async def test_a_node_has_as_long_as_its_providers_take_one_after_the_other(cluster):
    a, b = await cluster.several(2)
    asker = await cluster.client(a)
    for _ in range(9):
        await serve(cluster, b, "sum", hangs)
    await serve(cluster, b, "sum", says("at last"))
    await served(b, "sum", 10)
    await served(a, "sum", 1)
    assert (await asker.request("sum", timeout=60, each=0.5)).text == "at last"


async def test_a_provider_that_dies_is_followed_by_one_of_another_node(cluster):
    a, b, c = await cluster.several(3)
    asker = await cluster.client(a)
    begun = asyncio.Event()

    async def begins(message):
        begun.set()
        await asyncio.Event().wait()

    await serve(cluster, b, "sum", begins)
    await served(a, "sum", 1)
    task = asyncio.create_task(asker.request("sum", timeout=60, each=50))
    await asyncio.wait_for(begun.wait(), 60)
    await serve(cluster, c, "sum", says("c"))
    await served(a, "sum", 2)
    for session in list(b._hub.sessions.values()):
        if not session.node:
            session.abort()
    assert (await task).text == "c"


async def test_a_node_that_dies_amid_a_request(cluster):
    a, b, c = await cluster.several(3)
    asker = await cluster.client(a)
    begun = asyncio.Event()

    async def begins(message):
        begun.set()
        await asyncio.Event().wait()

    def kill():
        for session in list(b._hub.everyone):  # as if its host had lost power
            session.abort()
        b._close_listeners()

    for topic, shared in (("alone", False), ("shared", True)):
        client = await cluster.client(b, reconnect=None, drain=0.1)
        await cluster.stack.enter_async_context(client.serve(topic, begins, shared=shared))
    await served(a, "shared", 1)

    alone = asyncio.create_task(asker.request("alone", timeout=60))
    await asyncio.wait_for(begun.wait(), 60)
    begun.clear()
    shared = asyncio.create_task(asker.request("shared", timeout=60, each=50))
    everybody = asyncio.create_task(asker.request_all("shared", timeout=60, each=50))
    await asyncio.wait_for(begun.wait(), 60)
    await serve(cluster, c, "shared", says("c"))
    await served(a, "shared", 2)
    kill()
    with pytest.raises(busway.ServiceGone):
        await alone
    assert (await shared).text == "c"
    replies = await everybody
    assert (list(replies), [one.sender for one in replies.failed]) == ([], [b.name])
    assert isinstance(replies.failed[0].error, busway.ServiceGone)


async def test_all_providers_of_all_nodes_are_gathered_and_named(cluster):
    servers = await cluster.several(3)
    for server in servers:
        for which in "xy":
            await serve(cluster, server, "status", says(f"{server.name}{which}"), name=f"{server.name}{which}")
        await serve(cluster, server, "status", says("never"), name="no", ask=lambda message: False)
    await serve(cluster, servers[2], "status", fails, name="broken")
    asker = await cluster.client(servers[0])
    await served(servers[0], "status", 5)
    wanted = sorted(f"{server.name}{which}" for server in servers for which in "xy")
    replies = await asker.request_all("status", timeout=30)
    assert sorted(reply.text for reply in replies) == wanted
    assert sorted(reply.sender for reply in replies) == wanted
    assert [one.sender for one in replies.failed] == ["broken"]
    got = [reply async for reply in asker.request_many("status", timeout=30)]
    assert sorted(reply.text for reply in got) == wanted
    assert [reply.last for reply in got[:-1]] == [False] * (len(got) - 1)


async def test_the_last_reply_of_many_is_marked_also_when_it_comes_from_afar(cluster):
    a, b = await cluster.several(2)
    asker = await cluster.client(a)
    go = asyncio.Event()

    async def last(message):
        await go.wait()
        return "last"

    await serve(cluster, a, "status", says("first"))
    await serve(cluster, b, "status", last)
    await served(a, "status", 2)
    got = []
    async for reply in asker.request_many("status", timeout=30, each=20):
        got.append((reply.text, reply.last))
        go.set()
    assert got == [("first", False), ("last", True)]


async def test_parts_of_a_reply_come_from_afar(cluster):
    a, b = await cluster.several(2)

    async def counts(message):
        for number in range(3):
            yield str(number)

    await serve(cluster, b, "count", counts, name="b")
    asker = await cluster.client(a)
    await served(a, "count", 1)
    assert (await asker.request("count", timeout=60)).text == "2"
    replies = await asker.request_all("count", timeout=60)
    assert [(one.text, one.sender) for one in replies] == [("0", "b"), ("1", "b"), ("2", "b")]


async def test_a_cancelled_request_is_called_off_on_the_other_node(cluster):
    a, b = await cluster.several(2)
    asker = await cluster.client(a)
    await serve(cluster, b, "slow", hangs)
    await served(a, "slow", 1)
    task = asyncio.create_task(asker.request("slow", timeout=None, each=60))

    def busy(count):
        async def there():
            return b._hub.services.asking.pending == count

        return there

    await eventually(busy(1))
    task.cancel()
    await eventually(busy(0))


async def test_listeners_on_other_nodes_get_copies_of_requests_once(cluster):
    a, b, c = await cluster.several(3)
    enter = cluster.stack.enter_async_context
    listeners = [
        await enter((await cluster.client(server)).subscribe("sum", listen=True)) for server in (a, b, c) for _ in "12"
    ]
    asker = await cluster.client(a, name="ann")
    await serve(cluster, b, "sum", says("b"))
    await served(a, "sum", 1)
    await knows(asker, "sum", 4)  # two clients here, two nodes
    for number in range(3):
        await asker.request("sum", str(number), timeout=60)
    await asker.publish("sum", b"end")
    for listener in listeners:
        got = await until(listener)
        assert [(one.text, one.kind, one.sender) for one in got] == [(str(n), "request", "ann") for n in range(3)]


async def test_two_that_began_at_once_are_told_and_each_serves_its_own(cluster, caplog):
    a = await cluster.start()
    b = await cluster.start()
    near, far = await cluster.client(a), await cluster.client(b)
    enter = cluster.stack.enter_async_context
    await enter(near.serve("sum", says("a")))
    await enter(far.serve("sum", says("b")))
    c = await cluster.start(a, b)
    await cluster.whole()

    async def told():
        return (
            a._hub.peers.members.reports.conflicts >= 1
            and b._hub.peers.members.reports.conflicts >= 1
            and c._hub.peers.members.reports.conflicts >= 1
        )

    await eventually(told)
    assert "'sum' is served here and at node-1" in caplog.text
    assert (await near.request("sum", timeout=60)).text == "a"
    assert (await far.request("sum", timeout=60)).text == "b"
    with pytest.raises(busway.ServiceTaken):
        await enter((await cluster.client(c)).serve("sum", says("c")))


async def test_nobody_anywhere_is_told_at_once(cluster):
    a, b = await cluster.several(2)
    asker = await cluster.client(a)
    with pytest.raises(busway.NoResponders):
        await asker.request("sum", timeout=None)
    provider = await cluster.client(b)
    async with provider.serve("sum", says("b"), shared=True, ask=lambda message: False):
        await served(a, "sum", 1)
        for call in (asker.request, asker.request_all):
            with pytest.raises(busway.NoResponders):
                await call("sum", timeout=None)
