"""How fast Spark reads a stream: the same query on the stream and on Parquet with the same rows, in one run.

    python -m benchmarks.spark --messages 10000000

The first run of each query warms the session up and is shown, but does not count.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.report import machine

TOPICS = 20
CHUNK = 10_000


def fill(folder: Path, messages: int, size: int) -> None:
    """Store so many messages through a broker, each on a topic by chance: as several publishers' messages lie in a stream."""
    import asyncio

    import busway

    async def publish() -> None:
        chance = random.Random(1)
        payloads = [os.urandom(size) for _ in range(256)]
        topics = [f"bench/{number}" for number in range(TOPICS)]
        async with (
            busway.serve("unix:" + str(folder.parent / "bus"), data=folder) as server,
            busway.connect(server.addresses[0], name="bench") as bus,
        ):
            await bus.create_stream("bench", ["bench/**"], max_age=None)
            for begin in range(0, messages, CHUNK):
                some = [
                    bus.publish(topics[chance.randrange(TOPICS)], payloads[number & 255], durable=True)
                    for number in range(min(CHUNK, messages - begin))
                ]
                for one in some:
                    await one
                if begin % 1_000_000 == 0:
                    print(f"  {begin:,} stored", flush=True)

    asyncio.run(publish())


def timed(name: str, rows: int, runs: int, query: Callable[[], Any]) -> dict[str, Any]:
    """Rows a second of each run; the first is cold."""
    rates = []
    for run in range(runs + 1):
        begin = time.perf_counter()
        found = query()
        rates.append(rows / (time.perf_counter() - begin))
        print(f"  {name:44} run {run}: {rates[-1] / 1e6:5.2f} M rows/s  {found}", flush=True)
    return {"name": name, "cold": rates[0], "warm": rates[1:], "best": max(rates[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a folder for the data, that stays and is used again")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/spark.json"))
    given = parser.parse_args()
    work = given.keep or Path(tempfile.mkdtemp(prefix="busway-spark-"))
    try:
        run(work, given.messages, given.size, given.runs, given.out)
    finally:
        if given.keep is None:
            shutil.rmtree(work, ignore_errors=True)


def run(work: Path, messages: int, size: int, runs: int, out: Path) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    import pyspark
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.functions import col, date_trunc

    data, parquet = work / "data", work / "parquet"
    if not data.exists():
        begin = time.perf_counter()
        fill(data, messages, size)
        print(f"stored {messages:,} messages of {size} bytes in {time.perf_counter() - begin:.0f} s", flush=True)
    builder = SparkSession.builder.master("local[2]").appName("benchmark").config("spark.ui.enabled", "false")
    for key in ("bindAddress", "host"):
        builder = builder.config(f"spark.driver.{key}", "127.0.0.1")
    spark = (
        builder.config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    source = spark.read.format("busway").option("path", str(data)).option("streams", "bench")
    every = source.load()
    few = source.option("columns", "topic,time").load()
    if not parquet.exists():
        every.write.parquet(str(parquet))
    stored = spark.read.parquet(str(parquet))

    def grouped(frame: DataFrame) -> Callable[[], Any]:
        def query() -> Any:  # planned anew each time: of a plan that ran, Spark uses the shuffled rows again
            rows = frame.groupBy("topic", date_trunc("minute", col("time")).alias("minute")).count().collect()
            return len(rows), sum(row["count"] for row in rows)

        return query

    results = [
        timed("Parquet, topic and minute", messages, runs, grouped(stored)),
        timed("busway, topic and minute, two columns", messages, runs, grouped(few)),
        timed("busway, topic and minute, all columns", messages, runs, grouped(every)),
        timed("busway, count, two columns", messages, runs, few.count),
        timed("Parquet, topic and minute, once more", messages, runs, grouped(stored)),
    ]
    best = max(results[0]["best"], results[-1]["best"])
    print(
        f"against Parquet: {results[1]['best'] / best:.0%} with two columns, {results[2]['best'] / best:.0%} with all"
    )
    versions = {"pyspark": pyspark.__version__, "python": sys.version.split()[0]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps(
            {"machine": machine(), "versions": versions, "messages": messages, "size": size, "results": results},
            indent=1,
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
