"""The source returns the rows of a plain read of the same stream for all options, and names errors."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from busway.message import Message
from busway.spark.columns import arrow_schema
from busway.spark.endpoints import DataLoss, Endpoints
from busway.spark.options import COLUMNS, read_options
from busway.spark.source import plan
from busway.topic import matches
from tests.support.spark.bus import Served, served
from tests.support.strength import examples

NUMBERS = count(1)
PATTERNS = ["**", "*/a/**", "*/a/x", "*/b", "*/*/x", "re:.*/(a|c)", "*/none"]
FIELDS = st.dictionaries(
    st.sampled_from(["k", "venue", "n"]),
    st.one_of(st.text(max_size=5), st.integers(-9, 9), st.booleans(), st.none(), st.binary(max_size=3)),
    max_size=2,
)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["a", "a/x", "b", "b/x", "c"]), st.binary(max_size=300), FIELDS), min_size=1, max_size=60
)


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("data")) as bus:
        yield bus


def told(value: object) -> str:
    if isinstance(value, bytes):
        return json.dumps(value.hex())
    return value if isinstance(value, str) else json.dumps(value)


def expected(message: Message, stream: str) -> dict[str, Any]:
    place = message.position
    assert place is not None
    return {
        "broker": place.broker,
        "stream": stream,
        "offset": place.offset,
        "topic": message.topic,
        "sequence": message.sequence,
        "stored": datetime.fromtimestamp(0, UTC) + timedelta(microseconds=(message.stored_ns or 0) // 1000),
        "time": message.time,
        "id": message.id,
        "sender": message.sender,
        "fields": {key: told(value) for key, value in message.fields.items()},
        "payload": bytes(message.payload),
    }


def read_all(given: dict[str, str]) -> list[dict[str, Any]]:
    """As Spark would, without it."""
    options = read_options(given)
    with Endpoints(options) as places:
        parts = plan.batch(options, places)
        names = places.names
    rows: list[dict[str, Any]] = []
    for part in parts:
        for batch in plan.read(options, plan.Task(part, names[part.broker])):
            assert batch.schema == arrow_schema(options.columns)
            rows += pa.Table.from_batches([batch]).to_pylist()
    return rows


def as_read(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """Comparable: fields as a mapping, in the order of offsets if they are there."""
    for row in rows:
        if "fields" in row:
            row["fields"] = dict(row["fields"])
        for name in ("time", "stored"):
            if name in row:
                row[name] = row[name].astimezone(UTC)
    return sorted(rows, key=lambda row: row["offset"]) if "offset" in columns else rows


@given(
    messages=MESSAGES,
    kind=st.sampled_from(["url", "path"]),
    patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3, unique=True),
    begin=st.integers(0, 60),
    length=st.integers(0, 60),
    columns=st.permutations(COLUMNS).flatmap(lambda all_: st.integers(1, len(all_)).map(lambda n: tuple(all_[:n]))),
    parts=st.integers(1, 7),
    most=st.integers(1, 40),
    drop=st.booleans(),
    by=st.sampled_from(["offset", "time"]),
)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_agrees_with_a_plain_read(
    bus: Served,
    messages: list[tuple[str, bytes, dict[str, Any]]],
    kind: str,
    patterns: list[str],
    begin: int,
    length: int,
    columns: tuple[str, ...],
    parts: int,
    most: int,
    drop: bool,
    by: str,
) -> None:
    name = f"s{next(NUMBERS)}"
    stream, other = bus.stream(name, bucket=1000), bus.stream(f"{name}-other")
    for topic, payload, fields in messages:
        bus.bus.publish(f"{name}/{topic}", payload, fields=fields, durable=True)
    bus.bus.publish(f"{name}-other/a", b"other", durable=True)
    if drop:
        bus.forget(name, 10)
    first, behind = stream.info().first, stream.info().next
    begin = min(begin, behind)
    end = min(max(begin, first) + length, behind)
    everything = [expected(one, one.position.stream) for some in (*stream.read(), *other.read()) for one in some]  # type: ignore[union-attr]
    bounds: dict[str, str]
    if by == "offset":
        wanted = [row for row in everything if row["stream"] != name or begin <= row["offset"] < end]
        bounds = {
            "startingOffsets": json.dumps({name: begin}),
            "endingOffsets": json.dumps({bus.guid: {name: end}}),
            "failOnDataLoss": "false",  # what was asked for may be gone
        }
    else:
        # Times of the stream are of one clock and go on; those of the messages at both ends.
        times = sorted(row["stored"] for row in everything)
        early, late = times[min(begin, len(times) - 1)], times[min(begin + length, len(times) - 1)]
        wanted = [row for row in everything if early <= row["stored"] < late]
        bounds = {"startingTimestamp": early.isoformat(), "endingTimestamp": late.isoformat()}
    wanted = [row for row in wanted if any(matches(pattern, row["topic"]) for pattern in patterns)]
    rows = read_all(
        bus.options(kind)
        | bounds
        | {
            "streams": f"{name},{name}-other",
            "topics": json.dumps(patterns),
            "columns": ",".join(columns),
            "minPartitions": str(parts),
            "maxRecordsPerPartition": str(most),
        }
    )
    found = as_read(rows, columns)
    model = [
        {key: row[key] for key in columns} for row in sorted(wanted, key=lambda row: (row["offset"], row["stream"]))
    ]
    if {"offset", "stream"} <= set(columns):
        found.sort(key=lambda row: (row["offset"], row["stream"]))
        assert found == model
    else:
        assert sorted(map(repr, found)) == sorted(map(repr, model))
    bus.bus.remove_stream(name)
    bus.bus.remove_stream(f"{name}-other")


@pytest.fixture(scope="module")
def orders(bus: Served) -> Served:
    """A stream of 900 messages on three topics."""
    bus.stream("orders", bucket=8192)
    for number in range(9):
        payloads = [msgspec.json.encode({"n": number * 100 + one}) for one in range(100)]
        bus.bus.publish_many(f"orders/{'abc'[number % 3]}", payloads, durable=True, fields={"number": str(number)})
    return bus


@pytest.mark.parametrize("kind", ["url", "path"])
def test_spark_finds_it_and_reads(spark: SparkSession, orders: Served, kind: str) -> None:
    read = spark.read.format("busway").options(**orders.options(kind), streams="orders")
    stream = orders.bus.stream("orders")
    plain = [expected(one, "orders") for some in stream.read() for one in some]
    rows = [row.asDict() for row in read.load().orderBy("offset").collect()]
    for row in rows:
        row["time"], row["stored"] = row["time"].astimezone(UTC), row["stored"].astimezone(UTC)
        row["payload"] = bytes(row["payload"])
    assert rows == plain
    assert read.option("topics", "orders/a,orders/*").option("minPartitions", 5).load().count() == 900
    few = read.schema("topic string, fields map<string,string>").option("topics", "orders/b").load()
    assert few.columns == ["topic", "fields"]
    found = few.selectExpr("topic", "fields['number'] AS n").distinct().orderBy("n").collect()
    assert [tuple(row) for row in found] == [("orders/b", number) for number in "147"]


def test_a_range_of_time(spark: SparkSession, orders: Served) -> None:
    stored = [
        row.stored
        for row in spark.read.format("busway")
        .options(path=str(orders.folder), streams="orders", columns="stored,offset")
        .load()
        .orderBy("offset")
        .collect()
    ]
    middle = stored[450].astimezone(UTC)
    for kind in ("url", "path"):
        options = orders.options(kind) | {"streams": "orders"}
        early = read_all(options | {"endingTimestamp": middle.isoformat()})
        late = read_all(options | {"startingTimestamp": middle.isoformat()})
        assert [row["offset"] for row in early + late] == list(range(900))
        assert early[-1]["stored"] < late[0]["stored"]
        after = datetime.now(UTC) + timedelta(hours=1)
        assert read_all(options | {"startingTimestamp": after.isoformat()}) == []


def test_what_is_wrong_is_told_at_load(spark: SparkSession, orders: Served) -> None:
    read = spark.read.format("busway").option("path", str(orders.folder))
    with pytest.raises(AnalysisException, match=r"there is no option 'topicz' .did you mean 'topics'"):
        read.option("topicz", "a").load()
    read = spark.read.format("busway").option("path", str(orders.folder))
    with pytest.raises(PySparkException, match=r"has no stream 'order'; its streams are: default, orders"):
        read.option("streams", "order").load().count()
    with pytest.raises(PySparkException, match="there is no column 'price'"):
        spark.read.format("busway").option("path", str(orders.folder)).schema("price int").load().count()
    with pytest.raises(PySparkException, match="the column 'offset' is bigint, not int"):
        spark.read.format("busway").option("path", str(orders.folder)).schema("offset int").load().count()


@pytest.mark.parametrize("kind", ["url", "path"])
def test_what_is_gone_is_an_error_or_is_skipped(bus: Served, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    name = f"gone{next(NUMBERS)}"
    stream = bus.stream(name, bucket=1000)
    bus.bus.publish_many(f"{name}/a", [b"x" * 50] * 200, durable=True)
    first = bus.forget(name, 50)
    assert 0 < first <= 150
    options = bus.options(kind) | {"streams": name}
    assert len(read_all(options)) == 200 - first, "what is gone was not asked for"
    asked = options | {"startingOffsets": json.dumps({name: 10})}
    with pytest.raises(
        DataLoss, match=f"{first - 10} messages of the stream '{name}' .* the offsets 10 to {first - 1}"
    ):
        read_all(asked)
    rows = read_all(asked | {"failOnDataLoss": "false"})
    assert [row["offset"] for row in rows] == list(range(first, 200))
    assert "are lost" in caplog.text
    # Between the planning and the reading.
    given = read_options(options)
    with Endpoints(given) as places:
        parts = plan.batch(given, places)
        now = bus.forget(name, 20)
        assert now > first
        bus.bus.stream(name)
        task = plan.Task(parts[0], next(iter(places.names.values())))
    with pytest.raises(DataLoss, match=f"{now - first} messages"):
        list(plan.read(given, task))
    left = list(plan.read(read_options(options | {"failOnDataLoss": "false"}), task))
    assert sum(batch.num_rows for batch in left) == 200 - now
    assert stream.info().next == 200


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"startingOffsets": '{"orders": 901}'}, "says 901 for the stream 'orders', but the stream ends at 900"),
        ({"endingOffsets": '{"orders": 5000}'}, "says 5000 for the stream 'orders', but the stream ends at 900"),
        ({"startingOffsets": '{"order": 1}'}, "names 'order', but the read has only the streams: orders"),
    ],
)
def test_offsets_that_are_not_there(orders: Served, option: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_all(orders.options("path") | {"streams": "orders"} | option)


def test_a_corrupt_bucket(tmp_path: Path) -> None:
    with served(tmp_path) as bus:
        bus.stream("s", bucket=2000)
        bus.bus.publish_many("s/a", [b"x" * 50] * 100, durable=True)
    file = sorted((tmp_path / "streams" / "s" / "log").glob("*.log"))[1]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    options = {"path": str(tmp_path), "streams": "s"}
    with pytest.raises(DataLoss, match=r"are lost: .*damaged"):
        read_all(options)
    left = read_all(options | {"failOnDataLoss": "false"})
    [lost] = set(range(100)) - {row["offset"] for row in left}
    assert len(left) == 99
    assert {row["payload"] for row in left} == {b"x" * 50}
    for begin, end in ((lost - 1, lost + 2), (lost, lost + 1), (lost - 2, lost), (lost + 1, lost + 3)):
        part = {"startingOffsets": json.dumps({"s": begin}), "endingOffsets": json.dumps({"s": end})}
        some = read_all(options | part | {"failOnDataLoss": "false"})
        assert [row["offset"] for row in some] == [one for one in range(begin, end) if one != lost]
        if begin <= lost < end:
            with pytest.raises(DataLoss, match=f"1 messages .* the offsets {lost} to {lost}"):
                read_all(options | part)


def test_a_folder_gives_what_its_broker_gives(bus: Served) -> None:
    """What has expired is still there to be read; what waits to be delivered is not there yet."""
    name = f"late{next(NUMBERS)}"
    bus.stream(name, bucket=3000)
    for number in range(120):
        more: dict[str, Any] = [{}, {"expires": 0.001}, {"delay": 3600}][number % 3]
        bus.bus.publish(f"{name}/{'ab'[number % 2]}", b"%d" % number, durable=True, **more)
    for begin, end, topics in ((0, 120, "**"), (7, 113, "**"), (31, 32, "**"), (5, 100, "*/a"), (5, 100, "*/b,**")):
        asked = {
            "streams": name,
            "topics": topics,
            "startingOffsets": json.dumps({name: begin}),
            "endingOffsets": json.dumps({name: end}),
        }
        by_broker, by_folder = (as_read(read_all(bus.options(kind) | asked), COLUMNS) for kind in ("url", "path"))
        assert by_folder == by_broker
        wanted = [one for one in range(begin, end) if one % 3 != 2 and (topics != "*/a" or one % 2 == 0)]
        assert [int(row["payload"]) for row in by_folder] == wanted


def test_no_folder_and_no_broker(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="is not a broker's data folder"):
        read_all({"path": str(tmp_path)})
    with pytest.raises(ConnectionError, match=r"tcp://127\.0\.0\.1:1 can't be reached"):
        read_all({"url": "tcp://127.0.0.1:1", "timeout": "1"})


def test_two_brokers_are_one_table(spark: SparkSession, orders: Served, tmp_path: Path) -> None:
    with served(tmp_path / "other") as other:
        other.stream("orders")
        other.bus.publish_many("orders/a", [b"1", b"2"], durable=True)
        found = spark.read.format("busway").options(url=f"{orders.url},{other.url}", streams="orders").load()
        assert dict(found.groupBy("broker").count().collect()) == {orders.guid: 900, other.guid: 2}
