"""Streaming queries: each message in one micro-batch, as many as were asked for, and on from the checkpoint."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support.spark.bus import Served, served


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "data") as bus:
        bus.stream("orders", bucket=2000)
        yield bus


def publish(bus: Served, topic: str, begin: int, count: int) -> None:
    bus.bus.publish_many(topic, [str(number).encode() for number in range(begin, begin + count)], durable=True)


class Run:
    """A query that runs until it has read everything; its batches as lists of numbers."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: str) -> None:
        self.spark, self.checkpoint, self.options = spark, checkpoint, options
        self.batches: list[list[int]] = []
        self.query: StreamingQuery | None = None

    def __call__(self, **options: str) -> list[list[int]]:
        self.batches = []

        def take(frame: DataFrame, number: int) -> None:
            rows = frame.selectExpr("cast(cast(payload as string) as int) as n").collect()
            if rows:
                self.batches.append(sorted(row.n for row in rows))

        given = {"startingOffsets": "earliest", "columns": "payload", **self.options, **options}
        frame = self.spark.readStream.format("busway").options(**given).load()
        started = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        self.query = started.trigger(availableNow=True).start()
        self.query.awaitTermination()
        return self.batches

    def offsets(self) -> dict[str, dict[str, int]]:
        """The last ones of the checkpoint."""
        last = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        found: dict[str, dict[str, int]] = json.loads(last.read_text().splitlines()[2])
        return found


@pytest.mark.parametrize("kind", ["url", "path"])
def test_each_message_once_in_batches_of_the_size_that_was_asked_for(
    spark: SparkSession, bus: Served, tmp_path: Path, kind: str
) -> None:
    run = Run(spark, tmp_path / "checkpoint", **bus.options(kind), maxRecordsPerTrigger="40")
    publish(bus, "orders/a", 0, 100)
    assert run() == [list(range(40)), list(range(40, 80)), list(range(80, 100))]
    assert run.offsets() == {bus.guid: {"default": 0, "orders": 100}}
    assert run() == []
    publish(bus, "orders/a", 100, 10)
    assert run() == [list(range(100, 110))], "it goes on from its checkpoint"
    assert run.query is not None
    progress = run.query.lastProgress
    assert progress is not None
    source = progress["sources"][0]
    assert json.loads(source["endOffset"]) == {bus.guid: {"default": 0, "orders": 110}}
    assert json.loads(source["latestOffset"]) == {bus.guid: {"default": 0, "orders": 110}}, "so its lag can be seen"
    bus.stream("later")
    publish(bus, "later/a", 500, 5)
    publish(bus, "orders/a", 110, 1)
    assert sorted(number for batch in run() for number in batch) == [110, 500, 501, 502, 503, 504]


def test_a_query_begins_with_what_comes(spark: SparkSession, bus: Served, tmp_path: Path) -> None:
    publish(bus, "orders/a", 0, 10)
    run = Run(spark, tmp_path / "checkpoint", **bus.options("path"))
    assert run(startingOffsets="latest") == []
    publish(bus, "orders/a", 10, 10)
    assert run(startingOffsets="latest") == [list(range(10, 20))]


def test_a_channel_follows(spark: SparkSession, bus: Served, tmp_path: Path) -> None:
    publish(bus, "orders/a", 0, 100)
    run = Run(spark, tmp_path / "checkpoint", **bus.options("url"), maxRecordsPerTrigger="30", channel="spark")
    run()
    [channel] = bus.bus.channels("orders")
    assert (channel.name, channel.floor, channel.lag) == ("spark", 90, 10), "the last batch is told with the next one"
    publish(bus, "orders/a", 100, 1)
    run()
    assert bus.bus.channels("orders")[0].floor >= 100


def test_what_expires_before_it_is_read(spark: SparkSession, bus: Served, tmp_path: Path) -> None:
    run = Run(spark, tmp_path / "checkpoint", **bus.options("url"))
    publish(bus, "orders/a", 0, 100)
    run()
    publish(bus, "orders/a", 100, 200)
    first = bus.forget("orders", 50)
    assert first > 100
    with pytest.raises(PySparkException, match=f"{first - 100} messages of the stream 'orders' .*100 to {first - 1}"):
        run()
    assert run(failOnDataLoss="false") == [list(range(first, 300))]


def test_a_checkpoint_of_another_bus(spark: SparkSession, bus: Served, tmp_path: Path) -> None:
    publish(bus, "orders/a", 0, 10)
    Run(spark, tmp_path / "checkpoint", **bus.options("path"))()
    with served(tmp_path / "other") as other:
        with pytest.raises(PySparkException, match="the checkpoint is of another bus: it has offsets of the broker"):
            Run(spark, tmp_path / "checkpoint", **other.options("path"))()


def test_a_stream_that_was_made_anew(spark: SparkSession, bus: Served, tmp_path: Path) -> None:
    publish(bus, "orders/a", 0, 10)
    run = Run(spark, tmp_path / "checkpoint", **bus.options("url"))
    run()
    bus.bus.remove_stream("orders")
    with pytest.raises(PySparkException, match="the stream 'orders', of which the query has read 10"):
        run()
    bus.stream("orders")
    publish(bus, "orders/a", 10, 5)
    assert run() == [list(range(10, 15))], "its offsets go on where they were"


def test_a_stream_that_is_made_later_and_has_lost_its_beginning(
    spark: SparkSession, bus: Served, tmp_path: Path
) -> None:
    run = Run(spark, tmp_path / "checkpoint", **bus.options("url"), maxRecordsPerTrigger="40")
    publish(bus, "orders/a", 0, 10)
    run()
    bus.stream("later", bucket=2000)
    publish(bus, "later/a", 1000, 200)
    first = bus.forget("later", 50)
    assert first > 40
    # It begins in a batch of its own, which the next one reads.
    found = [number for _ in range(2) for batch in run() for number in batch]
    assert found == list(range(1000 + first, 1200))


def test_a_query_can_be_given_fewer_streams_only_with_another_checkpoint(
    spark: SparkSession, bus: Served, tmp_path: Path
) -> None:
    bus.stream("others")
    run = Run(spark, tmp_path / "checkpoint", **bus.options("path"))
    run()
    with pytest.raises(PySparkException, match="which the option streams does not name any more: name it, or"):
        run(streams="orders")


def test_batch_options_are_refused(spark: SparkSession, bus: Served, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="endingOffsets and endingTimestamp are for batch reads"):
        Run(spark, tmp_path / "checkpoint", **bus.options("path"))(endingOffsets="latest")
