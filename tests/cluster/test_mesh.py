"""Brokers on real sockets that find each other: one bus for the clients of all of them."""

import asyncio
import logging

import msgspec
import pytest

import busway
from busway.cluster.links.key_proof import prove
from busway.cluster.protocol import PROOF
from tests.support import wire
from tests.support.cluster import FAST, has, knows, links, until
from tests.support.net import eventually


async def test_nodes_that_know_one_are_linked_to_all(cluster):
    servers = await cluster.several(4)
    for server in servers:
        assert server.stats()["links"] == 3


async def test_a_message_reaches_subscribers_of_all_nodes_once(cluster):
    servers = await cluster.several(3)
    clients = [await cluster.client(server) for server in servers]
    enter = cluster.stack.enter_async_context
    prices = [await enter(client.subscribe("price/*")) for client in clients for _ in range(2)]
    feed = await cluster.client(servers[0], name="feed")
    await knows(feed, "price/eth", 3)
    for number in range(100):
        await feed.publish("price/eth", str(number).encode(), fields={"n": number})
    await feed.publish("price/eth", b"end")
    for one in prices:
        got = await until(one)
        assert [message.fields["n"] for message in got] == list(range(100))
        assert {message.sender for message in got} == {"feed"}


async def test_16_subscribers_cost_the_link_one_copy(cluster):
    a, b = await cluster.several(2)
    enter = cluster.stack.enter_async_context
    clients = [await cluster.client(b) for _ in range(16)]
    inboxes = [await enter(client.subscribe("t")) for client in clients]
    feed = await cluster.client(a)
    await knows(feed, "t", 1)
    before = a.stats()["messages_delivered"]
    for _ in range(50):
        await feed.publish("t", b"x")
    await feed.publish("t", b"end")
    for inbox in inboxes:
        assert len(await until(inbox)) == 50
    assert a.stats()["messages_delivered"] - before == 51


async def test_nothing_crosses_that_nobody_wants_there(cluster):
    a, b = await cluster.several(2)
    feed = await cluster.client(a)
    other = await cluster.client(b)
    async with other.subscribe("wanted", where={"venue": "krk"}):

        async def known():
            return await feed.publish("wanted", b"?", fields={"venue": "krk"}, confirm=True) == 1

        await eventually(known)
        assert await feed.publish("wanted", b"x", fields={"venue": "bin"}, confirm=True) == 0
        assert await feed.publish("unwanted", b"x", confirm=True) == 0

    async def gone():
        return await feed.publish("wanted", b"?", fields={"venue": "krk"}, confirm=True) == 0

    await eventually(gone)


async def test_a_group_has_one_member_over_all_nodes_and_local_ones_first(cluster):
    a, b = await cluster.several(2)
    enter = cluster.stack.enter_async_context
    far = [await cluster.client(b) for _ in range(2)]
    got = [[], []]

    def keep(mine):
        async def take(message):
            if message.payload != b"?":
                mine.append(message)

        return take

    for client, mine in zip(far, got, strict=True):
        await enter(client.subscribe("jobs", handler=keep(mine), group="g"))
    ends = [await enter(client.subscribe("end")) for client in far]
    feed = await cluster.client(a)
    await knows(feed, "jobs", 1)
    await knows(feed, "end", 1)

    async def sent():
        """What the far ones have got of ten jobs."""
        before = sum(map(len, got))
        for number in range(10):
            assert await feed.publish("jobs", str(number).encode(), confirm=True) == 1
        await feed.publish("end", b"end")
        for end in ends:
            await until(end)
        return sum(map(len, got)) - before

    assert await sent() == 10
    assert all(got)
    near = await enter((await cluster.client(a)).subscribe("jobs", group="g"))
    assert await sent() == 0
    await feed.publish("jobs", b"end")
    assert len(await until(near)) == 10


async def test_a_push_goes_to_another_node_if_nobody_is_here(cluster):
    a, b = await cluster.several(2)
    feed = await cluster.client(a)
    with pytest.raises(busway.NoConsumers):
        await feed.push("jobs", b"x")
    async with (await cluster.client(b)).subscribe("jobs") as jobs:

        async def taken():
            try:
                await feed.push("jobs", b"x")
            except busway.NoConsumers:
                return False
            return True

        await eventually(taken)
        assert (await jobs.recv(timeout=60)).payload == b"x"


async def test_a_service_of_another_node_answers_and_its_topic_is_taken(cluster):
    a, b = await cluster.several(2)
    asker, provider = await cluster.client(a), await cluster.client(b)

    async def twice(message):
        return message.payload * 2

    async with provider.serve("twice", twice):

        async def answered():
            try:
                return await asker.request("twice", b"ab", timeout=5) == b"abab" or True
            except busway.NoResponders:
                return False

        await eventually(answered)
        assert (await asker.request("twice", b"ab", timeout=5)).payload == b"abab"
        with pytest.raises(busway.ServiceTaken):
            async with asker.serve("twice", twice):
                pass

    async def gone():
        try:
            await asker.request("twice", b"", timeout=5)
        except busway.NoResponders:
            return True
        return False

    await eventually(gone)


async def test_a_node_that_was_killed_is_missed_and_comes_back(cluster, tmp_path):
    a = await cluster.start()
    b = busway.serve(f"unix:{tmp_path}/b", name="b", cluster="test", servers=[a.addresses[0]], data=tmp_path / "data")
    await b.start()
    await cluster.whole(a, b)
    feed = await cluster.client(a)
    far = await busway.connect(f"unix:{tmp_path}/b", reconnect=FAST, learn=False)
    inbox = await cluster.stack.enter_async_context(far.subscribe("t"))
    await knows(feed, "t", 1)
    await b.stop(drain=0)
    assert await feed.publish("t", b"x", confirm=True) == 0
    again = busway.serve(
        f"unix:{tmp_path}/b", name="b", cluster="test", servers=[a.addresses[0]], data=tmp_path / "data"
    )
    async with again:
        await cluster.whole(a, again)
        await knows(feed, "t", 1)
        await feed.publish("t", b"y")
        while (await inbox.recv(timeout=60)).payload != b"y":
            pass
        await far.close()


async def test_another_cluster_another_key_and_a_broker_alone_are_refused_and_told(cluster, caplog):
    caplog.set_level(logging.DEBUG, "busway.cluster")
    a = await cluster.start(place={"key": "secret"})
    other = await cluster.start(a, cluster="other", place={"key": "secret"})
    wrong = await cluster.start(a, place={"key": "wrong"})
    alone = busway.serve("tcp://127.0.0.1:0")
    right = await cluster.start(a, place={"key": b"secret"})
    async with alone:
        lonely = await cluster.start(alone, place={"key": "secret"})
        await cluster.whole(a, right)

        async def told():
            return all(
                text in caplog.text
                for text in ("this is the cluster 'test'", "the two nodes have different cluster keys", "in no cluster")
            )

        await eventually(told)
        for server in (other, wrong, lonely):
            assert links(server) == set()


async def test_a_peer_that_sends_garbage_harms_nobody(cluster):
    a, _b = await cluster.several(2)
    host, _, port = a.addresses[0].removeprefix("tcp://").partition(":")
    for junk in (b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", bytes(1000)):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(junk)
        await reader.read()
        writer.close()
    await cluster.whole()


async def test_posts_and_pins_are_known_everywhere_and_end_everywhere(cluster):
    a, b, c = await cluster.several(3)
    near, far, other = [await cluster.client(server) for server in (a, b, c)]
    await near.post("proc/hdb", b"up")
    await near.pin("config/hdb", b"1")
    for client in (far, other):
        await has(client, "proc/hdb", b"up")
        await has(client, "config/hdb", b"1")
    async with far.subscribe("proc/*", watch=True) as states:
        message = await states.recv(timeout=60)
        assert (message.payload, message.kind) == (b"up", "post")
        await near.post("proc/hdb", b"busy")
        while (message := await states.recv(timeout=60)).payload != b"busy":
            pass
        await near.unpost("proc/hdb")
        while (message := await states.recv(timeout=60)).kind != "withdrawn":
            pass
    await far.pin("config/hdb", b"2")
    await other.unpin("config/hdb")
    for client in (near, far, other):
        await has(client, "proc/hdb")


async def test_a_node_that_comes_later_learns_what_is_kept(cluster):
    a = await cluster.start()
    near = await cluster.client(a, name="n")
    for number in range(300):
        await near.post(f"state/{number}", b"x" * 5000)
    b = await cluster.start(a)
    far = await cluster.client(b)

    async def all_there():
        return len(await far.kept("state/*")) == 300

    await eventually(all_there)


async def test_posts_of_a_dead_node_are_withdrawn(cluster):
    settings = busway.Settings(grace=0.2)
    a = await cluster.start(settings=settings)
    b = await cluster.start(a, settings=settings)
    await cluster.whole()
    near, far = await cluster.client(a, reconnect=None), await cluster.client(b)
    await near.post("proc/hdb", b"up")
    await has(far, "proc/hdb", b"up")
    async with far.subscribe("proc/*", watch=True) as states:
        assert (await states.recv(timeout=60)).payload == b"up"
        for session in list(a._hub.everyone):  # as if its host had lost power
            session.abort()
        a._close_listeners()
        assert (await states.recv(timeout=60)).kind == "withdrawn"
    await has(far, "proc/hdb")


async def test_a_stored_message_reaches_subscribers_of_other_nodes(cluster):
    """With the name of the stream where it is stored, beside those of their own node."""
    a, b = await cluster.several(2)
    feed, other, reader = await cluster.client(a), await cluster.client(b), await cluster.client(b)
    orders = await cluster.stack.enter_async_context(reader.subscribe("orders"))
    await knows(feed, "orders", 1)
    await knows(other, "orders", 1)
    for number in range(3):
        await feed.publish("orders", f"far {number}", durable=True)
        await other.publish("orders", f"near {number}", durable=True)
    await feed.publish("orders", b"end")
    got = await until(orders)
    await other.publish("orders", b"end")
    got += await until(orders)
    assert sorted((message.text, message.offset) for message in got) == [
        *((f"far {number}", number) for number in range(3)),
        *((f"near {number}", number) for number in range(3)),
    ]
    assert {message.broker for message in got if message.text.startswith("far")} == {a.guid}
    assert {message.broker for message in got if message.text.startswith("near")} == {b.guid}


async def test_a_node_that_goes_right_behind_its_proof_is_one_that_is_lost(cluster, caplog):
    """Both come at once, and the proof is looked at when the connection is over already."""
    a = await cluster.start()
    host, _, port = a.addresses[0].removeprefix("tcp://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    guid, nonce = "f" * 32, bytes(16)
    node = {"guid": guid, "incarnation": 7, "cluster": "test", "name": "hasty", "addresses": [], "since": 1}
    writer.write(wire.hello(7, "hasty", node={**node, "nonce": nonce}))
    size = int.from_bytes(await reader.readexactly(4), "little")
    welcome = msgspec.msgpack.decode((await reader.readexactly(size))[4:])
    guids = guid, a.guid
    proof = prove(b"", dialler=nonce, acceptor=welcome["node"]["nonce"], guids=guids, dialled=True)
    writer.write(wire.frame(wire.NODE, PROOF.to_bytes(2, "little") + bytes(8) + proof) + wire.close(0, "away"))
    while await reader.read(65536):
        pass
    writer.close()
    assert a.stats()["errors"] == 0
    assert not links(a)
    assert "unexpected" not in caplog.text
    await cluster.start(a)
    await cluster.whole()
