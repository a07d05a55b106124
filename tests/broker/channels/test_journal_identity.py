"""A progress log knows which one it is and how long it is: a mirror that has more of it, or of another one, shows a loss."""

import asyncio
from pathlib import Path

import pytest

from busway import StoreFailed
from busway._core import SimulatedFiles
from busway.broker.channels.progress_log import ProgressLog
from busway.broker.channels.state.progress import ChannelConfig, Created, Deleted, Done, Entry, Stamp, States, rebuild
from busway.broker.storage.data_folder import CHANNELS
from tests.support.progress_logs import Disk


class File:
    """A progress log that is opened again and again, on a simulated disk."""

    def __init__(self, folder: Path, disk: Disk, *, new: bool = True) -> None:
        self.folder = folder
        self.disk = disk
        self.new = new

    async def open(self) -> States:
        self.log = ProgressLog(self.folder, new=self.new)
        self.new = False
        return await self.log.start()

    async def write(self, *entries: Entry) -> Stamp:
        await self.log.write(entries)
        return self.place

    @property
    def place(self) -> Stamp:
        assert self.log.lineage is not None
        return self.log.lineage.place

    def lacks(self, known: Stamp) -> str:
        assert self.log.lineage is not None
        return self.log.lineage.lacks(known)

    async def again(self) -> None:
        await self.log.stop()
        await self.open()

    async def compact(self) -> None:
        before = self.log.compactions
        self.log._begin_compaction()
        while self.log.compactions == before:
            await asyncio.sleep(0)


@pytest.fixture
async def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one = File(tmp_path, Disk(monkeypatch))
    await one.open()
    yield one
    await one.log.stop()


async def test_an_intact_log_lacks_nothing(file: File) -> None:
    told = [file.place, await file.write(Created("c", 1, 0, ChannelConfig()), Done("c", 1, 3))]
    await file.write(Deleted("c"))
    for _ in range(3):
        await file.again()
        assert not any(map(file.lacks, told))
        told.append(await file.write(Created("d", 1, 0, None)))


async def test_a_log_that_is_gone_is_lost_until_it_is_restored(file: File) -> None:
    known = await file.write(Created("c", 1, 0, ChannelConfig()))
    await file.log.stop()
    file.disk.files = SimulatedFiles()
    await file.open()
    assert file.lacks(known) == "lost"
    await file.write(Created("d", 1, 0, ChannelConfig()))
    await file.again()
    assert file.lacks(known) == "lost", "no mirror has come meanwhile"
    file.log.mended(known)
    assert file.lacks(known) == ""
    await file.again()
    assert file.lacks(known) == ""


async def test_the_log_of_a_new_stream_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of the same name was removed."""
    file = File(tmp_path, Disk(monkeypatch))
    await file.open()
    assert file.lacks(Stamp("another", 1, 5)) == ""
    await file.again()
    assert file.lacks(Stamp("another", 1, 5)) == ""
    await file.log.stop()


async def test_a_log_that_lost_its_end_is_behind(file: File) -> None:
    heard = await file.write(Created("c", 1, 0, ChannelConfig()))
    left = file.disk.files.survivor()
    more = await file.write(Done("c", 1, 1), Done("c", 1, 2))
    await file.log.stop()
    file.disk.files = left
    await file.open()
    for _ in range(2):
        for floor in range(3):  # also if more was written since
            await file.write(Done("c", 1, floor))
        assert (file.lacks(heard), file.lacks(more)) == ("", "behind")
        await file.again()
    file.log.mended(more)
    assert file.lacks(more) == ""
    await file.again()
    assert file.lacks(more) == ""


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_damaged_log_is_behind(tmp_path: Path, *, compacted: bool) -> None:
    log = ProgressLog(tmp_path, new=True)
    await log.start()
    for entry in (Created("c", 1, 0, ChannelConfig()), Done("c", 1, 1), Done("c", 1, 2)):
        await log.write([entry])
    assert log.lineage is not None
    known = log.lineage.place
    if compacted:
        log._begin_compaction()
        while not log.compactions:
            await asyncio.sleep(0)
    await log.write([Done("c", 1, 3)])
    await log.stop()
    (bucket,) = (tmp_path / CHANNELS).glob("*.log")
    content = bytearray(bucket.read_bytes())
    content[content.index(b"done")] ^= 1
    bucket.write_bytes(content)
    log = ProgressLog(tmp_path)
    await log.start()
    assert log.lineage is not None
    assert log.lineage.lacks(known)
    await log.stop()


async def test_a_compacted_log_is_as_long_as_before(file: File) -> None:
    known = await file.write(Created("c", 1, 0, ChannelConfig()), *(Done("c", 1, at) for at in range(5)))
    await file.compact()
    later = await file.write(Done("c", 1, 7))
    await file.again()
    assert (file.lacks(known), file.lacks(later)) == ("", "")
    assert file.lacks(Stamp(later.journal, later.life, later.count + 1)) == "behind"


async def test_entries_that_were_written_with_a_later_write_are_not_missing(file: File) -> None:
    await file.write(Created("c", 1, 0, ChannelConfig()))
    file.disk.files.fail(room=0)
    for floor in range(3):
        with pytest.raises(StoreFailed):
            await file.write(Done("c", 1, floor))
    file.disk.files.fail()
    known = file.place
    await file.again()
    assert file.lacks(known) == ""


async def test_a_replica_has_the_stamps_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch)
    copy = ProgressLog(tmp_path, copy=True)
    await copy.start()
    assert copy.stamp is None
    stamp = Stamp("another", 3, 8)
    heard: list[list[Entry]] = []
    copy.watcher = heard.append
    await copy.write([Created("c", 1, 0, ChannelConfig()), stamp])
    await copy.write([Done("c", 1, 4)])  # this is not in the other log
    assert copy.stamp == stamp
    assert [len(one) for one in heard] == [1, 1]
    copy._begin_compaction()
    while not copy.compactions:
        await asyncio.sleep(0)
    await copy.stop()
    again = ProgressLog(tmp_path, copy=True)
    assert (await again.start())["c"].floor == 4
    assert again.stamp == stamp
    await again.stop()


def test_what_lies_behind_the_end_of_a_stream_is_forgotten_with_it() -> None:
    state = rebuild([Created("c", 5, 0, None), Done("c", 5, 3, ((6, 4),))])["c"]
    state.cut(10)
    assert (state.epoch, state.floor, list(state.done)) == (5, 3, [(6, 10, 1)])
    state.cut(8)
    assert (state.epoch, state.floor, list(state.done)) == (6, 3, [(6, 8, 1)])
    state.cut(2)
    assert (state.epoch, state.floor, state.begin, list(state.done)) == (7, 2, 0, [])
