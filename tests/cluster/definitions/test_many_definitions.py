"""Very many streams and channels: told in portions, written off the loop, limited where they are made, forgotten when they are gone."""

import asyncio
import time

import msgspec
import pytest

import busway
from busway.cluster.definitions import definitions
from busway.cluster.definitions.definitions import DEFINE, REMEMBERED, REMOVED, Definition, Definitions
from busway.cluster.definitions.file import Noted, definition_journal
from busway.cluster.links.portions import PORTION, portions
from busway.errors import LimitExceeded
from tests.support.cluster import Cluster
from tests.support.definitions import channels, settle, streams

ME = "0" * 32


def removed(count, begin=0):
    return [Definition(f"s/{number}", begin + number, ME, None) for number in range(count)]


def test_what_was_removed_is_forgotten_after_a_while():
    known = Definitions(ME)
    known.make("s", None, 1000)
    known.put(Definition("t", 2000, ME, None), 2000)
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
    assert sum(sum(map(len, portion)) > PORTION for portion in told) == 1, "one that is longer by itself goes alone"
    assert [one for portion in told for one in DEFINE.read(msgspec.msgpack.encode(portion))] == many
    assert list(portions([])) == []


async def test_so_many_that_they_do_not_fit_a_frame_are_taken_over(cluster: Cluster, tmp_path):
    a, begin = await cluster.start(), time.time_ns()
    many = [Definition(f"s{number}", begin + number, a.guid, None) for number in range(12_000)]
    for one in many:
        a._hub.peers.members.agreement._definitions.put(one)
    b = await cluster.start(a, data=tmp_path / "b")
    await cluster.whole()
    await settle(lambda: len(b._hub.peers.members.agreement._definitions) == len(many))
    await b.stop()
    again = await cluster.start(data=tmp_path / "b")
    assert sorted(again._hub.peers.members.agreement._definitions, key=lambda one: one.version) == many


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
    a, b = await cluster.several(2)
    agreeing, other = a._hub.peers.members.agreement, b._hub.peers.members.agreement
    for portion in portions(removed(300, begin=time.time_ns())):
        other._send(next(iter(other._calls.nodes)), portion)
    b._hub.flush()
    turns = 0
    while len(agreeing._definitions) < 300:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 300


async def test_what_was_removed_long_ago_is_not_written_again(tmp_path):
    """Neither here nor when the file is written anew."""
    async with busway.serve(data=tmp_path, cluster="test") as server:
        agreement = server._hub.peers.members.agreement
        for one in (Definition("old", 1, ME, None), Definition("new", 2 + REMEMBERED, ME, {})):
            agreement._journal.store(Noted(one))
            agreement._definitions.put(one, 2 + REMEMBERED)
        agreement._definitions.make("other", None, 2 + REMEMBERED)
        assert {one.key for one in agreement._definitions} == {"new", "other"}
        await agreement._journal.written()
        assert agreement._journal.figures()["records"] == 1


async def test_an_answer_waits_until_it_is_written(cluster: Cluster, tmp_path):
    a = await cluster.start(data=tmp_path)
    client = await cluster.client(a)
    await client.create_stream("orders", topics=["orders/**"])
    await client.create_channel("orders", "billing")
    assert {each.one.key for each in definition_journal(tmp_path).load()} == {"orders", "orders/billing"}


def test_limits_are_as_documented():
    assert (definitions.MOST, REMOVED, REMEMBERED) == (100_000, 20_000, 7 * 86_400 * 10**9)
    assert busway.Settings().streams < definitions.MOST
