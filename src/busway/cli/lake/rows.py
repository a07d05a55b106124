"""Output of Spark rows as a table, JSON or CSV on stdout. Called by `busway lake sql` and `table`."""

import base64
import csv
import itertools
import json
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
"""Largest number of rows of a table without --limit."""


def _rows(frame: "DataFrame") -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a frame, one partition after another. Times get the zone UTC."""
    local = {index for index, field in enumerate(frame.schema.fields) if field.dataType.typeName() == "timestamp"}
    for row in frame.toLocalIterator(prefetchPartitions=True):
        yield tuple(
            value.replace(tzinfo=UTC) if index in local and value is not None else value
            for index, value in enumerate(row)
        )


def as_json(frame: "DataFrame") -> None:
    """Print one JSON object per row."""
    for row in _rows(frame):
        made: dict[str, Any] = {}
        for name, value in zip(frame.columns, row, strict=True):
            if isinstance(value, bytes | bytearray):
                made |= _octets(name, bytes(value))
            else:
                made[name] = _plain(value)
        terminal.record(made)


def as_csv(frame: "DataFrame") -> None:
    """Print a header line and one CSV line per row."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(frame.columns)
    for row in _rows(frame):
        writer.writerow([_cell(value) for value in row])
    sys.stdout.flush()


def as_table(frame: "DataFrame", limit: int | None, bar: Bar, *, quiet: bool) -> None:
    """Print a table, and report rows beyond the default limit."""
    most = limit or _SHOWN
    found = list(itertools.islice(_rows(frame.limit(most + 1)), most + 1))
    bar.close()
    if not frame.columns:
        return  # a command such as SET has no rows
    table = Table(box=None, pad_edge=False, header_style="cyan")
    numbers = {"tinyint", "smallint", "int", "integer", "bigint", "long", "float", "double", "decimal"}
    for field in frame.schema.fields:
        table.add_column(field.name, justify="right" if field.dataType.typeName() in numbers else "left")
    for row in found[:most]:
        table.add_row(*(values.one_line(_cell(value)) for value in row))
    terminal.out.print(table)
    if len(found) > most and limit is None and not quiet:
        terminal.note(f"these are the first {most} rows; --limit, --json or --csv print more")


def _octets(name: str, value: bytes) -> dict[str, str]:
    """Return bytes as UTF-8 text. Other bytes are in base64 under another name, as in the JSON of a message."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _cell(value: Any) -> str:
    """Return a value as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        return values.readable(bytes(value))
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, default=str, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Convert a value for JSON: rows become objects, times ISO texts, bytes texts."""
    match value:
        case datetime():
            return value.isoformat()
        case bytes() | bytearray():
            return values.readable(bytes(value))
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case tuple() if hasattr(value, "asDict"):
            return {key: _plain(item) for key, item in value.asDict().items()}
        case list() | tuple():
            return _list(value)
        case _:
            return value


def _list(items: Iterable[Any]) -> list[Any]:
    return [_plain(item) for item in items]
