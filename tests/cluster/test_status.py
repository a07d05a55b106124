"""The status of a cluster: its figures, and its events as messages."""

import asyncio
from contextlib import AsyncExitStack

import pytest

import busway
from busway.cluster.replication.messages import Trouble
from tests.support.cluster import Cluster, knows, links
from tests.support.net import PATIENCE, eventually, settle, until, within

OUTBOX = 1 << 20


@pytest.fixture
async def nodes():
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


async def asked(bus):
    return (await bus.request("$bus/cluster")).json()


async def happened(events, kind, **fields):
    """The first event of a kind with these fields."""
    async with asyncio.timeout(PATIENCE):
        while True:
            message = await events.recv()
            if message.topic == f"$bus/cluster/{kind}" and fields.items() <= message.fields.items():
                return message


async def test_figures_of_nodes_and_links(nodes):
    a, b = await nodes.several(2)
    here, there = await nodes.client(a), await nodes.client(b)
    async with there.subscribe("t") as inbox, there.serve("s", lambda _: b""):
        await knows(here, "t", 1)
        before = (await asked(here))["nodes"][1]["link"]["messages_out"]
        for _ in range(10):
            await here.publish("t", b"x" * 100)
        await here.publish("t", b"end")
        while (await inbox.recv(timeout=PATIENCE)).payload != b"end":
            pass
        found = await asked(here)
    assert (found["cluster"], found["guid"]) == ("test", a.guid)
    this, other = found["nodes"]
    assert (this["name"], this["guid"], this["state"], this["link"]) == ("node-0", a.guid, "this", None)
    assert this["addresses"] == list(a.addresses)
    assert (other["name"], other["guid"], other["state"]) == ("node-1", b.guid, "linked")
    link = other["link"]
    assert link["up"]
    assert link["since"] >= other["started"] > 0
    assert 0 < link["round_trip"] < PATIENCE
    assert (link["subscriptions"], link["services"]) == (1, 1)
    assert link["messages_out"] - before == 11
    assert link["bytes_out"] > 1000
    assert link["bytes_in"] > 0
    far = (await asked(there))["nodes"][1]["link"]
    assert far["messages_in"] >= 11
    assert (await asked(there))["interest"] == 0


async def test_the_bytes_that_one_end_of_a_link_has_sent_are_those_that_the_other_got(nodes):
    a, b = await nodes.several(2)
    there = await nodes.client(b)
    async with there.subscribe("wanted/" + "x" * 500, wait="cluster"):
        ends = [(one, one._hub.peers.members.members.linked[other.guid]) for one, other in ((a, b), (b, a))]

        def alike():
            here, far = (one._hub.engine.connection(conn) for one, conn in ends)
            return here["sent_bytes"] == far["received_bytes"] and far["sent_bytes"] == here["received_bytes"] > 500

        await until(alike)
    link = (await asked(there))["nodes"][1]["link"]
    assert link["bytes_out"] > 500, "also what is no message"


async def test_a_lost_node_and_a_server_that_was_never_there_are_named(nodes):
    place = {"servers": ["tcp://127.0.0.1:1"]}
    a, b = await nodes.several(2)
    bus = await nodes.client(a)
    assert (await asked(bus))["missing"] == []
    lonely = await nodes.stack.enter_async_context(busway.serve("tcp://127.0.0.1:0", cluster="alone", **place))
    other = await nodes.client(lonely)

    async def why():
        (found,) = (await asked(other))["missing"]
        assert (found["name"], found["addresses"]) == ("", ["tcp://127.0.0.1:1"])
        return (found["state"], found["why"]) == ("unreached", "tcp://127.0.0.1:1: Connection refused")

    await eventually(why)
    await b.stop()
    await until(lambda: not links(a))
    gone = (await asked(bus))["nodes"][1]
    assert (gone["guid"], gone["state"], gone["link"]["up"]) == (b.guid, "stopped", False)
    assert gone["link"]["since"] > 0
    c = await nodes.start(a)
    await nodes.whole(a, c)
    for session in list(c._hub.everyone):  # as if its host had lost power
        session.abort()
    c._close_listeners()
    await until(lambda: not links(a))
    lost = next(one for one in (await asked(bus))["nodes"] if one["guid"] == c.guid)
    assert (lost["state"], lost["link"]["up"]) == ("lost", False)
    assert lost["link"]["why"]


async def test_a_broker_in_no_cluster_says_so(nodes):
    server = await nodes.stack.enter_async_context(busway.serve("tcp://127.0.0.1:0"))
    bus = await nodes.client(server)
    assert await asked(bus) == {"cluster": None}
    assert (await bus.info())["cluster"] == ""


async def test_counters(nodes):
    a, b = await nodes.several(2)
    here, there = await nodes.client(a), await nodes.client(b)
    assert (await here.info())["cluster"] == "test"
    async with there.subscribe("t") as inbox:
        await knows(here, "t", 1)
        before = a.stats()["linked_delivered"]
        for _ in range(5):
            await here.publish("t", b"x")
        await here.publish("t", b"end")
        while (await inbox.recv(timeout=PATIENCE)).payload != b"end":
            pass
    sent = a.stats()
    assert sent["linked_delivered"] - before == 6
    assert (sent["nodes"], sent["links"], sent["nodes_refused"], sent["node_conflicts"]) == (2, 1, 0, 0)
    assert b.stats()["linked_received"] >= 6
    await b.stop()
    await until(lambda: not links(a))
    # What a link has carried is not forgotten with it.
    assert a.stats()["linked_delivered"] >= sent["linked_delivered"]
    assert (a.stats()["links"], a.stats()["nodes"]) == (0, 2)


async def test_what_happens_is_told_to_who_subscribes(nodes):
    a = await nodes.start()
    bus = await nodes.client(a)
    async with bus.subscribe("$bus/cluster/**") as events, bus.subscribe("$bus/cluster/down") as downs:
        b = await nodes.start(a)
        up = await happened(events, "up", guid=b.guid)
        assert up.fields == {"cluster": "test", "kind": "up", "node": b.name, "guid": b.guid}
        assert (up.sender, up.kind, up.kept) == (a.name, "publish", False)
        stranger = busway.serve("tcp://127.0.0.1:0", name="stranger", cluster="other", servers=list(a.addresses))
        await nodes.stack.enter_async_context(stranger)
        refused = await happened(events, "refused", node="stranger")
        assert "this is the cluster 'test'" in refused.text
        await b.stop()
        down = await happened(events, "down", guid=b.guid)
        assert down.text == "the broker stops"
        assert (await downs.recv(timeout=PATIENCE)).id == down.id


async def test_two_who_serve_one_topic_are_told(nodes):
    a, b = await nodes.start(), await nodes.start()
    one, two = await nodes.client(a), await nodes.client(b)
    async with (
        one.subscribe("$bus/cluster/conflict", where={"topic": "s"}) as events,
        one.serve("s", lambda _: b"1"),
        two.serve("s", lambda _: b"2"),
    ):
        await nodes.start(a, b)
        message = await happened(events, "conflict", topic="s")
        assert message.fields["guid"] == b.guid


async def test_events_are_for_those_alone_who_ask_by_name(nodes):
    """Wildcards of others don't reach them, and other nodes' clients don't get them."""
    a, b = await nodes.several(2)
    bus, far = await nodes.client(a), await nodes.client(b)
    async with (
        bus.subscribe("**") as everything,
        bus.subscribe("re:.*") as expression,
        bus.subscribe("$bus/cluster/up") as events,
        far.subscribe("$bus/cluster/up", where={"node": "nobody"}) as none,
    ):
        c = await nodes.start(a)
        await nodes.whole()
        await happened(events, "up", guid=c.guid)
        await settle(bus, far)
        assert (everything.pending, expression.pending, none.pending, events.pending) == (0, 0, 0, 0)


async def test_a_subscription_that_has_ended_gets_no_more(nodes):
    a = await nodes.start()
    bus = await nodes.client(a)
    async with bus.subscribe("$bus/cluster/*"):
        assert sum(map(len, a._hub.events._subscriptions.values())) == 1
    assert sum(map(len, a._hub.events._subscriptions.values())) == 0
    async with bus.subscribe("$bus/cluster/*"):
        await bus.close()
    await until(lambda: not a._hub.events._subscriptions)


@pytest.mark.parametrize("more", [{"group": "g"}, {"since": "all"}])
async def test_events_are_not_shared_and_not_stored(nodes, more):
    bus = await nodes.client(await nodes.start())
    with pytest.raises(busway.Forbidden, match="events of the broker"):
        await within(bus.subscribe("$bus/cluster/*", **more).__aenter__())


@pytest.mark.parametrize("topic", ["$bus/cluster/up", "$bus/cluster"])
async def test_nobody_else_tells_events(nodes, topic):
    bus = await nodes.client(await nodes.start())
    with pytest.raises(busway.Forbidden):
        await within(bus.publish(topic, b"", confirm=True))
    with pytest.raises(busway.Forbidden):
        await within(bus.subscribe("$bus/**").__aenter__())


async def test_how_far_a_mirror_is_behind(nodes, tmp_path):
    a = await nodes.start(data=tmp_path / "a")
    b = await nodes.start(a, place={"mirror_of": "node-0"}, data=tmp_path / "b")
    await nodes.whole()
    here, there = await nodes.client(a), await nodes.client(b)
    await here.publish("t", b"x", durable=True)

    async def copied():
        found = await asked(here)
        mirrors = found["mirroring"]["mirrors"]
        link = found["nodes"][1]["link"]
        return [one["guid"] for one in mirrors] == [b.guid] and link["mirror_behind"] == 0

    await eventually(copied)
    assert (await asked(there))["mirroring"]["mirror_of"]["guid"] == a.guid
    assert (await asked(there))["nodes"][1]["link"]["mirror_behind"] is None


async def test_what_happens_to_mirrors_is_told(nodes, tmp_path):
    a = await nodes.start(data=tmp_path / "a", place={"mirror_wait": 0.05})
    bus = await nodes.client(a)
    async with bus.subscribe("$bus/cluster/*") as events:
        b = await nodes.start(a, place={"mirror_of": "node-0"}, data=tmp_path / "b")
        came = await happened(events, "mirror", guid=b.guid, node="node-1")
        assert came.text == "node-1 is a mirror of this node"
        await bus.create_stream("safe", topics=["safe/**"], safety="mirrored")
        kept = await happened(events, "mirrored", stream="safe")
        assert kept.fields["cluster"] == "test"
        # What it can't copy is told by the node that is copied.
        mirroring = a._hub.peers.members.replication
        ((conn, origin),) = mirroring._primaries.items()
        mirroring._answered(conn, Trouble(origin.logs["safe"].number, "no space left"))
        trouble = await happened(events, "mirror_trouble", stream="safe", guid=b.guid)
        assert trouble.text == "node-1 can't copy the stream 'safe': no space left"
        await bus.publish("safe/1", b"alone", durable=True)
        await happened(events, "unmirrored", stream="safe")
        await b.stop()
        await happened(events, "mirror_gone", guid=b.guid)


async def test_who_reads_too_slowly_is_told_what_it_misses(nodes):
    a = await nodes.start(settings=busway.Settings(outbox=OUTBOX, stall=0.02))
    slow, publisher = await nodes.client(a), await nodes.client(a)
    async with (
        slow.subscribe("$bus/cluster/*") as events,
        slow.subscribe("t", policy="drop_new", limit_bytes=1 << 30),
    ):
        (conn,) = a._hub.events._subscriptions
        slow._core.connection.transport.pause_reading()
        async with asyncio.timeout(PATIENCE):
            while a._hub.engine.pending(conn) <= OUTBOX // 2:
                await publisher.publish("t", bytes(1 << 16), confirm=True)
        before = a.stats()["messages_dropped"]
        a._hub.peers.members.status.tell("up", "who cares", node="x", guid="y")
        a._hub.flush()
        assert a.stats()["messages_dropped"] == before + 1
        slow._core.connection.transport.resume_reading()
        await until(lambda: events.missed == 1)
        a._hub.peers.members.status.tell("up", "the next", node="x", guid="y")
        a._hub.flush()
        message = await events.recv(timeout=PATIENCE)
        assert (message.text, message.missed) == ("the next", 1)
