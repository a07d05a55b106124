"""Rows of Spark on stdout: as a table, as JSON, or with commas."""

import base64
import csv as commas
import itertools
import json as jsons
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from busway.cli.common import terminal, values
from busway.cli.lake.progress import Bar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHOWN: Final = 1000
"""Rows of a table, if nothing else is said."""


def _rows(frame: "DataFrame") -> Iterator[tuple[Any, ...]]:
    """As they come from Spark, partition after partition; times with their zone."""
    local = {place for place, one in enumerate(frame.schema.fields) if one.dataType.typeName() == "timestamp"}
    for row in frame.toLocalIterator(prefetchPartitions=True):
        yield tuple(
            value.replace(tzinfo=UTC) if place in local and value is not None else value
            for place, value in enumerate(row)
        )


def as_json(frame: "DataFrame") -> None:
    for row in _rows(frame):
        made: dict[str, Any] = {}
        for name, value in zip(frame.columns, row, strict=True):
            if isinstance(value, bytes | bytearray):
                made |= _octets(name, bytes(value))
            else:
                made[name] = _plain(value)
        terminal.record(made)


def as_csv(frame: "DataFrame") -> None:
    writer = commas.writer(sys.stdout, lineterminator="\n")
    writer.writerow(frame.columns)
    for row in _rows(frame):
        writer.writerow([_cell(value) for value in row])
    sys.stdout.flush()


def as_table(frame: "DataFrame", limit: int | None, bar: Bar, *, quiet: bool) -> None:
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
