"""A bus, payments, a streaming pipeline that raises alerts, an archive, and in the end a table and a picture.

`make demo` runs it; all its output is in the folder `demo`.
"""

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import polars as pl
from picture import draw
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import (
    avg,
    col,
    concat,
    count,
    element_at,
    from_json,
    lit,
    split,
    struct,
    sum as total,
    to_json,
    window,
)
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import busway
from busway import sync
from busway.spark import archive, session, table as lake_table


class Payment(busway.Protocol, prefix="payments"):
    """The type of the payments, which become typed columns of the lake."""

    id: int
    amount: float
    ok: bool


WINDOW, LATE = "2 seconds", "1 second"
console = Console()


@contextmanager
def running(*command: str) -> Iterator["subprocess.Popen[str]"]:
    """A process of Python that ends with the block."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def payments(frame: DataFrame) -> DataFrame:
    """Return payments by country, from rows with a typed column."""
    return frame.select(
        element_at(split("topic", "/"), 2).alias("country"),
        "time",
        "Payment.amount",
        (~col("Payment.ok")).cast("double").alias("declined"),
    )


def alerting(spark: SparkSession, url: str, folder: Path) -> object:
    """The pipeline: countries in which many payments are declined, by window, back on to the bus."""
    source = spark.readStream.format("busway").options(
        url=url, streams="payments", columns="topic,time,payload", channel="alerts"
    )
    order = from_json(col("payload").cast("string"), "id long, amount double, ok boolean")
    windows = (
        payments(source.option("startingOffsets", "earliest").load().withColumn("Payment", order))
        .withWatermark("time", LATE)
        .groupBy(window("time", WINDOW), "country")
        .agg(count("*").alias("payments"), avg("declined").alias("declined"))
        .where("payments >= 20 AND declined > 0.25")
    )
    alerts = windows.select(
        concat(lit("alerts/"), "country").alias("topic"),
        to_json(struct(col("window.start").alias("since"), "payments", "declined")).alias("payload"),
    )
    sink = (
        alerts.writeStream.format("busway").option("url", url).option("checkpointLocation", str(folder / "checkpoint"))
    )
    return sink.outputMode("append").trigger(processingTime="1 second").start()


def listen(url: str, heard: list[tuple[float, str]]) -> None:
    """A plain client that receives the alerts."""
    with sync.connect(url, name="on call") as bus, bus.subscribe("alerts/*", since="all") as alerts:
        for message in alerts:
            told = message.json()
            country = message.topic.split("/")[1]
            since = datetime.fromisoformat(told["since"]).timestamp()
            heard.append((since, country))
            console.print(
                f"  [red]alert[/red] {country}: {told['declined']:.0%} of {told['payments']} payments declined"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="a folder for what is made")
    parser.add_argument("--seconds", type=int, default=30, help="how long payments are made")
    given = parser.parse_args()
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    begun = time.monotonic()
    run(given.out.resolve(), given.seconds)
    console.print(f"done in {time.monotonic() - begun:.0f} s")


def run(out: Path, seconds: int) -> None:
    here = Path(__file__).parent
    bars = Progress(TextColumn("{task.description:32}"), BarColumn(), TimeElapsedColumn(), console=console)
    with (
        bars,
        running(
            "-m", "busway", "serve", "--tcp", "127.0.0.1:0", "--json", "--quiet", "--data", str(out / "data")
        ) as broker,
    ):
        step = bars.add_task("starting a bus and Spark", total=None)
        assert broker.stdout is not None
        url = json.loads(broker.stdout.readline())["addresses"][0]
        bus = sync.connect(url, name="demo")
        bus.create_stream("payments", ["payments/**"], retain_until="archived")
        bus.create_stream("alerts", ["alerts/**"])
        spark = session(name="demo", log=out / "spark.log")  # a warning of Java would break the bars
        bars.update(step, total=1, completed=1)

        heard: list[tuple[float, str]] = []
        threading.Thread(target=listen, args=(url, heard), daemon=True).start()
        query = alerting(spark, url, out)
        step = bars.add_task("payments, windows, alerts", total=seconds)
        with running(str(here / "shops.py"), url, "--seconds", str(seconds)) as shops:
            while shops.poll() is None:
                time.sleep(0.25)
                bars.advance(step, 0.25)
        query.processAllAvailable()
        query.stop()
        bars.update(step, completed=seconds)

        step = bars.add_task("archiving to a Delta table", total=None)
        done = archive(spark, str(out / "lake"), url=url, types=[Payment], once=True)
        bars.update(step, total=1, completed=1)

        step = bars.add_task("a table of everything", total=None)
        everything = lake_table(spark, str(out / "lake"), url=url, streams=["payments"])
        rows = (
            payments(everything)
            .groupBy("country")
            .agg(count("*").alias("n"), total("amount").alias("sum"), avg("declined").alias("share"))
            .orderBy("country")
            .collect()
        )
        points = (
            payments(everything)
            .groupBy(window("time", "1 second").alias("w"), "country")
            .agg(avg("declined").alias("share"))
            .orderBy("w")
            .collect()
        )
        bars.update(step, total=1, completed=1)
        bus.close()
    show(rows, heard)
    in_polars = declined(out / "lake")
    first = min(row.w.start.timestamp() for row in points)
    shares: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in points:
        shares[row.country].append((row.w.start.timestamp() - first, row.share))
    alerts: dict[str, list[float]] = defaultdict(list)
    for at, country in heard:
        alerts[country].append(max(at - first, 0.0))
    count_all = sum(row.n for row in rows)
    picture = out / "payments.svg"
    picture.write_text(draw(shares, alerts, f"{count_all:,} payments, {len(heard)} alerts"))
    summary = {"payments": count_all, "archived": done.total, "alerts": len(heard), "polars": sum(in_polars.values())}
    (out / "summary.json").write_text(json.dumps(summary))
    worst = max(in_polars, key=lambda country: in_polars[country])
    console.print(
        f"archive: {out / 'lake'}\nPolars reads it without Spark: {sum(in_polars.values()):,} payments were declined, "
        f"most of them in {worst}\npicture: {picture}"
    )
    spark.stop()


def declined(lake: Path) -> dict[str, int]:
    """Count declined payments of the lake by country, with Polars instead of Spark."""
    found = (
        pl.scan_delta(lake)
        .filter((pl.col("stream") == "payments") & ~pl.col("Payment").struct.field("ok"))
        .group_by(pl.col("topic").str.split("/").list.get(1).alias("country"))
        .len()
        .collect()
    )
    return dict(found.iter_rows())


def show(rows: list[object], heard: list[tuple[float, str]]) -> None:
    table = Table("country", "payments", "sum", "declined", "alerts", title="payments")
    for row in rows:
        alerts = sum(1 for _, country in heard if country == row.country)
        table.add_row(row.country, f"{row.n:,}", f"{row.sum:,.0f}", f"{row.share:.1%}", str(alerts) if alerts else "")
    console.print(table)


if __name__ == "__main__":
    main()
