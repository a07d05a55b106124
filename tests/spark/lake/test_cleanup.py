"""Files that no commit names: deleted if their messages exist in others, set aside if not. Without Spark and without a
bus.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from busway.spark.columns import arrow_schema
from busway.spark.lake.table_log.cleanup import Left, left, tidy
from busway.spark.lake.table_log.commits import Commit, Covered, LakeError, Snapshot
from busway.spark.lake.table_log.folder import Lake
from busway.spark.options import COLUMNS
from busway.spark.ranges import Available
from tests.support.spark.rows import row

FOLDER = "stream=s/date=2026-01-31"


def write(lake: Lake, number: int, offsets: range, brokers: str = "b") -> str:
    """A file of a round with these messages, in turn of each of the brokers."""
    path = f"{FOLDER}/r{number:08d}-0000-abc.parquet"
    rows = [row(offset, broker=brokers[offset % len(brokers)]) for offset in offsets]
    made = pa.Table.from_pylist(
        [{**one, "fields": list(one["fields"].items())} for one in rows], schema=arrow_schema(COLUMNS)
    )
    Path(lake.path("data", FOLDER)).mkdir(parents=True, exist_ok=True)
    pq.write_table(made, lake.path("data", path))
    return path


def archived(lake: Lake, end: int = 100) -> Snapshot:
    """A lake with one round, of the messages before an offset."""
    with lake.lock():
        file, _ = lake.measured(write(lake, 1, range(end)))
        covered = (Covered("b", "s", 0, end), Covered("c", "other", 0, 1000))
        lake.commit(
            lake.snapshot(), Commit(number=1, time=0.0, kind="archive", topics=("**",), ranges=covered, added=(file,))
        )
    return lake.snapshot()


@pytest.mark.parametrize(
    ("offsets", "brokers", "held", "spare"),
    [
        (range(100, 150), "b", [Available("b", "s", 0, 150)], True),
        (range(100, 150), "b", [Available("b", "s", 100, 200)], True),
        (range(100, 150), "b", [Available("b", "s", 101, 200)], False),
        (range(100, 150), "b", [Available("b", "s", 0, 149)], False),  # the stream has lost its end
        (range(100, 150), "b", [Available("b", "t", 0, 150), Available("c", "s", 0, 150)], False),
        (range(100, 150), "b", [Available("b", "t", 0, 150)], False),
        (range(100, 150), "b", [], False),
        (range(20, 50), "b", [], True),  # of a compaction
        (range(20, 101), "b", [], False),
        (range(100, 150), "bc", [Available("b", "s", 0, 150), Available("c", "s", 0, 150)], True),
        (range(100, 150), "bc", [Available("b", "s", 0, 150), Available("c", "s", 101, 150)], False),
        (range(100, 150), "f", [Available("b", "s", 0, 150)], True),  # of another broker, by way of this one
        (range(100, 150), "f", [Available("b", "s", 120, 150)], False),
    ],
)
def test_whether_a_file_may_be_the_only_copy(
    tmp_path: Path, offsets: range, brokers: str, held: list[Available], spare: bool
) -> None:
    lake = Lake(str(tmp_path))
    snapshot = archived(lake)
    path = write(lake, 2, offsets, brokers)
    assert left(lake, snapshot, held) == [Left(path, spare)]


def test_it_is_deleted_or_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lake = Lake(str(tmp_path))
    snapshot = archived(lake)
    known = set(snapshot.files)
    spare, only, damaged = write(lake, 2, range(20)), write(lake, 3, range(100, 120)), write(lake, 4, range(9))
    Path(lake.path("data", damaged)).write_bytes(b"no parquet")
    content = Path(lake.path("data", only)).read_bytes()
    found = left(lake, snapshot)
    assert found == [Left(spare, spare=True), Left(only, spare=False), Left(damaged, spare=False)]
    with lake.lock():
        tidy(lake, found)
    assert lake.files() == known
    assert {str(file.relative_to(tmp_path / "aside")) for file in (tmp_path / "aside").rglob("*.parquet")} == {
        only,
        damaged,
    }
    assert (tmp_path / "aside" / only).read_bytes() == content
    assert f"{only} of the lake {tmp_path} is named by no commit" in caplog.text
    assert "commits/00000003.json" in caplog.text


def test_a_compaction_is_no_copy_if_what_it_was_made_of_is_gone(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    snapshot = archived(lake)
    path = write(lake, 2, range(100))
    assert left(lake, snapshot) == [Left(path, spare=True)]
    (old,) = snapshot.files
    Path(lake.path("data", old)).unlink()
    assert left(lake, snapshot) == [Left(path, spare=False)]
    with pytest.raises(LakeError, match=rf"{old} of the lake {tmp_path} is missing, which commits/00000001.json names"):
        lake.parquet(old)
    assert lake.lacking([old]) == old


def test_a_lake_is_one_when_an_archive_was_there(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    with lake.lock():
        assert not lake.exists()
        lake.make()
    assert lake.exists()
    archived(lake)
    assert lake.exists()
    (tmp_path / "commits/00000001.json").unlink()
    assert not lake.exists()
