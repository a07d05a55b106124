"""What a node can't have as the others do stays known, is told, is tried again, and is not stored elsewhere meanwhile."""

import asyncio

import pytest

import busway
from busway.cluster.definitions.definitions import Definition
from busway.cluster.definitions.missing import PAUSES, MissingDefinitions
from busway.cluster.links.portions import portions
from busway.errors import DataFailed, StoreFailed
from tests.support.cluster import Cluster
from tests.support.definitions import channels, lacking, settle, streams

FEW = busway.Settings(streams=2)
"""The default one and one more."""


async def test_one_that_is_beyond_a_limit_is_told_and_is_there_when_that_is_raised(cluster: Cluster, tmp_path, caplog):
    a = await cluster.start(data=tmp_path / "a")
    b = await cluster.start(a, data=tmp_path / "b", settings=busway.Settings(streams=1))
    await cluster.whole()
    maker, visitor = await cluster.client(a), await cluster.client(b)
    there = await cluster.stack.enter_async_context(maker.subscribe("$bus/cluster/lacking"))
    here = await cluster.stack.enter_async_context(visitor.subscribe("$bus/cluster/lacking"))
    await maker.create_stream("late", topics=["late/**"])
    for told in (there, here):
        event = await told.recv(timeout=60)
        assert (event.fields["stream"], event.fields["node"], event.fields["guid"]) == ("late", b.name, b.guid)
        assert "1 streams already" in event.text
    assert streams(b) == {}
    assert (await visitor.request("$bus/cluster")).json()["lacking"] == [
        {
            "stream": "late",
            "channel": None,
            "removed": False,
            "error": "there are 1 streams already (setting streams)",
            "tries": 1,
        }
    ]
    assert (await maker.request("$bus/cluster")).json()["lacking"] == []
    with pytest.raises(StoreFailed, match=r"can't create the stream 'late' of the cluster: .* 1 streams already"):
        await visitor.publish("late/1", b"x", durable=True)
    await visitor.publish("late/1", b"x")  # nothing is to be stored
    assert (await visitor.publish("other/1", b"x", durable=True)).stream == "default"
    assert (await maker.publish("late/1", b"x", durable=True)).stream == "late"
    await b.stop()

    # Nobody tells it again: it knows by itself.
    b = await cluster.start(data=tmp_path / "b", settings=busway.Settings(streams=1))
    async with b.connect() as visitor:
        with pytest.raises(StoreFailed, match="1 streams already"):
            await visitor.publish("late/2", b"x", durable=True)
        assert lacking(b) == {("late", None)}
    await settle(lambda: b._hub.peers.members.agreement.figures()[0]["tries"] == 2)
    await b.stop()
    b = await cluster.start(data=tmp_path / "b")
    await settle(lambda: "late" in streams(b))
    async with b.connect() as visitor:
        assert (await visitor.publish("late/3", b"x", durable=True)).stream == "late"
    await settle(lambda: lacking(b) == set())
    await b.stop()
    b = await cluster.start(data=tmp_path / "b")
    assert lacking(b) == set()
    assert sum("late" in one.getMessage() and one.levelname == "ERROR" for one in caplog.records) == 2, "by each"


async def test_it_is_made_when_something_else_has_made_room(cluster: Cluster):
    a = await cluster.start()
    b = await cluster.start(a, settings=FEW)
    await cluster.whole()
    maker, visitor = await cluster.client(a), await cluster.client(b)
    happens = await cluster.stack.enter_async_context(visitor.subscribe("$bus/cluster/*"))
    await maker.create_stream("one", topics=["one/**"])
    await maker.create_stream("two", topics=["two/**"])
    await maker.create_channel("two", "billing", max_deliveries=3)
    assert lacking(b) == {("two", None), ("two", "billing")}
    await visitor.remove_stream("one")
    while (event := await happens.recv(timeout=60)).fields["kind"] != "caught_up":
        pass
    assert event.fields["stream"] == "two"
    await settle(lambda: lacking(b) == set())
    assert streams(b) == streams(a)
    assert channels(b, "two") == {"billing"}
    assert (await visitor.publish("two/1", b"x", durable=True)).stream == "two"


async def test_a_disk_that_fails_for_a_while_is_tried_again(cluster: Cluster, monkeypatch, caplog):
    monkeypatch.setattr("busway.cluster.definitions.missing.PAUSES", (0.001,))
    a, b = await cluster.several(2)
    streaming = b._hub.streams
    create, tries = streaming.create, []
    full = True

    async def fails(config, **how):
        tries.append(config.name)
        if full:
            raise DataFailed("no space left on device")
        return await create(config, **how)

    monkeypatch.setattr(streaming, "create", fails)
    maker, visitor = await cluster.client(a), await cluster.client(b)
    await maker.create_stream("orders", topics=["orders/**"])
    await settle(lambda: len(tries) > 3)
    with pytest.raises(StoreFailed, match="no space left"):
        await visitor.publish("orders/1", b"x", durable=True)
    full = False
    await settle(lambda: "orders" in streams(b) and not lacking(b))
    assert (await visitor.publish("orders/1", b"x", durable=True)).stream == "orders"
    told = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(told) == 1, "the same reason is told once"


async def test_one_that_is_removed_elsewhere_is_lacking_no_more(cluster: Cluster):
    a = await cluster.start()
    b = await cluster.start(a, settings=busway.Settings(streams=1))
    await cluster.whole()
    maker, visitor = await cluster.client(a), await cluster.client(b)
    await maker.create_stream("late", topics=["late/**"])
    await maker.create_channel("late", "billing")
    assert lacking(b) == {("late", None), ("late", "billing")}
    await maker.remove_stream("late")
    assert lacking(b) == set()
    assert (await visitor.publish("late/1", b"x", durable=True)).stream == "default"


async def test_a_stream_made_here_later_takes_its_topics(cluster: Cluster):
    a = await cluster.start()
    b = await cluster.start(a, settings=FEW)
    await cluster.whole()
    maker, visitor = await cluster.client(a), await cluster.client(b)
    await maker.create_stream("one", topics=["one/**"])
    await maker.create_stream("two", topics=["two/**"])
    with pytest.raises(StoreFailed):
        await visitor.publish("two/1", b"x", durable=True)
    await visitor.update_stream("one", topics=["one/**", "two/*"])
    assert (await visitor.publish("two/1", b"x", durable=True)).stream == "one"
    with pytest.raises(StoreFailed):
        await visitor.publish("two/1/2", b"x", durable=True)


@pytest.mark.parametrize("last", ["here", "there"])
async def test_of_streams_made_at_once_the_later_one_is_everywhere(cluster: Cluster, monkeypatch, last):
    a, b, c = await cluster.several(3)
    one, other = await cluster.client(a), await cluster.client(b)
    streaming, definitions = b._hub.streams, b._hub.peers.members.agreement._definitions
    add, make = streaming._add, definitions.make
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(config, **how):
        begun.set()
        await go_on.wait()
        return await add(config, **how)

    monkeypatch.setattr(streaming, "_add", slowly)
    if last == "there":  # by the clock of b
        monkeypatch.setattr(definitions, "make", lambda key, spec, clock: make(key, spec, min(clock, 1)))
    here = asyncio.create_task(other.create_stream("orders", topics=["orders/b/**"], max_count=2))
    await begun.wait()
    there = asyncio.create_task(one.create_stream("orders", topics=["orders/a/**"], max_count=1))
    await settle(lambda: b._hub.peers.members.agreement._job is not None)  # it waits for the other one to be made
    go_on.set()
    await asyncio.gather(here, there)
    count = 2 if last == "here" else 1
    await settle(lambda: all(streams(node)["orders"].max_count == count for node in (a, b, c)))
    assert len({streams(node)["orders"].topics for node in (a, b, c)}) == 1
    assert lacking(a) == lacking(b) == lacking(c) == set()


async def test_a_channel_that_is_told_before_its_stream_is_made(cluster: Cluster, tmp_path):
    """As one of a stream that was there before there was a cluster, and is told last."""
    a = await cluster.start()
    b = await cluster.start(a)
    await cluster.whole()
    client = await cluster.client(a)
    agreeing = b._hub.peers.members.agreement
    other = a._hub.peers.members.agreement
    await client.create_stream("orders", topics=["orders/**"])
    await client.create_channel("orders", "billing")
    stream, channel = list(a._hub.peers.members.agreement._definitions)
    await client.remove_stream("orders")
    later = 10**18 * 3
    agreeing._definitions._known.clear()
    told = [Definition(one.key, later, one.guid, one.spec) for one in (channel, stream)]
    for portion in portions(told):
        other._send(next(iter(other._calls.nodes)), portion)
    a._hub.flush()
    await settle(lambda: "orders" in streams(b) and channels(b, "orders") == {"billing"})
    await settle(lambda: lacking(b) == set())


def definition(key, spec=None, stamp=1):
    return Definition(key, stamp, "0" * 32, spec)


def test_pauses_grow_and_what_is_news_is_said_once():
    lacks, one, now = MissingDefinitions(), definition("s", {}), 100.0
    for number in range(10):
        assert lacks.failed(one, "full", now) == (number == 0)
        due = lacks.deadline()
        assert due == now + PAUSES[min(number, len(PAUSES) - 1)]
        assert lacks.ready(due - 0.001) == []
        assert lacks.ready(due) == [one]
        assert lacks.deadline() is None, "it is being tried"
        now = due
    assert lacks.failed(one, "something else", now)
    assert lacks.failed(definition("s", {}, stamp=2), "something else", now)
    assert lacks.made("s")
    assert not lacks.made("s")


def test_what_makes_room_is_tried_first_and_channels_wait_for_their_stream():
    lacks = MissingDefinitions()
    told = [lacks.failed(definition(*one), "no", 0.0) for one in (("c/d", {}), ("b", {}), ("b/c", {}), ("a",))]
    assert told == [True, True, False, True]
    lacks.hurry(0.5)
    assert [one.key for one in lacks.ready(0.5)] == ["a", "b", "c/d"]
    assert lacks.deadline() is None
    assert lacks.made("b")
    lacks.hurry(0.6, "b")
    assert lacks.deadline() == 0.6
    assert [one.key for one in lacks.ready(0.6)] == ["b/c"]
    assert not lacks.made("b/c"), "nobody was told of it"
