"""A job that gives the same on a laptop and on a cluster: `python -m tests.support.spark.cluster_job MASTER PATH URL FOLDER`.

Prints its answers as JSON. Its last query waits in the middle for a file `go`, so that a worker can be killed while it runs.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, functions

from busway.spark.runtime.session import session

CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "4",
}


def read(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("busway").options(topics="orders/**", minPartitions="4", **options).load()


def count(rows: DataFrame) -> list[list[Any]]:
    """Per topic: how many, how long they are, and their sequences."""
    by = rows.groupBy("topic").agg(
        functions.count("*"),
        functions.sum(functions.length("payload")),
        functions.countDistinct("sequence"),
        functions.max("sequence"),
    )
    return sorted([*row] for row in by.collect())


def write(spark: SparkSession, url: str, topic: str) -> None:
    """The counts, back on to the bus."""
    by = read(spark, url=url).groupBy("topic").count()
    rows = by.select(functions.to_json(functions.struct("topic", "count")).alias("payload"))
    rows.write.format("busway").mode("append").options(url=url, topic=topic).save()


def waiting(rows: DataFrame, folder: Path) -> DataFrame:
    """The same rows; each task says that it runs and goes on when it may."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        (folder / f"runs-{context.partitionId()}-{context.attemptNumber()}").touch()
        limit = time.monotonic() + 600
        while not (folder / "go").exists() and time.monotonic() < limit:
            time.sleep(0.05)

    return rows.mapInArrow(wait, rows.schema)


def main(master: str, path: str, url: str, folder: str) -> None:
    spark = session(master, conf=CONF)
    answers = {"path": count(read(spark, path=path)), "url": count(read(spark, url=url))}
    write(spark, url, "counts/cluster")
    slow = read(spark, path=path).select("topic", "payload", "sequence")
    answers["killed"] = count(waiting(slow, Path(folder)))
    print(json.dumps(answers))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
