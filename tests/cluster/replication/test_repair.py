"""A node that has lost something in the midst of a stream, and gets it back from its mirror: the rules, and over real sockets."""

import asyncio

import pytest

from busway._core import Log, SimulatedFiles
from busway.cluster.replication.messages import Have
from busway.cluster.replication.primary import Repair, shared
from tests.support.mirror_machines import LIMITS, Again, Pair, add, content, copy_some, filled
from tests.support.mirrored import follows, mirroring, payloads, streams
from tests.support.net import eventually, until
from tests.support.stored import row


def dig(folder, begin, end, last=None):
    """Zeros where these records were, as of a page that never came to the disk, and nothing behind `last`; nothing else tells of them."""
    for file in folder.glob("*.log"):
        kept, records, at = b"", file.read_bytes(), 0
        while at < len(records):
            size = int.from_bytes(records[at : at + 4], "little") + 4
            offset = int.from_bytes(records[at + 8 : at + 16], "little")
            if last is None or offset <= last:
                kept += bytes(size) if begin <= offset < end else records[at : at + size]
            at += size
        file.write_bytes(kept)
    for file in folder.iterdir():
        if file.suffix != ".log" and file.name != "LOCK":
            file.unlink()


def holes(log):
    return [(begin, end) for _, _, begin, end, _ in log.damage if end is None or end > begin]


def written(folder, number):
    """A log in one bucket, each record of which was a write of its own."""
    log = Log.open(folder, max_age=0)
    more(log, number)
    return log


def more(log, number):
    for _ in range(number):
        add(log, 1)
        settled(log)


def settled(log):
    """All of it is in its file: a thread writes it."""
    while log.written < log.next:
        log.clear_signal()
    return log


class Whole:
    """A log that takes back what it is given."""

    def __init__(self, *counts):
        self.counts, self.given = list(counts), []

    def mend(self, block):
        self.given.append(block)
        return self.counts.pop(0)


def test_holes_are_asked_for_one_after_the_other_and_piece_by_piece():
    log = Whole(2, 3, 0, 1)
    mending = Repair(log, [(20, 30), (5, 10), (40, 41)], trusted=True)
    assert (mending.wanted, mending.witness) == (5, None)
    mending.heard(b"2 of 5")
    assert mending.wanted == 7
    mending.heard(b"3 more")
    assert mending.wanted == 20
    mending.heard(b"nothing that fits")
    assert mending.wanted == 40
    mending.heard(b"1")
    assert not mending
    assert (mending.count, len(log.given)) == (6, 4)


def test_what_the_mirror_does_not_have_is_asked_for_once():
    mending = Repair(Whole(), [(5, 10)], trusted=True)
    mending.heard(b"")
    assert not mending


def test_without_another_sign_the_record_before_has_to_be_the_same():
    mending = Repair(Whole(5), [(5, 10)], trusted=False)
    assert (mending.wanted, mending.witness) == (4, 4)
    mending.trust()
    assert (mending.wanted, mending.witness) == (5, None)
    assert Repair(Whole(), [(0, 3)], trusted=False).witness is None, "there is nothing before"


def test_only_what_the_copy_may_have_is_asked_for():
    copy = Have(10, 50, holes=((20, 30),))
    assert shared([(5, 8), (12, 13), (25, 26), (29, 31), (30, 31), (49, 60), (50, 60)], copy) == [
        (12, 13),
        (30, 31),
        (49, 60),
    ]


@pytest.mark.parametrize(("begin", "end"), [(0, 2), (10, 11), (17, 59)])
@pytest.mark.parametrize("lost", [0, 5])
def test_what_is_missing_comes_back(tmp_path, begin, end, lost):
    log = written(tmp_path, 60 + lost)
    first = Pair(log)
    first.ask()
    first.run()
    whole = content(log)
    log.close()
    dig(tmp_path, begin, end, last=59)
    log = Log.open(tmp_path, max_age=0)
    assert (holes(log), log.next) == ([(begin, end)], 60)
    again = Again(log, first.shelf)
    assert again.ask().how == ("check" if lost else "on")
    assert (holes(log), content(settled(log))) == ([], whole)
    assert again.origin.logs["s"].repair.left == 0
    again.origin.settle(again.origin.logs["s"])
    again.run()
    assert again.origin.logs["s"].state == "copying"
    assert content(again.copy) == whole
    assert not again.shelf.aside
    log.close()


def test_a_copy_that_ends_in_the_hole_gives_what_it_has(tmp_path):
    log = written(tmp_path, 60)
    first = Pair(log)
    first.ask()
    first.run()
    more(log, 20)
    log.close()
    dig(tmp_path, 50, 70)
    log = Log.open(tmp_path, max_age=0)
    again = Again(log, first.shelf)
    assert again.ask().how == "on"
    assert holes(log) == [(60, 70)]
    again.run()
    assert [offset for offset, _ in content(log)] == [*range(60), *range(70, 80)]
    assert content(again.copy) == content(log)
    log.close()


def test_nothing_is_taken_from_a_copy_of_something_else_that_ends_in_the_hole(tmp_path):
    other = Pair(filled(60))
    other.ask()
    other.run()
    log = Log.open(tmp_path, max_age=0)
    for number in range(80):
        log.append([row("t", f"another {number}".encode(), session=9, number=number + 1)], 1000)
        log.flush()
        settled(log)
    log.close()
    dig(tmp_path, 50, 70)
    log = Log.open(tmp_path, max_age=0)
    again = Again(log, other.shelf)
    again.ask()
    again.run()
    assert holes(log) == [(50, 70)]
    assert content(again.copy) == content(log)
    assert len(again.shelf.aside) == 1
    log.close()


async def test_a_broker_gets_back_what_a_power_cut_has_left_out(nodes, tmp_path, caplog):
    a, b = await nodes.pair()
    bus = await nodes.client(a)
    await bus.create_stream("orders", ["orders/**"], safety="mirrored")
    for number in range(30):
        await bus.publish("orders/1", f"order {number}".encode(), durable=True)
    await follows(a, b)
    guid, whole = a.guid, payloads(streams(a)["orders"].log)
    await bus.close()
    await b.stop()
    await a.stop()
    dig(tmp_path / "a" / "streams" / "orders" / "log", 3, 7)

    a = await nodes.node("a")
    assert a.guid == guid
    log = streams(a)["orders"].log
    assert holes(log) == [(3, 7)]
    bus = await nodes.client(a)
    async with bus.subscribe("orders/**", since="all") as orders:
        first = asyncio.create_task(orders.recv(timeout=60))
        await bus.info()
        assert not first.done(), "nobody reads before the mirror has come"
        b = await nodes.node("b", mirror_of="a")
        rest = [(await orders.recv(timeout=60)).payload for _ in range(29)]
        assert [(await first).payload, *rest] == whole
        assert orders.missed == 0
    await follows(a, b)
    assert holes(log) == []
    assert payloads(log) == whole
    assert "restored 4 lost messages from its mirror" in caplog.text
    assert (await (await bus.stream("orders")).info()).damage == 0


async def test_without_the_mirror_it_is_told_as_lost(nodes, tmp_path):
    a, b = await nodes.pair()
    bus = await nodes.client(a)
    await bus.create_stream("orders", ["orders/**"])
    for number in range(10):
        await bus.publish("orders/1", f"order {number}".encode(), durable=True)
    await follows(a, b)
    await bus.close()
    await b.stop()
    await a.stop()
    dig(tmp_path / "a" / "streams" / "orders" / "log", 3, 7)
    a = await nodes.node("a", wait=0.3)
    bus = await nodes.client(a)
    async with bus.subscribe("orders/**", since="all") as orders:
        got = [(await orders.recv(timeout=60)).payload for _ in range(6)]
        assert got == [f"order {number}".encode() for number in (0, 1, 2, 7, 8, 9)]
    assert mirroring(a).figures()["mirrors"] == []
    # It comes later all the same: then it is there again, for whoever reads from now on.
    b = await nodes.node("b", mirror_of="a")
    log = streams(a)["orders"].log

    async def whole():
        return holes(log) == []

    await eventually(whole)
    await follows(a, b)
    assert len(payloads(log)) == 10


@pytest.mark.parametrize("known", [True, False])
async def test_a_disk_that_does_not_take_what_comes_back_is_tried_again(known):
    first = Pair(filled(60))
    first.ask()
    first.run()
    files = SimulatedFiles()
    short = Log.open(files, by_hand=True, **LIMITS)
    copy_some(first.log, short, 0, 40)
    short.write()
    files.fail(room=0)

    def fail():
        short.write()
        assert short.remove_unwritten() is not None

    if known:  # then nothing is taken for a while
        add(short, 1)
        fail()
    again = Again(short, first.shelf)
    again.ask()
    sending = again.origin.logs["s"]
    if not known:
        assert (sending.state, short.next) == ("back", 60)
        fail()
        again.origin.settle(sending)
    assert (sending.state, sending.stalled, short.next) == ("back", True, 40)
    files.fail()

    def back():
        for word in again.origin.again():
            again.tell(word)
        short.write()
        again.origin.settle(sending)
        return sending.state == "copying"

    await until(back)
    assert content(short) == content(first.log)
    assert not again.shelf.aside
