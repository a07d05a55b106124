"""Delta tables of a pipeline without Spark: they follow a list of files, whatever was killed in between."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import SchemaMismatchError

from busway.spark.pipelines.delta_tables import _publish

SCHEMA = pa.schema([("id", pa.int64()), ("country", pa.string())])


def write(folder: Path, name: str, ids: range, schema: pa.Schema = SCHEMA) -> Path:
    file = folder / "spark" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": number, "country": "pl", "vip": True} for number in ids]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)
    return file


def ids(place: Path) -> list[int]:
    return sorted(DeltaTable(place).to_pyarrow_table().column("id").to_pylist())


def test_a_table_follows_its_files(tmp_path: Path) -> None:
    place = tmp_path / "delta"
    first = write(tmp_path, "a.parquet", range(10))
    assert _publish(place, SCHEMA, [], [first]) == (1, 10)
    assert _publish(place, SCHEMA, [], [first]) is None
    second = write(tmp_path, "b.parquet", range(10, 15))
    (place / "b.parquet").hardlink_to(second)  # as a publication that was killed before its commit leaves it
    assert _publish(place, SCHEMA, [], [first, second]) == (2, 15)
    assert ids(place) == list(range(15))
    statistics = pa.table(DeltaTable(place).get_add_actions(flatten=True))
    assert sorted(statistics["max.id"].to_pylist()) == [9, 14]
    first.unlink()
    third = write(tmp_path, "c.parquet", range(3))
    assert _publish(place, SCHEMA, [], [third]) == (3, 3)  # Spark has made the table anew
    assert ids(place) == [0, 1, 2]
    old = DeltaTable(place, version=2)
    assert old.to_pyarrow_table().num_rows == 15  # a reader of the version before has its files


def test_partitions_are_those_of_spark(tmp_path: Path) -> None:
    place, plain = tmp_path / "delta", SCHEMA.remove(1)
    files = [
        write(tmp_path, f"country={folder}/{number}.parquet", range(number, number + 1), plain)
        for number, folder in enumerate(("pl", "a%3Ab", "__HIVE_DEFAULT_PARTITION__"))
    ]
    assert _publish(place, SCHEMA, ["country"], files) == (1, 3)
    found = {row["id"]: row["country"] for row in DeltaTable(place).to_pyarrow_table().to_pylist()}
    assert found == {0: "pl", 1: "a:b", 2: None}
    assert _publish(place, SCHEMA, ["country"], files) is None
    assert _publish(place, SCHEMA, ["country"], files[:1]) == (2, 1)


def test_a_column_can_be_added_but_not_changed(tmp_path: Path) -> None:
    place, more = tmp_path / "delta", SCHEMA.append(pa.field("vip", pa.bool_()))
    first = write(tmp_path, "a.parquet", range(2))
    _publish(place, SCHEMA, [], [first])
    second = write(tmp_path, "b.parquet", range(2, 4), more)
    _publish(place, more, [], [first, second])
    assert ids(place) == [0, 1, 2, 3]
    assert DeltaTable(place).to_pyarrow_table().column("vip").null_count == 2
    with pytest.raises(SchemaMismatchError):
        _publish(place, pa.schema([("id", pa.string())]), [], [first])
