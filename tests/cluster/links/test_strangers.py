"""Connections to a node without the key of the cluster: refused, with a short log line."""

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack

import msgspec
import pytest

import busway
from busway.cluster.definitions import definitions
from busway.cluster.members.actions import Admit, Dial, Notice
from busway.cluster.members.discovery import addresses_of
from busway.cluster.members.membership import Membership
from busway.cluster.members.servers_file import listed
from busway.cluster.members.warnings import STRANGERS
from busway.cluster.node import Node, Sighting, Stranger, plain, read_node, read_sightings
from busway.cluster.replication import messages
from busway.cluster.retained import replica
from busway.cluster.streams import messages as streams_messages
from busway.errors import Code
from tests.support import wire
from tests.support.cluster import Cluster
from tests.support.net import until

FORGED = "x\nbusway: error: forged line\x1b[2J"


@pytest.fixture
async def cluster():
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


def introduction(number=1, **changes):
    node = {"guid": f"{number:032x}", "incarnation": number, "cluster": "test", "name": "evil", "addresses": []}
    return {**node, "nonce": bytes(16), **changes}


async def knock(server, node):
    """HELLO of somebody who says that it is this node."""
    host, _, port = server.addresses[0].removeprefix("tcp://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(wire.hello(7, "evil", node=node))
    return reader, writer


async def answered(server, node):
    """All that is said to it until the connection is closed."""
    reader, writer = await knock(server, node)
    async with asyncio.timeout(60):
        said = await reader.read()
    writer.close()
    return wire.split(said)[0]


@pytest.mark.parametrize(
    "changes",
    [{"name": FORGED}, {"cluster": FORGED}, {"addresses": [f"tcp://{FORGED}:1"]}, {"addresses": ["tcp://a\n:1"]}],
)
async def test_nothing_that_breaks_a_line_is_taken_for_a_name_or_an_address(cluster, caplog, changes):
    caplog.set_level(logging.DEBUG, "busway.cluster")
    server = await cluster.start()
    (close,) = await answered(server, introduction(**changes))
    assert close.kind == wire.CLOSE
    assert b"can't be printed" in close.rest
    assert server.stats()["nodes_refused"] == 0
    assert "forged line" not in caplog.text
    told = {name: value for name, value in introduction(**changes).items() if name != "nonce"}
    with pytest.raises(Stranger, match="can't be printed"):
        read_node(told)
    with pytest.raises(Stranger, match="can't be printed"):
        read_sightings(msgspec.msgpack.encode([{"node": told, "linked": True}]))


def test_what_can_be_printed_is_a_name():
    node = Node("a" * 32, 1, "Läden", "srv 1 – Zürich", ("tcp://srv1:7420",))
    assert read_node(msgspec.to_builtins(node)) == node
    assert read_sightings(msgspec.msgpack.encode([Sighting(node, linked=True)]))[0].node == node


@pytest.mark.parametrize(
    "more",
    [{"name": FORGED}, {"cluster": FORGED}, {"cluster": busway.Cluster(advertise=["tcp://a\n:1"])}],
)
def test_a_node_that_the_others_would_refuse_does_not_start(more):
    with pytest.raises(ValueError, match="can't be printed"):
        busway.serve("tcp://127.0.0.1:0", **{"cluster": "test", **more})


def test_the_words_of_another_side_stay_on_their_line():
    assert plain("no\r\n\x1b[2J\u2028yes") == "no\\r\\n\\x1b[2J\\u2028yes"
    assert plain("Läden") == "Läden"
    assert len(plain("x" * 100_000)) < 500


def test_an_announcement_with_an_address_that_cannot_be_printed_is_left_out():
    me = Node("a" * 32, 1, "test")
    said = {b"cluster": b"test", b"guid": b"b" * 32, b"address0": b"tcp://a\x1b[2J:1", b"address1": b"tcp://b:1"}
    assert addresses_of(said, me) == ["tcp://b:1"]


async def test_why_a_server_closes_is_told_on_one_line(cluster, caplog):
    async def close(_, writer):
        writer.write(wire.close(Code.CLUSTER, FORGED))
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        server = busway.serve("tcp://127.0.0.1:0", cluster="test")
        await cluster.stack.enter_async_context(server)
        async with server.connect() as bus, bus.subscribe("$bus/cluster/refused") as events:
            server._hub.peers.members.links._found(f"tcp://127.0.0.1:{port}")
            message = await events.recv(timeout=60)
    assert "x\\nbusway: error: forged line\\x1b[2J" in message.text
    assert message.text.isprintable()
    assert all("forged" not in line or "refused" in line for line in caplog.text.splitlines())


def notices(members):
    return [action for action in members.take() if isinstance(action, Notice)]


def test_of_strangers_a_few_are_told_and_how_many_more_there_were():
    me = Node("f" * 32, 1, "test")
    members = Membership(me, [], chance=lambda: 0.5)
    members.start(0.0)
    for number in range(1, 2001):
        members.greeted(number, Node(f"{number:032x}", number, "other"), 1.0)
    assert len(notices(members)) == STRANGERS
    assert members.due == 30.0, "which is for servers that are missing"
    members.tick(30.0)
    assert members.due == 61.0
    members.tick(60.9)
    assert not notices(members)
    members.tick(61.0)
    (rest,) = notices(members)
    assert (rest.kind, rest.guid, rest.name, rest.times) == ("refused", "", "", 2000 - STRANGERS)
    assert rest.text == f"{2000 - STRANGERS} more connections were refused in the last minute"
    assert members.due is None
    members.greeted(1, Node("e" * 32, 1, "other"), 62.0)
    assert len(notices(members)) == 1, "there is room again"


def test_whom_this_node_has_dialled_is_told_whatever_strangers_do():
    me = Node("f" * 32, 1, "test")
    members = Membership(me, listed("there:1"), chance=lambda: 0.5)
    members.start(0.0)
    (dial,) = (action for action in members.take() if isinstance(action, Dial))
    for number in range(1, 101):
        members.greeted(number, Node(f"{number:032x}", number, "other"), 1.0)
    members.take()
    members.greeted(1000, Node("a" * 32, 1, "other", "there"), 2.0, dial.attempt)
    assert [one.name for one in notices(members)] == ["there"]


async def test_many_strangers_make_few_lines_and_all_are_counted(cluster, caplog, monkeypatch):
    monkeypatch.setattr("busway.cluster.members.warnings.EVERY", 3600.0)
    server = await cluster.start()
    bus = await cluster.client(server)
    async with bus.subscribe("$bus/cluster/refused", where={"guid": ""}) as summaries:
        for number in range(1, 41):
            (close,) = await answered(server, introduction(number, cluster="other"))
            assert close.kind == wire.CLOSE
        assert caplog.text.count("is refused") == STRANGERS
        monkeypatch.setattr("busway.cluster.members.warnings.EVERY", 0.0)  # the time is over
        await answered(server, introduction(41, cluster="other"))
        told = await summaries.recv(timeout=60)
    assert told.text == f"{41 - STRANGERS} more connections were refused in the last minute"
    assert f"cluster test: {told.text}" in caplog.text
    assert server.stats()["nodes_refused"] == 41


async def test_who_has_not_proved_itself_in_the_time_of_the_handshake_is_closed(cluster):
    """Also if it is heard of all the time, so that it takes no client's place."""
    settings = busway.Settings(handshake=0.5, connections=3)
    server = await cluster.start(place={"key": "secret"}, settings=settings)
    strangers = [await knock(server, introduction(number)) for number in range(1, 4)]

    async def keep(reader, writer):
        """All that is said to it, while it says that it lives."""
        said = b""
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(wire.frame(wire.PING, bytes(8)))
                    if not (more := await reader.read(65536)):
                        break
                    said += more
        writer.close()
        return said

    for said in await asyncio.gather(*(keep(*one) for one in strangers)):
        kinds = [frame.kind for frame in wire.split(said)[0]]
        assert kinds[:2] == [wire.WELCOME, wire.NODE]
        assert b"no proof of the cluster's key within 0.5 s" in said
    await until(lambda: server.stats()["connections"] == 0)
    other = await cluster.start(server, place={"key": "secret"})
    await cluster.whole()
    async with server.connect(), other.connect():
        pass


async def test_a_link_outlives_the_time_of_the_handshake(cluster):
    settings = busway.Settings(handshake=0.5)
    server = await cluster.start(settings=settings)
    other = await cluster.start(server, settings=settings)
    await cluster.whole()
    linked = dict(server._hub.peers.members.members.linked)
    host, _, port = server.addresses[0].removeprefix("tcp://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))  # who says nothing, and came later
    async with asyncio.timeout(60):
        assert b"no HELLO within 0.5 s" in await reader.read()
    writer.close()
    assert server._hub.peers.members.members.linked == linked == {other.guid: linked[other.guid]}


@pytest.mark.parametrize("holds", [0.0, 5.0])
def test_who_comes_under_the_guid_of_a_node_does_not_keep_that_from_being_dialled(holds):
    """Whether it shows a wrong proof each time, or says nothing for as long as it may."""
    members = Membership(Node("a" * 32, 1, "test"), listed("there:1"), chance=lambda: 0.5)
    members.start(0.0)
    (dial,) = (action for action in members.take() if isinstance(action, Dial))
    node = Node("b" * 32, 1, "test", "there", ("tcp://there:1",))
    members.greeted(1, node, 0.0, dial.attempt)
    members.proved(1, 0.0)
    members.lost(1, 10.0)
    dialled, conn, came, now = [], 1, 0.0, 10.0
    for _ in range(600):
        now += 0.1
        if now >= came + holds:
            members.lost(conn, now, "the key of the cluster is another one", Code.UNAUTHORIZED)
            conn, came = conn + 1, now
            members.greeted(conn, Node("b" * 32, conn, "test"), now)
        members.tick(now)
        for action in members.take():
            if isinstance(action, Dial):
                dialled.append(now)
                members.failed(action.attempt, now, "nobody is there")
    assert len(dialled) >= 12, "each five seconds at least"


def test_whom_this_node_has_dialled_goes_before_all_who_came_under_its_guid():
    members = Membership(Node("a" * 32, 1, "test"), listed("there:1"), chance=lambda: 0.5, probe=2.0)
    members.start(0.0)
    (dial,) = (action for action in members.take() if isinstance(action, Dial))
    for number in range(1, 6):
        members.greeted(number, Node("b" * 32, number, "test"), 0.0)
    members.greeted(10, Node("b" * 32, 10, "test"), 0.0, dial.attempt)
    members.take()
    members.tick(2.0)
    assert [action.conn for action in members.take() if isinstance(action, Admit)] == [10]


DEEP = b"\x91" * 100_000 + b"\xc0"
"""MessagePack: lists in lists."""


@pytest.mark.parametrize(
    ("read", "packed"),
    [
        (messages.read, b"\x92\x0e" + DEEP),
        (streams_messages.FIND.read, b"\x95\xa1g\xa1n\xa1k\x00" + DEEP),
        (streams_messages.FIND.read_answer, b"\x93\x00\xa0" + DEEP),
        (definitions.DEFINE.read, b"\x91\x94\xa1s\x01\xa1g" + DEEP),
        (replica.WORDS.read, b"\x91\x92\x01" + DEEP),
        (read_sightings, b"\x91\x81\xa1x" + DEEP),
    ],
)
def test_what_is_nested_too_deep_is_no_word_of_a_node(read, packed):
    """What a version to come may add is left out; but it has to be looked through."""
    with pytest.raises(Stranger):
        read(packed)


async def test_who_comes_with_something_that_is_nested_too_deep_is_refused(cluster, caplog):
    """Before it has shown that it has the key, if there is one."""
    server = await cluster.start()
    host, _, port = server.addresses[0].removeprefix("tcp://").partition(":")
    said = wire.hello(7, "evil", more=0)
    assert said.endswith(b"\xa4more\x00")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = said[4:-1] + DEEP
    writer.write(len(content).to_bytes(4, "little") + content)
    async with asyncio.timeout(60):
        frames = wire.split(await reader.read())[0]
    writer.close()
    assert frames
    assert not [record for record in caplog.records if record.exc_info]
    async with server.connect() as bus:
        await bus.request("$bus/info", b"{}")
