"""Promotion: a mirror owns the streams of a failed node, and consumers go on. What must not be promoted is refused."""

import asyncio

import pytest

import busway
from tests.support.cluster_streams import some
from tests.support.mirrored import Mirrored, mirroring
from tests.support.net import eventually
from tests.support.promotion import Three, alone, crash, gone, numbers, promote, promotion, take, whole


@pytest.fixture
async def three(nodes: Mirrored):
    three = await Three(nodes).begin()
    await three.at_a.create_channel("jobs", "work")
    await whole(three.b, three.a)
    return three


async def down(three):
    crash(three.a)
    await gone(three.b, three.a.guid)
    await gone(three.c, three.a.guid)


async def test_channels_wait_until_a_mirror_is_promoted(three):
    bus = await three.loose(three.c)
    async with bus.channel("jobs", "work", window=10) as jobs:
        for message in (await take(jobs, 10))[:4]:
            await message.ack()
        await whole(three.b, three.a)
        await down(three)
        assert promotion(three.b).figures()["waiting"] == [three.a.guid]
        (part,) = [one for one in (await jobs.info()).parts if "promote" in str(one)]
        assert f"until 'busway cluster promote {three.a.guid[:8]}'" in str(part)
        made = await promote(three.b, "a")
        assert made == {"guid": three.a.guid, "epoch": 2, "streams": ["default", "jobs"], "missing": []}
        left = numbers(await take(jobs, 6))
    assert left == list(range(4, 10)), "what was acknowledged at the node does not come again"


async def test_a_mirror_that_is_started_again_stays_the_owner(nodes: Mirrored, three):
    await down(three)
    await promote(three.b, "a")
    crash(three.b)
    await gone(three.c, three.b.guid)
    three.b = await nodes.node("b", mirror_of="a")
    await nodes.whole(three.b, three.c)
    bus = await three.loose(three.c)
    async with bus.channel("jobs", "work", window=10) as jobs:
        assert numbers(await take(jobs, 10)) == list(range(10))
    assert promotion(three.b).figures()["owns"] == [{"guid": three.a.guid, "epoch": 2}]


async def test_a_running_node_is_refused(three):
    with pytest.raises(
        busway.ServiceError, match=rf"a \({three.a.guid[:8]}\) runs and owns these streams: stop it first"
    ):
        await promote(three.b, "a", force=True)
    alone(three.a, three.b)
    (conn,) = [conn for conn, node in promotion(three.b)._calls.nodes.items() if node.guid == three.a.guid]
    three.b._hub.sessions[conn].abort()
    await gone(three.b, three.a.guid)
    with pytest.raises(busway.ServiceError, match=r"runs: c \(.*\) is linked to it; stop it first"):
        await promote(three.b, "a", force=True)


async def test_a_node_without_a_copy_is_refused(three):
    crash(three.c)
    await gone(three.b, three.c.guid)
    for node in ("c", "nobody"):
        with pytest.raises(busway.ServiceError, match=f"no node '{node}' has copies here; there are those of a"):
            await promote(three.b, node)
    with pytest.raises(busway.ServiceError, match="there is nothing to promote"):
        await promote(three.a, "a")


async def test_a_broker_without_a_cluster_refuses():
    async with busway.serve() as server:
        with pytest.raises(busway.ServiceError, match="this broker is in no cluster"):
            await promote(server, "a")


async def test_an_incomplete_copy_is_refused_and_what_it_lacks_is_listed(nodes: Mirrored, three, monkeypatch):
    monkeypatch.setattr("busway.cluster.replication.copies.free", lambda folder: 1000)
    await three.at_a.update_stream("jobs", safety="written")
    await some(three.at_a, "jobs/2", 10, 5)

    async def stopped():
        return any("can't be copied" in text for text in promotion(three.b)._missing(three.a.guid))

    await eventually(stopped)
    await down(three)
    with pytest.raises(busway.ServiceError, match=r"may be incomplete: .*stream 'jobs' can't be copied.*--force"):
        await promote(three.b, "a")
    assert promotion(three.b).owners.get(three.a.guid).epoch == 1, "nothing has changed"
    made = await promote(three.b, "a", force=True)
    assert any("can't be copied" in text for text in made["missing"])


async def test_a_mirror_that_has_not_seen_the_node_knows_nothing_for_sure(nodes: Mirrored, three):
    await three.b.stop()
    crash(three.a)
    await gone(three.c, three.a.guid)
    three.b = await nodes.node("b", mirror_of="a")
    await nodes.whole(three.b, three.c)
    with pytest.raises(
        busway.ServiceError, match="stream 'jobs': this mirror was not linked to its node since its start"
    ):
        await promote(three.b, three.a.guid[:8])
    await promote(three.b, three.a.guid[:8], force=True)
    bus = await three.loose(three.c)
    async with bus.channel("jobs", "work", window=10) as jobs:
        assert numbers(await take(jobs, 10)) == list(range(10))


@pytest.fixture
async def two_mirrors(nodes: Mirrored, three):
    other = await nodes.node("d", mirror_of="a")
    await nodes.whole(three.a, three.b, three.c, other)
    await whole(other, three.a)
    await whole(three.b, three.a)

    async def known():
        return all(len(promotion(one)._mirrors.get(three.a.guid, ())) == 2 for one in (three.b, other))

    await eventually(known)
    return three, other


async def test_of_two_mirrors_one_is_promoted(two_mirrors):
    three, other = two_mirrors
    await down(three)
    await gone(other, three.a.guid)
    made = await asyncio.gather(promote(three.b, "a"), promote(other, "a"), return_exceptions=True)
    errors = [str(one) for one in made if isinstance(one, BaseException)]
    assert errors, "at most one is promoted"
    assert all("promoted in place of" in text or "runs" in text for text in errors)
    if len(errors) == 2:
        await promote(three.b, "a")
    owner = promotion(three.c).owners.get(three.a.guid).owner

    async def agreed():
        return all(promotion(one).owners.get(three.a.guid).owner == owner for one in (three.b, three.c, other))

    await eventually(agreed)
    loser = other if owner == three.b.guid else three.b
    with pytest.raises(busway.ServiceError, match="runs and owns these streams"):
        await promote(loser, three.a.guid)


async def test_a_mirror_whose_other_mirror_is_away_is_refused(two_mirrors):
    three, other = two_mirrors
    crash(other)
    await down(three)
    await gone(three.b, other.guid)
    with pytest.raises(busway.ServiceError, match=r"d \(.*\) mirrors it, too, and is not linked"):
        await promote(three.b, "a")


async def test_the_other_mirror_copies_from_the_new_owner(two_mirrors):
    three, other = two_mirrors
    await down(three)
    await promote(three.b, "a")

    async def follows():
        copy = mirroring(other).copies.get((three.a.guid, "jobs"))
        return copy is not None and other.guid in promotion(three.b)._known.heirs

    await eventually(follows)
    bus = await three.loose(three.c)
    async with bus.channel("jobs", "work", window=10) as jobs:
        for message in await take(jobs, 10):
            await message.ack()
    crash(three.b)
    await gone(other, three.b.guid)
    await gone(three.c, three.b.guid)
    made = await promote(other, three.a.guid, force=True)
    assert made["epoch"] == 3
    await some(await three.loose(three.c), "jobs/9", 10, 1)
    async with bus.channel("jobs", "work", window=10) as jobs:
        assert numbers(await take(jobs, 1)) == [10], "the channel's progress was copied, too"


async def test_a_stream_or_channel_that_is_removed_is_removed_from_the_owned_part(three):
    await down(three)
    await promote(three.b, "a")
    bus = await three.loose(three.c)
    async with bus.channel("jobs", "work", window=1) as jobs:
        await take(jobs, 1)
    copy = mirroring(three.b).copies[three.a.guid, "jobs"]
    await bus.remove_channel("jobs", "work")

    async def removed():
        return not three.b._hub.channels.channels[copy.number]

    await eventually(removed)
    await bus.remove_stream("jobs")

    async def without():
        return (three.a.guid, "jobs") not in mirroring(three.b).copies

    await eventually(without)
