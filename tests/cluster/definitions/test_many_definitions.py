"""Very many streams and channels: told in portions, written off the loop, limited where they are made, forgotten when they are gone."""

import asyncio
import threading
import time

import pytest

import busway
from busway.broker.storage.record_format import frame
from busway.cluster.definitions import definitions, file as definition_file
from busway.cluster.definitions.definitions import PORTION, REMEMBERED, REMOVED, Definition, Definitions, portions, read
from busway.cluster.definitions.file import DefinitionFile, Noted
from busway.cluster.protocol import DEFINED
from busway.errors import LimitExceeded
from tests.support.cluster import Cluster
from tests.support.definitions import channels, settle, streams

ME = "0" * 32


def removed(count, begin=0):
    return [Definition(f"s/{number}", begin + number, ME, None) for number in range(count)]


def test_what_was_removed_is_forgotten_after_a_while():
    known = Definitions(ME)
    known.make("s", None, 1000)
    known.take(Definition("t", 2000, ME, None), 2000)
    known.make("u", {}, 3000)
    known.make("v", None, 1000 + REMEMBERED)
    assert {one.key for one in known} == {"s", "t", "u", "v"}
    known.make("w", None, 2001 + REMEMBERED)
    assert {one.key for one in known} == {"u", "v", "w"}
    again = Definitions(ME, list(known), 1001 + 2 * REMEMBERED)
    assert {one.key for one in again} == {"u", "w"}


def test_what_was_removed_first_is_forgotten_if_there_is_too_much():
    known = Definitions(ME, removed(REMOVED))
    assert known.get("s/0") is not None
    known.make("other", None, 10**6)
    assert known.get("s/0") is None
    assert known.get("s/1") is not None
    assert len(known) == REMOVED


def test_one_that_is_made_again_is_not_forgotten():
    known = Definitions(ME)
    known.make("s", None, 1)
    known.make("s", {}, 2)
    known.make("t", None, 2 + 2 * REMEMBERED)
    assert known.get("s") is not None


def test_portions_fit_frames_and_are_all():
    many = [*removed(5000), Definition("long", 1, ME, {"note": "x" * 2 * PORTION}), *removed(10)]
    told = list(portions(many))
    assert len(told) > 3
    assert sum(len(one) > PORTION + 5 for one in told) == 1, "one that is longer by itself goes alone"
    assert [one for portion in told for one in read(portion)] == many
    assert list(portions([])) == []


async def test_so_many_that_they_do_not_fit_a_frame_are_taken_over(cluster: Cluster, tmp_path):
    a, begin = await cluster.start(), time.time_ns()
    many = [Definition(f"s{number}", begin + number, a.guid, None) for number in range(12_000)]
    for one in many:
        a._hub.peers.members.agreement._definitions.take(one)
    b = await cluster.start(a, data=tmp_path / "b")
    await cluster.whole()
    await settle(lambda: len(b._hub.peers.members.agreement._definitions) == len(many))
    await b.stop()
    again = await cluster.start(data=tmp_path / "b")
    assert sorted(again._hub.peers.members.agreement._definitions, key=lambda one: one.age) == many


async def test_nodes_with_more_than_one_may_make_are_linked_all_the_same(cluster: Cluster, monkeypatch):
    a, b = await cluster.start(), await cluster.start()
    for number, node in enumerate((a, b)):
        client = await cluster.client(node)
        await client.create_stream(f"s{number}", topics=[f"s{number}/**"])
        await client.create_channel(f"s{number}", "c")
    for module in ("definitions.definitions", "definitions.agreement"):
        monkeypatch.setattr(f"busway.cluster.{module}.MOST", 3)
    c = await cluster.start(a, b)
    await cluster.whole()
    await settle(lambda: all(len(streams(node)) == 2 for node in (a, b, c)))
    await settle(lambda: all(channels(node, "s0") == channels(node, "s1") == {"c"} for node in (a, b, c)))
    client = await cluster.client(c)
    with pytest.raises(LimitExceeded, match="a cluster has at most 3 streams and channels"):
        await client.create_stream("more", topics=["more/**"])
    with pytest.raises(LimitExceeded, match="can't create the channel 'more' of the stream 's0'"):
        await client.create_channel("s0", "more")
    await client.create_channel("s0", "passing", delete_on_leave=True)  # of this node alone
    await client.update_stream("s0", max_count=5)
    await client.create_channel("s0", "c", max_deliveries=5)
    await client.remove_stream("s1")
    await client.create_channel("s0", "more")
    assert channels(a, "s0") >= {"c", "more"}


async def test_channels_of_a_removed_stream_are_removed_once(cluster: Cluster):
    a, b = await cluster.several(2)
    client = await cluster.client(a)
    for _ in range(2):
        await client.create_stream("s", topics=["s/**"])
        await client.create_channel("s", f"c{_}")
        await client.remove_stream("s")
    first, second = (b._hub.peers.members.agreement._definitions.get(f"s/c{number}") for number in range(2))
    assert first.stamp < second.stamp, "what is gone is not removed again"


async def test_taking_many_over_lets_others_have_their_turn(cluster: Cluster, monkeypatch):
    monkeypatch.setattr("busway.cluster.definitions.agreement._TURN", -1.0)
    a, _b = await cluster.several(2)
    agreeing = a._hub.peers.members.agreement
    for portion in portions(removed(300, begin=time.time_ns())):
        agreeing.heard(next(iter(agreeing._links)), DEFINED, 0, portion)
    turns = 0
    while len(agreeing._definitions) < 300:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 300


def file_of(tmp_path, *, known=()):
    everything = list(known)
    return DefinitionFile(tmp_path, lambda: everything), everything


async def test_what_comes_while_the_thread_writes_is_written_at_once(tmp_path, monkeypatch):
    file, _ = file_of(tmp_path)
    assert file.load() == []
    write, batches, threads, go_on = file._write, [], set(), threading.Event()

    def slowly(noted, whole):
        batches.append(len(noted))
        threads.add(threading.current_thread())
        assert go_on.wait(60)
        return write(noted, whole)

    monkeypatch.setattr(file, "_write", slowly)
    noted = [Noted(one, "why" if one.stamp % 2 else "") for one in removed(100)]
    for each in noted:
        file.note(each)
    waiting = asyncio.create_task(file.written())
    await asyncio.sleep(0)
    assert not waiting.done()
    go_on.set()
    await waiting
    assert batches == [1, 99]
    assert threading.current_thread() not in threads
    await file.stop()
    assert file_of(tmp_path)[0].load() == noted
    assert (tmp_path / definition_file.FILE).stat().st_mode & 0o777 == 0o600


async def test_a_file_that_is_mostly_history_is_written_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(definition_file, "_WORTH", 10)
    file, everything = file_of(tmp_path)
    file.load()
    everything += [Noted(one) for one in removed(3)]
    for _ in range(30):
        file.note(*everything)
        await file.written()
    assert 5 < file.rewritten < 30
    await file.stop()
    assert file_of(tmp_path)[0].load() == everything


async def test_what_could_not_be_written_is_written_later(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(definition_file, "_AGAIN", (0.001, 0.001))
    file, everything = file_of(tmp_path)
    file.load()
    file._pause = 0.001
    add, replace, full, tries = file._add, file._replace, True, []

    def fails(*how):
        tries.append(how)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file, "_add", fails)
    monkeypatch.setattr(file, "_replace", lambda content: fails(content) if full else replace(content))
    everything += [Noted(one) for one in removed(3)]
    file.note(*everything)
    await file.written()  # who waits is not held up by a disk
    await settle(lambda: len(tries) > 3)
    full = False
    await settle(lambda: file.rewritten == 1)
    monkeypatch.setattr(file, "_add", add)
    await file.written()
    everything.append(Noted(Definition("more", 1, ME, {})))
    file.note(everything[-1])
    await file.stop()
    assert file_of(tmp_path)[0].load() == everything
    said = [one.getMessage() for one in caplog.records if "cluster.log" in one.getMessage()]
    assert [("can't" in text, "again" in text) for text in said] == [(True, False), (False, True)]


async def test_damage_is_told_and_the_rest_counts(tmp_path, caplog):
    file, _ = file_of(tmp_path)
    noted = [Noted(one) for one in removed(3)]
    file.load()
    file.note(*noted)
    await file.stop()
    path = tmp_path / definition_file.FILE
    good = path.read_bytes()
    path.write_bytes(good + definition_file.encode(noted[0])[:-3])
    torn, everything = file_of(tmp_path, known=noted)
    assert torn.load() == noted
    assert path.read_bytes() == good
    await torn.stop()
    path.write_bytes(frame(b"\x01", definition_file.MAGIC) + good)
    damaged, _ = file_of(tmp_path, known=everything)
    assert damaged.load() == noted
    assert "a copy of the damaged file" in caplog.text
    damaged.note(noted[0])
    await damaged.stop()
    assert path.read_bytes() == good


async def test_an_answer_waits_until_it_is_written(cluster: Cluster, tmp_path):
    a = await cluster.start(data=tmp_path)
    client = await cluster.client(a)
    await client.create_stream("orders", topics=["orders/**"])
    await client.create_channel("orders", "billing")
    file, _ = file_of(tmp_path)
    assert {each.one.key for each in file.load()} == {"orders", "orders/billing"}


def test_limits_are_as_documented():
    assert (definitions.MOST, REMOVED, REMEMBERED) == (100_000, 20_000, 7 * 86_400 * 10**9)
    assert busway.Settings().streams < definitions.MOST
