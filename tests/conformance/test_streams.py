"""Streams: made, changed, removed and listed, and read as messages and as Arrow."""

import re
import struct
import sys
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import busway
from busway._core import block_records
from busway.errors import Code
from tests.support.net import PATIENCE, Net, eventually, gather, settle

pytestmark = pytest.mark.both_loops

SMALL = 256
"""The fewest messages that a bucket of a stream with max_count is cut at."""


async def everything(stream: busway.Stream, *arguments: Any, **keywords: Any) -> list[busway.Message]:
    return [message async for batch in stream.read(*arguments, **keywords) for message in batch]


async def payloads_of(stream: busway.Stream, *arguments: Any, **keywords: Any) -> list[bytes]:
    return [message.payload for message in await everything(stream, *arguments, **keywords)]


async def refused(bus: busway.Bus, what: str, **question: Any) -> busway.BusError:
    with pytest.raises(busway.BusError) as caught:
        await bus.request(f"$bus/{what}", msgspec.json.encode(question))
    return caught.value


async def test_a_stream_takes_what_is_published_durably_on_its_topics(net: Net) -> None:
    bus = await net.connect()
    stream = await bus.create_stream("orders", ["orders/**"], max_age="7d", max_count=10_000)
    assert (await bus.publish("orders/eu/1", b"1", durable=True)).stream == "orders"
    assert (await bus.publish("other", b"2", durable=True)).stream == "default"
    await bus.publish("orders/eu/1", b"not stored", confirm=True)
    assert await payloads_of(stream) == [b"1"]
    info = await stream.info()
    assert isinstance(info, busway.StreamInfo)
    assert (info.name, info.topics, info.store, info.safety) == ("orders", ("orders/**",), "memory", "written")
    assert (info.max_age, info.max_count, info.max_bytes, info.once) == (7 * 86400.0, 10_000, None, 900.0)
    assert (info.first, info.next, info.count, info.topic_count, info.damage) == (0, 1, 1, 1, 0)
    assert net.server is not None
    assert info.broker == stream.broker == net.server.guid


async def test_a_stream_without_limits_keeps_everything(net: Net) -> None:
    bus = await net.connect()
    info = await (await bus.create_stream("orders", ["orders/**"])).info()
    assert (info.max_age, info.max_bytes, info.max_count) == (None, None, None)
    default = await (await bus.stream("default")).info()
    assert (default.max_age, default.max_bytes, default.max_count) == (7 * 86400.0, None, None)


async def test_an_error_names_the_settings_that_differ(net: Net) -> None:
    bus = await net.connect()
    await bus.create_stream("orders", ["orders/**"], max_age="1d")
    with pytest.raises(busway.Rejected, match=r"max_age is 86400\.0, not None") as caught:
        await bus.create_stream("orders", ["orders/**"])
    assert caught.value.code == busway.errors.Code.DUPLICATE


async def test_the_broker_chooses_the_best_store_it_has(net: Net) -> None:
    await net.serve(data=net.folder / "data")
    bus = await net.connect()
    chosen = await (await bus.create_stream("chosen", ["a"])).info()
    told = await (await bus.create_stream("told", ["b"], store="memory", safety="memory")).info()
    assert (chosen.store, told.store, told.safety) == ("disk", "memory", "memory")
    assert [one.name for one in await bus.streams()] == ["chosen", "default", "told"]


async def test_the_same_stream_may_be_made_again_another_one_not(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    await bus.create_stream("s", ["a/**", "b"])
    await bus.publish("b", b"1", durable=True)
    assert await payloads_of(await other.create_stream("s", ["a/**", "b"])) == [b"1"]
    for name, topics in (("s", ["a/**"]), ("t", ["a/x"]), ("t", ["**"]), ("t", ["c", "b"])):
        with pytest.raises(busway.Rejected) as caught:
            await other.create_stream(name, topics)
        assert caught.value.code == Code.DUPLICATE
    assert "'a/x' overlaps 'a/**' of the stream 's'" in str(
        await refused(bus, "stream/create", name="t", topics=["a/x"])
    )
    assert [one.name for one in await bus.streams()] == ["default", "s"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"name": "../up"}, "not a valid name of a stream"),
        ({"name": ""}, "not a valid name of a stream"),
        ({"topics": []}, "needs topics"),
        ({"topics": "orders/**"}, "list of patterns"),
        ({"topics": 5}, "list of patterns"),
        ({"max_age": "soon"}, "not a length of time"),
        ({"max_age": 0}, "above 0"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"max_count": 1.5}, "max_count"),
        ({"once": None}, "once"),
        ({"store": "no/name"}, "store must be one of"),
        ({"safety": "hopeful"}, "safety must be one of"),
        ({"url": "sqlite:////tmp/x"}, "url"),
    ],
)
async def test_settings_that_cannot_be_are_refused_here_and_by_the_broker(net: Net, given: Any, text: str) -> None:
    bus = await net.connect()
    with pytest.raises((ValueError, TypeError), match=re.escape(text)):
        await bus.create_stream(**{"name": "s", "topics": ["t"], "store": "memory", **given})
    error = await refused(bus, "stream/create", **{"name": "s", "topics": ["t"], "store": "memory", **given})
    assert (type(error), error.code) == (busway.Rejected, Code.INVALID_SETTING)
    assert text in str(error)
    assert [one.name for one in await bus.streams()] == ["default"]


async def test_what_a_broker_refuses_of_a_stream(net: Net) -> None:
    bus = await net.connect()
    await bus.create_stream("s", ["t"])
    for what, question, code in (
        ("stream/create", {"name": "n", "topics": ["a/*b"]}, Code.INVALID_TOPIC),
        ("stream/create", {"name": "n", "topics": ["a"], "colour": "red"}, Code.INVALID_SETTING),
        ("stream/create", {"name": ["n"], "topics": ["a"]}, Code.INVALID_SETTING),
        ("stream/create", {"name": "n", "topics": ["a"], "store": "disk"}, Code.INVALID_SETTING),  # has no folder
        ("stream/create", {"name": "n", "topics": ["a"], "former": ["b"]}, Code.INVALID_SETTING),
        ("stream/update", {"name": "s", "colour": "red"}, Code.INVALID_SETTING),
        ("stream/update", {"name": "s", "store": "disk"}, Code.INVALID_SETTING),
        ("stream/update", {"name": "n"}, Code.NO_STREAM),
        ("stream/update", {"name": "default", "topics": ["t2"]}, Code.INVALID_SETTING),
        ("stream/remove", {"name": "n"}, Code.NO_STREAM),
        ("stream/remove", {"name": "default"}, Code.INVALID_SETTING),
        ("stream/remove", {}, Code.HANDLER_ERROR),
        ("stream/list", {"name": "n"}, Code.NO_STREAM),
        ("stream/list", {"names": ["s"]}, Code.HANDLER_ERROR),
        ("stream/topics", {"name": "n"}, Code.NO_STREAM),
        ("stream/find", {"name": "s"}, Code.INVALID_SETTING),
        ("stream/find", {"name": "s", "time": 1, "topic": "t"}, Code.INVALID_SETTING),
        ("read", {"stream": "n"}, Code.NO_STREAM),
        ("read", {"stream": "s", "from": -1}, Code.HANDLER_ERROR),
        ("read", {"stream": "s", "most": 0}, Code.HANDLER_ERROR),
        ("read", {"stream": "s", "pattern": "a//b"}, Code.INVALID_TOPIC),
        ("read", {"stream": "s", "rules": "AAAA"}, Code.INVALID_RULE),
        ("read", {"stream": "s", "colour": "red"}, Code.HANDLER_ERROR),
    ):
        assert (await refused(bus, what, **question)).code == code, (what, question)
    for call in (bus.stream("n"), bus.update_stream("n", max_age="1h"), bus.remove_stream("n")):
        with pytest.raises(busway.Rejected, match="there is no stream 'n'"):
            await call
    with pytest.raises(TypeError, match="no setting 'colour'"):
        await bus.update_stream("s", colour="red")
    with pytest.raises(busway.Rejected, match="store of stream 's' can't be changed"):
        await bus.update_stream("s", store="disk")
    assert net.server is not None
    assert net.server.stats()["errors"] == 0


async def test_only_what_is_given_changes(net: Net) -> None:
    bus = await net.connect()
    before = await (await bus.create_stream("s", ["a", "b"], max_age="1h", max_bytes=10**6, once="1m")).info()
    await bus.publish("b", b"before", durable=True)
    stream = await bus.update_stream("s", topics=["a", "c"], safety="memory", max_age=None)
    after = await stream.info()
    assert (after.topics, after.safety, after.max_age, after.former) == (("a", "c"), "memory", None, ("b",))
    assert (after.max_bytes, after.once, after.store) == (before.max_bytes, before.once, before.store)
    assert (await bus.publish("b", b"elsewhere", durable=True)).stream == "default"
    assert (await bus.publish("c", b"here", durable=True)).stream == "s"
    assert await payloads_of(stream) == [b"before", b"here"]
    assert (await (await bus.update_stream("s", topics=["b"])).info()).former == ("a", "c")
    async with bus.subscribe("c", since="all") as subscription:  # which the stream no longer takes, but still holds
        assert (await subscription.recv(timeout=PATIENCE)).payload == b"here"


async def test_the_default_stream_can_be_changed_too(net: Net) -> None:
    bus = await net.connect()
    info = await (await bus.update_stream("default", max_age="2h", max_count=500)).info()
    assert (info.topics, info.max_age, info.max_count) == ((), 7200.0, 500)


async def test_a_shorter_retention_applies_to_what_is_there(net: Net) -> None:
    bus = await net.connect()
    stream = await bus.create_stream("s", ["t"], max_count=SMALL * 8)
    await bus.publish_many("t", [b"%d" % number for number in range(SMALL * 8)], durable=True)
    assert (await stream.info()).count == SMALL * 8
    await bus.update_stream("s", max_count=SMALL)
    info = await stream.info()
    assert SMALL <= info.count <= SMALL * 3
    assert await payloads_of(stream) == [b"%d" % number for number in range(info.first, SMALL * 8)]


async def test_a_new_stream_is_missed_by_nobody_who_misses_nothing(net: Net) -> None:
    bus, reader = await net.connect(), await net.connect()
    await bus.publish("a/1", b"1", durable=True)
    async with reader.subscribe("a/*", since="all") as those, reader.subscribe("b", since="all") as others:
        assert [one.stream for one in await gather(those, 1)] == ["default"]
        await bus.create_stream("s", ["a/**"])
        await settle(bus, reader)
        # They are told where they begin, before there is a message: after a loss they go on from there.
        assert {stream for _, stream in those.position} == {"default", "s"}
        assert {stream for _, stream in others.position} == {"default"}
        await bus.publish("a/1", b"2", durable=True)
        assert [(one.stream, one.payload) for one in await gather(those, 1)] == [("s", b"2")]
        await bus.update_stream("s", topics=["a/**", "b"])
        await settle(bus, reader)
        assert {stream: offset for (_, stream), offset in others.position.items()} == {"default": 0, "s": 1}
        await bus.publish("b", b"3", durable=True)
        assert [(one.stream, one.payload) for one in await gather(others, 1)] == [("s", b"3")]
    # What was stored before the stream was there stays where it is, and comes first all the same.
    async with reader.subscribe("a/1", since="all") as again:
        assert sorted((one.stream, one.payload) for one in await gather(again, 2)) == [("default", b"1"), ("s", b"2")]


async def test_a_stream_that_is_removed_is_gone(net: Net) -> None:
    bus, reader = await net.connect(), await net.connect()
    stream = await bus.create_stream("s", ["a"])
    async with reader.subscribe("*", since="all") as subscription:
        await bus.publish("a", b"1", durable=True)
        await gather(subscription, 1)
        assert (await bus.remove_stream("s")).count == 1
        for call in (stream.info(), stream.topics(), everything(stream), stream.find("a", 1)):
            with pytest.raises(busway.Rejected, match="there is no stream 's'"):
                await call
        assert (await bus.publish("a", b"2", durable=True)).stream == "default"
        assert [one.payload for one in await gather(subscription, 1)] == [b"2"]  # it goes on with the others
        again = await bus.create_stream("s", ["a"])
        await bus.publish("a", b"3", durable=True)
        assert [one.payload for one in await gather(subscription, 1)] == [b"3"]
        assert await payloads_of(again) == [b"3"]


async def test_streams_and_their_settings_survive_a_restart(net: Net) -> None:
    server = await net.serve(data=net.folder / "data")
    async with net.client() as bus:
        await bus.create_stream("kept", ["a"], safety="synced", max_age="3d")
        await bus.create_stream("gone", ["b"])
        await bus.create_stream("passing", ["c"], store="memory")
        await bus.publish("a", b"1", durable=True)
        await bus.update_stream("kept", topics=["a", "d"], max_bytes=10**7)
        before = await (await bus.stream("kept")).info()
        await bus.remove_stream("gone")
    await server.stop()
    await net.serve(data=net.folder / "data")
    bus = await net.connect()
    assert [one.name for one in await bus.streams()] == ["default", "kept"]
    stream = await bus.stream("kept")
    after = await stream.info()
    assert msgspec.structs.replace(after, index_bytes=before.index_bytes) == before, "a stop writes an index"
    assert await payloads_of(stream) == [b"1"]
    folders = [one.name for one in Path(net.folder / "data/streams").iterdir() if one.is_dir()]
    assert sorted(folders) == ["default", "kept"]


# Reading.


async def test_a_read_message_is_as_it_was_published(net: Net) -> None:
    bus = await net.connect("feed")
    stream = await bus.create_stream("s", ["**"])
    place = await bus.publish("a/b", b"payload", durable=True, fields={"venue": "krk"})
    large = b"x" * 100_000
    await bus.publish("a/b", large, durable=True)
    first, second = await everything(stream)
    assert (first.topic, first.payload, first.fields, first.sender) == ("a/b", b"payload", {"venue": "krk"}, "feed")
    assert (first.position, first.offset, first.sequence, first.stream) == (place, 0, 1, "s")
    assert (first.kind, first.replayed, first.deliveries) == ("publish", True, 0)
    assert first.stored_ns is not None
    assert first.stored_ns >= first.time_ns
    assert (second.payload, second.fields, second.sequence) == (large, {}, 2)
    async with bus.subscribe("a/b", since="all") as subscription:
        same = await subscription.recv(timeout=PATIENCE)
    assert (same.id, same.time_ns, same.stored_ns) == (first.id, first.time_ns, first.stored_ns)


async def test_from_and_to(net: Net) -> None:
    bus = await net.connect()
    stream = await bus.create_stream("s", ["t"])
    assert await everything(stream) == []
    placed = await bus.publish_many("t", [b"%d" % number for number in range(10)], durable=True)
    numbers = [b"%d" % number for number in range(10)]
    reached = busway.Positions([placed[3]])
    for from_, to, first, end in (
        (None, None, 0, 10),
        ("all", None, 0, 10),
        (3, 7, 3, 7),
        (3, 3, 0, 0),
        (7, 3, 0, 0),
        (8, 1000, 8, 10),
        (10, None, 0, 0),
        (1000, None, 0, 0),
        (placed[3], placed[5], 3, 5),  # with the first, before the second, as offsets
        (str(placed[3]), None, 3, 10),
        (reached, None, 4, 10),  # what a reader that had come there would read next
        (str(reached), None, 4, 10),
        ("1h", None, 0, 10),
        (timedelta(hours=1), "0.001ms", 0, 10),
        (datetime(2020, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(hours=1), 0, 10),
        (datetime.now(UTC) + timedelta(hours=1), None, 0, 0),
        (None, datetime(2020, 1, 1, tzinfo=UTC), 0, 0),
    ):
        assert await payloads_of(stream, from_, to) == numbers[first:end], (from_, to)
    middle = (await everything(stream))[5]
    assert middle.stored_ns is not None
    moment = datetime.fromtimestamp(middle.stored_ns // 10**9, UTC)
    assert len(await everything(stream, moment)) == 10  # they were stored within that second or later


@pytest.mark.parametrize(
    ("place", "error"),
    [
        (-1, ValueError),
        (True, TypeError),
        (1.5, TypeError),
        ("soon", ValueError),
        ("abc:1:s", ValueError),
        (busway.Position("0" * 32, "s", 1), ValueError),
        (busway.Position("0" * 32, "other", 1), ValueError),
        (datetime(2020, 1, 1), ValueError),  # noqa: DTZ001, that is what is wrong with it
        (object(), TypeError),
    ],
)
async def test_a_place_that_is_none(net: Net, place: Any, error: type[Exception]) -> None:
    bus = await net.connect()
    stream = await bus.create_stream("s", ["t"])
    for arguments in ((place, None), (None, place)):
        with pytest.raises(error):
            await everything(stream, *arguments)
    for wrong in ({"batch": 0}, {"topic": "a//b"}, {"where": {"a": object()}}):
        with pytest.raises((ValueError, TypeError)):
            stream.read(**wrong)  # told at once, not when it is iterated


async def test_the_answer_of_a_read_on_the_wire(net: Net) -> None:
    """Two numbers and whole records, as other clients get them; no more bytes than asked for, but one record at least."""
    bus = await net.connect()
    await bus.create_stream("s", ["t/*"])
    for number in range(10):
        await bus.publish(f"t/{number % 2}", b"x" * 1000, durable=True)

    async def read(**question: Any) -> tuple[int, int, list[int]]:
        answer = (await bus.request("$bus/read", msgspec.json.encode({"stream": "s", **question}))).payload
        first, following = struct.unpack_from("<QQ", answer)
        return first, following, [row[0] for row in block_records(answer[16:])]

    everything = list(range(10))
    assert await read() == (0, 10, everything)
    assert await read(**{"from": 2, "to": 5}) == (2, 5, [2, 3, 4])
    assert await read(**{"from": 2, "to": 9, "most": 1}) == (2, 3, [2])
    assert await read(most=3500) == (0, 3, [0, 1, 2])
    assert await read(most=1 << 40) == (0, 10, everything)
    assert await read(pattern="t/1", to=6) == (0, 6, [1, 3, 5])
    assert await read(pattern="t/7") == (0, 10, [])
    assert await read(**{"from": 10}) == (10, 10, [])
    assert await read(**{"from": 99}) == (99, 99, [])


async def test_batches_are_no_larger_than_asked_for(net: Net) -> None:
    bus = await net.connect()
    stream = await bus.create_stream("s", ["t"])
    await bus.publish_many("t", [b""] * 2500, durable=True)
    assert [len(batch) async for batch in stream.read()] == [1024, 1024, 452]
    assert [len(batch) async for batch in stream.read(batch=2000)] == [2000, 500]


async def test_topics_and_rules_choose(net: Net) -> None:
    bus = await net.connect()
    stream = await bus.create_stream("s", ["a/**"])
    for number in range(40):
        fields = {"n": number, "even": number % 2 == 0}
        await bus.publish(f"a/{number % 4}/{number}", b"%d" % number, durable=True, fields=fields)
    assert await payloads_of(stream, topic="a/3/*") == [b"%d" % number for number in range(3, 40, 4)]
    assert await payloads_of(stream, topic="a/1/13") == [b"13"]
    assert await payloads_of(stream, topic="b") == []
    assert await payloads_of(stream, topic="re:a/[12]/.*5") == [b"5", b"25"]
    assert await payloads_of(stream, 5, 9, topic="a/0/*") == [b"8"]
    assert await payloads_of(stream, where={"even": True, "n": [3, 4, 5]}) == [b"4"]
    assert await payloads_of(stream, where=busway.expr("fields.n > 37")) == [b"38", b"39"]
    assert await payloads_of(stream, where={"n": lambda value: value == 7}) == [b"7"]
    topics = await stream.topics("a/2/*")
    assert topics[0] == busway.StoredTopic("a/2/10", first=1, last=1, messages=1)
    assert [one.topic for one in topics] == sorted(f"a/2/{number}" for number in range(2, 40, 4))
    assert len(await stream.topics()) == 40
    assert (await stream.find("a/2/10", 1), await stream.find("a/2/10", 2)) == (10, None)


async def test_a_long_stream_is_read_whole_and_in_order(net: Net) -> None:
    """Several answers long, with messages of a topic only here and there."""
    await net.serve(data=net.folder / "data")
    bus = await net.connect()
    stream = await bus.create_stream("s", ["**"])
    for part in range(4):
        await bus.publish_many("many", [b"%d" % number + b"." * 200 for number in range(5000)], durable=True)
        await bus.publish("few", b"%d" % part, durable=True)
    messages = await everything(stream)
    assert [message.offset for message in messages] == list(range(20_004))
    assert await payloads_of(stream, topic="few") == [b"0", b"1", b"2", b"3"]
    assert stream.lost == 0


async def test_leaving_a_read_leaves_nothing_behind(net: Net) -> None:
    bus = await net.connect()
    stream = await bus.create_stream("s", ["t"])
    await bus.publish_many("t", [b"x" * 500] * 10_000, durable=True)
    async with aclosing(stream.read()) as reading:
        async for batch in reading:
            assert batch[0].offset == 0
            break
    assert len(await everything(stream)) == 10_000
    assert bus.errors == 0


async def test_what_goes_while_it_is_read_is_told(net: Net) -> None:
    bus = await net.connect()
    events = bus.events()
    stream = await bus.create_stream("s", ["t"], max_count=SMALL * 64)
    await bus.publish_many("t", [b"%d" % number + b"." * 500 for number in range(SMALL * 32)], durable=True)
    got: list[busway.Message] = []
    async with aclosing(stream.read()) as reading:
        async for batch in reading:
            if not got:
                await bus.update_stream("s", max_count=SMALL)
            got += batch
    first = (await stream.info()).first
    offsets = [message.offset for message in got]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == SMALL * 32 - 1
    assert stream.lost == SMALL * 32 - len(got) > 0
    assert {event.count async for event in _until_gap(events)} == {stream.lost}
    assert await payloads_of(stream, 0) != []
    assert stream.lost == SMALL * 32 - len(got) + first  # who asks for what is gone is told too


async def _until_gap(events: busway.EventStream) -> Any:
    async for event in events:
        if event.kind == "gap":
            yield event
            return


async def test_messages_that_have_expired_or_are_due_later_are_not_read(net: Net) -> None:
    bus = await net.connect()
    stream = await bus.create_stream("s", ["t"])
    await bus.publish("t", b"expires", durable=True, expires="1ms")
    await bus.publish("t", b"later", durable=True, delay="1h")
    await bus.publish("t", b"now", durable=True)

    async def gone() -> bool:
        return await payloads_of(stream) == [b"now"]

    await eventually(gone)
    assert await payloads_of(stream, topic="t") == [b"now"]
    assert sum([batch.num_rows async for batch in stream.arrow()]) == 1


# Arrow.


async def test_arrow_has_the_columns_of_the_messages(net: Net) -> None:
    pa = pytest.importorskip("pyarrow")
    bus = await net.connect("feed")
    stream = await bus.create_stream("s", ["a/*"])
    for number in range(100):
        await bus.publish(f"a/{number % 3}", b"%d" % number, durable=True, fields={"n": number})
    table = pa.Table.from_batches([batch async for batch in stream.arrow()])
    assert table.column_names == [
        *("broker", "stream", "offset", "topic", "sequence", "stored", "time", "id", "sender", "fields", "payload")
    ]
    messages = await everything(stream)
    rows = table.drop_columns(["time", "stored"]).to_pylist()
    assert len(rows) == 100
    for row, message in zip(rows, messages, strict=True):
        for name in ("broker", "stream", "offset", "topic", "sequence", "id", "sender", "payload"):
            assert row[name] == getattr(message, name)
        assert msgspec.msgpack.decode(row["fields"]) == message.fields
    times = table.column("time").cast(pa.int64()).to_pylist()
    stored = table.column("stored").cast(pa.int64()).to_pylist()
    assert (times, stored) == ([one.time_ns for one in messages], [one.stored_ns for one in messages])


async def test_arrow_of_some_columns_topics_and_offsets(net: Net) -> None:
    pa = pytest.importorskip("pyarrow")
    bus = await net.connect()
    stream = await bus.create_stream("s", ["a/*"])
    for number in range(20):
        await bus.publish(f"a/{number % 2}", b"%d" % number, durable=True, fields={"n": number})
    batches = [
        batch
        async for batch in stream.arrow(4, 18, topic="a/0", where={"n": [2, 6, 8, 18]}, columns=["payload", "stream"])
    ]
    assert pa.Table.from_batches(batches).to_pydict() == {"payload": [b"6", b"8"], "stream": ["s", "s"]}
    assert [batch async for batch in stream.arrow(topic="a/7")] == []
    with pytest.raises(ValueError, match="no column 'colour'"):
        stream.arrow(columns=["colour"])
    with pytest.raises(busway.InvalidRule, match="callable"):
        stream.arrow(where={"n": lambda value: True})


async def test_arrow_without_pyarrow_says_how_to_get_it(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = await net.connect()
    stream = await bus.create_stream("s", ["t"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'pyarrow>=18'")):
        stream.arrow()
