"""Channels over several nodes as a whole: their figures, their list, and going elsewhere with all parts."""

import asyncio

import msgspec
import pytest

import busway
from busway.cluster.streams import survey
from tests.support.cluster_channels import drained
from tests.support.cluster_streams import some
from tests.support.net import eventually


def part_of(info, server):
    return next(one for one in info.parts if one.broker == server.guid)


async def taken(jobs, count):
    """So many messages, acknowledged."""
    got = []
    async with asyncio.timeout(60):
        while len(got) < count:
            batch = await jobs.take(count - len(got))
            await jobs.ack(batch)
            got += batch
    return got


async def seated(jobs, servers):
    """Every node knows of the one consumer."""

    async def known():
        return all(
            any(one["consumers"] for one in server._hub.channels.figures(server._hub.streams.by_name["jobs"].number))
            for server in servers
        )

    await eventually(known)


async def test_info_has_the_sums_and_each_part(three):
    servers, clients = three
    await clients[0].create_channel("jobs", "work")
    for number, client in enumerate(clients):
        await some(client, f"jobs/{number}", 0, 10 * (number + 1))
    async with clients[1].channel("jobs", "work", window=0) as jobs:
        await seated(jobs, servers)
        held = await jobs.take(60, 20, whole=True)
        await jobs.ack([message for message in held if message.broker == servers[2].guid][:4])
        for client in clients:
            info = await client.channel_info("jobs", "work")
            assert (info.lag, info.in_flight, info.consumers, info.unreached) == (56, 56, 1, ())
            assert {one.node: one.lag for one in info.parts} == {"node-0": 10, "node-1": 20, "node-2": 26}
            assert {one.node: one.consumers for one in info.parts} == {"node-0": 0, "node-1": 1, "node-2": 0}
        assert (await jobs.info()).floor == part_of(await jobs.info(), servers[1]).floor == 0
        info = await clients[2].channel_info("jobs", "work")
        assert info.floor == part_of(info, servers[2]).floor > 0


async def test_the_list_names_each_channel_once(three):
    _, clients = three
    await clients[0].create_channel("jobs", "one")
    await clients[1].create_channel("jobs", "two", topic="jobs/1")
    await some(clients[0], "jobs/0", 0, 3)
    await some(clients[2], "jobs/2", 0, 4)
    for client in clients:
        listed = await client.channels("jobs")
        assert [(one.name, one.lag, one.parts, one.unreached) for one in listed] == [
            ("one", 7, (), ()),
            ("two", 7, (), ()),
        ]
        assert listed[1].topic == "jobs/1"


async def test_seeking_moves_all_parts(three):
    servers, clients = three
    for number, client in enumerate(clients):
        await some(client, f"jobs/{number}", 0, 5)
    async with clients[0].channel("jobs", "work", window=0) as jobs:
        await taken(jobs, 15)
        await drained(*servers)
        assert await clients[1].seek_channel("jobs", "work", "first") == 0
        assert (await jobs.info()).lag == 15
        assert len({(one.broker, one.offset) for one in await taken(jobs, 15)}) == 15
        await drained(*servers)
        assert await jobs.seek("1h") == 0
        assert (await jobs.info()).lag == 15
        await clients[2].seek_channel("jobs", "work", "new")
        assert (await jobs.info()).lag == 0
        late = await clients[1].publish("jobs/1", b"late", durable=True)
        assert [one.offset for one in await taken(jobs, 1)] == [late.offset]


async def test_a_place_moves_the_part_that_it_is_in(three):
    servers, clients = three
    for number, client in enumerate(clients):
        await some(client, f"jobs/{number}", 0, 5)
    async with clients[0].channel("jobs", "work", window=0) as jobs:
        got = await taken(jobs, 15)
        await drained(*servers)
        there = busway.Position(servers[2].guid, "jobs", 3)
        assert await jobs.seek(there) == 3
        assert {one.node: one.lag for one in (await jobs.info()).parts} == {"node-0": 0, "node-1": 0, "node-2": 2}
        message = next(one for one in got if one.broker == servers[1].guid and one.offset == 1)
        assert await jobs.seek(message) == 1
        assert {one.node: one.lag for one in (await jobs.info()).parts} == {"node-0": 0, "node-1": 4, "node-2": 2}
        assert await clients[0].seek_channel("jobs", "work", 4) == 4
        assert {one.node: one.lag for one in (await jobs.info()).parts} == {"node-0": 1, "node-1": 4, "node-2": 2}
        with pytest.raises(busway.OutOfRange, match=r"node-2.*offset 77 is not in the stream"):
            await jobs.seek(there._replace(offset=77))
        with pytest.raises(busway.OutOfRange, match="is not known here"):
            await jobs.seek(there._replace(broker="0" * 32))
        assert (await jobs.info()).lag == 7  # nothing has moved for that


async def test_a_channel_begins_at_a_position_in_that_part_alone(three):
    servers, clients = three
    for number, client in enumerate(clients):
        await some(client, f"jobs/{number}", 0, 5)
    for number, client in enumerate(clients):
        start = busway.Position(servers[1].guid, "jobs", 3)
        info = await client.create_channel("jobs", f"work-{number}", start=start)
        assert {one.node: one.lag for one in info.parts} == {"node-0": 5, "node-1": 2, "node-2": 5}


async def test_what_was_in_flight_leaves_the_windows_of_other_nodes(three):
    """A consumer with a full window gets the messages of a part again that has moved."""
    servers, clients = three
    await some(clients[2], "jobs/2", 0, 8)
    async with clients[0].channel("jobs", "work", window=4) as jobs:
        first = [await jobs.recv(60) for _ in range(4)]
        (consumer,) = servers[0]._hub.peers.members._remote_consumers._consumers.values()

        async def full():
            return consumer.remotes[servers[2].guid].ready

        await eventually(full)  # it knows that there is more, and will not be told again
        await clients[1].seek_channel("jobs", "work", "first")
        again = [await jobs.recv(60) for _ in range(4)]
        assert [one.offset for one in first] == [one.offset for one in again]
        await jobs.ack(again)
        await jobs.ack([await jobs.recv(60) for _ in range(4)])
        await drained(*servers)


async def test_nodes_that_are_gone_are_told(three):
    servers, clients = three
    for number, client in enumerate(clients):
        await some(client, f"jobs/{number}", 0, 5)
    await clients[0].create_channel("jobs", "work")
    await servers[2].stop()

    async def lost():
        return servers[2].guid not in servers[0]._hub.peers.members.members.linked

    await eventually(lost)
    info = await clients[0].channel_info("jobs", "work")
    assert info.lag == 10
    assert info.unreached == ("node-2",)
    gone = part_of(info, servers[2])
    assert (gone.lag, gone.error) == (None, "the node is not linked")
    assert [one.unreached for one in await clients[0].channels("jobs")] == [("node-2",)]
    with pytest.raises(
        busway.StoreFailed, match=r"has moved at node-0, node-1, but not at node-2 \(the node is not linked\)"
    ):
        await clients[0].seek_channel("jobs", "work", "new")
    assert (await clients[0].channel_info("jobs", "work")).lag == 0
    with pytest.raises(busway.StoreFailed, match="node-2, which owns that position, can't be reached"):
        await clients[0].seek_channel("jobs", "work", busway.Position(servers[2].guid, "jobs", 3))


def replace_answer(monkeypatch, server, answer):
    """What it does when it is asked."""
    monkeypatch.setitem(server._hub.peers.members._calls._handlers, survey.ASK.kind, (survey.ASK, answer))


async def test_a_node_that_does_not_answer_is_told(three, monkeypatch):
    servers, clients = three
    await clients[0].create_channel("jobs", "work")
    monkeypatch.setattr(survey, "_PATIENCE", 0.1)
    replace_answer(monkeypatch, servers[1], lambda conn, number, question: None)
    info = await clients[0].channel_info("jobs", "work")
    assert info.unreached == ("node-1",)
    assert part_of(info, servers[1]).error == "no answer within 0.1 s"


async def test_a_link_that_ends_meanwhile_is_told(three, monkeypatch):
    servers, clients = three
    await clients[0].create_channel("jobs", "work")

    monkeypatch.setattr(survey, "_PATIENCE", 600.0)
    replace_answer(monkeypatch, servers[1], lambda conn, number, question: servers[1]._hub.sessions[conn].abort())
    info = await clients[0].channel_info("jobs", "work")
    assert info.unreached == ("node-1",)
    assert part_of(info, servers[1]).error == "the link to the node has ended"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(("list", "jobs")),
        msgspec.msgpack.encode(("burn", "jobs", None, ("first", None), "")),
        msgspec.msgpack.encode(("list", "../jobs", None, ("first", None), "")),
        msgspec.msgpack.encode(("seek", "jobs", "a/b", ("first", None), "")),
        msgspec.msgpack.encode(("seek", "jobs", None, ("first", None), "")),
    ],
)
async def test_garbage_ends_the_link(three, body):
    servers, _ = three
    hub = servers[0]._hub
    before = servers[1].stats()["faults"]
    hub.engine.node(hub.peers.members.members.linked[servers[1].guid], survey.SURVEY, 1, body)
    hub.flush()

    async def seen():
        return servers[1].stats()["faults"] > before

    await eventually(seen)


async def test_a_broker_in_no_cluster_has_no_parts():
    async with busway.serve() as server, server.connect() as bus:
        await bus.create_stream("jobs", topics=["jobs/**"])
        await bus.create_channel("jobs", "work")
        position = await bus.publish("jobs/1", b"x", durable=True)
        info = await bus.channel_info("jobs", "work")
        assert (info.lag, info.parts, info.unreached) == (1, (), ())
        assert await bus.seek_channel("jobs", "work", position) == 0
        with pytest.raises(busway.OutOfRange, match="not known here"):
            await bus.seek_channel("jobs", "work", position._replace(broker="0" * 32))
        with pytest.raises(busway.Rejected, match="no channel 'play'"):
            await bus.channel_info("jobs", "play")
