"""A journal knows which one it is and how far it goes: who has heard more of it, or of another one in its place, knows what it has lost."""

from pathlib import Path

import pytest

from busway.broker.channels.journal import Journal, decode
from busway.broker.channels.state.progress import ChannelConfig, Created, Deleted, Done, Entry, Stamp, States, rebuild
from busway.broker.storage.data_folder import CHANNELS
from busway.broker.storage.record_format import scan


class File:
    """A journal that is opened again and again, and what somebody has heard of it."""

    def __init__(self, folder: Path, *, new: bool = True) -> None:
        self.folder = folder
        self.new = new

    async def open(self) -> States:
        self.journal = Journal(self.folder, new=self.new)
        self.new = False
        return await self.journal.start()

    async def write(self, *entries: Entry) -> Stamp:
        await self.journal.write(entries)
        return self.place

    @property
    def place(self) -> Stamp:
        assert self.journal.lineage is not None
        return self.journal.lineage.place

    def lacks(self, known: Stamp) -> str:
        assert self.journal.lineage is not None
        return self.journal.lineage.lacks(known)

    async def again(self) -> None:
        await self.journal.stop()
        await self.open()


@pytest.fixture
async def file(tmp_path: Path):
    one = File(tmp_path)
    await one.open()
    yield one
    await one.journal.stop()


async def test_an_intact_one_has_the_last_word(file: File) -> None:
    told = [file.place, await file.write(Created("c", 1, 0, ChannelConfig()), Done("c", 1, 3))]
    await file.write(Deleted("c"))
    for _ in range(3):
        await file.again()
        assert not any(map(file.lacks, told))
        told.append(await file.write(Created("d", 1, 0, None)))


async def test_one_that_is_gone_is_lost_until_it_is_mended(file: File) -> None:
    known = await file.write(Created("c", 1, 0, ChannelConfig()))
    await file.journal.stop()
    (file.folder / CHANNELS).unlink()
    await file.open()
    assert file.lacks(known) == "lost"
    await file.write(Created("d", 1, 0, ChannelConfig()))
    await file.again()
    assert file.lacks(known) == "lost", "nobody has come meanwhile"
    file.journal.mended(known)
    assert file.lacks(known) == ""
    await file.again()
    assert file.lacks(known) == ""


async def test_that_of_a_new_stream_is_none_that_is_lost(tmp_path: Path) -> None:
    """One of the same name was removed."""
    file = File(tmp_path)
    await file.open()
    assert file.lacks(Stamp("another", 1, 5)) == ""
    await file.again()
    assert file.lacks(Stamp("another", 1, 5)) == ""
    await file.journal.stop()


async def test_one_that_lost_its_end_is_behind(file: File) -> None:
    heard = await file.write(Created("c", 1, 0, ChannelConfig()))
    size = (file.folder / CHANNELS).stat().st_size
    more = await file.write(Done("c", 1, 1), Done("c", 1, 2))
    await file.journal.stop()
    with (file.folder / CHANNELS).open("r+b") as out:
        out.truncate(size)
    await file.open()
    for _ in range(2):
        for floor in range(3):  # also if it has gone on since
            await file.write(Done("c", 1, floor))
        assert (file.lacks(heard), file.lacks(more)) == ("", "behind")
        await file.again()
    file.journal.mended(more)
    assert file.lacks(more) == ""
    await file.again()
    assert file.lacks(more) == ""


@pytest.mark.parametrize("rewritten", [False, True])
async def test_one_that_is_damaged_is_behind(file: File, *, rewritten: bool) -> None:
    known = await file.write(Created("c", 1, 0, ChannelConfig()), Done("c", 1, 1), Done("c", 1, 2))
    if rewritten:
        file.journal._rewrite(file.journal._snapshot())
    await file.journal.stop()
    content = bytearray((file.folder / CHANNELS).read_bytes())
    content[-60] ^= 1
    (file.folder / CHANNELS).write_bytes(content)
    await file.open()
    assert file.lacks(known)


async def test_one_that_was_written_anew_is_as_far_as_it_was(file: File) -> None:
    known = await file.write(Created("c", 1, 0, ChannelConfig()), *(Done("c", 1, at) for at in range(5)))
    file.journal._rewrite(file.journal._snapshot())
    assert len(list(scan((file.folder / CHANNELS).read_bytes(), decode))) == 2
    later = await file.write(Done("c", 1, 7))
    await file.again()
    assert (file.lacks(known), file.lacks(later)) == ("", "")
    assert file.lacks(Stamp(later.journal, later.life, later.count + 1)) == "behind"


async def test_a_copy_has_the_stamps_that_it_is_given(tmp_path: Path) -> None:
    copy = Journal(tmp_path, copy=True)
    await copy.start()
    assert copy.stamp is None
    stamp = Stamp("another", 3, 8)
    heard: list[list[Entry]] = []
    copy.watcher = heard.append
    await copy.write([Created("c", 1, 0, ChannelConfig()), stamp])
    await copy.write([Done("c", 1, 4)])  # what is done there is none of the other's
    assert copy.stamp == stamp
    assert [len(one) for one in heard] == [1, 1]
    copy._rewrite(copy._snapshot())
    await copy.stop()
    again = Journal(tmp_path, copy=True)
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
