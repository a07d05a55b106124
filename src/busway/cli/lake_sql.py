"""`busway lake sql`: a query over streams and their archive."""

import base64
import csv as commas
import itertools
import json as jsons
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from busway.cli import flags, terminal, values
from busway.cli.lake import Job, spark_job
from busway.cli.lake_bar import Bar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from busway.spark.failures import Failure

_SHOWN: Final = 1000
"""Rows of a table, if nothing else is said."""


@spark_job
def lake_sql(
    job: Job,
    query: Annotated[
        str, typer.Argument(help="The query; @FILE reads it from a file, - from stdin.", show_default=False)
    ],
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", help="At most so many rows.", min=1, metavar="N", show_default="1000 of a table"),
    ] = None,
    json: flags.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Commas on stdout, with a line of names first.")] = False,
) -> None:
    """Ask streams in SQL: there is a table `messages` of everything, and one for each stream under its name.

    busway lake sql 'SELECT topic, count(*) FROM messages GROUP BY topic'
    busway lake sql @report.sql --path /var/lib/busway --csv
    """
    if json and csv:
        raise typer.BadParameter("--json and --csv exclude each other")
    text = _query(query)
    known: list[str] = []

    def work(spark: "SparkSession", bar: Bar) -> None:
        from busway.spark.lake.sql import names, sql

        options = job.options if job.placed or not job.lake else {}
        known.extend(names(options, job.lake))
        bar.say("query")
        rows = sql(spark, text, options, job.lake)
        if json:
            _as_json(rows if limit is None else rows.limit(limit))
        elif csv:
            _as_csv(rows if limit is None else rows.limit(limit))
        else:
            _as_table(rows, limit, bar, quiet=job.quiet)

    def hint(failure: "Failure") -> str:
        if failure.condition == "TABLE_OR_VIEW_NOT_FOUND" and known:
            return f"there are {', '.join(known)}"
        return ""

    job.run(work, hint=hint)


def _query(given: str) -> str:
    if given == "-":
        text = sys.stdin.read()
    elif given.startswith("@"):
        try:
            text = Path(given[1:]).read_text()
        except OSError as error:
            raise typer.BadParameter(f"{given[1:]}: {error.strerror}") from None
    else:
        text = given
    text = text.strip().removesuffix(";").strip()
    if not text:
        raise typer.BadParameter("the query is empty")
    return text


def _rows(frame: "DataFrame") -> Iterator[tuple[Any, ...]]:
    """As they come from Spark, partition after partition; times with their zone."""
    local = {place for place, one in enumerate(frame.schema.fields) if one.dataType.typeName() == "timestamp"}
    for row in frame.toLocalIterator(prefetchPartitions=True):
        yield tuple(
            value.replace(tzinfo=UTC) if place in local and value is not None else value
            for place, value in enumerate(row)
        )


def _as_json(frame: "DataFrame") -> None:
    for row in _rows(frame):
        made: dict[str, Any] = {}
        for name, value in zip(frame.columns, row, strict=True):
            if isinstance(value, bytes | bytearray):
                made |= _octets(name, bytes(value))
            else:
                made[name] = _plain(value)
        terminal.record(made)


def _as_csv(frame: "DataFrame") -> None:
    writer = commas.writer(sys.stdout, lineterminator="\n")
    writer.writerow(frame.columns)
    for row in _rows(frame):
        writer.writerow([_cell(value) for value in row])
    sys.stdout.flush()


def _as_table(frame: "DataFrame", limit: int | None, bar: Bar, *, quiet: bool) -> None:
    most = limit or _SHOWN
    found = list(itertools.islice(_rows(frame.limit(most + 1)), most + 1))
    bar.close()
    if not frame.columns:
        return  # a command: it has no rows
    table = Table(box=None, pad_edge=False, header_style="cyan")
    numbers = {"tinyint", "smallint", "int", "integer", "bigint", "long", "float", "double", "decimal"}
    for one in frame.schema.fields:
        table.add_column(one.name, justify="right" if one.dataType.typeName() in numbers else "left")
    for row in found[:most]:
        table.add_row(*(values.one_line(_cell(value)) for value in row))
    terminal.out.print(table)
    if len(found) > most and limit is None and not quiet:
        terminal.note(f"the first {most} rows; --limit, --json or --csv give more")


def _octets(name: str, value: bytes) -> dict[str, str]:
    """Bytes that are no UTF-8 are in base64, as those of a message."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _cell(value: Any) -> str:
    """A value where there is room for text only."""
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        return values.readable(bytes(value))
    plain = _plain(value)
    return plain if isinstance(plain, str) else jsons.dumps(plain, default=str, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value as JSON has it: rows as objects, times in ISO's form, bytes as text."""
    match value:
        case datetime():
            return value.isoformat()
        case bytes() | bytearray():
            return values.readable(bytes(value))
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
        case tuple() if hasattr(value, "asDict"):
            return {key: _plain(one) for key, one in value.asDict().items()}
        case list() | tuple():
            return _list(value)
        case _:
            return value


def _list(given: Iterable[Any]) -> list[Any]:
    return [_plain(one) for one in given]
