"""Clients of a cluster on real sockets: they learn the nodes, and connect to another one when their server is lost."""

import asyncio
import logging
import sys
from contextlib import AsyncExitStack

import pytest

import busway
from busway.broker.session import Session
from busway.cluster.mesh import Mesh
from tests.support.cluster import FAST, Cluster, knows, links
from tests.support.net import PATIENCE, Certificates, eventually, until, within
from tests.support.relay import Relay

QUICK = {"reconnect": (0, 0.02, 0.05), "timeout": 10}


@pytest.fixture
async def nodes():
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


@pytest.fixture
def certificates(tmp_path):
    return Certificates.make(tmp_path)


async def taken(inbox, last):
    """What came up to the last one, without the questions whether somebody is there."""
    got = []
    async with asyncio.timeout(PATIENCE):
        while (message := await inbox.recv()).payload != last:
            if message.payload != b"?":
                got.append(message.payload)
    return got


def names(bus):
    return [one.name for one in bus.servers]


async def test_a_client_is_told_of_all_servers_its_own_first(nodes):
    a, b, c = await nodes.several(3)
    for server in (a, b, c):
        bus = await nodes.client(server)
        assert names(bus)[0] == server.name
        assert sorted(names(bus)) == ["node-0", "node-1", "node-2"]
        assert {one.name: one.addresses for one in bus.servers} == {one.name: one.addresses for one in (a, b, c)}


async def test_a_client_is_told_when_a_server_comes_and_when_it_stops(nodes):
    a, _b = await nodes.several(2)
    bus = await nodes.client(a)
    events = bus.events()
    c = await nodes.start(a)
    while "node-2" not in names(bus):
        event = await within(anext(events))
        assert (event.kind, event.count) == ("servers", len(bus.servers))
    await c.stop()
    while "node-2" in names(bus):
        assert (await within(anext(events))).kind == "servers"
    assert sorted(names(bus)) == ["node-0", "node-1"]


async def test_a_server_alone_tells_of_nobody(nodes):
    bus = await nodes.client(await nodes.start())
    assert bus.servers == ()


async def test_a_server_that_was_lost_without_a_word_may_still_be_there_for_clients(nodes):
    """Two nodes that do not see each other may both be seen by a client."""
    a, b = await nodes.several(2)
    bus = await nodes.client(a)
    for session in list(a._hub.everyone):
        if session.node:
            session.abort()
    await until(lambda: b.guid not in links(a))
    assert [one[0] for one in a._hub.server_list.listing()] == ["node-0", "node-1"]
    assert sorted(names(bus)) == ["node-0", "node-1"]


async def test_everything_goes_on_at_another_server(nodes):
    """Subscriptions, services, posts, pins, what waits for a connection, and who was given only the address of the first."""
    a, b, c = await nodes.several(3)
    other = await nodes.client(c, name="other")
    moving = await nodes.client(a, name="moving", offline=busway.Buffer(), **QUICK)
    enter = nodes.stack.enter_async_context
    inbox = await enter(moving.subscribe("news"))
    grouped = await enter(moving.subscribe("jobs", group="workers"))
    await enter(moving.serve("sum", lambda message: b"sum of " + message.payload))
    await moving.post("proc/moving", b"up")
    await moving.pin("config/moving", b"{}")
    there = [await nodes.client(one) for one in (b, c)]
    near = [await enter(one.subscribe("late")) for one in there]
    for one in there:
        await knows(one, "late", 2)
    events = moving.events()
    stopping = asyncio.ensure_future(a.stop())
    while (event := await within(anext(events))).kind != "resumed":
        if event.kind == "lost":
            await moving.publish("late", b"waited")
    assert moving.url in (*b.addresses, *c.addresses)
    await stopping
    for late in near:
        await taken(late, b"waited")
    await knows(other, "news", 1)
    await other.publish("news", b"end")
    await taken(inbox, b"end")
    await knows(other, "jobs", 1)
    assert (await grouped.recv(timeout=60)).payload == b"?"

    async def answered():
        try:
            return (await other.request("sum", b"1")).payload == b"sum of 1"
        except busway.NoResponders:
            return False

    await eventually(answered)

    async def kept():
        return {message.topic for message in await other.kept("**")} >= {"proc/moving", "config/moving"}

    await eventually(kept)


async def test_a_client_that_shall_not_learn_waits_for_its_own_server(nodes):
    a, b = await nodes.several(2)
    stays = await nodes.client(a, learn=False, **QUICK)
    goes = await nodes.client(a, **QUICK)
    assert (stays.servers, len(goes.servers)) == ((), 2)
    events, moved = stays.events(), goes.events()
    await a.stop()
    while (await within(anext(moved))).kind != "resumed":
        pass
    assert goes.url == b.addresses[0]
    again = await nodes.stack.enter_async_context(busway.serve(a.addresses[0]))
    while (await within(anext(events))).kind != "resumed":
        pass
    assert stays.server["guid"] == again.guid


async def test_the_clients_of_a_server_that_stops_spread_over_the_others(nodes):
    a, b, c = await nodes.several(3)
    clients = [await nodes.client(a, **QUICK) for _ in range(24)]
    await a.stop()
    await until(lambda: all(bus.state == "connected" and bus.url not in a.addresses for bus in clients))
    homes = {bus.url for bus in clients}
    assert homes == {b.addresses[0], c.addresses[0]}


async def test_over_tls_only_tls_is_learnt_and_the_rest_is_told(certificates, caplog):
    given = busway.TLS(cert=certificates.server, key=certificates.server_key, ca=None)
    client = busway.TLS(ca=certificates.ca)
    async with AsyncExitStack() as stack:
        servers = []
        for _ in range(2):
            known = [one.addresses[0] for one in servers[:1]]
            place = busway.Cluster(name="safe", servers=known, tls=client)
            server = busway.serve(
                "tls://127.0.0.1:0", "tcp://127.0.0.1:0", name=f"n{len(servers)}", cluster=place, tls=given
            )
            servers.append(await stack.enter_async_context(server))
        a, b = servers
        await until(lambda: links(a) and links(b))
        with caplog.at_level(logging.WARNING, "busway.client"):
            bus = await stack.enter_async_context(busway.connect(a.addresses[0], tls=client, **QUICK))
        assert {one.addresses for one in bus.servers} == {a.addresses[:1], b.addresses[:1]}
        assert f"{b.addresses[1]} from the broker is not encrypted" in caplog.text
        await a.stop()
        await until(lambda: bus.state == "connected" and bus.url == b.addresses[0])


async def test_a_learnt_server_must_prove_itself_as_any_other(certificates, tmp_path):
    """Here its certificate is of an authority that the client does not know: the client waits for its own server."""
    (tmp_path / "other").mkdir()
    stranger = Certificates.make(tmp_path / "other")
    client = busway.TLS(ca=certificates.ca)
    good = busway.TLS(cert=certificates.server, key=certificates.server_key)
    bad = busway.TLS(cert=stranger.server, key=stranger.server_key)
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(busway.serve("tls://127.0.0.1:0", cluster="safe", tls=good))
        place = busway.Cluster(name="safe", servers=list(a.addresses), tls=client)
        b = await stack.enter_async_context(busway.serve("tls://127.0.0.1:0", cluster=place, tls=bad))
        await until(lambda: links(a) and links(b))
        bus = await stack.enter_async_context(busway.connect(a.addresses[0], tls=client, **QUICK))
        assert {one.addresses for one in bus.servers} == {a.addresses, b.addresses}
        events = bus.events()
        await a.stop()
        while (await within(anext(events))).kind != "lost":
            pass
        a = await stack.enter_async_context(busway.serve(a.addresses[0], tls=good))
        await until(lambda: bus.state == "connected")
        assert bus.server["guid"] == a.guid


async def test_behind_a_balancer_a_client_comes_back_through_it(nodes):
    """The addresses that the nodes tell are out of the client's reach."""
    out = {"place": {"advertise": ["tcp://127.0.0.1:1"]}}
    a = await nodes.start(**out)
    b = await nodes.start(a, **out)
    await nodes.whole()
    port = {one: int(one.addresses[0].rpartition(":")[2]) for one in (a, b)}
    async with Relay(port[a]) as balancer:
        async with busway.connect(f"tcp://127.0.0.1:{balancer.port}", **QUICK) as bus:
            assert bus.server["guid"] == a.guid
            balancer.target = port[b]
            await a.stop()
            await until(lambda: bus.state == "connected" and bus.server["guid"] == b.guid)
            assert bus.url == f"tcp://127.0.0.1:{balancer.port}"


PROGRAM = """
import asyncio, sys, busway

async def main():
    name, *known = sys.argv[1:]
    servers = [busway.cluster.members.servers_file.Listed(one, reconnect=(0.05,)) for one in known]
    place = busway.Cluster(name="killed", servers=servers)
    async with busway.serve("tcp://127.0.0.1:0", name=name, cluster=place) as server:
        print(server.addresses[0], flush=True)
        await server.serve_forever()

asyncio.run(main())
"""


async def process(stack, name, *known):
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, name, *known, stdout=asyncio.subprocess.PIPE
    )

    async def end():
        if child.returncode is None:
            child.kill()
        await child.wait()

    stack.push_async_callback(end)
    return child, (await within(child.stdout.readline())).decode().strip()


async def test_a_server_that_is_killed_is_left_by_all_its_clients_by_themselves():
    async with AsyncExitStack() as stack:
        first, address = await process(stack, "first")
        _, second = await process(stack, "second", address)
        _, third = await process(stack, "third", address)
        watcher = await stack.enter_async_context(busway.connect(third, **QUICK))
        clients = [
            await stack.enter_async_context(busway.connect(address, name=f"c{one}", **QUICK)) for one in range(8)
        ]
        await until(lambda: all(len(bus.servers) == 3 for bus in (*clients, watcher)))
        inboxes = [await stack.enter_async_context(bus.subscribe("t")) for bus in clients]
        await stack.enter_async_context(clients[0].serve("who", lambda _: b"c0"))
        await clients[1].post("proc/c1", b"up")
        first.kill()
        await until(lambda: all(bus.state == "connected" and bus.url in {second, third} for bus in clients))
        sent = clients[2]

        async def all_there():
            near = sum(bus.url == sent.url for bus in clients)
            return await sent.publish("t", b"?", confirm=True) == near + (near < len(clients))

        await eventually(all_there)
        await sent.publish("t", b"end")
        for inbox in inboxes:
            await taken(inbox, b"end")

        async def served():
            try:
                return (await watcher.request("who")).payload == b"c0"
            except busway.NoResponders:
                return False

        await eventually(served)

        async def posted():
            return [message.topic for message in await watcher.kept("proc/*")] == ["proc/c1"]

        await eventually(posted)


async def test_a_rolling_restart_ends_nobody(nodes):
    """Each node is stopped and started anew in turn, while clients publish and subscribe; they only move."""
    servers = await nodes.several(3)
    addresses = [one.addresses[0] for one in servers]
    clients = [await nodes.client(one, offline=busway.Buffer(), **QUICK) for one in servers for _ in range(2)]
    trouble = []

    async def watch(bus):
        trouble.extend([event async for event in bus.events() if event.kind in {"error", "rejected", "closed"}])

    watching = [asyncio.ensure_future(watch(bus)) for bus in clients]
    inboxes = [await nodes.stack.enter_async_context(bus.subscribe("tick/*")) for bus in clients]
    sent, going = 0, True

    async def publish(bus, topic):
        nonlocal sent
        while going:
            await bus.publish(topic, b"x")
            sent += 1
            await asyncio.sleep(0.001)

    publishing = [asyncio.ensure_future(publish(bus, f"tick/{n}")) for n, bus in enumerate(clients)]
    for number, address in enumerate(addresses):
        await servers[number].stop()
        others = [one for place, one in enumerate(servers) if place != number]
        place = busway.Cluster(
            name="test",
            servers=[busway.cluster.members.servers_file.Listed(one.addresses[0], reconnect=FAST) for one in others],
        )
        again = busway.serve(address, name=f"node-{number}", cluster=place)
        servers[number] = await nodes.stack.enter_async_context(again)
        await nodes.whole(*servers)
        await until(lambda: all(bus.state == "connected" for bus in clients))
    going = False
    await within(asyncio.gather(*publishing))
    assert trouble == []

    async def known():
        homes = {bus.url for bus in clients}
        near = sum(bus.url == clients[0].url for bus in clients)
        return await clients[0].publish("tick/end", b"?", confirm=True) == near + len(homes) - 1

    await eventually(known)
    await clients[0].publish("tick/end", b"end")
    for inbox in inboxes:
        await taken(inbox, b"end")
    assert trouble == []
    for one in watching:
        one.cancel()
    await asyncio.gather(*watching, return_exceptions=True)


async def test_what_clients_sent_before_they_left_still_crosses(nodes):
    """A server that stops keeps its links until its clients are gone: nothing that it has taken is lost on the way."""
    a, b = await nodes.several(2)
    feed = await nodes.client(a, **QUICK)
    reader = await nodes.client(b)
    async with reader.subscribe("t", limit=100_000) as inbox:
        await knows(feed, "t", 1)
        for number in range(20_000):
            await feed.publish("t", str(number).encode())
        await feed.publish("t", b"last")
        await feed.flush()
        await a.stop()
        got = await taken(inbox, b"last")
    assert [int(one) for one in got] == list(range(20_000))


async def test_links_end_after_the_clients_are_gone(nodes, monkeypatch):
    a, b = await nodes.several(2)
    for _ in range(5):
        await nodes.client(a, **QUICK)
    said, close = [], Session.close

    def watched(self, code, text):
        left = sum(not one.node for one in a._hub.everyone)
        said.append((self.node, left))
        close(self, code, text)

    monkeypatch.setattr(Session, "close", watched)
    await a.stop()
    assert [node for node, _ in said] == [False] * 5 + [True]
    assert said[-1] == (True, 0)
    assert links(b) == set()


async def test_a_server_stops_although_others_go_on_sending_to_its_clients(nodes):
    a, b = await nodes.several(2)
    reader, feed = await nodes.client(a, **QUICK), await nodes.client(b)
    inbox = await nodes.stack.enter_async_context(reader.subscribe("t", policy="drop_oldest", limit=100))
    await knows(feed, "t", 1)
    going = True

    async def publish():
        while going:
            await feed.publish("t", b"x")
            await asyncio.sleep(0)

    publishing = asyncio.ensure_future(publish())
    try:
        async with asyncio.timeout(PATIENCE):
            await a.stop(drain=10 * PATIENCE)
        await until(lambda: reader.state == "connected" and reader.url == b.addresses[0])
        await within(inbox.recv())
    finally:
        going = False
        await within(publishing)


async def test_who_is_sent_elsewhere_is_told_that_it_may_have_missed_something(nodes, tmp_path):
    """Plain messages are for those who are there; who moves is told that it was not, and for how long."""
    a = await nodes.start(data=tmp_path / "a")
    b = await nodes.start(a, data=tmp_path / "b")
    await nodes.whole()
    reader, feed = await nodes.client(a, reconnect=(0.2,)), await nodes.client(b)
    plain = await nodes.stack.enter_async_context(reader.subscribe("t"))
    stored = await nodes.stack.enter_async_context(reader.subscribe("t", since="all"))
    await knows(feed, "t", 1)
    events = reader.events()
    await a.stop()
    await until(lambda: reader.state == "lost")
    await feed.publish("t", b"for those who are there")
    await feed.publish("t", b"for all", durable=True)
    while (event := await within(anext(events))).kind != "resumed":
        pass
    assert event.count == 1, "the other one goes on where it was"
    assert event.downtime > 0
    assert (plain.interrupted, stored.interrupted) == (1, 1)
    await taken(stored, b"for all")
    await feed.publish("t", b"end")
    assert b"for those who are there" not in await taken(plain, b"end")


async def test_who_was_told_something_else_at_its_welcome_is_told_again(nodes):
    """What is told to all is gathered for a moment; who came meanwhile knows more, and must hear if that was wrong."""
    a = await nodes.start()
    directory = a._hub.server_list
    listing = directory.listing
    directory.listing = lambda: [["node-0", *a.addresses], ["seen for a moment", "tcp://127.0.0.1:1"]]
    bus = await nodes.client(a)
    directory.listing = listing
    assert len(bus.servers) == 2
    directory.changed()
    await until(lambda: bus.servers == ())


async def test_a_node_that_does_not_listen_everywhere_yet_answers_its_first_clients(nodes, monkeypatch):
    said, start = [], Mesh.start

    def watched(self, addresses):
        said.append((self.servers(), self.stats(), self._hub.server_list.welcome()))
        start(self, addresses)

    monkeypatch.setattr(Mesh, "start", watched)
    await nodes.start()
    assert said == [([["node-0"]], {}, [])]


async def test_a_node_lets_go_of_copies_when_its_links_have_ended(nodes, monkeypatch):
    """Until then it is the mirror that others wait for."""
    a, _b = await nodes.several(2)
    left, end = [], Mesh.end

    async def watched(self):
        if self is a._hub.peers.members:
            left.append((len(a._hub.everyone), self.links.stopped))
        await end(self)

    monkeypatch.setattr(Mesh, "end", watched)
    await a.stop()
    assert left == [(0, True)]
