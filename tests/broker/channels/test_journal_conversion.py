"""Data folders of version 0.1.0: their channel journals are converted to progress logs on the first start."""

import logging
from pathlib import Path

import pytest

from busway import DataFailed
from busway.broker.channels import journal_conversion
from busway.broker.channels.progress_log import ProgressLog
from busway.broker.channels.state.progress import ChannelState, States
from tests.support.journals import shown
from tests.support.old_journals import OLD_ENTRIES, old_record
from tests.support.progress_logs import Disk


def details(states: States) -> dict[str, tuple]:
    def more(state: ChannelState) -> tuple:
        return state.begin, list(state.redriven), state.lost, state.told

    return {name: (*one, *more(states[name])) for name, one in shown(states).items()}


async def start(folder: Path) -> tuple[dict[str, tuple], ProgressLog]:
    progress = ProgressLog(folder)
    states = await progress.start()
    await progress.stop()
    return details(states), progress


async def after(folder: Path, count: int) -> dict[str, tuple]:
    """The states after so many of the entries."""
    folder.mkdir()
    (folder / "channels.log").write_bytes(b"".join(map(old_record, OLD_ENTRIES[:count])))
    return (await start(folder))[0]


async def test_all_progress_is_in_the_new_log(tmp_path: Path) -> None:
    found = await after(tmp_path / "stream", len(OLD_ENTRIES))
    config, epoch, floor, done, deliveries, begin, redriven, lost, told = found["work"]
    assert (config.lease, config.topic, config.where) == (5.0, "orders/*", b"\xc1BWC")
    assert (epoch, floor, begin, lost, told) == (1_700_000_000_000_001, 8, 2, 0, 0)
    assert (done, deliveries) == ([(10, 11, 1), (14, 15, 1)], [(20, 22, 3)])
    assert redriven == [(9, 10, 1_700_000_000_000_001)]
    config, epoch, floor, *_, lost, told = found["news"]
    assert (config.paused, config.backoff, epoch, floor, lost, told) == (True, (1.0, 2.0), 5, 31, 4, 2)
    assert set(found) == {"work", "news"}
    assert [one.name for one in (tmp_path / "stream").iterdir()] == ["channels"]
    again, progress = await start(tmp_path / "stream")
    assert again == found
    assert progress.figures()["damage"] == 0


async def test_the_log_of_a_journal_without_channels_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    assert await after(tmp_path / "stream", 1) == {}
    progress = ProgressLog(tmp_path / "stream")
    progress.open()
    assert progress.native.next == 1
    progress.close()


async def test_cut_at_every_byte_it_has_every_whole_entry(tmp_path: Path, caplog, monkeypatch) -> None:
    records = list(map(old_record, OLD_ENTRIES))
    ends = [sum(map(len, records[:count])) for count in range(len(records) + 1)]
    states = []
    for count in range(len(records) + 1):
        Disk(monkeypatch)
        states.append(await after(tmp_path / f"after{count}", count))
    whole = b"".join(records)
    for cut in range(len(whole) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "channels.log").write_bytes(whole[:cut])
        caplog.clear()
        Disk(monkeypatch)
        found, progress = await start(folder)
        assert found == states[sum(end <= cut for end in ends) - 1]
        assert ("a record that was not written to its end" in caplog.text) is (cut not in ends)
        assert progress.figures()["damage"] == 0
        assert not (folder / "channels.log").exists()


async def test_damage_is_reported_and_the_damaged_file_is_kept(tmp_path: Path, caplog) -> None:
    records = list(map(old_record, OLD_ENTRIES))
    damaged = bytearray(b"".join(records))
    place = sum(map(len, records[:2]))
    damaged[place + 20] ^= 1
    (tmp_path / "channels.log").write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        found, progress = await start(tmp_path)
    assert f"wrong checksum at byte {place}, {len(records[2])} bytes skipped" in caplog.text
    assert f"a copy of the damaged file is in {tmp_path}/channels.log.damaged" in caplog.text
    assert (tmp_path / "channels.log.damaged").read_bytes() == damaged
    assert found["work"][2:4] == (8, []), "the entry that is lost has the other messages"
    assert progress.figures()["damage"] == 0, "it was reported by the conversion"


async def test_an_interrupted_conversion_begins_again(tmp_path: Path, monkeypatch) -> None:
    whole = b"".join(map(old_record, OLD_ENTRIES))
    expected = await after(tmp_path / "whole", len(OLD_ENTRIES))
    folder = tmp_path / "stream"
    folder.mkdir()
    (folder / "channels.log").write_bytes(b"".join(map(old_record, OLD_ENTRIES[:3])))
    monkeypatch.setattr(journal_conversion.data_folder, "sync", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await ProgressLog(folder).start()
    monkeypatch.undo()
    (folder / "channels.log").write_bytes(whole)
    (folder / "channels.log.new").write_bytes(whole[:9])
    assert (await start(folder))[0] == expected
    assert [one.name for one in folder.iterdir()] == ["channels"]


async def test_on_a_full_disk_it_is_refused_and_the_journal_stays(tmp_path: Path, monkeypatch) -> None:
    disk = Disk(monkeypatch)
    (tmp_path / "channels.log").write_bytes(whole := b"".join(map(old_record, OLD_ENTRIES)))
    disk.files.fail(room=30)
    with pytest.raises(DataFailed):
        await ProgressLog(tmp_path).start()
    assert (tmp_path / "channels.log").read_bytes() == whole


async def test_a_journal_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "channels.log").mkdir()
    progress = ProgressLog(tmp_path)
    with pytest.raises(DataFailed, match=r"channels\.log can't be read"):
        await progress.start()
    await progress.stop()
