"""What a node does with what its mirror tells it, when a disk is full or a link is lost in the midst of it."""

import asyncio
from contextlib import asynccontextmanager

import pytest

import busway
from busway.broker.channels.state.progress import ChannelConfig, Created, Done
from busway.cluster.failover import handback
from busway.cluster.failover.handback import Handback
from busway.cluster.replication.known_mirrors import KnownMirrors
from busway.cluster.replication.messages import Back, Took
from busway.common import environment
from busway.errors import DataFailed
from tests.support.net import eventually, gather
from tests.support.progress_logs import stored

MIRROR = "b" * 32


class Node:
    """A broker that has stored ten messages, and is told by its mirror what became of its channels."""

    def __init__(self, hub, bus, folder):
        self.hub, self.bus, self.folder = hub, bus, folder
        self.took = []
        self.turn = environment.time_ns() // 1000
        self.restart()

    def restart(self):
        """What it knew only in memory is gone."""
        self.known = KnownMirrors(self.folder)
        self.returning = Handback(self.hub, self.known, lambda conn, word: self.took.append((conn, word)))

    @property
    def stream(self):
        return self.hub.streams.by_name["jobs"]

    @property
    def channels(self):
        return self.hub.channels.channels[self.stream.number]

    @property
    def journal(self):
        return self.hub.channels.journals[self.stream.number]

    def tell(self, conn, *entries, **more):
        self.returning.heard(conn, MIRROR, Back("jobs", entries, last=True, turn=self.turn, **more))

    async def told(self, *conns):
        async def so():
            return self.took == [(conn, Took()) for conn in conns]

        await eventually(so)

    async def left(self, name):
        """What is handed out of a channel."""
        async with self.bus.channel("jobs", name, create=False, window=20) as jobs:
            return [message.offset for message in await gather(jobs, self.channels[name].figures()["lag"])]


def fill(patch, journal):
    """Its disk is full."""

    def full(*_):
        raise DataFailed("No space left on device")

    patch.setattr(journal, "_append", full)


@asynccontextmanager
async def started(folder):
    async with busway.serve(data=folder) as server, server.connect() as bus:
        await bus.create_stream("jobs", ["jobs/**"])
        for number in range(10):
            await bus.publish("jobs/1", str(number), durable=True)
        yield Node(server._running(), bus, folder)


@pytest.fixture
async def back(tmp_path):
    async with started(tmp_path) as one:
        yield one


async def test_what_could_not_be_written_is_not_told_as_written(back, monkeypatch):
    """The mirror would forget it, and a node that is killed then would hand it out again."""
    await back.bus.create_channel("jobs", "work")
    monkeypatch.setattr(handback, "RETRY", 0.01)
    epoch, journal = back.channels["work"].machine.epoch, back.journal
    with monkeypatch.context() as disk:
        fill(disk, journal)
        for conn in (1, 2):  # the link is lost, and made anew
            back.tell(conn, Created("work", epoch, 0, ChannelConfig()), Done("work", epoch, 4))
            before = journal.failed

            async def tried(before=before):
                return journal.failed > before + 2

            await eventually(tried)
            assert back.took == []
            back.returning.closed(1)
    await back.told(2)
    assert stored(journal.folder)["work"].floor == 4


async def test_nobody_waits_for_a_stream_that_was_removed_before_it_could_be_written(back, monkeypatch):
    await back.bus.create_channel("jobs", "work")
    fill(monkeypatch, back.journal)
    monkeypatch.setattr(handback, "RETRY", 0.01)
    epoch = back.channels["work"].machine.epoch
    back.tell(1, Created("work", epoch, 0, ChannelConfig()), Done("work", epoch, 4))
    assert back.took == []
    await back.bus.remove_stream("jobs")
    await back.told(1)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("what", ["made anew", "sought", "removed"])
async def test_what_is_told_again_says_nothing_of_what_was_done_since(back, what, restarted):
    """The link was lost before the mirror heard that all of it is noted. It made the channel itself, by a clock that is ahead."""
    said = Created("work", back.turn + 10**9, 0, ChannelConfig()), Done("work", back.turn + 10**9, 7)
    back.tell(1, *said, made=("work",))
    await back.told(1)
    if what == "sought":
        await back.bus.seek_channel("jobs", "work", "first")
    else:
        await back.bus.remove_channel("jobs", "work")
    if what == "made anew":
        await back.bus.create_channel("jobs", "work", start="first")
    back.returning.closed(1)
    if restarted:
        back.restart()
    back.tell(2, *said, made=("work",))
    await back.told(1, 2)
    if what == "removed":
        assert "work" not in back.channels
    else:
        assert await back.left("work") == list(range(10))


async def test_of_what_was_told_in_part_only_the_rest_is_taken_in_when_it_is_told_again(back):
    await back.bus.create_stream("more", ["more/**"])
    said = Created("work", back.turn, 0, ChannelConfig()), Done("work", back.turn, 7)
    back.returning.heard(1, MIRROR, Back("jobs", said, made=("work",), turn=back.turn))
    await back.bus.remove_channel("jobs", "work")
    back.returning.heard(1, MIRROR, Back("more", said[:1], made=("work",), more=True, last=True, turn=back.turn))
    back.returning.closed(1)
    back.returning.heard(2, MIRROR, Back("jobs", said, made=("work",), turn=back.turn))
    back.returning.heard(2, MIRROR, Back("more", said[:1], made=("work",), last=True, turn=back.turn))
    await back.told(2)
    assert not back.channels
    assert list(back.hub.channels.channels[back.hub.streams.by_name["more"].number]) == ["work"]


async def test_what_the_mirror_did_when_it_stood_in_once_more_is_taken_in(back):
    await back.bus.create_channel("jobs", "work")
    epoch = back.channels["work"].machine.epoch
    for done in (3, 6):
        back.tell(1, Created("work", epoch, 0, ChannelConfig()), Done("work", epoch, done))
        back.turn += 1
    await back.told(1, 1)
    assert await back.left("work") == [6, 7, 8, 9]


async def test_a_channel_that_was_made_anew_is_none_that_the_mirror_removed(back):
    """It removed the old one when it stood in; here it was made anew before anything was heard of that."""
    await back.bus.create_channel("jobs", "old")
    await back.bus.create_channel("jobs", "work")
    back.turn = environment.time_ns() // 1000 + 1
    await back.bus.remove_channel("jobs", "work")
    while environment.time_ns() // 1000 <= back.turn:
        await asyncio.sleep(0)
    await back.bus.create_channel("jobs", "work")
    back.tell(1, gone=("old", "work"))
    await back.told(1)
    assert list(back.channels) == ["work"]
