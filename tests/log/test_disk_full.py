"""A full disk: waiting records are refused with an error, reads continue, and writes resume when there is room."""

import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from busway import errors
from busway._core import Log, SimulatedFiles
from tests.support.stored import Model, last_sequences, read_all, row, wait_safe


def take(log: Log, model: Model, count: int, begin: int = 0, *, fails: bool = False) -> None:
    for number in range(begin, begin + count):
        given = row("abc"[number % 3], b"x" * 40, session=5, number=number)
        try:
            taken = log.append([given], number)
        except errors.DataFailed:
            # A bucket was full, so it was written before the owner flushed.
            assert fails
            return
        assert taken == [model.append(given)]


def same(log: Log, model: Model) -> None:
    assert read_all(log) == model.records
    assert last_sequences(log) == model.topics()
    assert log.next == log.safe == len(model.records)
    assert not log.damage


def resumes(log: Log, model: Model, number: int) -> None:
    """The next append is tried again after a moment."""
    given = row("a", b"again", session=5, number=number)
    deadline = time.monotonic() + 30
    while True:
        try:
            taken = log.append([given], number)
        except errors.DataFailed:
            assert time.monotonic() < deadline
        else:
            assert taken == [model.append(given)]
            return


@pytest.mark.parametrize("room", [0, 1, 79, 80, 130, 500, 1000, 3000])
@pytest.mark.parametrize("bucket", [300, 1 << 20])
def test_full_and_room_again(room: int, bucket: int) -> None:
    files, model = SimulatedFiles(), Model()
    log = Log.open(files, bucket_bytes=bucket, max_age=0)
    take(log, model, 7)
    log.flush()
    assert log.remove_unwritten() is None
    safe = log.safe
    files.fail(room=room)
    take(log, model, 40, 100, fails=True)
    log.flush()
    begin, end, why = log.remove_unwritten() or (0, 0, "")
    assert safe <= begin < end == len(model.records)
    assert "storage" in why or "space" in why
    model.cut(begin)
    same(log, model)
    with pytest.raises(errors.DataFailed, match="write"):
        log.append([row("a")], 0)
    files.fail()
    resumes(log, model, 500)
    # What was refused is not known to be stored: sent again it is.
    take(log, model, 40, 100)
    log.flush()
    assert log.remove_unwritten() is None
    same(log, model)
    log.close()
    log = Log.open(files, bucket_bytes=bucket)
    same(log, model)


@pytest.mark.parametrize("bucket", [300, 1 << 20])
def test_a_sync_that_fails_is_never_trusted(bucket: int) -> None:
    files, model = SimulatedFiles(), Model()
    log = Log.open(files, safety="synced", bucket_bytes=bucket, max_age=0)
    take(log, model, 5)
    log.flush()
    files.fail(sync=True)
    take(log, model, 5, 10, fails=True)
    log.flush()
    lost = log.remove_unwritten()
    assert lost
    assert lost[2] == "the disk did not take it"
    model.cut(lost[0])
    files.fail()
    resumes(log, model, 50)
    log.flush()
    assert log.remove_unwritten() is None
    same(log, model)
    files.power_cut(1)
    again = Log.open(files)
    assert read_all(again) == model.records


def test_what_was_promised_from_memory_waits_for_room() -> None:
    files, model = SimulatedFiles(), Model()
    log = Log.open(files, safety="memory", bucket_bytes=5000, max_age=0)
    take(log, model, 5)
    log.flush()
    files.fail(room=10)
    take(log, model, 9, 10)
    log.flush()
    assert log.remove_unwritten() is None
    assert log.stuck is not None
    assert log.stuck[1] == 9
    with pytest.raises(errors.DataFailed, match="a write or read failed"):
        log.append([row()], 0)
    same(log, model)
    files.fail()
    log.flush()
    log.close()
    same(Log.open(files), model)


def test_random_disk_full() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        files, model = SimulatedFiles(), Model()
        log = Log.open(files, bucket_bytes=chance.choice([200, 900, 5000]), max_age=0)
        number = 0
        for _ in range(4):
            files.fail(room=chance.choice([None, chance.randrange(2000)]))
            for _ in range(chance.randrange(12)):
                number += 1
                given = row(chance.choice("ab"), b"y" * chance.randrange(200), session=1, number=number)
                try:
                    taken = log.append([given], number)
                except errors.DataFailed:
                    # Before the owner was told, or too soon after it: tried again in the next round.
                    break
                assert taken == [model.append(given)]
                if chance.randrange(3) == 0:
                    log.flush()
            log.flush()
            if lost := log.remove_unwritten():
                model.cut(lost[0])
            same(log, model)
            files.fail()
            number += 1
            resumes(log, model, number)
            log.flush()
            same(log, model)
        log.close()
        same(Log.open(files), model)


LIMITED = """
import sys, resource, signal
from busway import errors
from busway._core import Log
from tests.support.stored import read_all, row, wait_safe
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
log = Log.open(sys.argv[1])
for n in range(10):
    log.append([row("a", b"x" * 100)], n)
assert wait_safe(log) is None
for n in range(100):
    log.append([row("a", b"y" * 100)], n)
lost = wait_safe(log)
assert lost and lost[:2] == (10, 110) and "large" in lost[2], lost
assert len(read_all(log)) == log.next == 10
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
while True:
    try:
        assert log.append([row("a", b"z")], 0) == [(10, 11)]
        break
    except errors.DataFailed:
        pass
assert wait_safe(log) is None
log.close()
"""


def test_a_real_limit(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], check=True, cwd=Path(__file__).parents[2], timeout=50
    )
    assert [known.payload[:1] for known in read_all(Log.open(tmp_path))] == [b"x"] * 10 + [b"z"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_too_much_waits() -> None:
    files = SimulatedFiles()
    log = Log.open(files, pending_bytes=1000)
    rows = [row("a", b"x" * 100)] * 20
    assert len(log.append(rows, 0)) == 5
    assert log.append(rows, 0) == []
    log.flush()
    assert len(log.append(rows, 0)) == 5
    # One that is larger than the limit is taken when nothing waits.
    log.flush()
    assert len(log.append([row("a", b"x" * 5000)], 0)) == 1
    assert wait_safe(log) is None
