"""Records that only have to be copied to the page cache are written by the thread that appends them, if it asks for that."""

import select
from pathlib import Path

from busway._core import Log
from tests.support.stored import read_all, row, wait_safe


def rings(log: Log) -> bool:
    handle = log.fileno()
    assert handle is not None
    return bool(select.select([handle], [], [], 0)[0])


def test_they_are_safe_at_once_and_nothing_rings(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    for number in range(100):
        log.append([row("a", str(number).encode())], 1)
        log.flush(here=True)
        assert log.safe == number + 1
    assert not rings(log)
    assert [record.payload for record in read_all(log)] == [str(number).encode() for number in range(100)]


def test_a_sync_is_left_to_the_thread(tmp_path: Path) -> None:
    log = Log.open(tmp_path, safety="synced")
    log.append([row()], 1)
    log.flush(here=True)
    assert wait_safe(log) is None
    assert log.safe == 1


def test_the_end_of_a_bucket_is_left_to_the_thread(tmp_path: Path) -> None:
    log = Log.open(tmp_path, bucket_bytes=1000)
    for number in range(300):
        log.append([row("a", bytes(100))], number)
        log.flush(here=True)
    assert wait_safe(log) is None
    assert log.safe == 300
    log.close()
    again = Log.open(tmp_path)
    assert ([record.offset for record in read_all(again)], again.damage) == (list(range(300)), [])


def test_they_follow_those_that_the_thread_writes(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    for number in range(2000):
        log.append([row("a", str(number).encode())], 1)
        log.flush(here=number % 3 == 0)
    assert wait_safe(log) is None
    assert [int(record.payload) for record in read_all(log)] == list(range(2000))
