"""`busway lake audit`: whether anything is missing, double, or out of order."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from busway.cli.common import flags, terminal, values
from busway.cli.lake.job import Job, spark_job
from busway.cli.lake.progress import Bar
from busway.cli.lake.source import Since, Streams, Topics, Until, Wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from busway.spark.lake.audit import AuditReport


@spark_job
def lake_audit(
    job: Job,
    stream: Streams = None,
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    early: Annotated[
        str,
        typer.Option(
            "--early",
            help="How much later than its storing a message may claim to be sent; off: no check.",
            metavar="TIME",
        ),
    ] = "1m",
    late: Annotated[
        str,
        typer.Option(
            "--late",
            help="How much earlier than its storing a message may claim to be sent; off: no check.",
            metavar="TIME",
        ),
    ] = "1d",
    most: Annotated[int, typer.Option("--most", help="Largest number of findings of each kind to show.", min=1)] = 100,
    content: Annotated[
        bool, typer.Option("--content", help="Compare payloads and fields of messages with the same sequence, too.")
    ] = False,
    json: flags.Json = False,
) -> None:
    """Look for gaps, repeats and messages out of order or out of time. Ends with 6 if there are any.

    busway lake audit --path /var/lib/busway
    busway lake audit --lake /srv/lake --topic 'orders/**' --json
    """
    wanted = Wanted.of(stream, topic, since, until)
    soon, old = _tolerance("--early", early), _tolerance("--late", late)

    def work(spark: "SparkSession", bar: Bar) -> None:
        from busway.spark.lake.audit import COLUMNS, audit

        bar.say("audit")
        columns = (*COLUMNS, "id", *(("fields", "payload") if content else ()))
        report = audit(wanted.table(spark, job, columns), early=soon, late=old, most=most)
        bar.close()
        if json:
            terminal.record(report.as_dict())
        else:
            _print(report)
        if not report.clean:
            raise terminal.Ended(terminal.FOUND)

    job.run(work)


def _tolerance(name: str, text: str) -> timedelta | None:
    if text == "off":
        return None
    try:
        return timedelta(seconds=values.duration(text))
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"{name}: {error}") from None


def _print(report: "AuditReport") -> None:
    from busway.spark.lake.audit import KINDS

    if report.findings:
        table = Table(box=None, pad_edge=False, header_style="cyan")
        for name in ("kind", "broker", "stream", "topic"):
            table.add_column(name)
        for name in ("first", "last", "count", "worst"):
            table.add_column(name, justify="right")
        for one in report.findings:
            worst = "" if one.worst is None else f"{one.worst:g}s"
            place = (str(one.first), str(one.last), str(one.count), worst)
            table.add_row(one.kind, one.broker, one.stream, values.one_line(one.topic), *place)
        terminal.out.print(table)
    for kind, count in report.counts.items():
        if count:
            terminal.out.print(f"{kind}: {count} {KINDS[kind]}", markup=False)
    told = "clean" if report.clean else "not clean"
    terminal.out.print(f"{told}: {report.messages} messages of {report.topics} topics", markup=False)
