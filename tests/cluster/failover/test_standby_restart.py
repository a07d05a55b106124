"""A mirror that was started again goes on where it stood in, if nobody else can have handed out; else it is told, and people decide."""

import shutil

import pytest

import busway
from busway.cluster.failover.quorum import Witness, undisputed
from busway.cluster.failover.standby_file import StandbyFile
from tests.support.mirrored import Mirrored
from tests.support.net import eventually
from tests.support.standby import Three, crash, hands_out, numbers, ready, stands_in, take, turns


@pytest.fixture
async def three(nodes: Mirrored):
    return await Three(nodes).begin()


async def done(jobs, count):
    """So many, each acknowledged before the next one."""
    got = []
    for _ in range(count):
        (message,) = await take(jobs, 1)
        await message.ack()
        got.append(message)
    return got


async def begun(three):
    """Two are acknowledged at `a`, which is killed and loses its disk; two more when `b` stands in. The consumer is at `c`."""
    bus = await three.loose(three.c)
    async with bus.channel("jobs", "work", window=1) as jobs:
        await done(jobs, 2)
        await ready(three.b, three.a.guid)
    crash(three.a)
    shutil.rmtree(three.nodes.folder / "a")
    await stands_in(three.b, three.a.guid)
    async with bus.channel("jobs", "work", window=1) as jobs:
        await done(jobs, 2)
    return bus


async def again(three, how):
    """The mirror is started again."""
    if how == "killed":
        crash(three.b)
    else:
        await three.b.stop()
    three.b = await three.nodes.node("b", mirror_of="a")
    await three.nodes.whole(three.b, three.c)


async def rest(bus):
    async with bus.channel("jobs", "work", window=1) as jobs:
        return numbers(await done(jobs, 6))


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_mirror_that_stood_in_goes_on_after_a_restart(three, how):
    bus = await begun(three)
    await again(three, how)
    await stands_in(three.b, three.a.guid)
    assert await rest(bus) == [4, 5, 6, 7, 8, 9]


async def test_it_goes_on_beside_a_new_node_in_the_place_of_the_old_one(three):
    bus, old = await begun(three), three.a
    three.a = await three.nodes.node("a")
    await three.nodes.whole(three.a, three.b, three.c)
    await three.b.stop()
    three.b = await three.nodes.node("b", mirror_of="a")
    await three.nodes.whole(three.a, three.b, three.c)
    await stands_in(three.b, old.guid)
    assert await rest(bus) == [4, 5, 6, 7, 8, 9]


async def test_it_does_not_go_on_if_the_node_was_back_meanwhile(three):
    """Nobody knows what was acknowledged there, so it may not be handed out before the node has told."""
    bus = await three.loose(three.c)
    async with bus.channel("jobs", "work", window=1):
        await ready(three.b, three.a.guid)
    crash(three.a)
    await stands_in(three.b, three.a.guid)
    await three.b.stop()
    back = await three.nodes.node("a")
    await hands_out(back)
    async with bus.channel("jobs", "work", window=1) as jobs:
        await done(jobs, 4)
    crash(back)
    three.b = await three.nodes.node("b", mirror_of="a")
    await three.nodes.whole(three.b, three.c)
    await told_of(three.b)
    assert not turns(three.b).figures()["stands_in_for"]


async def told_of(server):
    async def told():
        return turns(server).figures()["waits"]

    await eventually(told)
    return turns(server).figures()["waits"]


async def test_what_waits_in_a_copy_is_told_and_can_be_handed_out(three, caplog):
    """All that saw the mirror stand in are started again: nobody can tell who handed out since."""
    bus = await begun(three)
    await three.b.stop()
    await bus.close()
    await three.c.stop()
    three.c = await three.nodes.node("c", data=False)
    three.b = await three.nodes.node("b", mirror_of="a")
    await three.nodes.whole(three.b, three.c)
    at_b, at_c = await three.loose(three.b), await three.loose(three.c)
    async with at_c.channel("jobs", "work", window=0) as jobs:
        (waits,) = await told_of(three.b)
        assert (waits["guid"], waits["messages"], waits["streams"]) == (three.a.guid, 6, {"jobs": 6})
        assert "too few nodes are linked to confirm" in waits["why"]
        assert "6 messages of jobs wait in the replica of lost node" in caplog.text
        info = await jobs.info()
        assert three.a.guid[:8] in info.unreached
        (part,) = [part for part in info.parts if part.broker == three.a.guid]
        assert "busway cluster --take" in part.error
        for wrong in ("nobody", "b", three.c.guid):
            with pytest.raises(busway.ServiceError, match=three.a.guid[:8]):
                await at_b.request("$bus/cluster/take", wrong)
        with pytest.raises(busway.ServiceError, match="none"):
            await at_c.request("$bus/cluster/take", three.a.guid)
        answer = await at_b.request("$bus/cluster/take", three.a.guid[:8])
        assert answer.json() == {"guid": three.a.guid}
        await stands_in(three.b, three.a.guid)
        assert not turns(three.b).figures()["waits"]
    assert await rest(at_c) == [4, 5, 6, 7, 8, 9]


async def test_of_two_nodes_the_one_that_is_left_can_be_told(nodes: Mirrored):
    """And it remembers that."""
    a, b = await nodes.pair()
    at_a = await nodes.client(a)
    await at_a.create_stream("jobs", ["jobs/**"])
    async with at_a.channel("jobs", "work", window=1):
        await at_a.publish("jobs/1", b"1", durable=True)
        await ready(b, a.guid)
    crash(a)
    await told_of(b)
    bus = await nodes.stack.enter_async_context(busway.connect(b.addresses[0], learn=False))
    await bus.request("$bus/cluster/take", "a")
    await stands_in(b, a.guid)
    await bus.close()
    await b.stop()
    b = await nodes.node("b", mirror_of="a")
    await stands_in(b, a.guid)
    bus = await nodes.stack.enter_async_context(busway.connect(b.addresses[0], learn=False))
    async with bus.channel("jobs", "work", window=1) as jobs:
        await done(jobs, 1)
    back = await nodes.node("a")
    await hands_out(back)
    with pytest.raises(busway.ServiceError, match="delivers from its channels itself"):
        await bus.request("$bus/cluster/take", "a")


def test_witnesses_have_to_be_more_than_half():
    votes = {"m", "n", "x", "y"}
    assert not undisputed("n", "m", {"x": {"n": "m"}}, votes)
    assert undisputed("n", "m", {"x": {"n": "m"}, "y": {"n": "m"}}, votes)
    assert not undisputed("n", "m", {"x": {"n": "m"}, "y": {"n": "other"}}, votes)
    assert not undisputed("n", "m", {"x": {"n": "m"}, "stranger": {"n": "m"}}, votes)


def test_a_witness_forgets_a_mirror_when_the_node_is_back():
    witness = Witness()
    witness.saw("m", ["m", "n", "here"], {"here"})
    assert witness.stood == (("n", "m"),)
    witness.saw("other", ["n"], ())
    assert witness.stood == (("n", "other"),)
    witness.came("n")
    assert witness.stood == ()


def test_who_was_only_not_seen_for_long_counts_on(tmp_path):
    """It may be with the node; one that has said that it stops is not."""
    (tmp_path / "mirrors" / "n").mkdir(parents=True)
    marks = StandbyFile(tmp_path)
    marks.begin("n", {"jobs": ["work"]}, {"m", "n", "x", "y"})
    marks.counts({"m", "n", "z"})
    marks.left("y")
    again = StandbyFile(tmp_path)
    assert again.nodes == {"m", "n", "x", "z"}
    assert (again.last, again.get("n").channels) == (["n"], {"jobs": ["work"]})
    again.back("n")
    assert (again.last, "n" in StandbyFile(tmp_path)) == ([], True)
    again.remove("n")
    assert "n" not in StandbyFile(tmp_path)
