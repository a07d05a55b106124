"""The table of a lake equals the published messages, row for row, while archive, compaction and expiry run."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from busway._core import Selection, check_pattern
from busway.spark.lake.archive import Progress, archive
from busway.spark.lake.coverage import LakeError
from busway.spark.lake.table import matching, table
from busway.spark.lake.upkeep import optimize, vacuum
from busway.spark.options import OptionError, read_options
from busway.spark.source import tail
from tests.support.spark import lakes
from tests.support.spark.bus import Served, served

NUMBERS = count(1)
KEY = ["offset", "topic", "sequence", "payload", "id"]


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("data")) as bus:
        yield bus


@pytest.fixture
def name(bus: Served) -> str:
    made = f"t{next(NUMBERS)}"
    bus.stream(made, retain_until="archived", max_count=256)
    return made


def publish(bus: Served, name: str, count: int) -> None:
    for topic in ("a", "b/x"):
        bus.bus.publish_many(f"{name}/{topic}", [b"%d" % n for n in range(count)], durable=True)


def published(name: str, count: int) -> list[tuple[int, str, int, bytes]]:
    """Offset, topic, sequence and payload of the first so many: of 1,000 on each topic, and then again and again 100."""
    out: list[tuple[int, str, int, bytes]] = []
    sequences = {"a": 0, "b/x": 0}
    while len(out) < count:
        some = 1000 if not out else 100
        for topic in tuple(sequences):
            for number in range(some):
                sequences[topic] += 1
                out.append((len(out), f"{name}/{topic}", sequences[topic], b"%d" % number))
    return out[:count]


def once(spark: SparkSession, bus: Served, name: str, lake: Path) -> Progress:
    return archive(spark, str(lake), url=bus.url, streams=[name], once=True)


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.select("offset").collect())


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(
        (one, topic, sequence, bytes(payload), id_)
        for one, topic, sequence, payload, id_ in frame.select(*KEY).collect()
    )


@pytest.mark.parametrize("kind", ["url", "path"])
def test_archive_and_live_are_one_table(spark: SparkSession, bus: Served, name: str, tmp_path: Path, kind: str) -> None:
    publish(bus, name, 500)
    known = {message.offset: message for some in bus.bus.stream(name).read() for message in some}
    once(spark, bus, name, tmp_path)
    assert bus.forget(name, 256) > 500
    publish(bus, name, 50)
    known |= {message.offset: message for some in bus.bus.stream(name).read(1000) for message in some}
    place = bus.options(kind)

    def read(**more: Any) -> DataFrame:
        return table(spark, str(tmp_path), streams=[name], **place, **more)

    everything = read()
    assert rows(everything) == [(at, one.topic, one.sequence, one.payload, one.id) for at, one in sorted(known.items())]
    assert offsets(table(spark, str(tmp_path), streams=[name])) == list(range(1000))
    plan = everything._jdf.queryExecution().toString()
    assert "FileScan parquet" in plan
    assert "BatchScan busway" in plan

    narrow = read(topics=[f"{name}/*/x"], columns=["sequence", "offset"])
    assert narrow.columns == ["sequence", "offset"]
    assert offsets(narrow) == [*range(500, 1000), *range(1050, 1100)]
    assert offsets(read(topics=[f"re:{name}/b.*"])) == [*range(500, 1000), *range(1050, 1100)]
    assert offsets(everything.where("offset >= 990 AND offset < 1010")) == list(range(990, 1010))
    stored = {row["offset"]: row["stored"].replace(tzinfo=UTC) for row in read(columns=["offset", "stored"]).collect()}
    for at in (700, 1030):  # archived, and live
        moment = stored[at]
        after = [one for one in sorted(stored) if stored[one] >= moment]
        assert 0 < len(after) < 1100
        assert offsets(read(since=moment)) == after
        assert offsets(read(until=moment)) == sorted(set(stored) - set(after))
    assert offsets(read(since=datetime.now(UTC) + timedelta(days=2))) == []
    assert offsets(read(topics=[f"{name}/a"])) == [*range(500), *range(1000, 1050)]


@pytest.mark.parametrize(
    "pattern", ["a/**", "**", "*", "**/b", "a/**/b", "*/b/**", "a", "a/*", "**/**", "a/**/**/b", "**/b/**", "a.b/+", "re:a/[bc]"]
)  # fmt: skip
def test_topics_are_matched_as_the_bus_does(spark: SparkSession, pattern: str) -> None:
    topics = ["", "a", "b", "a/b", "a/c", "a/b/c", "a/c/b", "x/a/b", "ab", "a/bb", "a.b/+", "a/c/d/b", "b/a"]
    frame = spark.createDataFrame([(topic,) for topic in topics], "topic string")
    known = Selection(check_pattern(pattern), b"")
    assert sorted(row[0] for row in matching(frame, [pattern]).collect()) == sorted(
        topic for topic in topics if known.covers(topic)
    )


def test_a_lake_of_some_topics_has_no_live_ones_of_others(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path
) -> None:
    """Those before its end are not in it, so those behind would be a part without a beginning."""
    publish(bus, name, 10)
    archive(spark, str(tmp_path), url=bus.url, streams=[name], topics=[f"{name}/a"], once=True)
    publish(bus, name, 10)
    for topics in (["**"], [f"{name}/**"], [f"{name}/*", "x"]):
        found = table(spark, str(tmp_path), url=bus.url, streams=[name], topics=topics)
        assert offsets(found) == [*range(10), *range(20, 30)]


@pytest.mark.parametrize("kind", ["url", "path"])
def test_what_leaves_while_it_is_read_comes_from_the_archive(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path, kind: str
) -> None:
    publish(bus, name, 10)
    once(spark, bus, name, tmp_path)
    publish(bus, name, 1000)
    given = bus.options(kind) | {"behind": str(tmp_path), "streams": name, "columns": "offset", "minPartitions": "2"}
    start = {"startingOffsets": json.dumps({bus.guid: {name: 20}})}
    options = read_options(given | start | {"topics": f"{name}/a,{name}/none"})
    planned = tail.partitions(options)
    once(spark, bus, name, tmp_path)
    assert bus.forget(name, 256) > 1000
    for again in (planned, tail.partitions(options)):  # planned before the messages left, and after
        found = [at for task in again for batch in tail.read(options, task) for at in batch["offset"].to_pylist()]
        assert sorted(found) == list(range(20, 1020))


def test_what_is_neither_archived_nor_live(spark: SparkSession, bus: Served, tmp_path: Path) -> None:
    name = f"t{next(NUMBERS)}"
    bus.stream(name)
    publish(bus, name, 100)
    once(spark, bus, name, tmp_path)
    publish(bus, name, 500)
    first = bus.forget(name, 256)
    with pytest.raises(
        PySparkException, match=f"{first - 200} messages of the stream '{name}'.*the offsets 200 to {first - 1}"
    ):
        table(spark, str(tmp_path), url=bus.url, streams=[name]).count()
    rest = table(spark, str(tmp_path), url=bus.url, streams=[name], options={"failOnDataLoss": "false"})
    assert offsets(rest) == [*range(200), *range(first, 1200)]


def test_a_lake_that_is_none(spark: SparkSession, bus: Served, name: str, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="is not a lake"):
        table(spark, str(tmp_path / "none"))
    with pytest.raises(PySparkException, match="is not a lake"):
        spark.read.format("busway").options(url=bus.url, behind=str(tmp_path / "none")).load().count()
    with pytest.raises(PySparkException, match=r"no option 'history' \(busway.spark.table"):
        spark.read.format("busway").options(url=bus.url, history=str(tmp_path)).load()
    publish(bus, name, 1)
    once(spark, bus, name, tmp_path)
    with pytest.raises(OptionError, match="no option startingOffsets: use since"):
        table(spark, str(tmp_path), url=bus.url, options={"startingOffsets": "{}"})
    with pytest.raises(ValueError, match="no column 'none'"):
        table(spark, str(tmp_path), columns=["none"])
    with pytest.raises(LakeError, match="no stream 'nothing'"):
        table(spark, str(tmp_path), streams=["nothing"])
    with pytest.raises(PySparkException, match="neither the bus nor the lake has a stream 'nothing'"):
        table(spark, str(tmp_path), url=bus.url, streams=["nothing"]).count()


def test_it_is_what_was_published_while_everything_changes(
    spark: SparkSession, bus: Served, name: str, tmp_path: Path
) -> None:
    """Messages are published, archived, merged (OPTIMIZE) and removed meanwhile."""
    stop, errors = threading.Event(), list[BaseException]()
    sent: list[int] = [0]

    def work() -> None:
        try:
            archive(
                spark, str(tmp_path), url=bus.url, streams=[name], interval=0.0, stop=stop, optimize_below=1 << 20,
                progress=lambda _: bus.forget(name, 256),
            )  # fmt: skip
        except BaseException as error:
            errors.append(error)

    def publishing() -> None:
        try:
            while not stop.is_set():
                publish(bus, name, 100)
                sent[0] += 200
        except BaseException as error:
            errors.append(error)

    publish(bus, name, 1000)
    once(spark, bus, name, tmp_path)
    sent[0] = 2000
    threads = [threading.Thread(target=work), threading.Thread(target=publishing)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            least = sent[0]
            found = rows(table(spark, str(tmp_path), url=bus.url, streams=[name], columns=KEY))
            assert [row[:4] for row in found] == published(name, len(found))
            assert len(found) >= least
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    optimize(str(tmp_path))
    vacuum(str(tmp_path), keep="1h")
    everything = rows(table(spark, str(tmp_path), url=bus.url, streams=[name]))
    assert [row[:4] for row in everything] == published(name, sent[0])
    assert bus.bus.stream(name).info().first > 2000
    assert lakes.repeated(lakes.rows(tmp_path)) == []
    assert datetime.now(UTC) - timedelta(hours=1) < lakes.rows(tmp_path)[0]["stored"]
