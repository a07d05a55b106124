"""How fast Spark reads a lake with live messages, and a stream: the same query on them and on Parquet with the same rows, in one run.

    python -m benchmarks.spark --messages 10000000

The lake has all messages but the last ones (--tail), which come from the bus or its data folder.

The first run of each query warms the session up and is shown, but does not count.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
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
    tail: float = 0.02
    """The share of messages that are not archived."""


def fill(folder: Path, shape: Shape, begin: int, end: int) -> None:
    """Store the messages of a range of numbers through a broker."""
    import asyncio

    import busway
    from busway.client.durable.feed import Run

    async def publish() -> None:
        chance = random.Random(begin)
        payloads = [(os.urandom(shape.size),) for _ in range(256)]
        topics = [f"bench/{number}" for number in range(shape.topics)]
        step = shape.hours * 3600e9 / shape.messages
        oldest = time.time_ns() - int(shape.hours * 3600e9)
        async with (
            busway.serve("unix:" + str(folder.parent / "bus"), data=folder) as server,
            busway.connect(server.addresses[0], name="bench") as bus,
        ):
            if not begin:
                await bus.create_stream("bench", ["bench/**"], max_age=None)
            feed = bus.feed()
            for first in range(begin, end, CHUNK):
                numbers = range(first, min(first + CHUNK, end))
                await feed.send(
                    [
                        Run(
                            number,
                            topics[chance.randrange(shape.topics)],
                            payloads[number & 255],
                            b"",
                            oldest + int(number * step),
                        )
                        for number in numbers
                    ]
                )
                if first % 1_000_000 == 0:
                    print(f"  {first:,} stored", flush=True)
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
    return {"name": name, "cold": rates[0], "warm": rates[1:], "best": max(rates[1:]), "median": median(rates[1:])}


@contextmanager
def serving(data: Path) -> Iterator[str]:
    """A broker in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "busway",
        "serve",
        "--tcp",
        "127.0.0.1:0",
        "--json",
        "--quiet",
        "--data",
        str(data),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["addresses"][0]
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=1.0, help="that the times of the messages are spread over")
    parser.add_argument("--tail", type=float, default=0.02, help="the share of messages that are not archived")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a folder for the data, that stays and is used again")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/spark.json"))
    given = parser.parse_args()
    work = given.keep or Path(tempfile.mkdtemp(prefix="busway-spark-"))
    try:
        shape = Shape(given.messages, given.size, given.topics, given.hours, given.tail)
        run(work, shape, given.runs, given.out)
    finally:
        if given.keep is None:
            shutil.rmtree(work, ignore_errors=True)


def run(work: Path, shape: Shape, runs: int, out: Path) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    import pyspark
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.functions import col, date_trunc, window

    from busway.spark import archive, table

    messages = shape.messages
    data, parquet, lake = work / "data", work / "parquet", work / "lake"
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
    archived = int(messages * (1 - shape.tail))
    if not data.exists():
        begin = time.perf_counter()
        fill(data, shape, 0, archived)
        stored_in = time.perf_counter() - begin
        print(f"stored {archived:,} messages of {shape.size} bytes in {stored_in:.0f} s", flush=True)
        begin = time.perf_counter()
        archive(spark, str(lake), path=str(data), streams=["bench"], once=True)
        print(f"archived them: {archived / (time.perf_counter() - begin) / 1e6:.2f} M rows/s", flush=True)
        fill(data, shape, archived, messages)
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
    two = ("topic", "time")
    with serving(data) as url:
        by_url = spark.read.format("busway").options(url=url, streams="bench", columns="topic,time").load()
        frames = {
            "Parquet": stored,
            "lake and bus, all columns": table(spark, str(lake), url=url, streams=["bench"]),
            "lake and bus, two columns": table(spark, str(lake), url=url, streams=["bench"], columns=two),
            "lake and folder, two columns": table(spark, str(lake), path=str(data), streams=["bench"], columns=two),
            "source by path, two columns": few,
            "source by url, two columns": by_url,
            "Parquet, once more": stored,
        }
        for way in ways:
            found = [timed(f"{name} ({way})", messages, runs, grouped(frame, way)) for name, frame in frames.items()]
            parquet_rate = max(found[0]["median"], found[-1]["median"])
            for one in found[1:-1]:
                one["ratio"] = one["median"] / parquet_rate
                print(f"against Parquet: {one['ratio']:.0%}  {one['name']}", flush=True)
            results += found
        results.append(timed("source by path, all columns (date_trunc)", messages, runs, grouped(every, "date_trunc")))
        results.append(timed("source by path, count, two columns", messages, runs, few.count))
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
