"""Statistics of a Parquet file for a commit of Delta, from the statistics of its row groups. Readers prune files by them."""

import json
import math
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

_LONGEST: Final = 64
"""Largest length of a text in the statistics."""


class Statistics(NamedTuple):
    """The statistics of a file."""

    text: str
    """The statistics as JSON, as an AddAction of delta-rs takes them."""
    filled: frozenset[str]
    """The leaf columns that have values, as paths."""


def of(metadata: pq.FileMetaData) -> Statistics:
    """Return the statistics of a file."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    filled = set[str]()
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        groups = [metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups)]
        if any(group is None or not group.has_null_count for group in groups):
            filled.add(column.path)
            continue
        empty = sum(group.null_count for group in groups)
        if empty < metadata.num_rows:
            filled.add(column.path)
        if column.max_repetition_level:
            continue  # lists and maps have no statistics in Delta
        _put(nulls, column.path, empty)
        known = [group for group in groups if group.has_min_max]
        if known and sum(group.num_values for group in known) == metadata.num_rows - empty:
            low, high = _plain(min(group.min for group in known)), _plain(max(group.max for group in known))
            if low is not None and high is not None:
                _put(lowest, column.path, low)
                _put(highest, column.path, high)
    made = {"numRecords": metadata.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return Statistics(json.dumps(made), frozenset(filled))


def _put(into: dict[str, Any], path: str, value: Any) -> None:
    *outer, name = path.split(".")
    for step in outer:
        into = into.setdefault(step, {})
    into[name] = value


def _plain(value: Any) -> Any:
    """Return a value for JSON. None: Delta has no statistics of this type, or the value is too long."""
    match value:
        case bool():
            return None
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case str() if len(value) <= _LONGEST:
            return value
        case int():
            return value
        case float() if math.isfinite(value):
            return value
    return None
