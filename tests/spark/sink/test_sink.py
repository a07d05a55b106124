"""The sink in Spark: a plain client reads each written row once, also after failures and kills."""

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from busway import sync
from busway.message import Message
from busway.spark.sink import ledger
from tests.chaos.spark import job, kill, until

PATIENCE = 600.0
pytestmark = pytest.mark.timeout(1200)
"""Spark takes its time, and more on a busy machine."""


class Broker:
    """One that can be stopped and started again."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.server = sync.serve("tcp://127.0.0.1:0", data=data)
        self.url = self.server.addresses[0]

    def restart(self) -> None:
        self.server.stop()
        self.server = sync.serve(self.url, data=self.data)

    def stored(self, topic: str = "**") -> list[Message]:
        with sync.connect(self.url) as bus:
            infos = bus.streams()
            return [one for info in infos for batch in bus.stream(info.name).read(topic=topic) for one in batch]

    def texts(self, topic: str) -> list[str]:
        return sorted(one.text.strip() for one in self.stored(topic))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    found = Broker(tmp_path / "data")
    yield found
    found.server.stop()


def test_a_table_is_written(spark: SparkSession, broker: Broker) -> None:
    spark.sql(
        """
        select concat('t/', id % 2) as topic, cast(cast(id as string) as binary) as payload,
               map('kind', 'test', 'even', cast(id % 2 = 0 as string)) as fields,
               timestamp'2026-01-31 12:00:00.123456Z' as time, if(id = 3, null, cast(id as string)) as key
        from range(100)
        """
    ).write.format("busway").mode("append").option("url", broker.url).save()
    found = {int(one.text): one for one in broker.stored("t/*")}
    assert sorted(found) == list(range(100))
    assert found[7].topic == "t/1"
    assert found[7].fields == {"kind": "test", "even": "false", "key": "7"}
    assert found[3].fields == {"kind": "test", "even": "false"}
    assert found[7].time == datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def test_the_option_topic_is_for_rows_without_one(spark: SparkSession, broker: Broker) -> None:
    table = spark.sql("select if(id < 3, 'own', null) as topic, cast(id as string) as payload from range(10)")
    table.write.format("busway").mode("append").options(url=broker.url, topic="rest").save()
    table.select("payload").write.format("busway").mode("append").options(url=broker.url, topic="all").save()
    assert (len(broker.stored("own")), len(broker.stored("rest")), len(broker.stored("all"))) == (3, 7, 10)


@pytest.mark.parametrize(
    ("select", "options", "told"),
    [
        ("'a' as topic, id as payload", {}, "'payload' must be binary or string, not bigint"),
        ("'a' as topic", {}, "the column payload"),
        ("'x' as payload", {}, "add a column topic, or give the option topic"),
        ("'a' as topic, 'x' as payload", {"topik": "a"}, "no option 'topik' .did you mean 'topic'"),
        (
            "if(id = 3, 'a/*', 'a') as topic, 'x' as payload",
            {},
            "row 3 of partition 0: the topic 'a/[*]' can't be stored",
        ),
    ],
)
def test_what_is_wrong_is_told(
    spark: SparkSession, broker: Broker, select: str, options: dict[str, str], told: str
) -> None:
    table = spark.range(0, 5, 1, 1).selectExpr(*_columns(select))
    with pytest.raises((AnalysisException, PySparkException), match=told):
        table.write.format("busway").mode("append").options(url=broker.url, **options).save()
    assert not broker.stored()


def _columns(select: str) -> list[str]:
    return select.replace(", 'x' as", "\n'x' as").replace(", id as", "\nid as").split("\n")


def test_a_stream_is_written_and_noted(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    with sync.connect(broker.url) as bus:
        bus.create_stream("in", ["in"])
        for number in range(3):
            bus.publish_many("in", [str(number * 100 + more) for more in range(100)], durable=True)
        read = spark.readStream.format("busway").options(url=broker.url, topics="in", startingOffsets="earliest")
        rows = read.option("maxRecordsPerTrigger", "100").load().selectExpr("'out' as topic", "payload")
        write = rows.writeStream.format("busway").option("url", broker.url).trigger(availableNow=True)
        query = write.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(PATIENCE)
        assert broker.texts("out") == sorted(map(str, range(300)))
        (note,) = bus.kept("spark/sink/*")
        assert note.topic == ledger.topic(query.id)
        assert note.json()["epoch"] == 2


def test_nothing_is_stored_twice_when_tasks_fail(broker: Broker, tmp_path: Path) -> None:
    def shares() -> Counter[str]:
        return Counter(one.id[:16] for one in broker.stored("retry"))

    with job(tmp_path, broker.url, "retry") as process:
        until(lambda: len(shares()) == 2 and min(shares().values()) >= 100, process)
        (tmp_path / "fail").touch()
        assert process.wait(PATIENCE) == 0
    assert broker.texts("retry") == sorted(map(str, range(2000)))
    assert sorted(shares().values()) == [1000, 1000]  # so both tries at a partition were one publisher


def test_an_epoch_that_was_killed_is_written_once(broker: Broker, tmp_path: Path) -> None:
    """The driver dies between publish and commit, the broker is restarted, and the stream has forgotten all publishers."""
    with sync.connect(broker.url) as bus:
        bus.create_stream("in", ["in"])
        bus.create_stream("out", ["out"], once="1s")
        bus.publish_many("in", [str(number).ljust(2000) for number in range(2000)], durable=True)
    with job(tmp_path, broker.url, "hang") as process:
        until(lambda: len(broker.stored("out")) >= 1100, process)
        kill(process)
    last = time.time()
    broker.restart()
    while time.time() < last + 2:
        time.sleep(0.05)
    with job(tmp_path, broker.url, "go") as process:
        assert process.wait(PATIENCE) == 0
    assert broker.texts("out") == sorted(map(str, range(2000)))
    assert all(one.fields == {"n": one.text.strip()} for one in broker.stored("out"))
