"""Progress logs that are cut at any byte, at the node or at its mirror: what was acknowledged comes back from the other."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from busway._core import Log
from busway.broker.channels.progress_log import ProgressLog, open_converted
from busway.broker.channels.progress_records import read_states
from busway.broker.channels.state.progress import Created, Deleted, Done, States, rebuild
from busway.broker.storage.data_folder import CHANNELS, JOURNAL
from tests.support.journals import CONFIG, shown
from tests.support.mirror_machines import Again, Pair, Shelf
from tests.support.old_journals import OLD_ENTRIES, old_record

ENTRIES = [Created("c", 1, 0, CONFIG), Done("c", 1, 1, ((5, 2),)), Created("d", 1, 0, CONFIG), Deleted("d")]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("busway.broker"), "disabled", True)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory, if there is one: many logs are opened and synced."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
async def folder(place: Path) -> Path:
    """A progress log, each entry of which was a write of its own."""
    progress = ProgressLog(place / "whole", new=True)
    await progress.start()
    for entry in ENTRIES:
        await progress.write([entry])
    await progress.stop()
    return progress.folder


def states_of(log: Log) -> States:
    while log.written < log.next:
        log.clear_signal()
    return read_states(log)[0]


def mirrored(log: Log) -> Shelf:
    pair = Pair(log)
    pair.ask()
    pair.run()
    assert shown(states_of(pair.copy)) == shown(states_of(log))
    return pair.shelf


def cuts(folder: Path, *, indexed: bool):
    """The same log, cut at every byte: with its indexes, as by a power cut after a stop, or without."""
    (file,) = folder.glob("*.log")
    content = file.read_bytes()
    for cut in range(len(content) + 1):
        other = folder.parent.with_name("cut") / CHANNELS
        shutil.rmtree(other.parent, ignore_errors=True)
        other.parent.mkdir()
        shutil.copytree(folder, other)
        (other / file.name).write_bytes(content[:cut])
        for index in () if indexed else [one for one in other.iterdir() if one.suffix != ".log"]:
            index.unlink()
        yield cut, other


@pytest.mark.parametrize("indexed", [False, True])
async def test_the_node_gets_its_progress_back(folder: Path, *, indexed: bool) -> None:
    whole = open_converted(folder)
    expected, every = shown(rebuild(ENTRIES)), [shown(rebuild(ENTRIES[:n])) for n in range(len(ENTRIES) + 1)]
    came_back = 0
    for cut, damaged in cuts(folder, indexed=indexed):
        progress = ProgressLog(damaged.parent)
        alone = progress.open()
        assert shown(alone) in every, f"cut at {cut}: it has the states of some moment"
        progress.rest()
        pair = Again(progress.native, mirrored(whole))
        pair.ask()
        states_of(progress.native)
        if (sending := pair.origin.logs["s"]).state == "back":
            pair.origin.settle(sending)
        pair.run()
        restored = progress.restored()
        came_back += restored is not None
        assert shown(alone if restored is None else restored[0]) == expected, f"cut at {cut}"
        assert shown(states_of(pair.copy)) == expected
        assert not pair.shelf.aside
        progress.close()
    assert came_back > 400


@pytest.mark.parametrize("indexed", [False, True])
async def test_the_mirror_is_whole_again(folder: Path, *, indexed: bool) -> None:
    whole = open_converted(folder)
    expected = shown(rebuild(ENTRIES))
    for cut, damaged in cuts(folder, indexed=indexed):
        shelf = Shelf()
        copy = shelf.logs["s"] = open_converted(damaged)
        pair = Again(whole, shelf)
        pair.ask()
        pair.run()
        assert shown(states_of(pair.copy)) == expected, f"cut at {cut}"
        assert shown(states_of(whole)) == expected
        copy.close()


async def test_journals_of_an_earlier_version_that_are_cut(place: Path) -> None:
    """Node and mirror convert their journals independently, so the node's counts and is copied anew."""
    records = [old_record(entry) for entry in OLD_ENTRIES]
    journal = b"".join(records)
    logs = []
    for cut in range(len(journal) + 1):
        (stream := place / str(cut)).mkdir()
        (stream / JOURNAL).write_bytes(journal[:cut])
        logs.append(open_converted(stream / CHANNELS))
    whole = logs[-1]
    for cut, log in enumerate(logs[:-1]):
        for node, copy in ((log, whole), (whole, log)):
            before = shown(states_of(node))
            shelf = Shelf()
            shelf.logs["s"] = copy
            pair = Again(node, shelf)
            pair.ask()
            pair.run()
            assert shown(states_of(node)) == shown(states_of(pair.copy)) == before, f"cut at {cut}"
            assert shelf.aside == [copy]
    for log in logs:
        log.close()
