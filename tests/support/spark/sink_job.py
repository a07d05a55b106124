"""A Spark application of its own that writes into a bus, to be killed: `python -m tests.support.spark.sink_job FOLDER URL WHAT`.

WHAT is `retry` (a batch whose tasks fail half way on their first attempt), `hang` (a stream whose first epoch is written but for
the end of one partition, and then hangs), `go` (the same stream to its end, with the rows of each partition in another order),
`follow` (a stream that goes on for ever) or `drain` (the same to its end).
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from busway.spark import archive, audit, table as table_of
from busway.spark.lake import upkeep
from tests.spark.conftest import CONF

BATCH = 100
"""Rows of an Arrow batch. They are long, since Spark gathers some of them before it passes them on."""


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2,3]").appName("sink")
    more = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH), "spark.driver.memory": "1g"}
    for key, value in (CONF | more).items():
        builder = builder.config(key, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def retry(spark: SparkSession, folder: str, url: str) -> None:
    """Each partition fails once behind its third batch, and gives its rows from the end then."""

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        rows = ordered(batches, backwards=context.attemptNumber() > 0)
        for at, batch in enumerate(rows):
            if at == 3 and not context.attemptNumber():
                wait_for(Path(folder, "fail"))
                raise RuntimeError("on purpose")
            yield batch

    numbers = spark.range(0, 2000, 1, 2).selectExpr(
        "'retry' as topic", "rpad(cast(id as string), 2000, ' ') as payload"
    )
    table = numbers.mapInArrow(failing, numbers.schema)
    table.write.format("busway").mode("append").option("url", url).save()


def stream(spark: SparkSession, folder: str, url: str, hang: bool) -> None:
    """A query from the topic `in` to `out`."""

    def hanging(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        rows = ordered(batches, backwards=not hang)
        for at, batch in enumerate(rows):
            if hang and at == 3 and context.partitionId() == 1:
                wait_for(Path(folder, "never"))
            yield batch

    read: Any = spark.readStream.format("busway").options(
        url=url, streams="in", columns="topic,payload", minPartitions="2"
    )
    source: DataFrame = read.option("startingOffsets", "earliest").load()
    table = source.selectExpr("'out' as topic", "payload", "map('n', trim(cast(payload as string))) as fields")
    write: Any = table.mapInArrow(hanging, table.schema).writeStream.format("busway").option("url", url)
    query = write.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()


def follow(spark: SparkSession, folder: str, url: str, drain: bool) -> None:
    """Another query from `in` to `out`, in small epochs, over a shuffle; and an archive of both."""
    read: Any = spark.readStream.format("busway").options(url=url, streams="in", startingOffsets="earliest")
    most = "50000" if drain else "1000"
    source: DataFrame = read.options(columns="offset,payload", minPartitions="2", maxRecordsPerTrigger=most).load()
    table = source.repartition(2, "offset").selectExpr("concat('out/', offset % 3) as topic", "payload")
    write: Any = table.writeStream.format("busway").options(url=url, checkpointLocation=f"{folder}/checkpoint")
    query = (write.trigger(availableNow=True) if drain else write).start()
    if not drain:  # both at once, so that a kill meets both
        threading.Thread(target=end_with, args=[query], daemon=True).start()
        upkeep._MANY = 3  # so that a kill meets merges and deletions, too
        following = os.getpid() % 2 == 0  # rounds, or a streaming query
        archive(
            spark,
            f"{folder}/lake",
            url=url,
            streams=["in", "out"],
            interval=0.2,
            follow=following,
            optimize_below=1 << 20,
            keep=0.0,
        )
    query.awaitTermination()
    archive(spark, f"{folder}/lake", url=url, streams=["in", "out"], once=True)
    report = audit(table_of(spark, f"{folder}/lake"))
    print(f"audit: {report.messages} messages, {sum(report.counts.values())} findings", flush=True)
    assert report.clean, report


def end_with(query: Any) -> None:
    """A query that fails by itself takes everything with it; who waits for what it does would wait for ever."""
    try:
        query.awaitTermination()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def ordered(batches: Iterator[pa.RecordBatch], backwards: bool) -> list[pa.RecordBatch]:
    """The rows of a partition in one of two orders."""
    several = list(batches)
    if not several:
        return []
    rows = pa.Table.from_batches(several)
    if backwards:
        rows = rows.take(list(range(rows.num_rows))[::-1])
    return rows.to_batches(max_chunksize=BATCH)


def wait_for(path: Path) -> None:
    """Until a file is there, or the Spark application is not."""
    parent = os.getppid()
    while not path.exists() and os.getppid() == parent:
        time.sleep(0.02)


def main() -> None:
    folder, url, what = sys.argv[1:]
    spark = session()
    if what == "retry":
        retry(spark, folder, url)
    elif what in {"follow", "drain"}:
        follow(spark, folder, url, what == "drain")
    else:
        stream(spark, folder, url, what == "hang")
    spark.stop()


if __name__ == "__main__":
    main()
