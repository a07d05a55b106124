"""`busway lake sql`: runs a SQL query over streams and their archive. Called by busway.cli.app."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busway.cli.common import flags
from busway.cli.lake.job import Job, spark_job
from busway.cli.lake.progress import Bar
from busway.cli.lake.rows import as_csv, as_json, as_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from busway.spark.errors import Failure


@spark_job
def lake_sql(
    job: Job,
    query: Annotated[
        str, typer.Argument(help="The query; @FILE reads it from a file, - from stdin.", show_default=False)
    ],
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", help="Largest number of rows.", min=1, metavar="N", show_default="1000 for a table"
        ),
    ] = None,
    json: flags.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header line.")] = False,
) -> None:
    """Query streams in SQL. The table `messages` has all messages; each stream has a table under its name.

    busway lake sql 'SELECT topic, count(*) FROM messages GROUP BY topic'
    busway lake sql @report.sql --path /var/lib/busway --csv
    """
    if json and csv:
        raise typer.BadParameter("--json and --csv exclude each other")
    text = _query(query)
    known: list[str] = []

    def work(spark: "SparkSession", bar: Bar) -> None:
        from busway.spark.lake.table import names, sql

        options = job.options if job.has_source or not job.lake else {}
        known.extend(names(options, job.lake))
        bar.say("query")
        rows = sql(spark, text, options, job.lake)
        if json:
            as_json(rows if limit is None else rows.limit(limit))
        elif csv:
            as_csv(rows if limit is None else rows.limit(limit))
        else:
            as_table(rows, limit, bar, quiet=job.quiet)

    def hint(failure: "Failure") -> str:
        if failure.condition == "TABLE_OR_VIEW_NOT_FOUND" and known:
            return f"the tables are {', '.join(known)}"
        return ""

    job.run(work, hint=hint)


def _query(argument: str) -> str:
    if argument == "-":
        text = sys.stdin.read()
    elif argument.startswith("@"):
        try:
            text = Path(argument[1:]).read_text()
        except OSError as error:
            raise typer.BadParameter(
                f"{argument[1:]} can't be read ({error.strerror}): give @ and the path of a file"
            ) from None
    else:
        text = argument
    text = text.strip().removesuffix(";").strip()
    if not text:
        raise typer.BadParameter("the query is empty: give a SELECT, @FILE or -")
    return text
