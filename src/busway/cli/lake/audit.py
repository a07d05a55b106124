"""`busway lake audit`: looks for missing, repeated and disordered messages. Called by busway.cli.app."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from busway.cli.common import flags, terminal, values
from busway.cli.lake.job import Job, spark_job
from busway.cli.lake.progress import Bar
from busway.cli.lake.source import Selection, Since, Streams, Topics, Until

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
            help="How long after its time of storing the sending time of a message may be; off: no check.",
            metavar="TIME",
        ),
    ] = "1m",
    late: Annotated[
        str,
        typer.Option(
            "--late",
            help="How long before its time of storing the sending time of a message may be; off: no check.",
            metavar="TIME",
        ),
    ] = "1d",
    most: Annotated[int, typer.Option("--most", help="Largest number of findings of each kind to show.", min=1)] = 100,
    content: Annotated[
        bool, typer.Option("--content", help="Compare payloads and fields of messages with the same sequence, too.")
    ] = False,
    json: flags.Json = False,
) -> None:
    """Look for gaps, repeats and messages with a wrong order or time. Exit code 6: there are findings.

    busway lake audit --path /var/lib/busway
    busway lake audit --lake /srv/lake --topic 'orders/**' --json
    """
    selection = Selection.of(stream, topic, since, until)
    early_limit, late_limit = _tolerance("--early", early), _tolerance("--late", late)

    def work(spark: "SparkSession", bar: Bar) -> None:
        from busway.spark.lake.audit import COLUMNS, audit

        bar.say("audit")
        columns = (*COLUMNS, "id", *(("fields", "payload") if content else ()))
        report = audit(selection.table(spark, job, columns), early=early_limit, late=late_limit, most=most)
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
        for finding in report.findings:
            worst = "" if finding.worst is None else f"{finding.worst:g}s"
            numbers = (str(finding.first), str(finding.last), str(finding.count), worst)
            table.add_row(finding.kind, finding.broker, finding.stream, values.one_line(finding.topic), *numbers)
        terminal.out.print(table)
    for kind, count in report.counts.items():
        if count:
            terminal.out.print(f"{kind}: {count} {KINDS[kind]}", markup=False)
    result = "clean" if report.clean else "not clean"
    terminal.out.print(f"{result}: {report.messages} messages of {report.topics} topics", markup=False)
