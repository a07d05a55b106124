"""Reads a lake without Busway and without Spark, as any other reader of Delta does."""

from collections import Counter
from pathlib import Path
from typing import Any

from deltalake import DeltaTable


def named(lake: Path) -> list[Path]:
    """The files that are part of the table."""
    return [Path(uri) for uri in DeltaTable(lake).file_uris()]


def on_disk(lake: Path) -> list[Path]:
    """All Parquet files that are no staging files and no checkpoints."""
    return sorted(file for file in lake.rglob("*.parquet") if not file.relative_to(lake).parts[0].startswith("_"))


def rows(lake: Path) -> list[dict[str, Any]]:
    """All rows, in the order of streams and offsets."""
    found: list[dict[str, Any]] = DeltaTable(lake).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["broker"], row["stream"], row["offset"]))


def commits(lake: Path) -> list[dict[str, Any]]:
    """The metadata of the archive in each commit that has rows or ranges, the oldest first."""
    found = [entry["busway"] for entry in DeltaTable(lake).history() if "busway" in entry]
    return [state for state in reversed(found) if state["ranges"]]


def repeated(found: list[dict[str, Any]]) -> list[Any]:
    """Keys that are there more than once."""
    keys = Counter((row["broker"], row["topic"], row["sequence"]) for row in found)
    return [key for key, count in keys.items() if count > 1]
