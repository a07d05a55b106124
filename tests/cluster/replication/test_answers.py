"""A mirror answers for a failed node: its stored messages can be read at every node."""

import asyncio

from tests.support.cluster_streams import numbers, some, take
from tests.support.mirrored import Mirrored, copied, follows
from tests.support.net import eventually


async def test_the_history_of_a_node_that_is_gone_is_read_from_its_mirror(nodes: Mirrored):
    """O broker mirror, apercebe-se da falha e fica ele a responder a pedidos de mansagens pendentes (replay)."""
    a, b = await nodes.pair()
    c = await nodes.node("c", data=False)
    await nodes.whole(a, b, c)
    publisher = await nodes.client(a)
    await some(publisher, "log/a", 0, 30)
    await copied(a, b, 30)
    here, there = await nodes.client(b), await nodes.client(c)
    async with there.subscribe("log/**", since="all") as early:
        assert numbers(await take(early, 30)) == list(range(30))
        await a.stop()
        async with (
            there.subscribe("log/**", since="all") as far,
            here.subscribe("log/**", since="all") as near,
        ):
            for history in (far, near):
                got = await take(history, 30)
                assert numbers(got) == list(range(30))
                assert {message.broker for message in got} == {a.guid}
                assert got[-1].last
            again = await nodes.node("a")
            assert again.guid == a.guid
            await some(await nodes.client(again), "log/a", 30, 10)
            for history in (early, far, near):
                assert numbers(await take(history, 10)) == list(range(30, 40))


async def test_a_subscriber_that_lost_the_node_goes_on_with_the_mirror(nodes: Mirrored):
    """The node stores more, and its mirror has it, but the reader's own node can't reach it any more."""
    a, b = await nodes.pair()
    c = await nodes.node("c", data=False)
    await nodes.whole(a, b, c)
    publisher, reader = await nodes.client(a), await nodes.client(c)
    async with reader.subscribe("log/**", since="all") as history:
        await some(publisher, "log/a", 0, 10)
        assert numbers(await take(history, 10)) == list(range(10))
        for server in (a, c):  # neither dials the other again
            server._hub.peers.members.links._stopped = True
        for session in list(c._hub.sessions.values()):
            if session.node and session.name == "a":
                session.abort()
        await some(publisher, "log/a", 10, 10)
        await copied(a, b, 20)
        assert numbers(await take(history, 10)) == list(range(10, 20))
        await some(publisher, "log/a", 20, 10)
        assert numbers(await take(history, 10)) == list(range(20, 30))


async def test_what_is_copied_is_broadcast_to_nobody(nodes: Mirrored):
    """Um evento de mirror não provoca broadcast."""
    a, b = await nodes.pair()
    here = await nodes.client(b)
    async with here.subscribe("log/**") as plain, here.subscribe("end") as end:
        publisher = await nodes.client(a)

        async def known():
            return await publisher.publish("end", b"", confirm=True)

        await eventually(known)
        await some(publisher, "log/a", 0, 5)
        await copied(a, b, 5)
        assert numbers(await take(plain, 5)) == list(range(5))
        await follows(a, b)
        await here.publish("end", b"")
        async with asyncio.timeout(60):
            await end.recv()
        assert not plain.pending


async def test_the_level_of_messages_depends_on_the_mirror(nodes: Mirrored):
    a, b = await nodes.pair(wait=0.5)
    publisher = await nodes.client(a)
    c = await nodes.node("c", data=False)
    await nodes.whole(a, b, c)
    reader = await nodes.client(c)
    await publisher.create_stream("s", ["s"], safety="mirrored")
    async with reader.subscribe("s", since="all") as history:
        assert (await publisher.publish("s", b"1", durable=True)).safety == "mirrored"
        assert (await history.recv(timeout=60)).position.safety == "mirrored"
        await b.stop()
        assert (await publisher.publish("s", b"2", durable=True)).safety == "written"
        assert (await history.recv(timeout=60)).position.safety == "written"
