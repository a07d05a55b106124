"""A node that lost files restores messages and channel progress from its mirror before it delivers, and reports it."""

import asyncio
import shutil

import pytest

from busway.cli import doctor
from busway.cluster.replication.messages import Tail
from busway.cluster.replication.replica_driver import ReplicaDriver
from tests.support.cluster_streams import some
from tests.support.mirrored import Mirrored, follows, mirroring, streams
from tests.support.net import eventually
from tests.support.promotion import Three as Nodes, crash, delivers, numbers, promote, take


class Three(Nodes):
    """And the channels `work`, which has done the first seven of ten messages, and `news`, which begins behind them."""

    async def begin(self, safety="mirrored"):
        await super().begin()
        if safety != "mirrored":
            await self.at_a.update_stream("jobs", safety=safety)
        await self.at_a.create_channel("jobs", "news", start="new")
        async with self.at_a.channel("jobs", "work", window=7) as jobs:
            for message in await take(jobs, 7):
                await message.ack()
        await self.known(7)
        return self

    async def known(self, floor):
        """The mirror knows how far the channel is."""
        copy = mirroring(self.b).copies[self.a.guid, "jobs"]

        async def does():
            work = copy.states().get("work")
            return work is not None and work.floor == floor

        await eventually(does)

    @property
    def folder(self):
        return self.nodes.folder / "a" / "streams" / "jobs"

    def lose(self, what):
        if what == "folder":
            shutil.rmtree(self.folder)
        elif what == "log":
            shutil.rmtree(self.folder / "log")
        else:
            shutil.rmtree(self.folder / "channels")

    async def back(self):
        """The node is started again, and hands out."""
        self.a = await self.nodes.node("a")
        await self.nodes.whole(self.a, self.b, self.c)
        await self.hands_out()

    async def hands_out(self):
        await delivers(self.a)
        await follows(self.a, self.b)

    def lags(self):
        number = streams(self.a)["jobs"].number
        return {one["name"]: one["lag"] for one in self.a._hub.channels.figures(number)}

    async def left(self, bus):
        """What is handed out of the channel, and nothing else."""
        assert self.lags() == {"work": 3, "news": 0}
        await some(bus, "jobs/2", 10, 11)
        async with bus.channel("jobs", "work", window=20) as jobs:
            left = numbers(await take(jobs, 4))
        async with bus.channel("jobs", "news", window=20) as jobs:
            return left, numbers(await take(jobs, 1))


@pytest.mark.parametrize("safety", ["mirrored", "written"])
@pytest.mark.parametrize("what", ["folder", "log", "channels"])
async def test_channels_are_where_they_were(nodes: Mirrored, caplog, what, safety):
    three = await Three(nodes).begin(safety)
    crash(three.a)
    three.lose(what)
    caplog.clear()
    await three.back()
    told = "\n".join(one for one in caplog.messages if "'jobs'" in one)
    gone = {"folder": "", "log": "/log", "channels": "/channels"}[what]
    assert f"{three.folder}{gone} existed before and is missing" in told
    assert ("restored 10 messages from offset 0 on from b" in told) is (what != "channels")
    assert ("restored the progress of 2 channels from b" in told) is (what != "log")
    assert streams(three.a)["jobs"].figures()["damage"] == 0, "all of it is back"
    assert await three.left(await nodes.client(three.a)) == ([7, 8, 9, 10], [10])


async def test_nothing_is_handed_out_before_the_mirror_has_told(nodes: Mirrored, monkeypatch):
    three = await Three(nodes).begin()
    crash(three.a)
    three.lose("channels")
    held, send = [], ReplicaDriver._answer

    def later(self, word):
        held.append(word) if isinstance(word, Tail) else send(self, word)

    monkeypatch.setattr(ReplicaDriver, "_answer", later)
    three.a = await nodes.node("a")
    await delivers(three.a)

    async def asked():
        return bool(held)

    await eventually(asked)
    bus = await nodes.client(three.a)

    async def left():
        async with bus.channel("jobs", "work", window=20) as jobs:
            return numbers(await take(jobs, 3))

    joining = asyncio.create_task(left())

    async def waits():
        return three.lags() == {"work": 10}

    await eventually(waits)
    await bus.rtt()
    assert not joining.done()
    monkeypatch.undo()
    for word in held:
        send(mirroring(three.b).replica, word)
    three.b._hub.flush()
    assert await joining == [7, 8, 9]


async def test_one_that_lost_only_the_last_that_it_noted_gets_that_back(nodes: Mirrored, caplog):
    """As by a power cut: an acknowledgement, and that a channel was made."""
    three = await Three(nodes).begin()
    progress, before = three.folder / "channels", three.folder / "before"
    shutil.copytree(progress, before)
    async with three.at_a.channel("jobs", "work", window=2) as jobs:
        for message in await take(jobs, 2):
            await message.ack()
    await three.at_a.create_channel("jobs", "more", start=4)
    await three.known(9)
    crash(three.a)
    shutil.rmtree(progress)
    before.rename(progress)
    caplog.clear()
    await three.back()
    assert three.lags() == {"work": 1, "news": 0, "more": 6}
    assert any("restored the progress of 2 channels from b" in one for one in caplog.messages)


async def test_what_was_done_with_channels_without_the_mirror_counts(nodes: Mirrored):
    """The log is there, and whole: what it does not have was removed."""
    three = await Three(nodes).begin("written")
    await three.b.stop()
    await three.at_a.remove_channel("jobs", "news")
    await three.at_a.seek_channel("jobs", "work", 2)
    await three.at_a.close()
    await three.a.stop()
    three.a = await nodes.node("a")
    three.b = await nodes.node("b", mirror_of="a")
    await three.hands_out()
    assert three.lags() == {"work": 8}


async def test_a_channel_that_the_cluster_has_removed_does_not_come_back(nodes: Mirrored):
    three = await Three(nodes).begin("written")
    await three.b.stop()
    await three.at_a.remove_channel("jobs", "news")
    await three.at_a.close()
    await three.a.stop()
    three.lose("channels")
    three.a = await nodes.node("a")
    three.b = await nodes.node("b", mirror_of="a")
    await three.hands_out()
    assert three.lags() == {"work": 3}


async def test_a_stream_that_was_made_anew_has_none_of_the_old_channels(nodes: Mirrored):
    three = await Three(nodes).begin()
    await three.b.stop()
    await three.at_a.remove_stream("jobs")
    await three.at_a.create_stream("jobs", ["jobs/**"])
    await three.at_a.close()
    await three.a.stop()
    three.a = await nodes.node("a")
    three.b = await nodes.node("b", mirror_of="a")
    await three.hands_out()
    assert three.lags() == {}


async def test_nothing_is_stored_in_the_place_of_what_is_lost_before_the_mirror_is_heard(nodes: Mirrored):
    three = await Three(nodes).begin()
    await three.at_a.close()
    await three.b.stop()
    await three.a.stop()
    three.lose("folder")
    three.a = await nodes.node("a")
    bus = await nodes.client(three.a)
    waiting = asyncio.create_task(bus.publish("jobs/2", b"10", durable=True))
    three.b = await nodes.node("b", mirror_of="a")
    assert (await asyncio.wait_for(waiting, 60)).offset == 10
    await three.hands_out()
    assert three.lags() == {"work": 4, "news": 1}


async def test_of_other_messages_nothing_is_done(nodes: Mirrored):
    """The mirror came too late: what it knows is of messages that are not here any more."""
    three = await Three(nodes).begin()
    await three.at_a.close()
    await three.b.stop()
    await three.a.stop()
    three.lose("folder")
    three.a = await nodes.node("a", wait=0.2)
    bus = await nodes.client(three.a)
    await some(bus, "jobs/2", 0, 5)
    three.b = await nodes.node("b", mirror_of="a")
    await three.hands_out()
    assert three.lags()["work"] == 5
    async with bus.channel("jobs", "work", window=20) as jobs:
        assert numbers(await take(jobs, 5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("moved", [False, True])
async def test_a_mirror_that_is_late_restores_what_was_not_replaced(nodes: Mirrored, *, moved: bool):
    """If the node has recorded other progress meanwhile, that counts, as other messages do."""
    three = await Three(nodes).begin()
    await three.at_a.close()
    await three.b.stop()
    await three.a.stop()
    three.lose("channels")
    three.a = await nodes.node("a", wait=0.2)
    await promote(three.a, "a", force=True)
    bus = await nodes.client(three.a)
    if moved:
        async with bus.channel("jobs", "work", window=20) as jobs:
            got = await take(jobs, 10)
            await got[0].ack()
    three.b = await nodes.node("b", mirror_of="a")
    await three.hands_out()
    assert three.lags() == ({"work": 9} if moved else {"work": 3, "news": 0})
    await three.known(1 if moved else 7)


async def test_what_is_missing_is_told_and_counted(nodes: Mirrored, caplog):
    """There is no mirror: it stays lost."""
    a = await nodes.node("a")
    bus = await nodes.client(a)
    for name in ("one", "two", "three"):
        await bus.create_stream(name, [f"{name}/**"])
        await some(bus, f"{name}/1", 0, 5)
        async with bus.channel(name, "work", window=5) as jobs:
            for message in await take(jobs, 5):
                await message.ack()
    await bus.close()
    await a.stop()
    folder = nodes.folder / "a" / "streams"
    shutil.rmtree(folder / "one")
    shutil.rmtree(folder / "two" / "log")
    shutil.rmtree(folder / "three" / "channels")
    shutil.rmtree(folder / "default")
    caplog.clear()
    a = await nodes.node("a")
    for file, text in {
        "one": "it is created again, empty: its messages are lost, and it begins with the offset 0, and its channels begin anew",
        "two/log": "its messages are lost, and it begins with the offset 0",
        "three/channels": "its channels begin anew",
        "default": "it is created again, empty",
    }.items():
        (told,) = [one for one in caplog.messages if f"{folder / file} existed before and is missing" in one]
        assert text in told
    bus = await nodes.client(a)
    for name in ("one", "two", "three", "default"):
        info = await (await bus.stream(name)).info()
        assert info.damage == 1
    (finding,) = await doctor._damage(bus)
    assert finding.state == "warn"
    assert "default (1), one (1), three (1), two (1)" in finding.text
    assert [one["lag"] for one in a._hub.channels.figures(streams(a)["two"].number)] == [0]
    await some(bus, "two/1", 5, 6)
    async with bus.channel("two", "work") as jobs:
        assert numbers([await jobs.recv(60)]) == [5]


async def test_a_new_broker_misses_nothing(nodes: Mirrored, caplog):
    a = await nodes.node("a")
    bus = await nodes.client(a)
    await bus.create_stream("one", ["one/**"])
    await bus.close()
    await a.stop()
    await nodes.node("a")
    assert not [one for one in caplog.messages if "missing" in one]
