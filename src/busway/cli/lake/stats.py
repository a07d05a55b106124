"""`busway lake stats`: shows rates, sizes, latencies and top senders as a table or a page. Called by busway.cli.app."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from busway.cli.common import flags, terminal, values
from busway.cli.lake.job import Job, spark_job
from busway.cli.lake.progress import Bar
from busway.cli.lake.source import Selection, Since, Streams, Topics, Until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from busway.spark.lake.stats import StatsReport


@spark_job
def lake_stats(
    job: Job,
    stream: Streams = None,
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    every: Annotated[str, typer.Option("--every", help="Length of an interval: 10s, 1m, 1h.", metavar="TIME")] = "1m",
    top: Annotated[
        int, typer.Option("--top", help="Number of topics and senders to show for each interval.", min=1)
    ] = 5,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with charts to this file.", metavar="FILE")
    ] = None,
    json: flags.Json = False,
) -> None:
    """Count messages and bytes by interval, with latencies from sending to storing, top topics and top senders.

    busway lake stats --path /var/lib/busway --every 1h
    busway lake stats --lake /srv/lake --since 2026-01-31 --html january.html
    """
    from busway.spark.lake.stats import length

    selection = Selection.of(stream, topic, since, until)
    width = flags.checked(lambda: length(every))
    if html is not None and not html.absolute().parent.is_dir():
        raise typer.BadParameter(f"--html: there is no folder {str(html.parent)!r}; create it or choose another file")

    def work(spark: "SparkSession", bar: Bar) -> None:
        from busway.spark.lake.report.page import page
        from busway.spark.lake.stats import COLUMNS, stats_report

        bar.say("stats")
        report = stats_report(selection.table(spark, job, COLUMNS), width, top=top)
        bar.close()
        if html is not None:
            html.write_text(page(report), encoding="utf-8")
            if not job.quiet:
                terminal.note(f"{html}: {report.total.messages} messages in {len(report.intervals)} intervals")
        if json:
            terminal.record(report.as_dict())
        elif html is None:
            _print(report)

    job.run(work)


def _print(report: "StatsReport") -> None:
    from busway.spark.lake.report.page import shown_bytes, shown_number, shown_seconds

    table = Table(box=None, pad_edge=False, header_style="cyan")
    table.add_column("from")
    for name in ("messages", "a second", "bytes", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="right")
    for name in ("top topics", "top senders"):
        table.add_column(name)
    seconds = report.every.total_seconds()
    for interval in (*report.intervals, report.total):
        shares = (
            ", ".join(f"{share.name} {share.messages}" for share in some)
            for some in (interval.top_topics, interval.top_senders)
        )
        table.add_row(
            "all" if interval.begin is None else f"{interval.begin:%Y-%m-%d %H:%M:%S}",
            str(interval.messages),
            "" if interval.begin is None else shown_number(interval.messages / seconds),
            shown_bytes(interval.bytes),
            *(shown_seconds(value) for value in (interval.p50, interval.p90, interval.p99, interval.max)),
            *(values.one_line(share) for share in shares),
        )
    terminal.out.print(table)
