"""A mirror that has lost something from the middle of a copy, as by a power cut: it looks for that when it starts, and gets it again."""

import asyncio
import logging

import msgspec

from busway.cluster.replication.compare import have
from busway.cluster.replication.messages import Ask
from busway.cluster.replication.replica import Replica
from busway.cluster.replication.scrub import Scrub
from tests.support import mirrored
from tests.support.mirror_machines import Pair, add, content, filled
from tests.support.mirrored import follows, mirroring, streams
from tests.support.net import eventually

COUNT = 200


async def stored(nodes):
    """A node and its mirror, with a stream in several buckets."""
    a, b = await nodes.pair()
    bus = await nodes.client(a)
    await bus.create_stream("orders", ["orders/**"], max_bytes=8 << 20)
    for number in range(COUNT):
        await bus.publish("orders/1", b"%d" % number * 8192, durable=True)
    await follows(a, b)
    return a, b


def buckets(folder, a):
    return sorted((folder / "b" / "mirrors" / a.guid / "orders" / "log").glob("*.log"))


def tear(file, size=4096):
    """What a disk does that had not written everything: a page is empty."""
    with file.open("r+b") as it:
        it.seek(file.stat().st_size // 2)
        it.write(bytes(size))


def equal_records(one, other):
    return mirrored.content(one) == mirrored.content(other)


async def same(a, b):
    async def equal():
        copy = mirroring(b).copies.get((a.guid, "orders"))
        return copy is not None and not copy.log.damage and equal_records(copy.log, streams(a)["orders"].log)

    await eventually(equal)


async def test_a_hole_in_an_older_bucket_is_found_and_copied_again(nodes, tmp_path, caplog):
    a, b = await stored(nodes)
    await b.stop()
    older, *rest = buckets(tmp_path, a)
    assert rest, "one bucket is read when it is opened"
    tear(older)
    b = await nodes.node("b", mirror_of="a")
    await same(a, b)

    async def told():
        return any("stream 'orders': a bad record" in one for one in caplog.messages)

    await eventually(told)


async def test_a_hole_that_is_found_when_the_copy_has_gone_on(nodes, tmp_path, monkeypatch, caplog):
    a, b = await stored(nodes)
    await b.stop()
    tear(buckets(tmp_path, a)[0])
    look, linked = Scrub._read, asyncio.Event()

    async def later(self, *which):
        await linked.wait()
        await look(self, *which)

    monkeypatch.setattr(Scrub, "_read", later)
    b = await nodes.node("b", mirror_of="a")
    await follows(a, b)
    assert not any("has holes" in one for one in caplog.messages)
    linked.set()

    async def asked():
        return any("has holes: asking its node" in one for one in caplog.messages)

    await eventually(asked)
    await same(a, b)


async def test_a_hole_that_is_found_while_the_node_is_away(nodes, tmp_path):
    a, b = await stored(nodes)
    await b.stop()
    await a.stop()
    tear(buckets(tmp_path, a)[0])
    b = await nodes.node("b", mirror_of="a")

    async def found():
        return have(mirroring(b).copies[a.guid, "orders"].log).holes

    await eventually(found)
    a = await nodes.node("a")
    await same(a, b)


async def test_a_sound_copy_is_left_as_it_is(nodes, caplog):
    a, b = await stored(nodes)
    await b.stop()
    caplog.clear()
    caplog.set_level(logging.INFO, "busway.cluster")
    b = await nodes.node("b", mirror_of="a")
    await follows(a, b)

    async def over():
        return mirroring(b).replica._scrub._task is None

    await eventually(over)
    assert not [one for one in caplog.messages if "from the start" in one or "holes" in one]


async def test_a_mirror_that_stops_in_the_middle_of_it(nodes, tmp_path, monkeypatch):
    a, b = await stored(nodes)
    await b.stop()
    tear(buckets(tmp_path, a)[0])
    monkeypatch.setattr("busway.cluster.replication.scrub._PORTION", 1)
    b = await nodes.node("b", mirror_of="nobody")
    auditing = mirroring(b).replica._scrub
    assert auditing._task is not None
    await b.stop()
    assert auditing._task is None


def test_a_copy_that_goes_on_after_a_power_cut_misses_nothing():
    """The machine: a full bucket is on the disk before the next one is begun, so nothing is missing where nobody looks at first."""
    went_on = 0
    for seed in range(30):
        pair = Pair(filled(300))
        pair.ask()
        pair.run()
        pair.shelf.crash(seed)
        add(pair.log, 10)
        pair.mirror = Replica(pair.shelf)
        seen = pair.mirror.ask().have["s"]
        blind = msgspec.structs.replace(seen, holes=())  # as if only the newest bucket was read
        went_on += pair.answer(Ask({"s": blind}, all=True)).how == "on"
        pair.run()
        assert content(pair.copy) == content(pair.log)
    assert went_on, "or this shows nothing"
