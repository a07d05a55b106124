"""Streams and channels are the same on all nodes, also on those that were away when they were made, changed or removed."""

import pytest

import busway
from busway.cluster.definitions.definitions import Definition, Definitions
from tests.support.cluster import Cluster
from tests.support.definitions import channels, streams
from tests.support.net import eventually


async def test_a_stream_is_on_all_nodes_when_it_was_made(cluster: Cluster):
    a, b, c = await cluster.several(3)
    maker, publisher = await cluster.client(a), await cluster.client(b)
    await maker.create_stream("orders", topics=["orders/**"], max_count=100)
    assert streams(a) == streams(b) == streams(c)
    place = await publisher.publish("orders/1", b"x", durable=True)
    assert (place.broker, place.stream) == (b.guid, "orders")
    await publisher.update_stream("orders", max_count=7)
    assert [streams(one)["orders"].max_count for one in (a, b, c)] == [7, 7, 7]
    await maker.remove_stream("orders")
    assert streams(a) == streams(b) == streams(c) == {}


async def test_channels_are_everywhere_too(cluster: Cluster):
    a, b = await cluster.several(2)
    one, other = await cluster.client(a), await cluster.client(b)
    await one.create_stream("orders", topics=["orders/**"])
    await one.create_channel("orders", "billing", max_deliveries=3, where={"kind": "new"})
    assert channels(a, "orders") == channels(b, "orders") == {"billing"}
    assert [one.max_deliveries for one in await other.channels("orders")] == [3]
    await other.remove_channel("orders", "billing")
    assert channels(a, "orders") == channels(b, "orders") == set()


async def test_a_setting_that_has_its_default_again_has_it_everywhere(cluster: Cluster):
    a, b = await cluster.several(2)
    one, other = await cluster.client(a), await cluster.client(b)
    await one.create_stream("orders", topics=["orders/**"])
    made = await one.create_channel("orders", "billing", backoff="1h", max_deliveries=9)
    (there,) = await other.channels("orders")
    assert (there.backoff, there.max_deliveries) == (made.backoff, 9) == ((3600.0,), 9)
    await one.update_channel("orders", "billing", max_deliveries=5, backoff=[1, 5, 30, 120, 600])
    (there,) = await other.channels("orders")
    assert (there.backoff, there.max_deliveries) == ((1, 5, 30, 120, 600), 5)


async def test_a_node_that_was_away_takes_over_what_it_missed(cluster: Cluster, tmp_path):
    a = await cluster.start(data=tmp_path / "a")
    b = await cluster.start(a, data=tmp_path / "b")
    await cluster.whole()
    client = await cluster.client(a)
    await client.create_stream("old", topics=["old/**"])
    await client.create_stream("kept", topics=["kept/**"])
    assert streams(a) == streams(b)
    await b.stop()
    await client.remove_stream("old")
    await client.update_stream("kept", max_age="1h")
    await client.create_stream("new", topics=["new/**"])
    again = await cluster.start(a, data=tmp_path / "b")

    async def same():
        return streams(a) == streams(again)

    await eventually(same)
    assert sorted(streams(again)) == ["kept", "new"]


async def test_streams_of_before_the_cluster_are_known_to_all(cluster: Cluster, tmp_path):
    async with busway.serve(data=tmp_path / "a") as alone, alone.connect() as client:
        await client.create_stream("mine", topics=["mine/**"])
    a = await cluster.start(data=tmp_path / "a")
    b = await cluster.start(a)

    async def same():
        return set(streams(a)) == set(streams(b)) == {"mine"}

    await eventually(same)
    assert (streams(a)["mine"].store, streams(b)["mine"].store) == ("disk", "memory")


async def test_two_streams_that_overlap_are_told_and_harm_nobody(cluster: Cluster, caplog):
    a, b = await cluster.start(), None
    async with busway.serve("tcp://127.0.0.1:0") as _:
        pass
    client = await cluster.client(a)
    await client.create_stream("one", topics=["x/**"])
    b = await cluster.start()
    other = await cluster.client(b)
    await other.create_stream("two", topics=["x/y"])
    c = await cluster.start(a, b)

    async def linked():
        return len(c._hub.peers.members.members.linked) == 2

    await eventually(linked)
    await cluster.whole()

    async def told():
        return "overlaps" in caplog.text

    await eventually(told)
    assert "one" in streams(a)
    assert "two" in streams(b)
    assert (await client.publish("x/1", b"", durable=True)).stream == "one"
    assert (await other.publish("x/y", b"", durable=True)).stream == "two"


def test_the_later_word_counts_whatever_the_order():
    guids = ["0" * 32, "1" * 32]
    words = [Definition("s", stamp, guid, {"max_count": stamp}) for stamp in (1, 2) for guid in guids]
    for order in (words, words[::-1], [words[3], *words[:3]]):
        known = Definitions(guids[0])
        for one in order:
            if known.newer(one):
                known.put(one)
        assert known.get("s") == words[3]


@pytest.mark.parametrize("clock", [0, 5, 10**18])
def test_a_change_here_is_later_than_what_was_known(clock):
    known = Definitions("0" * 32, [Definition("s", 7, "f" * 32, {})])
    made = known.make("s", None, clock)
    assert made.stamp > 7
    assert not known.newer(Definition("s", 7, "f" * 32, {}))
