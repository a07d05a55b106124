"""Reads a lake without Busway: the files that its commits name, counted by pyarrow."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def commits(lake: Path) -> list[dict[str, Any]]:
    return [
        json.loads(file.read_bytes())
        for file in sorted((lake / "commits").glob("[0-9]*.json"))
        if ".all." not in file.name
    ]


def named(lake: Path) -> list[Path]:
    """The files that are part of the lake."""
    there: dict[str, None] = {}
    for commit in commits(lake):
        for path in commit["removed"]:
            del there[path]
        there |= dict.fromkeys(file["path"] for file in commit["added"])
    return [lake / "data" / path for path in there]


def on_disk(lake: Path) -> list[Path]:
    return sorted((lake / "data").rglob("*.parquet"))


def rows(lake: Path) -> list[dict[str, Any]]:
    """All of them, in the order of streams and offsets."""
    files = named(lake)
    if not files:
        return []
    table = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    found: list[dict[str, Any]] = table.to_pylist()
    return sorted(found, key=lambda row: (row["broker"], row["stream"], row["offset"]))


def repeated(found: list[dict[str, Any]]) -> list[Any]:
    """Keys that are there more than once."""
    keys = Counter((row["broker"], row["topic"], row["sequence"]) for row in found)
    return [key for key, count in keys.items() if count > 1]
