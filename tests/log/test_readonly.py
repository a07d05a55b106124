"""A log that another process writes can be read in its current state, and reading changes nothing."""

import threading
from pathlib import Path

import pytest

from busway._core import Log
from busway.errors import DataFailed
from tests.support.stored import lost, read_all, row, wait_safe


def filled(folder: Path, count: int = 400) -> Log:
    log = Log.open(folder, bucket_bytes=8000, max_age=0)
    for number in range(count):
        assert log.append([row(f"t/{number % 5}", bytes(number % 90), session=1, number=number + 1)], 1000 + number)
        if number % 7 == 0:
            assert wait_safe(log) is None
    assert wait_safe(log) is None
    return log


def content(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {one.name: (one.stat().st_mtime_ns, one.stat().st_ino, one.read_bytes()) for one in folder.iterdir()}


def test_it_shows_what_is_there_now(tmp_path: Path) -> None:
    log = filled(tmp_path)
    view = Log.view(tmp_path)
    assert read_all(view) == read_all(log)
    assert (view.first, view.safe, view.find_time(1100), view.topics()) == (0, 400, 100, log.topics())
    assert log.append([row("t/0", b"more", session=1, number=1000)], 2000)
    assert wait_safe(log) is None
    assert view.safe == 400, "as it was when it was opened"
    assert Log.view(tmp_path).safe == 401
    log.close()


def test_it_leaves_no_trace(tmp_path: Path) -> None:
    filled(tmp_path).close()
    indexes = sorted(tmp_path.glob("*.idx"))
    indexes[1].unlink()
    indexes[2].write_bytes(b"rubbish")
    (tmp_path / "00000000000000000000.idx.tmp").write_bytes(b"half")
    indexes[-1].unlink()
    (tmp_path / "next").unlink()  # the broker is at work,
    last = max(tmp_path.glob("*.log"))  # and in the middle of a write
    last.write_bytes(last.read_bytes()[:-5])
    before = content(tmp_path)
    view = Log.view(tmp_path)
    seen = read_all(view)
    assert len(seen) == 399
    assert not lost(view.damage), view.damage
    view.append([row("t/0", b"x", session=9, number=1)], 3000)
    with pytest.raises(DataFailed, match="only looked at"):
        view.close()
    assert content(tmp_path) == before


def test_what_is_damaged_is_told_and_the_rest_is_there(tmp_path: Path) -> None:
    filled(tmp_path).close()
    bucket = sorted(tmp_path.glob("*.log"))[2]
    content = bytearray(bucket.read_bytes())
    content[len(content) // 2] ^= 1
    bucket.write_bytes(content)
    view = Log.view(tmp_path)
    seen = read_all(view)
    assert len(seen) == 399
    assert len(lost(view.damage)) == 1


def test_it_can_be_opened_while_buckets_come_and_go(tmp_path: Path) -> None:
    log = Log.open(tmp_path, bucket_bytes=8000, max_age=0, max_count=300)
    over = threading.Event()
    views = []

    def look() -> None:
        while not over.is_set():
            view = Log.view(tmp_path)
            found = read_all(view)
            views.append(([one.offset for one in found], view.first, view.damage))

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(3000):
        assert log.append([row("t", bytes(80), session=1, number=number + 1)], 1000 + number)
        if number % 50 == 0:
            assert wait_safe(log) is None
            log.trim(1000 + number)
    over.set()
    reader.join()
    log.close()
    assert views
    for offsets, first, damage in views:
        assert not lost(damage), "what retention removes while it is read is not damaged"
        assert offsets == sorted(set(offsets))
        there = [offset for offset in offsets if offset >= first]
        assert not there or there == list(range(first, there[-1] + 1)), "a hole only where retention was at work"


def test_what_retention_removes_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    log = filled(tmp_path)
    view = Log.view(tmp_path)
    _, following, _ = view.read(0, 1)
    log.set(max_count=200)
    log.trim(1000)
    # As far as it has the bucket open, that is read to its end; what is removed behind it is left out, which the block says.
    while following < log.first:
        first, following, _ = view.read(following, 1)
    assert first == view.first == log.first
    assert not lost(view.damage)
    log.close()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataFailed, match="can't be read: No such file"):
        Log.view(tmp_path / "none", name="orders")
    assert not (tmp_path / "none").exists()
