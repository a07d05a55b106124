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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.report import machine

CHUNK = 10_000


@dataclass(frozen=True)
class Shape:
    """What is stored: as several publishers' messages lie in a stream, topics by chance, and times spread evenly over some hours."""

    messages: int
    size: int
    topics: int
    hours: float


def fill(folder: Path, shape: Shape) -> None:
    """Store it through a broker."""
    import asyncio

    import busway
    from busway.client.durable.feed import Run

    async def publish() -> None:
        chance = random.Random(1)
        payloads = [(os.urandom(shape.size),) for _ in range(256)]
        topics = [f"bench/{number}" for number in range(shape.topics)]
        step = shape.hours * 3600e9 / shape.messages
        first = time.time_ns() - int(shape.hours * 3600e9)
        async with (
            busway.serve("unix:" + str(folder.parent / "bus"), data=folder) as server,
            busway.connect(server.addresses[0], name="bench") as bus,
        ):
            await bus.create_stream("bench", ["bench/**"], max_age=None)
            feed = bus.feed()
            for begin in range(0, shape.messages, CHUNK):
                numbers = range(begin, min(begin + CHUNK, shape.messages))
                await feed.send(
                    [
                        Run(
                            number,
                            topics[chance.randrange(shape.topics)],
                            payloads[number & 255],
                            b"",
                            first + int(number * step),
                        )
                        for number in numbers
                    ]
                )
                if begin % 1_000_000 == 0:
                    print(f"  {begin:,} stored", flush=True)
            await feed.done()

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
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=1.0, help="that the times of the messages are spread over")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a folder for the data, that stays and is used again")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/spark.json"))
    given = parser.parse_args()
    work = given.keep or Path(tempfile.mkdtemp(prefix="busway-spark-"))
    try:
        shape = Shape(given.messages, given.size, given.topics, given.hours)
        run(work, shape, given.runs, given.out)
    finally:
        if given.keep is None:
            shutil.rmtree(work, ignore_errors=True)


def run(work: Path, shape: Shape, runs: int, out: Path) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    import pyspark
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.functions import col, date_trunc, window

    messages = shape.messages
    data, parquet = work / "data", work / "parquet"
    if not data.exists():
        begin = time.perf_counter()
        fill(data, shape)
        print(f"stored {messages:,} messages of {shape.size} bytes in {time.perf_counter() - begin:.0f} s", flush=True)
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

    ways = {"date_trunc": date_trunc("minute", col("time")).alias("minute"), "window": window("time", "1 minute")}

    def grouped(frame: DataFrame, way: str) -> Callable[[], Any]:
        def query() -> Any:  # planned anew each time: of a plan that ran, Spark uses the shuffled rows again
            rows = frame.groupBy("topic", ways[way]).count().collect()
            return len(rows), sum(row["count"] for row in rows)

        return query

    results = []
    for way in ways:
        pair = [
            timed(f"Parquet, topic and minute ({way})", messages, runs, grouped(stored, way)),
            timed(f"busway, two columns ({way})", messages, runs, grouped(few, way)),
            timed(f"Parquet, once more ({way})", messages, runs, grouped(stored, way)),
        ]
        best = max(pair[0]["best"], pair[2]["best"])
        print(f"against Parquet ({way}): {pair[1]['best'] / best:.0%}", flush=True)
        results += pair
    results.append(timed("busway, all columns (date_trunc)", messages, runs, grouped(every, "date_trunc")))
    results.append(timed("busway, count, two columns", messages, runs, few.count))
    versions = {"pyspark": pyspark.__version__, "python": sys.version.split()[0]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps(
            {"machine": machine(), "versions": versions, **asdict(shape), "results": results},
            indent=1,
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
