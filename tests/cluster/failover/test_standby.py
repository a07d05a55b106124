"""A mirror takes over: it hands out of the channels of a node that is gone, and the node gets back what became of them."""

import asyncio

import pytest

import busway
from busway.errors import BusError
from tests.support.cluster_streams import some
from tests.support.mirrored import Mirrored
from tests.support.net import eventually
from tests.support.standby import Three, alone, crash, hands_out, numbers, ready, stands_in, take, turns


@pytest.fixture
async def three(nodes: Mirrored):
    return await Three(nodes).begin()


@pytest.mark.parametrize("where", ["b", "c"])
async def test_the_channels_of_a_dead_node_go_on_at_its_mirror(three, where):
    """O broker mirror apercebe-se da falha e fica ele a responder: wherever the consumers are, at the mirror itself or at another node."""
    bus = await three.loose(getattr(three, where))
    async with bus.channel("jobs", "work", window=3) as jobs:
        for message in await take(jobs, 3):
            await message.ack()
        await ready(three.b, three.a.guid)
        crash(three.a)
        await stands_in(three.b, three.a.guid)
        got = []
        for _ in range(7):
            message = await jobs.recv(60)
            try:
                await message.ack()
            except BusError:  # of those that it had when the node died; they come again
                continue
            got.append(message)
        got += [message for message in await take(jobs, 7 - len(got)) if await acked(message)]
        assert numbers(got) == list(range(3, 10))
        assert {message.broker for message in got} == {three.a.guid}


async def acked(message):
    await message.ack()
    return True


@pytest.mark.parametrize("where", ["b", "c"])
async def test_a_mirror_answers_for_the_channels_of_a_dead_node(three, where):
    """What they are and where they stand, and it moves them; the node finds them there when it is back."""
    bus = await three.loose(getattr(three, where))
    async with bus.channel("jobs", "work", window=0) as jobs:
        await some(bus, "jobs/2", 0, 5)
        done = await jobs.take(15, 20, whole=True)
        await jobs.ack(done)
        await ready(three.b, three.a.guid)
        assert (await jobs.info()).lag == 0
        crash(three.a)
        await stands_in(three.b, three.a.guid)
        info = await jobs.info()
        assert (info.unreached, info.lag) == ((), 0)
        assert {one.node: one.lag for one in info.parts} == {"a": 0, "b": 0, "c": 0}
        place = next(one for one in done if one.broker == three.a.guid and one.offset == 7)
        assert await jobs.seek(place) == 7
        assert {one.node: one.lag for one in (await jobs.info()).parts} == {"a": 3, "b": 0, "c": 0}
        assert await jobs.seek(busway.Position(three.a.guid, "jobs", 8)) == 8
        with pytest.raises(busway.OutOfRange, match="a: offset 70"):
            await jobs.seek(busway.Position(three.a.guid, "jobs", 70))
        await jobs.seek("first")
        assert (await jobs.info()).lag == 15
        await jobs.seek("new")
        await jobs.seek(busway.Position(three.a.guid, "jobs", 6))
        again = await three.nodes.node("a")
        await hands_out(again)
        await three.nodes.whole(again, three.b, three.c)
        info = await jobs.info()
        assert {one.node: one.lag for one in info.parts} == {"a": 4, "b": 0, "c": 0}
        assert numbers(await jobs.take(4, 20, whole=True)) == [6, 7, 8, 9]


async def test_what_was_done_at_the_mirror_is_done_when_the_node_is_back(three):
    bus = await three.loose(three.c)
    async with bus.channel("jobs", "work", window=2):
        await ready(three.b, three.a.guid)
    crash(three.a)
    await stands_in(three.b, three.a.guid)
    async with bus.channel("jobs", "work", window=2) as jobs:
        for message in await take(jobs, 2):
            await message.ack()
        for message in await take(jobs, 2):
            await message.ack()
    again = await three.nodes.node("a")
    await hands_out(again)
    await three.nodes.whole(again, three.b, three.c)
    assert not turns(three.b).figures()["stands_in_for"]
    async with bus.channel("jobs", "work", window=10) as jobs:
        left = await take(jobs, 6)
        assert numbers(left) == list(range(4, 10))
        for message in left:
            await message.ack()
        assert {message.broker for message in left} == {again.guid}
    number = again._hub.streams.by_name["jobs"].number
    assert [one["lag"] for one in again._hub.channels.figures(number)] == [0]

    async def known():  # so it is not told again when the node comes next
        return again.guid not in turns(three.b)._heir.marks

    await eventually(known)


async def test_a_node_that_stops_leaves_no_gap(three):
    bus = await three.loose(three.c)
    async with bus.channel("jobs", "work", window=1) as jobs:
        await ready(three.b, three.a.guid)
        first = await jobs.recv(60)
        await first.ack()
        await three.a.stop()
        await stands_in(three.b, three.a.guid)
        got = [await jobs.recv(60)]
        if not await tried(got[0]):  # it was on its way when the node stopped
            got = [await jobs.recv(60)]
            await got[0].ack()
        for _ in range(8):
            got.append(await jobs.recv(60))
            await got[-1].ack()
        assert numbers(got) == list(range(1, 10))


async def tried(message):
    try:
        await message.ack()
    except BusError:
        return False
    return True


async def test_a_channel_that_was_made_or_removed_meanwhile(three):
    at_c = await three.loose(three.c)
    async with at_c.channel("jobs", "old"), at_c.channel("jobs", "gone"):
        await ready(three.b, three.a.guid)
    crash(three.a)
    await stands_in(three.b, three.a.guid)
    async with at_c.channel("jobs", "new", window=3) as jobs:
        for message in await take(jobs, 3):
            await message.ack()
    again = await three.nodes.node("a")
    await hands_out(again)
    await three.nodes.whole(again, three.b, three.c)
    async with at_c.channel("jobs", "new", window=10) as jobs:
        assert numbers(await take(jobs, 7)) == list(range(3, 10))


async def test_a_channel_that_was_made_at_a_mirror_which_is_killed_then(three):
    """What was acknowledged there is given back all the same."""
    at_c = await three.loose(three.c)
    async with at_c.channel("jobs", "old"):
        await ready(three.b, three.a.guid)
    crash(three.a)
    await stands_in(three.b, three.a.guid)
    async with at_c.channel("jobs", "new", window=3) as jobs:
        for message in await take(jobs, 3):
            await message.ack()
    crash(three.b)
    three.b = await three.nodes.node("b", mirror_of="a")
    again = await three.nodes.node("a")
    await hands_out(again)
    await three.nodes.whole(again, three.b, three.c)
    async with at_c.channel("jobs", "new", window=10) as jobs:
        assert numbers(await take(jobs, 7)) == list(range(3, 10))


async def test_acknowledgements_wait_for_the_mirror(three):
    """So it knows all that was acknowledged, whenever it takes over."""
    bus = await three.loose(three.a)
    async with bus.channel("jobs", "work", window=10) as jobs:
        messages = await take(jobs, 10)
        await ready(three.b, three.a.guid)
        copy = turns(three.b)._heir._copies(three.a.guid)
        (journal,) = [one.journal for one in copy if one.name == "jobs"]
        held = asyncio.get_running_loop().create_future()
        write, journal.write = journal.write, lambda entries: held
        ack = asyncio.create_task(tried(messages[0]))

        async def waits():
            return any(one._waiting for one in three.a._hub.peers.members.replication.progress._states.values())

        await eventually(waits)
        assert not ack.done()
        journal.write = write
        held.set_result(None)
        assert await ack


async def test_a_node_without_the_others_rests_and_says_so(three):
    """Its mirror may hand out, so nothing is acknowledged there."""
    bus = await three.loose(three.a)
    async with bus.channel("jobs", "work", window=2) as jobs:
        first, second = await take(jobs, 2)
        await ready(three.b, three.a.guid)
        await first.ack()
        alone(three.a, three.b, three.c)
        for session in list(three.a._hub.sessions.values()):
            if session.node:
                session.abort()

        async def rests():
            return not turns(three.a).figures()["hands_out"]

        await eventually(rests)
        with pytest.raises(BusError, match=r"may be (redelivered|handed out again)"):
            await second.ack()
        await stands_in(three.b, three.a.guid)
        other = await three.loose(three.c)
        async with other.channel("jobs", "work", window=20) as there:
            assert numbers(await take(there, 9)) == list(range(1, 10))


async def test_nodes_that_stopped_do_not_count(three):
    """A cluster that was made smaller still has its mirrors take over."""
    more = [await three.nodes.node(name, data=name == "d") for name in "def"]
    await three.nodes.whole(three.a, three.b, three.c, *more)
    for server in more:
        await server.stop()
    bus = await three.loose(three.c)
    async with bus.channel("jobs", "work", window=20) as jobs:
        assert len(await take(jobs, 10)) == 10
        await ready(three.b, three.a.guid)
        crash(three.a)
        await stands_in(three.b, three.a.guid)


async def test_a_node_that_stopped_counts_again_when_it_is_back(three):
    await ready(three.b, three.a.guid)
    guid = three.c.guid

    async def counts(server, yes):
        async def does():
            return (guid in turns(server)._count.nodes) is yes

        await eventually(does)

    await three.c.stop()
    await counts(three.a, yes=False)
    await counts(three.b, yes=False)
    three.c = await three.nodes.node("c", data=False)
    guid = three.c.guid
    await counts(three.a, yes=True)
    await counts(three.b, yes=True)
    crash(three.a)
    await stands_in(three.b, three.a.guid)


async def test_of_two_nodes_the_mirror_does_not_take_over(nodes: Mirrored):
    a, b = await nodes.pair()
    at_a, at_b = await nodes.client(a), await nodes.client(b)
    await at_a.create_stream("jobs", ["jobs/**"])
    await some(at_a, "jobs/1", 0, 3)
    async with at_b.channel("jobs", "work"):
        await ready(b, a.guid)
        crash(a)

        async def too_late():
            return not turns(b)._heir.ready(a.guid)

        await eventually(too_late)
        assert not turns(b).figures()["stands_in_for"]


async def test_a_mirror_that_missed_something_does_not_take_over(three):
    """The node went on without it, so it may not know all that was acknowledged."""
    alone(three.a, three.b)
    await ready(three.b, three.a.guid)
    for session in list(three.b._hub.sessions.values()):
        if session.node and session.name == "a":
            session.abort()

    async def spoiled():
        return not turns(three.b)._heir.ready(three.a.guid)

    await eventually(spoiled)
    crash(three.a)

    async def missed():
        return three.a.guid not in turns(three.c)._links.values()

    await eventually(missed)
    assert not turns(three.b).figures()["stands_in_for"]
