"""Logs with manual writes, files that outlive their process, and stopped clocks: the base of simulations."""

import time

import pytest

from busway import errors
from busway._core import Log, SimulatedFiles, hold_clock
from busway.broker.streams.stream import FOREVER
from tests.support.stored import read_all, row


def test_nothing_is_safe_before_it_is_written() -> None:
    log = Log.open(SimulatedFiles(), by_hand=True)
    assert log.fileno() is not None
    log.append([row("a", b"1"), row("a", b"2")], 1000)
    assert log.unwritten == 0, "it was not flushed"
    log.flush()
    assert log.unwritten > 0
    assert log.safe == 0
    log.write()
    assert (log.unwritten, log.safe) == (0, 2)
    assert log.remove_unwritten() is None


def test_what_can_not_be_written_is_told() -> None:
    files = SimulatedFiles()
    log = Log.open(files, by_hand=True)
    files.fail(room=10)
    log.append([row("a", b"1")], 1000)
    log.flush()
    log.write()
    assert log.safe == 0
    lost = log.remove_unwritten()
    assert lost is not None
    assert lost[:2] == (0, 1)
    assert log.unwritten == 0


def test_closing_writes_the_rest() -> None:
    files = SimulatedFiles()
    log = Log.open(files, by_hand=True)
    log.append([row("a", b"1")], 1000)
    log.close()
    assert [one.payload for one in read_all(Log.open(files))] == [b"1"]


def test_only_simulated_files_are_written_by_hand(tmp_path) -> None:
    with pytest.raises(ValueError, match="simulated files"):
        Log.open(tmp_path / "log", by_hand=True)
    with pytest.raises(ValueError, match="simulated files"):
        Log.open(None, by_hand=True)


def test_who_comes_next_finds_what_was_written() -> None:
    files = SimulatedFiles()
    log = Log.open(files, by_hand=True, hold=FOREVER)
    log.append([row("a", b"1")], 1000)
    log.flush()
    log.write()
    log.append([row("a", b"2")], 1001)
    log.flush()
    left = files.survivor()
    log.write()
    with pytest.raises(errors.DataFailed, match="in use"):
        Log.open(files)
    assert [one.payload for one in read_all(Log.open(left))] == [b"1"]


def test_what_was_not_synced_may_still_be_lost_by_the_next() -> None:
    """A copy knows what is only written."""
    sizes = set()
    for seed in range(30):
        files = SimulatedFiles()
        log = Log.open(files, by_hand=True)
        log.append([row("a", b"1")], 1000)
        log.flush()
        log.write()
        left = files.survivor()
        left.power_cut(seed)
        sizes.add(len(read_all(Log.open(left))))
    assert sizes == {0, 1}


def test_a_clock_that_is_held_is_where_it_is_held() -> None:
    from busway._core import Session

    def stamp() -> int:
        session = Session(1)
        session.attach(lambda: None)
        session.open(frame=1 << 20, topic=100, fields=100, topics=10)
        session.writable(True)
        session.send(0x10, "a", b"")
        return int.from_bytes(bytes(session.take() or b"")[-16:-8], "little")

    try:
        hold_clock(12345)
        assert stamp() == 12345
    finally:
        hold_clock(0)
    assert abs(stamp() - time.time_ns()) < 10**12
