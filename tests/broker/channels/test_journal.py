"""The channels' journal on disk: what was told is there after a restart, damage is skipped and told, no disk ends the broker."""

import asyncio
import errno
import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from busway import DataFailed, StoreFailed
from busway.broker.channels import journal as journal_module
from busway.broker.channels.journal import Journal, decode, encode
from busway.broker.channels.state.progress import (
    ChannelConfig,
    Configured,
    Created,
    Deleted,
    Delivered,
    Done,
    Entry,
    Sought,
    Stamp,
    States,
    rebuild,
)
from busway.broker.storage import record_format
from busway.broker.storage.data_folder import CHANNELS
from busway.broker.storage.record_format import MAGIC, Damage, Found
from busway.common import environment
from tests.support.journals import CONFIG, shown, story
from tests.support.net import within
from tests.support.strength import examples


def scan(content: bytes) -> list[Found[Entry] | Damage]:
    return list(record_format.scan(content, decode))


async def content(folder: Path) -> dict[str, tuple]:
    """What a start finds."""
    journal = Journal(folder)
    states = await within(journal.start())
    await within(journal.stop())
    return shown(states)


offsets = st.integers(0, 2**63)
spans = st.lists(st.tuples(offsets, offsets), max_size=4).map(tuple)
names = st.text(max_size=5) | st.sampled_from(["ÁBW", "x\x00"])
configs = st.builds(
    ChannelConfig, lease=st.floats(0, 1e9), topic=names, where=st.binary(max_size=9) | st.just(MAGIC * 2)
)
anything = st.one_of(
    st.builds(Created, channel=names, epoch=offsets, floor=offsets, config=configs | st.none()),
    st.builds(Configured, channel=names, config=configs),
    st.builds(Done, channel=names, epoch=offsets, floor=offsets, spans=spans),
    st.builds(Delivered, channel=names, epoch=offsets, deliveries=offsets, spans=spans),
    st.builds(Sought, channel=names, epoch=offsets, offset=offsets),
    st.builds(Deleted, channel=names),
)


class TestFormat:
    @given(st.lists(anything, max_size=6))
    @settings(max_examples=examples(500), deadline=None)
    def test_what_is_written_is_read(self, entries: list[Entry]) -> None:
        found = scan(b"".join(map(encode, entries)))
        assert [one.entry for one in found if isinstance(one, Found)] == entries

    def test_cut_at_every_byte(self) -> None:
        entries = story(1, 3)
        parts = [encode(entry) for entry in entries]
        whole = b"".join(parts)
        ends = [sum(map(len, parts[: n + 1])) for n in range(len(parts))]
        for cut in range(len(whole) + 1):
            found = scan(whole[:cut])
            complete = sum(end <= cut for end in ends)
            assert [one.entry for one in found if isinstance(one, Found)] == entries[:complete]
            start = ends[complete - 1] if complete else 0
            bad = [(one.offset, one.size, one.torn) for one in found if isinstance(one, Damage)]
            assert bad == ([(start, cut - start, True)] if cut > start else [])

    def test_every_flipped_bit_costs_one_record_at_most(self) -> None:
        entries = story(1, 3)
        parts = [encode(entry) for entry in entries]
        whole = b"".join(parts)
        for place in range(len(whole)):
            hit = next(n for n in range(len(parts)) if place < sum(map(len, parts[: n + 1])))
            for bit in range(8):
                damaged = bytearray(whole)
                damaged[place] ^= 1 << bit
                found = scan(bytes(damaged))
                assert sum(one.size for one in found) == len(whole), "every byte is accounted for"
                good = [one.entry for one in found if isinstance(one, Found)]
                assert good == entries[:hit] + entries[hit + 1 :]

    def test_a_config_is_never_taken_for_a_record(self) -> None:
        inner = encode(Deleted("c"))
        outer = bytearray(encode(Created("c", 1, 0, ChannelConfig(where=inner * 5))) + encode(Sought("c", 2, 9)))
        outer[0] ^= 1
        damage, good = scan(bytes(outer))
        assert isinstance(damage, Damage)
        assert isinstance(good, Found)
        assert good.entry == Sought("c", 2, 9)

    @pytest.mark.parametrize(
        "body", [["later", 1], ["done", "c", 1, -1, []], ["set", "c", {"lease": -1.0}], 7, b"\xff"]
    )
    def test_a_record_of_another_kind_is_skipped(self, body: object) -> None:
        damage, good = scan(record_format.frame(msgspec.msgpack.encode(body)) + encode(Deleted("c")))
        assert "another kind" in str(damage)
        assert isinstance(good, Found)

    def test_what_a_newer_one_has_set_is_left_out(self) -> None:
        body = msgspec.msgpack.encode(["set", "c", {"lease": 1.0, "colour": "red"}])
        assert decode(body) == Configured("c", ChannelConfig(lease=1.0))


class TestState:
    """A damaged entry costs a repetition, never a message."""

    def test_a_snapshot_makes_the_same_state(self) -> None:
        states = rebuild(story())
        assert shown(rebuild(entry for one in states.values() for entry in one.entries())) == shown(states)

    def test_a_large_state_has_many_small_entries(self) -> None:
        spans = tuple((2 * n + 1, 1) for n in range(5000))
        states = rebuild([Created("c", 1, 0, CONFIG), Done("c", 1, 0, spans), Delivered("c", 1, 2, ((20_000, 7),))])
        entries = list(states["c"].entries())
        assert len(entries) == 1 + 5 + 1
        assert shown(rebuild(entries)) == shown(states)

    def test_no_entry_that_is_missing_makes_anything_done_that_is_not(self) -> None:
        entries = story()
        whole = done_of(rebuild(entries))
        for missing in range(len(entries)):
            states = rebuild(entries[:missing] + entries[missing + 1 :])
            for name, (floor, done) in done_of(states).items():
                if name == "c2":
                    continue  # it would be there again if the entry that removed it was lost
                assert floor <= whole[name][0]
                assert done <= whole[name][1]

    def test_a_move_back_is_known_from_what_came_after_it(self) -> None:
        """The entry of the seek is damaged; what is done since then is done, and nothing else."""
        before = [Created("c", 5, 0, CONFIG), Done("c", 5, 1000)]
        state = rebuild([*before, Done("c", 6, 10, ((12, 1),))])["c"]
        assert (state.floor, list(state.done)) == (10, [(12, 13, 1)])

    def test_what_belongs_to_a_place_that_was_left_says_nothing(self) -> None:
        entries = [Created("c", 5, 0, CONFIG), Sought("c", 6, 50), Done("c", 5, 80), Delivered("c", 5, 3, ((60, 1),))]
        state = rebuild(entries)["c"]
        assert (state.floor, list(state.deliveries)) == (50, [])

    def test_how_often_something_was_handed_out_is_forgotten_once_it_is_done(self) -> None:
        entries = [Created("c", 1, 0, CONFIG), Delivered("c", 1, 2, ((5, 3),)), Done("c", 1, 0, ((6, 1),))]
        assert list(rebuild(entries)["c"].deliveries) == [(5, 6, 2), (7, 8, 2)]
        entries.append(Delivered("c", 1, 3, ((4, 3),)))
        assert list(rebuild(entries)["c"].deliveries) == [(4, 6, 3), (7, 8, 2)]
        entries.append(Done("c", 1, 5))
        assert list(rebuild(entries)["c"].deliveries) == [(5, 6, 3), (7, 8, 2)]

    def test_a_channel_whose_beginning_is_damaged_knows_where_it_stands(self) -> None:
        state = rebuild([Done("c", 7, 30, ((33, 2),))])["c"]
        assert (state.config, state.epoch, state.floor, list(state.done)) == (None, 7, 30, [(33, 35, 1)])


def done_of(states: States) -> dict[str, tuple[int, set[int]]]:
    """The floor, and each offset that is done up to a hundred."""
    return {
        name: (one.floor, {n for start, end, _ in [(0, one.floor, 1), *one.done] for n in range(start, min(end, 100))})
        for name, one in states.items()
    }


class TestFile:
    async def test_what_was_told_is_there_after_a_restart(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path)
        assert await journal.start() == {}
        entries = story()
        await journal.write(entries[:7])
        await journal.write(entries[7:])
        # No stop(): what was told must not need one.
        assert await content(tmp_path) == shown(rebuild(entries))
        await journal.stop()

    @pytest.mark.parametrize(("safety", "synced"), [("memory", 0), ("written", 0), ("synced", 1)])
    async def test_it_is_as_safe_as_promised_before_it_is_told(
        self, tmp_path: Path, monkeypatch, safety, synced: int
    ) -> None:
        sizes: list[int] = []
        real = os.fdatasync
        monkeypatch.setattr(journal_module.os, "fdatasync", lambda fd: (real(fd), sizes.append(os.fstat(fd).st_size)))
        journal = Journal(tmp_path, safety)
        await journal.start()
        begin = (tmp_path / CHANNELS).read_bytes()
        told = journal.write([Sought("c", 1, 1)])
        assert told.done() is (safety != "synced"), "written is written at once"
        await told
        assert sizes == [len(begin + encode(Sought("c", 1, 1)))] * synced
        await journal.stop()
        assert (tmp_path / CHANNELS).read_bytes() == begin + encode(Sought("c", 1, 1))

    async def test_a_slow_disk_is_left_to_the_thread(self, tmp_path: Path, monkeypatch) -> None:
        journal = Journal(tmp_path, "written")
        await journal.start()
        now, took = 100.0, 0.0

        def clock() -> float:
            nonlocal now
            now += took
            return now

        monkeypatch.setattr(environment, "monotonic", clock)
        took = 0.01  # by each look at the clock
        assert journal.write([Done("c", 1, 1)]).done()
        took = 0.0
        told = journal.write([Done("c", 1, 2)])
        assert not told.done()
        behind = journal.write([Done("c", 1, 3)])
        assert not behind.done(), "nothing overtakes what the thread has"
        await told
        await behind
        now += 10
        assert journal.write([Done("c", 1, 4)]).done(), "it is tried again after a while"
        await journal.stop()
        assert (await content(tmp_path))["c"][2] == 4

    async def test_what_is_written_anew_is_left_to_the_thread(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(journal_module, "_WORTH", 2000)
        journal = Journal(tmp_path, "written")
        await journal.start()
        waited = 0
        for number in range(500):
            if not (told := journal.write([Done("c", 1, number)])).done():
                waited += 1
                await told
        assert 0 < journal.rewritten <= waited < 500, "most are written at once"
        await journal.stop()
        assert (await content(tmp_path))["c"][2] == 499

    async def test_many_that_wait_share_a_sync(self, tmp_path: Path, monkeypatch) -> None:
        journal = Journal(tmp_path, "synced")
        await journal.start()
        synced: list[int] = []
        real = os.fdatasync
        monkeypatch.setattr(journal_module.os, "fdatasync", lambda fd: (real(fd), synced.append(fd)))
        await asyncio.gather(*(journal.write([Done("c", 1, n)]) for n in range(1000)))
        assert len(synced) == 2, "the first one alone, then all that came meanwhile"
        await journal.stop()
        assert (await content(tmp_path))["c"][2] == 999

    async def test_stopping_waits_for_what_is_to_be_written(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path, "memory")
        await journal.start()
        for n in range(50):
            journal.write([Done("c", 1, n)])
        await within(journal.stop())
        assert (await content(tmp_path))["c"][2] == 49

    async def test_far_behind_everybody_waits(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(journal_module, "_BEHIND", 3)
        journal = Journal(tmp_path, "memory")
        await journal.start()
        told = [journal.write([Done("c", 1, n)]) for n in range(6)]
        # The first one is with the thread; of those behind it three may wait.
        assert [one.done() for one in told] == [True, True, True, True, False, False]
        await asyncio.gather(*told)
        await journal.stop()

    async def test_who_no_longer_waits_disturbs_nobody(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path)
        await journal.start()
        first, second = journal.write([Done("c", 1, 1)]), journal.write([Done("c", 1, 2)])
        first.cancel()
        await second
        await journal.stop()
        assert (await content(tmp_path))["c"][2] == 2

    async def test_history_is_dropped_while_it_runs(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path)
        await journal.start()
        await journal.write(story())
        many = tuple((n, 1) for n in range(100, 1100, 2))
        for n in range(600):
            await journal.write([Done("c0", 1, n, many)])
        assert journal.rewritten >= 1
        assert (tmp_path / CHANNELS).stat().st_size < 1.2 * 2**20
        await journal.write([Done("c0", 1, 700)])
        await journal.stop()
        expected = rebuild([*story(), *(Done("c0", 1, n, many) for n in range(600)), Done("c0", 1, 700)])
        assert await content(tmp_path) == shown(expected)
        assert [one.name for one in tmp_path.iterdir()] == [CHANNELS]

    async def test_a_new_file_is_on_disk_before_it_takes_the_place_of_the_old_one(
        self, tmp_path: Path, monkeypatch
    ) -> None:
        journal = Journal(tmp_path)
        await journal.start()
        await journal.write(story())
        steps: list[str] = []
        sync, replace = os.fsync, Path.replace

        def synced(fd: int) -> None:
            sync(fd)
            names = [one.name for one in (tmp_path, *tmp_path.iterdir()) if one.stat().st_ino == os.fstat(fd).st_ino]
            steps.append(f"synced {names[0]}")

        monkeypatch.setattr(journal_module.os, "fsync", synced)
        monkeypatch.setattr(Path, "replace", lambda one, other: (replace(one, other), steps.append("renamed")))
        journal._stale = True
        await journal.write([])
        await journal.stop()
        assert steps == [f"synced {CHANNELS}.new", "renamed", f"synced {tmp_path.name}"]

    async def test_what_is_no_history_is_not_written_again_and_again(self, tmp_path: Path) -> None:
        """A large state of which nothing can be dropped."""
        journal = Journal(tmp_path)
        await journal.start()
        for n in range(40):
            start = n * 20_000
            await journal.write([Done("c", 1, 0, tuple((start + 2 * m + 1, 1) for m in range(5000)))])
        assert (tmp_path / CHANNELS).stat().st_size > 2**20
        assert journal.rewritten == 0
        await journal.stop()

    async def test_one_left_over_from_a_crash_while_writing_anew(self, tmp_path: Path) -> None:
        (tmp_path / CHANNELS).write_bytes(b"".join(map(encode, story())))
        (tmp_path / (CHANNELS + ".new")).write_bytes(encode(Deleted("c0"))[:-1])
        assert await content(tmp_path) == shown(rebuild(story()))

    async def test_the_states_are_those_of_the_reader(self, tmp_path: Path) -> None:
        """A channel goes on from what it was given; the journal knows only what was written."""
        journal = Journal(tmp_path)
        await journal.start()
        await journal.write([Created("c", 1, 5, CONFIG)])
        await journal.stop()
        journal = Journal(tmp_path)
        states = await journal.start()
        states["c"].raise_floor(99)
        journal._stale = True
        await journal.write([])
        await journal.stop()
        assert (await content(tmp_path))["c"][2] == 5


class TestDamage:
    async def test_the_rest_is_kept_and_the_damage_told(self, tmp_path: Path, caplog) -> None:
        entries = story()
        parts = [encode(entry) for entry in entries]
        damaged = bytearray(b"".join(parts))
        place = sum(map(len, parts[:3]))
        damaged[place + 15] ^= 0x40
        (tmp_path / CHANNELS).write_bytes(damaged)
        journal = Journal(tmp_path)
        with caplog.at_level(logging.WARNING):
            states = await journal.start()
        expected = shown(rebuild(entries[:3] + entries[4:]))
        assert shown(states) == expected
        assert f"wrong checksum at byte {place}, {len(parts[3])} bytes skipped" in caplog.text
        assert (journal.figures()["damaged"], journal.figures()["damaged_bytes"]) == (1, len(parts[3]))
        assert (tmp_path / (CHANNELS + ".damaged")).read_bytes() == damaged, "what was there can still be looked at"
        await journal.stop()
        caplog.clear()
        assert await content(tmp_path) == expected
        assert not caplog.records, "told once"

    async def test_a_torn_end_is_cut(self, tmp_path: Path, caplog) -> None:
        good = b"".join(map(encode, story()))
        torn = encode(Done("c0", 1, 90, ((95, 1),)))
        for cut in range(1, len(torn)):
            (tmp_path / CHANNELS).write_bytes(good + torn[:cut])
            journal = Journal(tmp_path)
            assert shown(await journal.start()) == shown(rebuild(story()))
            assert "not written to its end" in caplog.text
            caplog.clear()
            begin = (tmp_path / CHANNELS).read_bytes()
            assert begin.startswith(good)
            assert [type(one.entry) for one in scan(begin[len(good) :])] == [Stamp]
            await journal.write([Done("c0", 1, 80)])
            await journal.stop()
            assert (tmp_path / CHANNELS).read_bytes() == begin + encode(Done("c0", 1, 80))
        assert [one.name for one in tmp_path.iterdir()] == [CHANNELS]

    async def test_random_damage_of_any_kind_starts(self, tmp_path: Path) -> None:
        chance = random.Random(7)
        whole = b"".join(map(encode, story(5, 10)))
        for _ in range(100):
            damaged = bytearray(whole)
            for _ in range(chance.randrange(1, 6)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            (tmp_path / CHANNELS).write_bytes(damaged[: chance.randrange(len(damaged))])
            journal = Journal(tmp_path)
            before = shown(await journal.start())
            await journal.write([Created("new", 9, 9, CONFIG)])
            await journal.stop()
            assert await content(tmp_path) == {**before, "new": (CONFIG, 9, 9, [], [])}


class TestDisk:
    async def test_a_full_disk_is_told_and_nothing_is_missing_once_there_is_room(
        self, tmp_path: Path, monkeypatch
    ) -> None:
        journal = Journal(tmp_path)
        await journal.start()
        await journal.write([Created("c", 1, 0, CONFIG)])
        before = (tmp_path / CHANNELS).read_bytes()
        real, room = os.pwrite, len(before) + 7

        def full(fd: int, content, at: int) -> int:
            if at >= room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, content[: room - at], at)

        monkeypatch.setattr(journal_module.os, "pwrite", full)
        for n in range(3):
            with pytest.raises(StoreFailed, match="No space left"):
                await journal.write([Done("c", 1, 0, ((2 * n + 2, 1),))])
        with pytest.raises(StoreFailed):
            await journal.write([])
        assert journal.figures()["failed"] == 4
        assert (tmp_path / CHANNELS).read_bytes() == before
        monkeypatch.undo()
        await journal.write([])  # tells whether all before is safe
        assert (await content(tmp_path))["c"][3] == [(2, 3, 1), (4, 5, 1), (6, 7, 1)]
        await journal.stop()

    async def test_a_failed_sync_is_no_success(self, tmp_path: Path, monkeypatch) -> None:
        journal = Journal(tmp_path, "synced")
        await journal.start()

        def broken(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(journal_module.os, "fdatasync", broken)
        with pytest.raises(StoreFailed, match="Input/output error"):
            await journal.write([Done("c", 1, 7)])
        monkeypatch.undo()
        await journal.write([Done("d", 1, 8)])
        assert journal.rewritten == 1, "what the kernel may have dropped is written again"
        await journal.stop()
        found = await content(tmp_path)
        assert (found["c"][2], found["d"][2]) == (7, 8)

    async def test_what_could_not_be_written_is_tried_again_at_the_end(
        self, tmp_path: Path, monkeypatch, caplog
    ) -> None:
        journal = Journal(tmp_path)
        await journal.start()

        def full(fd: int, content, at: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(journal_module.os, "pwrite", full)
        for number in range(10):
            with pytest.raises(StoreFailed, match="No space left"):
                await journal.write([Done("c", 1, number)])
        assert caplog.text.count("No space left") == 1, "once, not for each"
        monkeypatch.undo()
        await journal.stop()
        assert "with 10 queued entries" in caplog.text
        assert (await content(tmp_path))["c"][2] == 9

    async def test_an_error_of_our_own_is_told_too(self, tmp_path: Path, monkeypatch, caplog) -> None:
        journal = Journal(tmp_path)
        await journal.start()
        monkeypatch.setattr(journal_module, "encode", lambda entry: 1 / 0)
        with pytest.raises(StoreFailed, match="division"):
            await journal.write([Done("c", 1, 7)])
        assert "unexpected error in the journal" in caplog.text
        monkeypatch.undo()
        await journal.write([])
        await journal.stop()
        assert (await content(tmp_path))["c"][2] == 7

    async def test_a_folder_that_cannot_be_written(self, tmp_path: Path, monkeypatch, caplog) -> None:
        whole = b"".join(map(encode, story()))
        (tmp_path / CHANNELS).write_bytes(whole + encode(Deleted("c0"))[:-1])
        real = os.open

        def read_only(path, flags: int, mode: int = 0o777) -> int:
            if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return real(path, flags, mode)

        monkeypatch.setattr(journal_module.os, "open", read_only)
        journal = Journal(tmp_path)
        assert shown(await journal.start()) == shown(rebuild(story()))
        assert "Read-only file system" in caplog.text
        with pytest.raises(StoreFailed):
            await journal.write([Done("c0", 1, 90)])
        monkeypatch.undo()
        await journal.write([Done("c0", 1, 91)])
        await journal.stop()
        assert (await content(tmp_path))["c0"][2] == 91

    async def test_a_rewrite_that_fails_leaves_the_file_as_it_was(self, tmp_path: Path, monkeypatch) -> None:
        journal = Journal(tmp_path)
        await journal.start()

        def broken(self, target):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(Path, "replace", broken)
        many = tuple((n, 1) for n in range(100, 1100, 2))
        for n in range(600):
            await journal.write([Done("c", 1, n, many)])
        await journal.stop()
        monkeypatch.undo()
        assert journal.rewritten == 0
        assert [one.name for one in tmp_path.iterdir()] == [CHANNELS]
        assert (await content(tmp_path))["c"][2] == 599

    async def test_a_file_that_cannot_be_read_is_told_at_the_start(self, tmp_path: Path) -> None:
        (tmp_path / CHANNELS).mkdir()
        journal = Journal(tmp_path)
        with pytest.raises(DataFailed, match=r"channels\.log can't be read"):
            await journal.start()
        await journal.stop()


WRITER = """
import asyncio, sys
from pathlib import Path
import busway.broker.channels.journal as module
from busway.broker.channels.journal import Journal
from busway.broker.channels.state.progress import Created, ChannelConfig, Done

module._WORTH = 20_000  # so that it is also killed while the file is written anew

async def main():
    journal = Journal(Path(sys.argv[1]), "synced")
    states = await journal.start()
    if not states:
        await journal.write([Created("c", 1, 0, ChannelConfig())])
    n = states["c"].floor if states else 0
    async def writer(which):
        nonlocal n
        while True:
            n += 1
            mine = n
            await journal.write([Done("c", 1, 0, ((3 * mine, 1),)), Done("d", 1, mine)])
            print(mine, flush=True)
    n = max([n, *((end - 1) // 3 for _, end, _ in states["c"].done)] if states else [0])
    print("begin", flush=True)
    await asyncio.gather(*(writer(which) for which in range(4)))

asyncio.run(main())
"""


def test_killed_at_any_moment_it_has_everything_that_was_told(tmp_path: Path) -> None:
    """Ten times in the same folder; whoever starts reads what the ones before have left."""
    chance = random.Random(3)
    script = tmp_path / "writer.py"
    script.write_text(textwrap.dedent(WRITER))
    folder = tmp_path / "stream"
    folder.mkdir()
    told: set[int] = set()
    for _ in range(10):
        child = subprocess.Popen([sys.executable, script, folder], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "begin\n"
            for _ in range(chance.randrange(1, 300)):
                told.add(int(child.stdout.readline()))
        finally:
            child.send_signal(signal.SIGKILL)
            rest = child.communicate()[0].split("\n")
        told |= {int(line) for line in rest[:-1]}
        found = asyncio.run(content(folder))
        done = {n for start, end, _ in found["c"][3] for n in range(start, end)}
        assert {3 * n for n in told} <= done, "told, and not there"
        assert len(done) <= len(told) + 4 * 10, "only what was under way may be there besides"
        assert found["d"][2] == max(done) // 3
    assert not (folder / (CHANNELS + ".damaged")).exists(), "a crash is no damage"
