"""The progress log of a stream's channels: what was confirmed is there after a restart, and the log stays small."""

import asyncio
import logging
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from busway import DataFailed, StoreFailed
from busway.broker.channels.progress_log import ProgressLog
from busway.broker.channels.progress_records import ENTRIES, entries_of
from busway.broker.channels.state.progress import (
    ChannelConfig,
    Configured,
    Created,
    Deleted,
    Done,
    Entry,
    States,
    rebuild,
)
from busway.broker.storage.data_folder import CHANNELS
from busway.common import environment
from tests.support.journals import CONFIG, shown, story
from tests.support.net import eventually, within
from tests.support.progress_logs import Disk, done, make_small


async def content(folder: Path) -> dict[str, tuple]:
    """The states that a start finds."""
    progress = ProgressLog(folder)
    states = await within(progress.start())
    await within(progress.stop())
    return shown(states)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


class TestWrite:
    @pytest.mark.parametrize("safety", ["memory", "written", "synced"])
    async def test_confirmed_entries_survive_a_kill(self, tmp_path: Path, disk: Disk, safety) -> None:
        progress = ProgressLog(tmp_path, safety)
        assert await progress.start() == {}
        entries = story()
        await progress.write(entries[:7])
        await progress.write(entries[7:])
        disk.kill()
        assert await content(tmp_path) == shown(rebuild(entries))

    @pytest.mark.parametrize(("safety", "at_once"), [("memory", True), ("written", True), ("synced", False)])
    async def test_it_is_confirmed_when_it_is_as_safe_as_promised(self, tmp_path: Path, safety, at_once: bool) -> None:
        progress = ProgressLog(tmp_path, safety)
        await progress.start()
        await progress.write([])
        written = progress.write([Created("c", 1, 1, CONFIG)])
        assert written.done() is at_once, "written is written at once, and a sync is left to the thread"
        await written
        await progress.stop()
        assert (await content(tmp_path))["c"][2] == 1

    async def test_after_a_change_to_synced_it_waits_for_the_sync(self, tmp_path: Path) -> None:
        progress = ProgressLog(tmp_path, "written")
        await progress.start()
        await progress.write([])
        progress.safety = "synced"
        written = progress.write([Done("c", 1, 1)])
        assert not written.done()
        await within(written)
        await progress.stop()

    async def test_a_slow_disk_is_left_to_the_thread(self, tmp_path: Path, monkeypatch) -> None:
        progress = ProgressLog(tmp_path, "written")
        await progress.start()
        now, took = 100.0, 0.0

        def clock() -> float:
            nonlocal now
            now += took
            return now

        monkeypatch.setattr(environment, "monotonic", clock)
        here: list[bool] = []
        opened = progress._log

        class Watched:
            def flush(self, *, here: bool) -> None:
                flushes.append(here)
                assert opened is not None
                opened.flush(here=here)

        flushes = here
        took = 0.01  # by each look at the clock
        progress._flush(Watched())  # type: ignore[arg-type]
        took = 0.0
        progress._flush(Watched())  # type: ignore[arg-type]
        now += 10
        progress._flush(Watched())  # type: ignore[arg-type]
        assert here == [True, False, True], "it is tried again after a while"
        await progress.stop()

    async def test_stop_waits_for_entries(self, tmp_path: Path) -> None:
        progress = ProgressLog(tmp_path, "memory")
        await progress.start()
        for n in range(50):
            progress.write([Done("c", 1, n)])
        await within(progress.stop())
        assert (await content(tmp_path))["c"][2] == 49

    async def test_a_cancelled_write_disturbs_no_other(self, tmp_path: Path) -> None:
        progress = ProgressLog(tmp_path, "synced")
        await progress.start()
        first, second = progress.write([Done("c", 1, 1)]), progress.write([Done("c", 1, 2)])
        first.cancel()
        await within(second)
        await progress.stop()
        assert (await content(tmp_path))["c"][2] == 2

    async def test_a_log_that_is_stopped_refuses(self, tmp_path: Path) -> None:
        progress = ProgressLog(tmp_path)
        await progress.start()
        await progress.stop()
        with pytest.raises(StoreFailed, match="closed"):
            await progress.write([Done("c", 1, 1)])
        await progress.stop()

    async def test_the_states_are_those_of_the_reader(self, tmp_path: Path, disk: Disk) -> None:
        """A channel changes the states that it was given, and the log knows only what was written."""
        progress = ProgressLog(tmp_path)
        await progress.start()
        await progress.write([Created("c", 1, 5, CONFIG)])
        await progress.stop()
        progress = ProgressLog(tmp_path)
        states = await progress.start()
        states["c"].raise_floor(99)
        progress._fail(["c"], "a test")  # so the next write repeats the state
        await progress.write([])
        await progress.stop()
        assert (await content(tmp_path))["c"][2] == 5


class TestCompaction:
    async def test_the_log_stays_small_and_loses_nothing(self, tmp_path: Path, disk: Disk, monkeypatch) -> None:
        make_small(monkeypatch)
        progress = ProgressLog(tmp_path)
        await progress.start()
        entries: list[Entry] = list(story(30, 3))
        await progress.write(entries)
        most = 0
        for n in range(3000):
            more: list[Entry] = [Done(f"c{n % 25}", 1, n, ((n + 3, 1),))]
            if n % 100 == 0:
                more += [Created(f"new{n}", 1, n, CONFIG), Deleted(f"new{n - 300}")]
            entries += more
            await progress.write(more)
            if n % 10 == 0:
                await asyncio.sleep(0)
                most = max(most, progress.figures()["bytes"])
        assert progress.compactions > 5
        assert most < 100_000, f"it had {most} bytes"
        disk.kill()
        again = ProgressLog(tmp_path)
        assert shown(await again.start()) == shown(rebuild(entries))
        await again.stop()

    async def test_a_state_without_history_is_not_written_again_and_again(
        self, tmp_path: Path, disk: Disk, monkeypatch
    ) -> None:
        make_small(monkeypatch, 10_000)
        progress = ProgressLog(tmp_path)
        await progress.start()
        for n in range(100):
            await progress.write([Created(f"c{n}", 1, 0, ChannelConfig(topic="x" * 1000))])
            await asyncio.sleep(0)
        assert progress.compactions <= 5
        await progress.stop()

    async def test_a_channel_that_is_removed_meanwhile_stays_removed(
        self, tmp_path: Path, disk: Disk, monkeypatch
    ) -> None:
        make_small(monkeypatch)
        progress = ProgressLog(tmp_path)
        await progress.start()
        await progress.write([Created(f"c{n}", 1, 0, CONFIG) for n in range(500)])
        progress._begin_compaction()
        await asyncio.sleep(0)
        assert progress._compaction.take(), "it is in the middle"
        await progress.write([Deleted(f"c{n}") for n in range(499)])
        while progress._compaction.take() is not None:
            progress._compact()
        disk.kill()
        assert list(await content(tmp_path)) == ["c499"]

    async def test_nothing_is_removed_before_the_snapshots_are_written(
        self, tmp_path: Path, disk: Disk, monkeypatch
    ) -> None:
        make_small(monkeypatch)
        progress = ProgressLog(tmp_path)
        await progress.start()
        names = [f"c{n}" for n in range(40)]
        await progress.write([Created(name, 1, 0, CONFIG) for name in names])
        for n in range(100):
            await progress.write([Done(names[n % 40], 1, n)])
        before = progress.figures()["bytes"]
        disk.files.fail(room=0)
        progress._begin_compaction()
        await asyncio.sleep(0)
        assert progress.figures()["bytes"] == before
        assert progress.compactions == 0
        disk.kill()
        assert list(await content(tmp_path)) == names

    async def test_ten_thousand_channels(self, tmp_path: Path) -> None:
        progress = ProgressLog(tmp_path, "memory")
        await progress.start()
        names = [f"channel-{n}" for n in range(10_000)]
        for name in names:
            progress.write([Created(name, 1, 0, ChannelConfig())])
        for n in range(30_000):
            progress.write([Done(names[n % 10_000], 1, n)])
            if n % 100 == 0:
                await asyncio.sleep(0)
        assert progress.compactions >= 1
        assert progress.figures()["bytes"] < 20 * 2**20
        await progress.stop()
        states = await ProgressLog(tmp_path).start()
        assert sorted(state.floor for state in states.values()) == list(range(20_000, 30_000))


class TestDamage:
    async def write(self, folder: Path) -> list[Entry]:
        progress = ProgressLog(folder)
        await progress.start()
        entries = story()
        for entry in entries:
            await progress.write([entry])
        await progress.stop()
        return entries

    async def test_it_is_reported_as_for_a_stream_and_the_rest_is_kept(self, tmp_path: Path, caplog) -> None:
        entries = await self.write(tmp_path)
        (file,) = (tmp_path / CHANNELS).glob("*.log")
        damaged = bytearray(file.read_bytes())
        damaged[damaged.index(msgspec.msgpack.encode("c0"), 300)] ^= 0x40
        file.write_bytes(damaged)
        progress = ProgressLog(tmp_path)
        with caplog.at_level(logging.WARNING):
            states = await progress.start()
        assert progress.figures()["damage"] == 1
        assert "channels of stream" in caplog.text
        assert "offsets" in caplog.text
        every = [shown(rebuild(entries[:at] + entries[at + 1 :])) for at in range(len(entries))]
        assert shown(states) in every, "one record is lost"
        await progress.stop()

    async def test_a_record_of_a_newer_version_is_reported_and_skipped(
        self, tmp_path: Path, disk: Disk, caplog
    ) -> None:
        progress = ProgressLog(tmp_path)
        await progress.start()
        await progress.write([Created("c", 1, 3, CONFIG)])
        assert progress._log is not None
        body = msgspec.msgpack.encode([["later", 1]])
        progress._log.append([(ENTRIES, body, None, "", 0, 0, 0, 0, 0)], 1)
        progress._log.flush()
        await progress.write([Done("c", 1, 7)])
        disk.kill()
        again = ProgressLog(tmp_path)
        assert (await again.start())["c"].floor == 7
        assert "can't be read" in caplog.text
        assert again.figures()["damage"] == 1
        await again.stop()

    def test_unknown_settings_of_a_newer_version_are_left_out(self) -> None:
        body = msgspec.msgpack.encode([["set", "c", {"lease": 1.0, "colour": "red"}]])
        assert entries_of(body) == [Configured("c", ChannelConfig(lease=1.0))]

    @pytest.mark.parametrize("body", [[["later", 1]], [["done", "c", 1, -1, []]], [["set", "c", {"lease": -1.0}]], 7])
    def test_what_is_no_entry_is_refused(self, body: object) -> None:
        with pytest.raises(ValueError, match=r"Expected|Invalid|lease"):
            entries_of(msgspec.msgpack.encode(body))

    async def test_a_log_in_use_is_refused(self, tmp_path: Path) -> None:
        progress = ProgressLog(tmp_path)
        await progress.start()
        with pytest.raises(DataFailed, match="in use"):
            await ProgressLog(tmp_path).start()
        await progress.stop()


class TestDisk:
    async def test_on_a_full_disk_writes_fail_and_nothing_is_missing_once_there_is_room(
        self, tmp_path: Path, disk: Disk, caplog
    ) -> None:
        progress = ProgressLog(tmp_path)
        await progress.start()
        await progress.write([Created("c", 1, 0, CONFIG), Created("d", 1, 0, CONFIG)])
        disk.files.fail(room=20)
        for n in range(3):
            with pytest.raises(StoreFailed, match="can't be written"):
                await progress.write([Done("c", 1, 0, ((2 * n + 2, 1),))])
        with pytest.raises(StoreFailed):
            await progress.write([Deleted("d")])
        with pytest.raises(StoreFailed):
            await progress.write([])
        assert caplog.text.count("each later write retries it") == 1, "logged once"
        disk.files.fail()

        async def written() -> bool:
            try:
                await progress.write([])
            except StoreFailed:
                return False
            return True

        await eventually(written)
        assert "is written again" in caplog.text
        disk.kill()
        found = await content(tmp_path)
        assert list(found) == ["c"]
        assert found["c"][3] == [(2, 3, 1), (4, 5, 1), (6, 7, 1)]

    async def test_with_the_safety_memory_no_write_fails(self, tmp_path: Path, disk: Disk, caplog) -> None:
        progress = ProgressLog(tmp_path, "memory")
        await progress.start()
        disk.files.fail(room=0)
        for n in range(10):
            assert progress.write([Done("c", 1, n)]).done()
            await progress.write([])
        assert caplog.text.count("each later write retries it") == 1
        disk.files.fail()
        await progress.stop()
        assert (await content(tmp_path))["c"][2] == 9

    async def test_a_failed_sync_is_no_success(self, tmp_path: Path, disk: Disk) -> None:
        progress = ProgressLog(tmp_path, "synced")
        await progress.start()
        await progress.write([Done("c", 1, 3)])
        disk.files.fail(sync=True)
        with pytest.raises(StoreFailed):
            await progress.write([Done("c", 1, 7)])
        disk.files.fail()
        await progress.stop()
        disk.kill(power_cut=1)
        assert (await content(tmp_path))["c"][2] == 7, "it was written again at the stop"

    async def test_entries_that_were_refused_are_written_at_the_stop(self, tmp_path: Path, disk: Disk) -> None:
        progress = ProgressLog(tmp_path)
        await progress.start()
        disk.files.fail(room=0)
        for n in range(10):
            with pytest.raises(StoreFailed):
                await progress.write([Done("c", 1, n)])
        disk.files.fail()
        await progress.stop()
        assert (await content(tmp_path))["c"][2] == 9

    async def test_a_disk_that_stays_full_does_not_stop_the_broker(self, tmp_path: Path, disk: Disk) -> None:
        progress = ProgressLog(tmp_path)
        await progress.start()
        disk.files.fail(room=0)
        with pytest.raises(StoreFailed):
            await progress.write([Done("c", 1, 1)])
        await within(progress.stop())


class Life:
    """A progress log that is killed or loses power again and again, and what it has confirmed."""

    def __init__(self, disk: Disk, folder: Path, safety, chance: random.Random) -> None:
        self.disk, self.folder, self.safety, self.chance = disk, folder, safety, chance
        self.written: list[Entry] = []
        """All entries that may be in the log, in their order."""
        self.certain = 0
        """How many of them are there after a power cut."""

    async def live(self) -> None:
        progress = ProgressLog(self.folder, self.safety)
        try:
            found = await progress.start()
        except DataFailed:
            return  # the power was cut again
        self.compare(found)
        names = set(rebuild(self.written))
        if self.chance.random() < 0.3:
            self.disk.files.fail(fuse=self.chance.randrange(1, 60))
        for _ in range(self.chance.randrange(1, 60)):
            name = self.chance.choice("abcd")
            entry: Entry = Done(name, 1, 0, ((self.chance.randrange(300), 1),))
            if name not in names:
                entry = Created(name, 1, 0, ChannelConfig())
                names.add(name)
            elif self.safety == "synced" and self.chance.random() < 0.03:
                entry = Deleted(name)
                names.remove(name)
            self.written.append(entry)
            try:
                await progress.write([entry])
            except StoreFailed:
                continue
            if self.safety == "synced":
                self.certain = len(self.written)
            if self.chance.random() < 0.3:
                await asyncio.sleep(0)
        progress.kill()
        self.disk.files.fail()
        self.disk.kill(self.chance.getrandbits(60))

    def compare(self, found: States) -> None:
        """What was certain is there, and nothing that was not written. What was read stays, so it is certain now."""
        if self.safety == "synced":
            self.written = self.written[: self.prefix(shown(found))]
        else:  # the disk may have lost any record that was not synced
            certain, every = done(rebuild(self.written[: self.certain])), done(rebuild(self.written))
            for name in certain | found:
                assert certain.get(name, set()) <= done(found).get(name, set()) <= every[name]
            self.written = [entry for state in found.values() for entry in state.entries()]
        self.certain = len(self.written)

    def prefix(self, found: dict[str, tuple]) -> int:
        """How many entries result in these states."""
        for length in range(len(self.written), self.certain - 1, -1):
            if shown(rebuild(self.written[:length])) == found:
                return length
        raise AssertionError(f"no state behind entry {self.certain} of {len(self.written)} is like this: {found}")


@pytest.mark.parametrize("safety", ["written", "synced"])
@pytest.mark.parametrize("part", range(2))
async def test_power_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, safety) -> None:
    make_small(monkeypatch, 1000, 500)
    monkeypatch.setattr(logging.getLogger("busway.broker"), "disabled", True)
    for seed in range(part * 150, (part + 1) * 150):
        life = Life(Disk(monkeypatch), tmp_path, safety, random.Random(seed))
        try:
            for _ in range(8):
                await life.live()
        except BaseException:
            print(f"seed {seed}")
            raise


WRITER = """
import asyncio, sys
from pathlib import Path
import busway.broker.channels.progress_log as module
from busway.broker.channels.compaction import Compaction
from busway.broker.channels.progress_log import ProgressLog
from busway.broker.channels.state.progress import Created, ChannelConfig, Done

module.Compaction = lambda: Compaction(20_000)  # so that it is also killed during a compaction
module._BUCKET = 5_000

async def main():
    progress = ProgressLog(Path(sys.argv[1]), sys.argv[2])
    states = await progress.start()
    if not states:
        await progress.write([Created("c", 1, 0, ChannelConfig())])
    n = max([0, *((end - 1) // 3 for _, end, _ in states["c"].done)] if states else [0])
    async def writer():
        nonlocal n
        while True:
            n += 1
            mine = n
            await progress.write([Done("c", 1, 0, ((3 * mine, 1),)), Done("d", 1, mine)])
            print(mine, flush=True)
            await asyncio.sleep(0)
    print("begin", flush=True)
    await asyncio.gather(*(writer() for which in range(4)))

asyncio.run(main())
"""


@pytest.mark.parametrize("safety", ["written", "synced"])
def test_killed_at_any_moment_it_has_everything_that_was_confirmed(tmp_path: Path, safety) -> None:
    """Six times in the same folder; each process reads what the earlier ones have left."""
    chance = random.Random(3)
    script = tmp_path / "writer.py"
    script.write_text(textwrap.dedent(WRITER))
    folder = tmp_path / "stream"
    folder.mkdir()
    confirmed: set[int] = set()
    for _ in range(6):
        child = subprocess.Popen([sys.executable, script, folder, safety], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "begin\n"
            for _ in range(chance.randrange(1, 300)):
                confirmed.add(int(child.stdout.readline()))
        finally:
            child.send_signal(signal.SIGKILL)
            rest = child.communicate()[0].split("\n")
        confirmed |= {int(line) for line in rest[:-1]}
        found = asyncio.run(content(folder))
        there = {n for start, end, _ in found["c"][3] for n in range(start, end)}
        assert {3 * n for n in confirmed} <= there, "confirmed, and not there"
        assert len(there) <= len(confirmed) + 4 * 6, "only entries that were being written may be there besides"
        assert found["d"][2] == max(there) // 3
