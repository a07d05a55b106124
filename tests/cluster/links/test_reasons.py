"""The reason why a server of the list is not linked is stored and reported."""

import asyncio
from contextlib import AsyncExitStack

import pytest

import busway
from busway.cluster.members.actions import Dial, Missing, Notice
from busway.cluster.members.membership import MISSED, Membership
from busway.cluster.members.servers_file import listed
from busway.cluster.node import Node
from busway.errors import Code
from tests.support.cluster import Cluster, why
from tests.support.net import until

ME, OTHER = (Node(guid * 32, 1, "test", name) for guid, name in (("1", "me"), ("2", "other")))


@pytest.fixture
async def cluster():
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


def dialled(*servers):
    """A membership that has dialled these, with the attempts."""
    members = Membership(ME, listed(servers), chance=lambda: 0.5)
    members.start(0.0)
    return members, [action.attempt for action in members.take() if isinstance(action, Dial)]


def missed(members):
    """What is told when the time to come is over."""
    members.tick(MISSED)
    return {one.address: one.text for one in members.take() if isinstance(one, Notice) and one.kind == "missing"}


def test_why_nobody_was_reached():
    members, (first, second) = dialled("a:1", "b:1")
    members.failed(first, 1.0, "a has no address")
    members.failed(second, 1.0, "tcp://b:1: no answer")
    assert members.missing == [
        Missing("", ("tcp://a:1",), "a has no address", refused=False),
        Missing("", ("tcp://b:1",), "tcp://b:1: no answer", refused=False),
    ]
    told = missed(members)
    assert "not linked after 30 s: a has no address; this node keeps dialling" in told["tcp://a:1"]
    assert told.keys() == {"tcp://a:1", "tcp://b:1"}
    assert "not linked after 30 s: no answer; this node keeps dialling" in told["tcp://b:1"], (
        "whose address is told beside it"
    )


@pytest.mark.parametrize("code", [Code.CLUSTER, Code.UNAUTHORIZED, Code.DUPLICATE_NODE])
def test_who_says_no_is_there(code):
    members, (attempt,) = dialled("a:1")
    members.failed(attempt, 1.0, "go away", code)
    (told,) = [one for one in members.take() if isinstance(one, Notice)]
    assert (told.guid, told.address, told.text) == ("", "tcp://a:1", "go away")
    assert members.missing == [Missing("", ("tcp://a:1",), "go away", refused=True)]
    assert missed(members) == {}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (Node("2" * 32, 1, "blue", "other"), "other (22222222) is of another cluster, 'blue'"),
        (Node("1" * 32, 2, "test", "copy"), f"two nodes have the guid {'1' * 32}: a copied data folder?"),
    ],
)
def test_whom_this_side_refuses_is_there(node, why):
    members, (attempt,) = dialled("a:1")
    members.greeted(7, node, 1.0, attempt)
    assert members.missing == [Missing("", ("tcp://a:1",), why, refused=True)]
    assert missed(members) == {}


def test_a_key_that_is_another_one():
    members, (attempt,) = dialled("a:1")
    members.greeted(7, OTHER, 1.0, attempt)
    members.lost(7, 1.1, "the key is another one", Code.UNAUTHORIZED)
    assert members.missing == [Missing("", ("tcp://a:1",), "the key is another one", refused=True)]
    assert missed(members) == {}


def test_a_link_that_comes_after_all_and_one_that_ends():
    members, (attempt,) = dialled("a:1")
    members.failed(attempt, 1.0, "no answer")
    members.tick(2.0)
    (attempt,) = [action.attempt for action in members.take() if isinstance(action, Dial)]
    members.greeted(7, OTHER, 2.0, attempt)
    members.proved(7, 2.1)
    assert (members.missing, members.why(OTHER.guid)) == ([], "")
    members.lost(7, 3.0, "nothing heard for 5 s")
    assert members.why(OTHER.guid) == "nothing heard for 5 s"


def test_a_stranger_that_says_it_is_that_node_gives_no_reason():
    members, (attempt,) = dialled("a:1")
    members.greeted(7, OTHER, 1.0, attempt)
    members.lost(7, 1.1, "the connection was lost")
    members.greeted(8, OTHER, 1.2)
    members.lost(8, 1.3, "a lie", Code.UNAUTHORIZED)
    assert members.missing[0].why == "the connection was lost"


async def test_servers_of_the_list_that_refuse(cluster):
    first = await cluster.start(place={"key": "secret"})
    other = await cluster.start(cluster="other")
    alone = await cluster.stack.enter_async_context(busway.serve("tcp://127.0.0.1:0"))
    wrong = await cluster.start(first, other, alone, place={"key": "wrong"})
    expected = {
        first: "the two nodes have different cluster keys",
        other: "this is the cluster 'other'",
        alone: "this broker is in no cluster",
    }
    for server, text in expected.items():
        await until(lambda address=server.addresses[0], text=text: why(wrong, address) == ("refused", text))
    async with wrong.connect() as bus:
        found = (await bus.request("$bus/cluster")).json()["missing"]
        assert [one["state"] for one in found] == ["refused"] * 3
        assert [one["addresses"] for one in found] == [list(one.addresses) for one in (first, other, alone)]
        assert found[2]["why"] == "this broker is in no cluster"


@pytest.mark.parametrize("dialler", ["with", "without"])
async def test_a_node_without_a_key_is_told_that_it_has_none(cluster, dialler):
    first = await cluster.start(place={"key": "secret"} if dialler == "without" else {})
    second = await cluster.start(first, place={"key": "secret"} if dialler == "with" else {})
    has, lacks = (first, second) if dialler == "without" else (second, first)
    text = f"{has.name} ({has.guid[:8]}) has a key of the cluster, and {lacks.name} ({lacks.guid[:8]}) has none"
    await until(lambda: why(second, first.addresses[0]) == ("refused", text))


async def test_a_server_that_says_nothing(cluster):
    async def listen(reader, writer):
        await reader.read()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as silent:
        address = f"tcp://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        place = busway.Cluster(name="test", servers=[address])
        settings = busway.Settings(handshake=0.5)
        node = busway.serve("tcp://127.0.0.1:0", cluster=place, settings=settings)
        await cluster.stack.enter_async_context(node)
        await until(lambda: why(node, address) == ("unreached", "no WELCOME within 0.5 s"))
        await node.stop()


async def test_a_server_that_is_something_else(cluster):
    async def talk(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as web:
        address = f"tcp://127.0.0.1:{web.sockets[0].getsockname()[1]}"
        node = busway.serve("tcp://127.0.0.1:0", cluster=busway.Cluster(name="test", servers=[address]))
        await cluster.stack.enter_async_context(node)
        await until(lambda: "no broker answers at this address, check the port" in why(node, address)[1])
        await node.stop()
