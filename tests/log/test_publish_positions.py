"""Where a publisher's messages are: by its session and their numbers, as long as they are remembered."""

from pathlib import Path

import pytest

from busway._core import Log
from tests.support.stored import row

SECOND = 10**9


@pytest.mark.parametrize("kept", ["memory", "disk"])
def test_what_a_session_has_stored_is_found_by_number(kept: str, tmp_path: Path) -> None:
    log = Log.open(None if kept == "memory" else tmp_path)
    rows = [row("a", session=1, number=5), row("b", session=2, number=6), row("a", session=1, number=6)]
    log.append([*rows, row("b", session=1, number=9)], 0)
    log.flush()
    places = [(5, 0, 1), (6, 2, 2), (9, 3, 2)]
    assert log.placed(1, 0, 100) == places
    assert log.placed(1, 6, 3) == [places[1]]
    assert log.placed(2, 0, 100) == [(6, 1, 1)]
    assert log.placed(3, 0, 100) == log.placed(1, 10, 1000) == log.placed(1, 5, 0) == []
    assert log.placed(1, (1 << 64) - 1, (1 << 64) - 1) == []
    if kept == "disk":
        log.close()
        log = Log.open(tmp_path)
        assert log.placed(1, 0, 100) == places
    log.close()


def test_a_copy_knows_it_too(tmp_path: Path) -> None:
    log, copy = Log.open(None), Log.open(tmp_path)
    log.append([row("a", session=7, number=number) for number in range(1, 4)], 0)
    log.flush()
    assert copy.copy(log.read(0, 1 << 20)[2])
    assert copy.placed(7, 0, 10) == log.placed(7, 0, 10) == [(1, 0, 1), (2, 1, 2), (3, 2, 3)]
    copy.close()


def test_what_is_forgotten_is_not_found() -> None:
    log = Log.open(None, once_age=10 * SECOND)
    log.append([row("a", session=1, number=1)], 0)
    log.flush()
    log.trim(11 * SECOND)
    assert log.placed(1, 0, 10) == []
