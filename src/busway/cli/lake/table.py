"""`busway lake table`: shows, counts or exports archived and live messages as one table. Called by busway.cli.app."""

from typing import TYPE_CHECKING, Annotated

import typer

from busway.cli.common import flags, terminal
from busway.cli.lake.archive import required_lake
from busway.cli.lake.job import Job, spark_job
from busway.cli.lake.progress import Bar
from busway.cli.lake.rows import as_csv, as_json, as_table
from busway.cli.lake.source import Selection, Streams, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@spark_job
def lake_table(
    job: Job,
    stream: Streams = None,
    topic: Topics = None,
    where: Annotated[
        str | None,
        typer.Option("--where", help="Condition in SQL that selects rows.", metavar="SQL", show_default=False),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", help="Columns to show, separated by commas.", metavar="NAMES", show_default="all"),
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Print the number of rows only.")] = False,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Write the rows to a folder of Parquet files.", metavar="DIR", show_default=False),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", help="Largest number of rows.", min=1, metavar="N", show_default=False),
    ] = None,
    json: flags.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header line.")] = False,
) -> None:
    """Show archive and live messages as one table; without --url or --path the archive alone.

    busway lake table --lake /srv/lake --url tcp://127.0.0.1:7420 --count
    busway lake table --lake /srv/lake --where "date_trunc('hour', stored) = '2026-01-31T12:00'" --out day
    """
    lake = required_lake(job)
    if sum((count, out is not None, json, csv)) > 1:
        raise typer.BadParameter("--count, --out, --json and --csv exclude each other")
    selection = Selection.of(stream, topic, None, None)
    chosen = None if columns is None else tuple(name.strip() for name in columns.split(","))
    if twice := [name for name in chosen or () if (chosen or ()).count(name) > 1]:
        raise typer.BadParameter(f"--columns: {twice[0]!r} is given twice; give each column once")

    def work(spark: "SparkSession", bar: Bar) -> None:
        from busway.spark.lake.table import table

        bar.say("reading")
        rows = table(
            spark,
            lake,
            streams=selection.streams,
            topics=selection.topics or ("**",),
            columns=chosen if where is None else None,
            options=job.options if job.has_source else {},
        )
        if where is not None:
            rows = rows.where(where)
            rows = rows if chosen is None else rows.select(*chosen)
        if limit is not None:
            rows = rows.limit(limit)
        if count:
            terminal.out.print(rows.count(), highlight=False)
        elif out is not None:
            rows.write.option("compression", "zstd").parquet(out)
        elif json:
            as_json(rows)
        elif csv:
            as_csv(rows)
        else:
            as_table(rows, limit, bar, quiet=job.quiet)

    job.run(work)
