"""A progress log on a simulated disk, which fails, loses power, and shows its files."""

from pathlib import Path

import pytest

from busway._core import Log, SimulatedFiles
from busway.broker.channels import progress_log
from busway.broker.channels.compaction import Compaction
from busway.broker.channels.progress_records import read_states
from busway.broker.channels.state.progress import States
from busway.common import environment


class Disk:
    """The files of one progress log. They outlive it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = SimulatedFiles()
        monkeypatch.setattr(environment, "open_log", lambda folder, **how: Log.open(self.files, **how))

    def kill(self, power_cut: int | None = None) -> None:
        """Leave what the next process finds, after a power cut with this seed or without one."""
        self.files = self.files.survivor()
        if power_cut is not None:
            self.files.power_cut(power_cut)


def make_small(monkeypatch: pytest.MonkeyPatch, worth: int = 2000, bucket: int = 1000) -> None:
    """Compact after so many bytes of entries."""
    monkeypatch.setattr(progress_log, "Compaction", lambda: Compaction(worth))
    monkeypatch.setattr(progress_log, "_BUCKET", bucket)


def stored(folder: Path) -> States:
    """The states that the log in this folder has now."""
    states, unreadable = read_states(Log.view(folder))
    assert not unreadable
    return states


def done(states: States) -> dict[str, set[int]]:
    """The offsets that are done, by channel."""
    return {
        name: set(range(state.floor)) | {at for begin, end, _ in state.done for at in range(begin, end)}
        for name, state in states.items()
    }
