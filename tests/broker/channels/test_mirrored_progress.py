"""A progress log that a mirror copies: writes wait for it, and nothing is written while lost records may come back."""

import asyncio
from pathlib import Path

import pytest

from busway import StoreFailed
from busway._core import Log
from busway.broker.channels.progress_log import ProgressLog, open_log
from busway.broker.channels.progress_records import ENTRIES, record
from busway.broker.channels.state.progress import Created, Deleted, Done, Entry, rebuild
from busway.broker.storage.data_folder import CHANNELS
from tests.support.journals import CONFIG, shown, story
from tests.support.net import eventually, within
from tests.support.progress_logs import stored


async def opened(folder: Path, **how) -> ProgressLog:
    progress = ProgressLog(folder, **how)
    await progress.start()
    return progress


def copy_of(log: Log, begin: int = 0) -> bytes:
    return log.read_written(begin, 1 << 20)[2]


async def restored(progress: ProgressLog, *entries: Entry) -> None:
    """A mirror gives a record back."""
    folder = progress.folder.with_name("other")
    other = open_log(folder, begin=progress.native.next)
    other.append([record(ENTRIES, entries)], 1)
    other.flush(here=True)
    await eventually(lambda: asyncio.sleep(0, other.written == other.next))
    assert progress.native.copy(copy_of(other, other.first))
    await eventually(lambda: asyncio.sleep(0, progress.native.written == progress.native.next))
    other.close()


async def test_a_write_waits_until_the_mirror_has_it(tmp_path: Path) -> None:
    told: list[int] = []
    progress = await opened(tmp_path, written=lambda: told.append(progress.native.written))
    progress.confirm(0)
    first, second = progress.write([Created("c", 1, 0, CONFIG)]), progress.write([Done("c", 1, 1)])
    assert told[-1] == 2, "whoever copies it is told"
    await asyncio.sleep(0)
    assert not first.done()
    progress.confirm(1)
    assert first.done()
    assert not second.done()
    progress.confirm(None)
    assert second.done()
    await progress.stop()


async def test_a_stop_waits_for_no_mirror(tmp_path: Path) -> None:
    progress = await opened(tmp_path)
    progress.confirm(0)
    written = progress.write([Created("c", 1, 0, CONFIG)])
    await within(progress.stop())
    assert written.done()
    assert list(stored(tmp_path / CHANNELS)) == ["c"]


async def test_only_the_log_of_a_new_stream_has_a_first_record(tmp_path: Path) -> None:
    """A mirror takes an empty log for a lost one."""
    for new in (False, True):
        progress = await opened(tmp_path / str(new), new=new)
        assert progress.native.next == new
        await progress.stop()


async def test_what_came_back_and_what_was_done_meanwhile_are_both_there(tmp_path: Path) -> None:
    progress = await opened(tmp_path)
    await progress.write([Created("c", 1, 0, CONFIG), Created("gone", 1, 0, CONFIG)])
    progress.rest()
    waiting = progress.write([Done("c", 1, 2), Created("new", 1, 0, CONFIG)])
    await restored(progress, Done("c", 1, 1, ((7, 1),)), Created("lost", 1, 4, CONFIG), Deleted("gone"))
    assert not waiting.done()
    assert progress.native.next == 2, "nothing has taken the place of what came back"
    found = progress.restored()
    assert found is not None
    states, known = found
    assert {name: state.floor for name, state in states.items()} == {"c": 1, "lost": 4}
    assert known == {"c", "gone"}
    progress.write(list(states["lost"].entries()))
    progress.write([Done("c", 1, 0, ((7, 1),)), Deleted("gone")])
    progress.wake()
    await within(waiting)
    await progress.stop()
    found_now = shown(stored(tmp_path / CHANNELS))
    assert {name: (one[2], one[3]) for name, one in found_now.items()} == {
        "c": (2, [(7, 8, 1)]),
        "lost": (4, []),
        "new": (0, []),
    }


async def test_a_rest_in_which_nothing_came_back_changes_nothing(tmp_path: Path) -> None:
    progress = await opened(tmp_path)
    await progress.write(story())
    end = progress.native.next
    progress.rest()
    assert progress.restored() is None
    progress.wake()
    assert progress.native.next == end
    await progress.stop()
    assert shown(stored(tmp_path / CHANNELS)) == shown(rebuild(story()))


async def test_a_channel_that_was_removed_during_the_rest_does_not_come_back(tmp_path: Path) -> None:
    progress = await opened(tmp_path)
    await progress.write([Created("c", 1, 0, CONFIG)])
    progress.rest()
    progress.write([Deleted("c")])
    await restored(progress, Done("c", 1, 3))
    assert progress.restored() is not None
    progress.wake()
    await progress.stop()
    assert stored(tmp_path / CHANNELS) == {}


async def test_a_broker_that_stops_during_the_rest_writes_nothing(tmp_path: Path) -> None:
    """Or the mirror's records would not fit any more at its next start."""
    progress = await opened(tmp_path)
    await progress.write([Created("c", 1, 0, CONFIG)])
    progress.rest()
    waiting = progress.write([Created("d", 1, 0, CONFIG)])
    await within(progress.stop())
    with pytest.raises(StoreFailed, match="the broker stopped"):
        await waiting
    assert list(stored(tmp_path / CHANNELS)) == ["c"]
