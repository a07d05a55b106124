"""A node that returns after its mirror was promoted: it serves nothing of its old streams, and loses no record silently."""

import struct

import msgspec
import pytest

import busway
from busway._core import block_messages
from tests.support.cluster_streams import some
from tests.support.mirrored import Mirrored, mirroring, payloads, streams
from tests.support.net import eventually
from tests.support.promotion import Three, alone, crash, delivers, gone, numbers, promote, promotion, take, whole


@pytest.fixture
async def three(nodes: Mirrored):
    three = await Three(nodes).begin()
    await three.at_a.create_channel("jobs", "work")
    await whole(three.b, three.a)
    return three


async def replaced(server, guid):
    """It has started again with a new guid."""

    async def other():
        return server.state == "serving" and server.guid != guid

    await eventually(other)


async def copied(server, guid, count):
    async def has():
        copy = mirroring(server).copies.get((guid, "jobs"))
        return copy is not None and copy.log.written == count

    await eventually(has)


async def test_it_copies_from_the_new_owner_and_serves_nothing(nodes: Mirrored, three):
    old = three.a.guid
    crash(three.a)
    await gone(three.b, old)
    await promote(three.b, "a")
    a = await nodes.node("a")
    await replaced(a, old)
    await nodes.whole(a, three.b, three.c)
    await copied(a, old, 10)
    assert payloads(streams(a)["jobs"].log) == []
    assert promotion(a).figures()["set_aside"] == [], "the owner has everything"
    bus = await nodes.client(a)
    async with bus.channel("jobs", "work", window=10) as jobs:
        for message in await take(jobs, 10):
            assert message.broker == old
            await message.ack()
        await bus.publish("jobs/2", b"10", durable=True)
        (message,) = await take(jobs, 1)
        assert (message.broker, message.payload) == (a.guid, b"10")
    async with bus.subscribe("jobs/**", since="all") as everything:
        assert numbers([await everything.recv(timeout=60) for _ in range(11)]) == list(range(11))


async def test_records_that_only_it_has_are_set_aside_reported_and_readable(nodes: Mirrored, three, caplog):
    old = three.a.guid
    await three.at_a.update_stream("jobs", safety="written")
    alone(three.a, three.b)
    for session in [one for one in three.a._hub.everyone if one.node]:
        session.abort()
    await gone(three.b, old)
    await some(three.at_a, "jobs/1", 10, 3)
    crash(three.a)
    await gone(three.c, old)
    await promote(three.b, "a")
    a = await nodes.node("a")
    await replaced(a, old)
    assert "3 records that only this node had are set aside" in caplog.text
    (aside,) = promotion(a).figures()["set_aside"]
    assert (aside["guid"], aside["stream"], aside["first"], aside["count"]) == (old, "jobs", 10, 3)
    assert a.stats()["records_set_aside"] == 3
    bus = await nodes.client(a)
    (listed,) = (await bus.request("$bus/stream/aside")).json()["aside"]
    assert listed == aside
    question = msgspec.json.encode({"folder": listed["folder"], "from": 0})
    answer = (await bus.request("$bus/stream/recover", question)).payload
    assert struct.unpack_from("<QQ", answer) == (13, 13)
    assert numbers(block_messages(answer, (old, "jobs"), head=16)) == [10, 11, 12]
    with pytest.raises(busway.Rejected, match="nothing is set aside in"):
        await bus.request("$bus/stream/recover", msgspec.json.encode({"folder": "../../etc"}))


async def test_a_node_that_was_only_isolated_steps_down_when_it_is_linked_again(nodes: Mirrored, three):
    old, b = three.a.guid, three.b
    bus = await three.loose(three.a)
    async with bus.channel("jobs", "work", window=20) as jobs:
        await take(jobs, 10)
        links = [three.a, three.b, three.c]
        for server in links:
            server._hub.peers.members.links._stopped = True
        for session in [one for one in three.a._hub.everyone if one.node]:
            session.abort()
        await gone(b, old)
        await gone(three.c, old)
        assert (await promote(b, "a"))["epoch"] == 2
        for server in links:
            server._hub.peers.members.links._stopped = False
        await replaced(three.a, old)
        await nodes.whole(*links)
        assert set(numbers(await take(jobs, 10))) == set(range(10))


async def test_a_node_delivers_only_when_its_mirrors_have_reported(nodes: Mirrored, three):
    await three.at_a.close()
    await three.b.stop()
    await three.a.stop()
    a = await nodes.node("a", wait=0.1)
    bus = await nodes.client(a, learn=False)
    async with bus.channel("jobs", "work", window=10) as jobs:
        await bus.publish("jobs/1", b"10", durable=True)
        assert promotion(a).figures()["awaits"] == [three.b.guid]
        assert not jobs.pending
        with pytest.raises(busway.ServiceError, match=r"b .* may have been promoted: start it, or repeat .* --force"):
            await promote(a, "a")
        await nodes.node("b", mirror_of="a")
        await delivers(a)
        assert numbers(await take(jobs, 10)) == list(range(10))


async def test_an_operator_may_decide_that_no_mirror_was_promoted(nodes: Mirrored, three):
    await three.at_a.close()
    await three.b.stop()
    await three.a.stop()
    a = await nodes.node("a")
    made = await promote(a, "a", force=True)
    assert (made["guid"], made["epoch"]) == (a.guid, 2)
    await delivers(a)
    await a.stop()
    a = await nodes.node("a")
    await delivers(a)


async def test_streams_in_a_database_stay_with_the_replaced_node(nodes: Mirrored, three):
    old = three.a.guid
    await three.at_a.create_stream("books", ["books/**"], store="db")
    await three.at_a.publish("books/1", b"one", durable=True)
    await whole(three.b, three.a)
    await three.at_a.close()
    await three.a.stop()
    assert (await promote(three.b, "a"))["streams"] == ["default", "jobs"]
    a = await nodes.node("a")
    await replaced(a, old)
    bus = await nodes.client(a)
    books = await bus.stream("books")
    assert [message.payload async for some in books.read() for message in some] == [b"one"]
