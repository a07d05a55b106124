"""Delta tables of a pipeline: publishes the tables of an update, each in one commit of delta-rs. The runner calls it.

Spark writes the tables of a pipeline as Parquet, each file exactly once. A published table has hard links to the files that
Spark counts to its table, so a file is there once, and a reader of an older version keeps what Spark deletes. A commit is
the difference between the two lists of files, so a killed publication is complete after the next update.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from busway.spark.lake import statistics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


class PublishError(RuntimeError):
    """A table can't be published. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Published:
    """A table that an update has changed."""

    name: str
    version: int
    rows: int


def publish(spark: "SparkSession", folder: Path) -> list[Published]:
    """Publish all tables of a session below `folder`. Returns those that changed. Raises PublishError."""
    found = []
    for table in spark.catalog.listTables():
        if table.tableType in {"MANAGED", "EXTERNAL"}:
            frame = spark.table(table.name)
            partitions = [column.name for column in spark.catalog.listColumns(table.name) if column.isPartition]
            files = [Path(unquote(urlparse(uri).path)) for uri in frame.inputFiles()]
            try:
                done = _publish(folder / table.name, _schema(frame), partitions, files)
            except (DeltaError, OSError, ValueError) as error:
                raise PublishError(
                    f"the table {table.name} can't be written as Delta to {folder / table.name}: {error}"
                ) from error
            found += [Published(table.name, *done)] if done else []
    return found


def _schema(frame: Any) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - heavy

    return to_arrow_schema(frame.schema, timezone="UTC")


def _publish(place: Path, schema: pa.Schema, partitions: list[str], files: Iterable[Path]) -> tuple[int, int] | None:
    """Bring one Delta table in line with these files. Returns its version and rows, or None if nothing has changed."""
    table = _opened(place, schema, partitions)
    known = {Path(unquote(path)): action for path, action in _actions(table).items()}
    wanted = {_relative(file, len(partitions)): file for file in files}
    actions: list[AddAction | RemoveAction] = [
        _remove(path, action) for path, action in known.items() if path not in wanted
    ]
    actions += [_add(place, path, file, partitions) for path, file in wanted.items() if path not in known]
    if not actions:
        return None
    table.create_write_transaction(actions, "append", table.schema(), partitions)
    now = DeltaTable(place)
    return now.version(), sum(action["num_records"] for action in _actions(now).values())


def _opened(place: Path, schema: pa.Schema, partitions: list[str]) -> DeltaTable:
    """Return the table, with the columns of the schema. Raises SchemaMismatchError if a column has another type."""
    if not DeltaTable.is_deltatable(str(place)):
        place.mkdir(parents=True, exist_ok=True)
        return DeltaTable.create(place, schema, partition_by=partitions)
    table = DeltaTable(place)
    known, fields = table.schema().fields, Schema.from_arrow(schema).fields
    if any(column not in known for column in fields):
        table.alter.add_columns(fields)
        table = DeltaTable(place)
    return table


def _actions(table: DeltaTable) -> dict[str, dict[str, Any]]:
    return {action["path"]: action for action in pa.table(table.get_add_actions(flatten=True)).to_pylist()}


def _relative(file: Path, depth: int) -> Path:
    """Return the path of a file in its table: its partitions, and its name, which Spark makes unique."""
    return Path(*file.parts[-1 - depth :])


def _values(path: Path, partitions: list[str]) -> dict[str, str | None]:
    texts = (unquote(part.partition("=")[2]) for part in path.parts[:-1])
    return {name: None if text == _NULL else text for name, text in zip(partitions, texts, strict=True)}


def _add(place: Path, path: Path, file: Path, partitions: list[str]) -> AddAction:
    linked = place / path
    linked.parent.mkdir(parents=True, exist_ok=True)
    if not linked.exists():
        os.link(file, linked)
    return AddAction(
        str(path),
        linked.stat().st_size,
        _values(path, partitions),
        int(linked.stat().st_mtime * 1000),
        data_change=True,
        stats=statistics.of(pq.ParquetFile(linked).metadata).text,
    )


def _remove(path: Path, action: dict[str, Any]) -> RemoveAction:
    values = {
        name.removeprefix("partition."): None if value is None else str(value)
        for name, value in action.items()
        if name.startswith("partition.")
    }
    return RemoveAction(str(path), True, int(time.time() * 1000), action["size_bytes"], values)
