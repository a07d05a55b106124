"""The Delta table of a lake: other programs read it, change it and break it; a full disk; a table of an older version."""

import json
import subprocess
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from busway.spark.columns import arrow_schema
from busway.spark.lake.coverage import Covered, LakeError, Snapshot
from busway.spark.lake.delta_table import Conflict, Lake
from busway.spark.lake.upgrade import upgrade
from busway.spark.lake.upkeep import optimize, vacuum
from busway.spark.options import COLUMNS
from tests.support.spark import lakes
from tests.support.spark.rows import row

DAY = "stream=s/date=2026-01-31"


def write(folder: Path, name: str, offsets: range, columns: tuple[str, ...] = COLUMNS) -> str:
    """A Parquet file of a stream and day, as Spark writes it."""
    rows = [{**one, "fields": list(one["fields"].items())} for one in map(row, offsets)]
    (folder / DAY).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(COLUMNS)).select(columns), folder / DAY / name)
    return f"{DAY}/{name}"


def add(lake: Path, offsets: range, before: Snapshot | None = None) -> Snapshot:
    """Commit messages behind those that are there."""
    opened = Lake(lake)
    before = opened.snapshot(opened.create()) if before is None else before
    plain = tuple(name for name in COLUMNS if name != "stream")
    added = [opened.measured(write(lake, f"part-{offsets.start}-{offsets.stop}.parquet", offsets, plain))]
    return opened.commit(before, added, [Covered("b", "s", offsets.start, offsets.stop)], ("**",))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake of two files with 150 messages of a stream."""
    add(tmp_path / "lake", range(100))
    add(tmp_path / "lake", range(100, 150))
    return tmp_path / "lake"


def offsets(lake: Path) -> list[int]:
    return [found["offset"] for found in lakes.rows(lake)]


def test_other_readers_see_the_same_rows(lake: Path) -> None:
    table = DeltaTable(lake)
    assert pl.scan_delta(lake).select(pl.col("offset").sum()).collect().item() == sum(range(150))
    rows = table.to_pyarrow_dataset()
    assert duckdb.sql("SELECT count(*), max(stored), min(stream) FROM rows").fetchall()[0][0] == 150
    assert len(table.to_pandas()) == 150
    assert rows.count_rows(filter=pa.dataset.field("offset") >= 100) == 50


def test_two_writers_of_the_same_offsets(lake: Path) -> None:
    """One of them wins; the other one is told, and has written nothing."""
    before = Lake(lake).snapshot()
    add(lake, range(150, 160), before)
    with pytest.raises(Conflict, match="another archive has written the streams s"):
        add(lake, range(150, 170), before)
    assert offsets(lake) == list(range(160))


def test_an_error_after_the_commit_is_no_second_commit(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = DeltaTable.create_write_transaction

    def failing(*given: object, **more: object) -> None:
        done(*given, **more)  # type: ignore[arg-type]
        raise CommitFailedError("the connection was lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)
    assert add(lake, range(150, 160)).end(("b", "s")) == 160
    assert offsets(lake) == list(range(160))


def test_a_commit_that_fails_is_told(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)
    with pytest.raises(LakeError, match=r"the commit to the lake .* failed: .*No space left on device"):
        add(lake, range(150, 160))
    assert offsets(lake) == list(range(150))


def test_commits_go_on_while_the_table_is_optimized(lake: Path) -> None:
    errors: list[BaseException] = []

    def merge() -> None:
        try:
            for _ in range(10):
                optimize(str(lake))
        except LakeError as error:
            errors.append(error)

    thread = threading.Thread(target=merge)
    thread.start()
    for begin in range(150, 350, 10):
        add(lake, range(begin, begin + 10))
    thread.join()
    assert errors == []
    assert offsets(lake) == list(range(350))
    assert Lake(lake).snapshot().changed == ()


def test_optimize_and_vacuum_keep_every_row(lake: Path) -> None:
    before, old = lakes.rows(lake), lakes.on_disk(lake)
    (done,) = optimize(str(lake))
    assert (done.stream, done.before, done.after) == ("s", 2, 1)
    assert sorted(lakes.on_disk(lake)) == sorted({*old, *lakes.named(lake)})  # the old ones stay for their readers
    with pytest.raises(ValueError, match="an hour or more"):
        vacuum(str(lake), keep="1m")
    assert vacuum(str(lake)) == []
    (lake / "_staging" / "killed").mkdir(parents=True)
    write(lake, "orphan.parquet", range(900, 950))
    assert len(vacuum(str(lake), keep=0, force=True)) == 3
    assert sorted(lakes.on_disk(lake)) == sorted(lakes.named(lake))
    assert list((lake / "_staging").iterdir()) == []
    assert lakes.rows(lake) == before
    assert add(lake, range(150, 160)).total == 160
    assert optimize(str(lake), below=1) == []


def test_metadata_survives_a_long_history(lake: Path) -> None:
    for _ in range(30):  # commits of another program, with checkpoints
        DeltaTable(lake).alter.set_table_properties({"other": "x"}, raise_if_not_exists=False)
    snapshot = Lake(lake).snapshot()
    assert (snapshot.end(("b", "s")), snapshot.total, snapshot.changed) == (150, 150, ())
    assert list((lake / "_delta_log").glob("*.checkpoint.parquet")) != []


def test_rows_that_another_program_removed_are_told(lake: Path) -> None:
    DeltaTable(lake).delete("offset < 30")
    snapshot = Lake(lake).snapshot()
    (text,) = snapshot.changed
    assert "lacks 30 messages of the stream 's'" in text
    assert "version 3 (DELETE of delta-rs" in text
    with pytest.raises(LakeError, match=r"lacks 30 messages.*failOnDataLoss false"):
        snapshot.check_unchanged(fail=True)
    DeltaTable(lake).restore(2)
    assert Lake(lake).snapshot().changed == ()


def test_rows_that_another_program_added_are_told(lake: Path) -> None:
    write_deltalake(lake, DeltaTable(lake).to_pyarrow_table().slice(0, 7), mode="append")
    (text,) = Lake(lake).snapshot().changed
    assert "has 7 rows too many of the stream 's'" in text


def test_files_that_are_gone_are_told(lake: Path) -> None:
    opened = Lake(lake)
    (lake / DAY / "part-100-150.parquet").unlink()
    files = opened.snapshot().files
    assert "50 messages of the lake" in str(opened.lacking(files))
    assert "part-100-150.parquet (50, offsets 100 to 149)" in str(opened.lacking(files))
    gone = next(file for file in files if "part-100" in file.path)
    with pytest.raises(LakeError, match="50 messages"):
        opened.rows(gone, arrow_schema(("offset",)))


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (lambda lake: (lake / "_delta_log/00000000000000000001.json").write_text("{"), "can't be read"),
        (lambda lake: (lake / "_delta_log/00000000000000000001.json").unlink(), "can't be read"),
        (lambda lake: DeltaTable(lake).alter.add_feature(feature(), allow_protocol_versions_increase=True), "reader of version 3"),
    ],
)  # fmt: skip
def test_a_table_that_can_not_be_read(lake: Path, break_it: object, text: str) -> None:
    break_it(lake)  # type: ignore[operator]
    with pytest.raises(LakeError, match=text):
        Lake(lake).snapshot()
    with pytest.raises(LakeError, match=text):  # it is no folder for a new one
        Lake(lake).create()


def feature() -> object:
    from deltalake import TableFeatures

    return TableFeatures.DeletionVectors


def test_a_folder_that_is_no_lake(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="is not a lake, because it has no Delta table"):
        Lake(tmp_path).snapshot()
    write_deltalake(
        tmp_path / "other",
        pa.table({"stream": ["s"], "date": ["2026-01-31"], "n": [1]}),
        partition_by=["stream", "date"],
    )
    with pytest.raises(LakeError, match="not of an archive"):
        Lake(tmp_path / "other").snapshot()
    for name, text in (("/tmp/a[1]", "a pattern"), ("what://x/y", "can't be used")):
        with pytest.raises(LakeError, match=text):
            Lake(name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False, capture_output=True
    ).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    lake = small_disk / "lake"
    add(lake, range(10))
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(4096))
    with pytest.raises(LakeError, match=r"the commit to the lake .* failed"):
        Lake(lake).commit(Lake(lake).snapshot(), (), [Covered("b", "s", 10, 20)], ("**",))
    assert Lake(lake).snapshot().end(("b", "s")) == 10
    filler.unlink()
    assert add(lake, range(10, 20)).total == 20
    assert offsets(lake) == list(range(20))


def older(folder: Path, *commits: dict[str, object]) -> None:
    """A lake as an older Busway wrote it."""
    (folder / "commits").mkdir(parents=True)
    for number, commit in enumerate(commits, 1):
        plain = {"version": 1, "number": number, "topics": ["**"], **commit}
        checksum = f"{zlib.crc32(msgspec.json.encode(plain, order='sorted')):08x}"
        (folder / f"commits/{number:08d}.json").write_text(json.dumps(plain | {"checksum": checksum}))


def part(begin: int, end: int) -> dict[str, object]:
    return {
        "broker": "b",
        "stream": "s",
        "begin": begin,
        "end": end,
        "lost": 0,
        "damaged": False,
        "last": f"{end}",
        "jumped": 0,
    }


def test_a_lake_of_an_older_version_is_upgraded(tmp_path: Path) -> None:
    first, second, merged = (
        {"path": write(tmp_path / "data", f"r{number}.parquet", numbers), "rows": len(numbers)}
        for number, numbers in enumerate((range(10), range(10, 30), range(30)))
    )
    older(
        tmp_path,
        {"ranges": [part(0, 10)], "added": [first]},
        {"ranges": [part(10, 30)], "added": [second]},
        {"ranges": [], "added": [merged], "removed": [first["path"], second["path"]], "topics": []},
    )
    (tmp_path / "aside").mkdir()
    with pytest.raises(LakeError, match="busway lake upgrade"):
        Lake(tmp_path).snapshot()
    content = {file: file.read_bytes() for file in lakes.on_disk(tmp_path)}
    done = upgrade(str(tmp_path))
    assert (done.files, done.rows) == (1, 30)
    snapshot = Lake(tmp_path).snapshot()
    assert snapshot.covered == {("b", "s"): Covered("b", "s", 0, 30, last="30")}
    assert {file: file.read_bytes() for file in lakes.on_disk(tmp_path)} == content
    add(tmp_path, range(30, 40))
    assert offsets(tmp_path) == list(range(40))
    assert pl.scan_delta(tmp_path).select("offset", "stream").collect()["offset"].sum() == sum(range(40))
    assert optimize(str(tmp_path))[0].before == 2
    assert offsets(tmp_path) == list(range(40))
    with pytest.raises(LakeError, match="nothing to upgrade"):
        upgrade(str(tmp_path))


def test_an_older_lake_that_is_damaged_is_not_upgraded(tmp_path: Path) -> None:
    path = write(tmp_path / "data", "r1.parquet", range(10))
    older(tmp_path, {"ranges": [part(0, 12)], "added": [{"path": path, "rows": 12}]})
    with pytest.raises(LakeError, match="have 12 rows, but their files have 10"):
        upgrade(str(tmp_path))
    commit = tmp_path / "commits/00000001.json"
    commit.write_text(commit.read_text().replace('"end": 12', '"end": 13'))
    with pytest.raises(LakeError, match="is damaged"):
        upgrade(str(tmp_path))
    commit.rename(tmp_path / "commits/00000002.json")
    with pytest.raises(LakeError, match="commit 1 of the lake is missing"):
        upgrade(str(tmp_path))
