"""Rows as the source gives them, made by hand for the tests of the jobs."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from busway.spark.columns import arrow_schema
from busway.spark.options import COLUMNS

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
"""When everything begins."""


def row(offset: int, topic: str = "a", sequence: int | None = None, **other: Any) -> dict[str, Any]:
    """A message that nothing is wrong with: a second after the one before, and stored a millisecond after it was sent."""
    stored = START + timedelta(seconds=offset)
    whole = {
        "broker": "0" * 32,
        "stream": "s",
        "offset": offset,
        "topic": topic,
        "sequence": offset + 1 if sequence is None else sequence,
        "stored": stored,
        "time": stored - timedelta(milliseconds=1),
        "id": f"{7:016x}{offset + 1:016x}",
        "sender": "feed",
        "fields": {},
        "payload": b"%d" % offset,
    }
    assert whole.keys() >= other.keys()
    return whole | other


def table(spark: SparkSession, rows: Iterable[dict[str, Any]]) -> DataFrame:
    made = [{**one, "fields": list(one["fields"].items())} for one in rows]
    return spark.createDataFrame(pa.Table.from_pylist(made, schema=arrow_schema(COLUMNS)))
