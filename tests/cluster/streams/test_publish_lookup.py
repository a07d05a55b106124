"""A publisher that comes to another node with publishes that were not answered: what is stored already is not stored again."""

import asyncio
import json
from contextlib import contextmanager

import msgspec
import pytest

import busway
from busway.client.durable import recovery
from busway.cluster.node import Stranger
from busway.cluster.streams import publish_lookup
from busway.cluster.streams.messages import LOOK_UP, Place
from busway.errors import Disconnected
from busway.settings import Identity
from tests.support.cluster import Cluster
from tests.support.mirrored import Mirrored, copied
from tests.support.net import eventually, until, within


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Who is there has all the time it needs, on a busy machine, too."""
    monkeypatch.setattr(recovery, "_MAX_WITHIN", 20.0)
    monkeypatch.setattr(publish_lookup, "PATIENCE", 20.0)


@contextmanager
def deaf(bus):
    """It hears nothing of its server, and loses it in the end, though the connection stays: as behind a cut cable."""
    connection = bus._core.connection
    connection.transport.pause_reading()
    yield connection
    connection.transport.abort()


def cut(bus, connection, other):
    """It gives its server up, and reaches only this one from now on."""
    bus._life.directory.order = lambda *_, **__: [other.addresses[0]]
    connection.over = True
    connection._timer.cancel()
    bus._core.lost(connection, Disconnected("cut"))


def begun(bus, count, topic="t"):
    """Publishes that are on their way."""
    return [asyncio.ensure_future(bus.publish(topic, str(number), durable=True)) for number in range(count)]


def stored(*servers):
    return [server._hub.streams.by_name["default"].log.next for server in servers]


def calls_of(server):
    return [link.last for link in server._hub.peers.members._calls._links.values()]


async def test_what_the_other_node_has_stored_keeps_its_place(cluster: Cluster):
    a, b = await cluster.several(2)
    bus = await cluster.client(a, timeout=60.0)
    await bus.publish("t", "first", durable=True)
    with deaf(bus) as connection:
        answers = begun(bus, 10)
        await until(lambda: stored(a) == [11])
        cut(bus, connection, b)
        places = await within(asyncio.gather(*answers))
    assert [(one.broker, one.offset, one.sequence) for one in places] == [(a.guid, 1 + n, 2 + n) for n in range(10)]
    assert stored(a, b) == [11, 0]
    after = await bus.publish("t", "after", durable=True)
    assert (after.broker, b.stats()["doubtful"]) == (b.guid, 0)


async def test_what_it_has_not_stored_is_stored_here_in_order(cluster: Cluster):
    """Some got there and some did not: the node reads no more of a client that is elsewhere, so none is stored at both."""
    a, b = await cluster.several(2)
    bus = await cluster.client(a, timeout=60.0)
    with deaf(bus) as connection:
        answers = begun(bus, 5)
        await until(lambda: stored(a) == [5])
        (session,) = [one for one in a._hub.sessions.values() if not one.node]
        session.pause()  # what follows lies in its socket
        answers += begun(bus, 5)
        await asyncio.sleep(0)
        cut(bus, connection, b)
        places = await within(asyncio.gather(*answers))
        await until(lambda: session.conn < 0)
    assert [one.broker for one in places] == [a.guid] * 5 + [b.guid] * 5
    assert [one.offset for one in places] == [0, 1, 2, 3, 4] * 2
    assert stored(a, b) == [5, 5]


async def test_many_at_once_and_more_than_one_question(cluster: Cluster):
    a, b = await cluster.several(2)
    bus = await cluster.client(a, timeout=60.0)
    with deaf(bus) as connection:
        many = asyncio.ensure_future(bus.publish_many("t", [str(number) for number in range(3000)], durable=True))
        await until(lambda: stored(a) == [3000])
        cut(bus, connection, b)
        places = await within(many)
    assert [one.offset for one in places] == list(range(3000))
    assert {one.broker for one in places} == {a.guid}
    assert stored(a, b) == [3000, 0]


async def test_the_mirror_of_a_node_that_is_gone_is_asked(nodes: Mirrored):
    a, b = await nodes.pair()
    c = await nodes.node("c")
    await nodes.whole(a, b, c)
    bus = await nodes.client(a, timeout=60.0)
    with deaf(bus) as connection:
        answers = begun(bus, 20)
        await copied(a, b, 20)
        await a.stop()
        cut(bus, connection, c)
        places = await within(asyncio.gather(*answers))
    assert [(one.broker, one.offset) for one in places] == [(a.guid, number) for number in range(20)]
    assert stored(c) == [0]
    assert c.stats()["doubtful"] == 0


async def test_the_mirror_itself_knows_it(nodes: Mirrored):
    a, b = await nodes.pair()
    bus = await nodes.client(a, timeout=60.0)
    with deaf(bus) as connection:
        answers = begun(bus, 20)
        await copied(a, b, 20)
        await a.stop()
        cut(bus, connection, b)
        places = await within(asyncio.gather(*answers))
    assert {one.broker for one in places} == {a.guid}
    assert stored(b) == [0]


async def test_what_only_a_mirror_can_tell_of_and_does_not_have_is_stored_again_and_told(nodes: Mirrored):
    """The node may have stored it before it was gone. What the mirror has keeps its place, in later questions, too."""
    a, b = await nodes.pair()
    c = await nodes.node("c")
    await nodes.whole(a, b, c)
    bus = await nodes.client(a, timeout=60.0)
    events = bus.events()
    with deaf(bus) as connection:
        (session,) = [one for one in a._hub.sessions.values() if not one.node]
        early = asyncio.ensure_future(bus.publish_many("t", [str(number) for number in range(1500)], durable=True))
        await copied(a, b, 1500)
        session.pause()  # what follows lies in its socket
        late = begun(bus, 5)
        await asyncio.sleep(0)
        await a.stop()
        cut(bus, connection, c)
        places = await within(early)
        others = await within(asyncio.gather(*late))
    assert [(one.broker, one.offset) for one in places] == [(a.guid, number) for number in range(1500)]
    assert {one.broker for one in others} == {c.guid}
    assert (stored(c), c.stats()["doubtful"]) == ([5], 5)
    async with asyncio.timeout(60):
        while (event := await anext(events)).kind != "doubtful":
            pass
    assert event.count == 5


async def test_what_nobody_can_tell_is_stored_again_and_told(cluster: Cluster):
    a, b = await cluster.several(2)
    bus = await cluster.client(a, timeout=60.0)
    events = bus.events()
    with deaf(bus) as connection:
        answers = begun(bus, 3)
        await until(lambda: stored(a) == [3])
        await a.stop()
        cut(bus, connection, b)
        places = await within(asyncio.gather(*answers))
    assert {one.broker for one in places} == {b.guid}
    assert b.stats()["doubtful"] == 3
    async with asyncio.timeout(60):
        while (event := await anext(events)).kind != "doubtful":
            pass
    assert event.count == 3


async def test_a_node_that_says_nothing_is_not_waited_for_for_ever(cluster: Cluster, monkeypatch):
    """And not for longer than a connection may take, or there would never be one."""
    a, b = await cluster.several(2)
    bus = await cluster.client(a, timeout=0.5)
    monkeypatch.setattr(a._hub.peers.members._lookup, "_look", lambda _: None)
    with deaf(bus) as connection:
        answers = begun(bus, 3)
        await until(lambda: stored(a) == [3])
        cut(bus, connection, b)
        places = await within(asyncio.gather(*answers))
    assert {one.broker for one in places} == {b.guid}
    assert b.stats()["doubtful"] == 3


async def test_its_mirror_is_heard_though_the_node_says_nothing(nodes: Mirrored, monkeypatch):
    a, b = await nodes.pair()
    c = await nodes.node("c")
    await nodes.whole(a, b, c)
    bus = await nodes.client(a, timeout=12.0)
    monkeypatch.setattr(a._hub.peers.members._lookup, "_look", lambda _: None)
    with deaf(bus) as connection:
        answers = begun(bus, 3)
        await copied(a, b, 3)
        cut(bus, connection, c)
        places = await within(asyncio.gather(*answers))
    assert {one.broker for one in places} == {a.guid}
    assert stored(c) == [0]


async def test_an_answer_waits_until_what_is_stored_is_safe(cluster: Cluster):
    """A promise that its own node did not make yet is made by nobody else."""
    a, b = await cluster.several(2)
    bus = await cluster.client(a, timeout=60.0)
    stream = a._hub.streams.by_name["default"]
    stream.log.confirm(2)  # the rest waits, as for a mirror
    with deaf(bus) as connection:
        answers = begun(bus, 3)
        await until(lambda: stored(a) == [3])
        cut(bus, connection, b)
        looks = a._hub.loop.time() + 5 * publish_lookup._LOOK
        await until(lambda: a._hub.loop.time() > looks)
        assert not any(answer.done() for answer in answers)
        stream.log.confirm(None)
        places = await within(asyncio.gather(*answers))
    assert {one.broker for one in places} == {a.guid}


async def test_a_client_that_had_all_its_answers_asks_nothing(cluster: Cluster):
    a, b = await cluster.several(2)
    bus = await cluster.client(a, timeout=60.0)
    await bus.publish("t", "x", durable=True)
    with deaf(bus) as connection:
        asked = calls_of(b)
        cut(bus, connection, b)

        async def back():
            return bus.state == "connected"

        await eventually(back)
    assert calls_of(b) == asked
    assert bus._durable._tried == {}


@pytest.mark.parametrize(
    "question",
    [
        {"brokers": ["x"], "numbers": []},
        {"brokers": [], "numbers": [[1, 2, 3]]},
        {"brokers": [], "numbers": [[-1, 1]]},
        {"brokers": ["0" * 32], "numbers": [[1, 5000]]},
        {"brokers": ["0" * 32] * 65, "numbers": []},
        {"brokers": [], "numbers": [], "within": 61},
    ],
)
async def test_questions_that_cannot_be_meant_are_refused(cluster: Cluster, question):
    bus = await cluster.client(await cluster.start())
    with pytest.raises(busway.BusError):
        await bus.request("$bus/stored", json.dumps(question))


async def test_one_can_ask_only_about_oneself(cluster: Cluster):
    a, b = await cluster.several(2)
    publisher, other = await cluster.client(a), await cluster.client(b)
    await publisher.publish("t", "x", durable=True)
    question = json.dumps({"brokers": [a.guid, b.guid], "numbers": [[1, 100]]})
    assert (await other.request("$bus/stored", question)).json() == {"stored": [], "unknown": [], "unsure": []}
    moved = await cluster.client(b, identity=Identity(secret=publisher._core.secret))
    (run,) = (await moved.request("$bus/stored", question)).json()["stored"]
    assert run[:2] + run[3:] == [a.guid, "default", 1, 0, 1]


def test_a_node_that_asks_for_too_much_is_a_stranger():
    good = Place(1, ("0" * 32,), ((1, 1024),))
    assert LOOK_UP.read(msgspec.msgpack.encode(good)) == good
    for bad in (
        (1, ("0" * 32,), ((1, 1025),)),
        (0, ("0" * 32,), ()),
        (1, ("x",), ()),
        (1, ("0" * 32,) * 65, ()),
    ):
        with pytest.raises(Stranger):
            LOOK_UP.read(msgspec.msgpack.encode(bad))
