"""Streams over several nodes as a whole: what each node has of them, and reading the parts of others."""

from datetime import UTC, datetime

import pytest

import busway
from tests.support.cluster_streams import some
from tests.support.mirrored import Mirrored, follows
from tests.support.net import eventually
from tests.support.promotion import crash


@pytest.fixture
async def three(nodes: Mirrored):
    """A node with five messages, its mirror with three, and one with two."""
    a, b = await nodes.pair()
    c = await nodes.node("c")
    await nodes.whole(a, b, c)
    at_a, at_b, at_c = [await nodes.client(one, learn=False) for one in (a, b, c)]
    await at_a.create_stream("jobs", ["jobs/**"])
    await some(at_a, "jobs/1", 0, 5)
    await some(at_b, "jobs/2", 5, 3)
    await some(at_c, "jobs/1", 8, 2)
    await follows(a, b)
    return (a, b, c), (at_a, at_b, at_c)


async def numbers(stream, *places, **more):
    return [int(one.payload) async for batch in stream.read(*places, **more) for one in batch]


async def test_info_and_the_list_have_what_each_node_has(three):
    (a, b, c), (_, _, at_c) = three
    info = await (await at_c.stream("jobs")).info(parts=True)
    assert (info.broker, info.count) == (c.guid, 2), "figures of the node that was asked"
    assert {one.broker: (one.node, one.count, one.error) for one in info.parts} == {
        a.guid: ("a", 5, ""),
        b.guid: ("b", 3, ""),
        c.guid: ("c", 2, ""),
    }
    assert (info.total, info.unreached) == (10, ())
    assert info.total_bytes == sum(part.bytes for part in info.parts) > info.bytes
    listed = {one.name: one for one in await at_c.streams(parts=True)}
    assert (listed["jobs"].total, listed["default"].total) == (10, 0)
    assert (await (await at_c.stream("jobs")).info()).parts == (), "nobody else is asked unless that is wanted"


async def test_the_part_of_another_node_is_read(three):
    (a, b, c), (*_, at_c) = three
    jobs = await at_c.stream("jobs", broker=a.guid)
    assert jobs.broker == a.guid
    assert await numbers(jobs) == [0, 1, 2, 3, 4]
    assert await numbers(jobs, 1, 3) == [1, 2]
    assert await numbers(jobs, "1h") == [0, 1, 2, 3, 4]
    assert await numbers(jobs, datetime.now(UTC)) == []
    assert await numbers(jobs, topic="jobs/2") == []
    assert await numbers(jobs, busway.Position(a.guid, "jobs", 3)) == [3, 4]
    assert [int(one) for table in [batch async for batch in jobs.arrow()] for one in table["payload"].to_pylist()] == [
        *range(5)
    ]
    async for batch in jobs.read():
        assert {(one.broker, one.stream) for one in batch} == {(a.guid, "jobs")}
    assert await numbers(await at_c.stream("jobs", broker=c.guid)) == [8, 9]
    assert await numbers(await at_c.stream("jobs", broker=b.guid)) == [5, 6, 7]
    with pytest.raises(ValueError, match="works only on the node that has the stream"):
        await jobs.topics()
    with pytest.raises(busway.Rejected, match="no node"):
        await at_c.stream("jobs", broker="0" * 32)


async def test_many_blocks_and_what_is_gone(three, nodes):
    (a, _, _), (at_a, _, at_c) = three
    await at_a.create_stream("logs", ["logs"], max_count=4000)
    for _ in range(5):
        await at_a.publish_many("logs", [b"x" * 1000] * 2000, durable=True)
    here = await (await at_a.stream("logs")).info()
    assert here.first > 0
    logs = await at_c.stream("logs", broker=a.guid)
    found = [one.offset async for batch in logs.read(0) for one in batch]
    assert found == list(range(here.first, here.next))
    assert logs.lost == here.first


async def test_a_copy_answers_for_a_node_that_is_gone(three):
    (a, b, c), (_, at_b, at_c) = three
    crash(a)

    async def gone():
        return all(a.guid not in one._hub.peers.members.members.linked for one in (b, c))

    await eventually(gone)
    for bus in (at_b, at_c):
        info = await (await bus.stream("jobs")).info(parts=True)
        assert (info.total, info.unreached) == (10, ())
        assert await numbers(await bus.stream("jobs", broker=a.guid)) == [0, 1, 2, 3, 4]


async def test_a_node_that_nobody_has_a_copy_of_is_told(three):
    (a, _, c), (at_a, *_) = three
    crash(c)

    async def gone():
        return c.guid not in a._hub.peers.members.members.linked

    await eventually(gone)
    info = await (await at_a.stream("jobs")).info(parts=True)
    assert (info.total, info.unreached) == (8, ("c",))
    assert [one.error for one in info.parts if one.broker == c.guid] == ["the node is not linked"]
    with pytest.raises(busway.StoreFailed, match="c can't be read now: the node is not linked"):
        await at_a.stream("jobs", broker=c.guid)


async def test_a_broker_in_no_cluster_has_one_part(tmp_path):
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        await bus.create_stream("jobs", ["jobs/**"])
        info = await (await bus.stream("jobs")).info(parts=True)
        assert [(one.broker, one.count) for one in info.parts] == [(server.guid, 0)]
        assert (info.total, info.unreached) == (0, ())
        assert await numbers(await bus.stream("jobs", broker=server.guid)) == []
        with pytest.raises(busway.Rejected, match="no node"):
            await bus.stream("jobs", broker="0" * 32)
