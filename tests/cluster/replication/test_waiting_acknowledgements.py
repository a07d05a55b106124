"""Acknowledgements of channels' messages in streams with safety=mirrored: they wait for the mirror, and end without one."""

import asyncio

from busway.broker.channels import progress_log
from tests.support.cluster_streams import some
from tests.support.mirrored import follows, mirroring, streams
from tests.support.net import eventually
from tests.support.progress_logs import make_small


async def stream(nodes, count, **how):
    """A stream with so many messages at a node with a mirror, and a client of that."""
    a, b = await nodes.pair(**how)
    bus = await nodes.client(a)
    await bus.create_stream("jobs", ["jobs/**"], safety="mirrored")
    await some(bus, "jobs/1", 0, count)
    await follows(a, b)
    return a, b, bus


def floor(b, a):
    """What the copy of the channel has done."""
    return mirroring(b).copies[a.guid, "jobs"].states()["work"].floor


async def test_an_acknowledgement_waits_for_the_mirror(nodes):
    a, b, bus = await stream(nodes, 3)
    async with bus.channel("jobs", "work") as jobs:
        for number in range(2):
            await (await jobs.recv(60)).ack()
            assert floor(b, a) == number + 1
        copying = mirroring(b).replica
        copying._report_written, told = lambda name: None, copying._report_written
        waiting = asyncio.ensure_future((await jobs.recv(60)).ack())

        async def there():
            return floor(b, a) == 3

        await eventually(there)
        await bus.info()
        assert not waiting.done()
        copying._report_written = told
        copying._report_written("jobs/channels")
        b._hub.flush()
        await asyncio.wait_for(waiting, 60)


async def test_without_its_mirror_it_waits_and_is_confirmed(nodes, caplog):
    a, b, bus = await stream(nodes, 3, wait=0.3)
    async with bus.channel("jobs", "work") as jobs:
        first, second, third = [await jobs.recv(60) for _ in range(3)]
        await first.ack()
        await b.stop()
        await second.ack()  # after a while
        assert any("acknowledged without it" in one for one in caplog.messages)
        assert streams(a)["jobs"].mirrored is False
        b = await nodes.node("b", mirror_of="a")
        await follows(a, b)
        await third.ack()
        assert floor(b, a) == 3


async def test_a_copy_is_as_short_as_the_log(nodes, monkeypatch):
    """The log drops what its snapshots replace, and so does the copy."""
    make_small(monkeypatch)
    a, b, bus = await stream(nodes, 300)
    async with bus.channel("jobs", "work", window=10) as jobs:
        for _ in range(300):
            await (await jobs.recv(60)).ack()
    log = a._hub.channels.journal_of(streams(a)["jobs"]).native
    copy = mirroring(b).copies[a.guid, "jobs"]

    async def short():
        return copy.progress.first > 100

    await eventually(short)
    assert log.first > 100
    await follows(a, b)
    assert floor(b, a) == 300
    assert progress_log._BUCKET < 10_000
    guid = a.guid
    await b.stop()
    b = await nodes.node("b", mirror_of="a")
    assert mirroring(b).copies[guid, "jobs"].states()["work"].floor == 300
