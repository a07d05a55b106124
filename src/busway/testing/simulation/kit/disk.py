"""The disk of a simulated host: the logs of its streams, which take virtual time to write, fill up, fail and lose power.

The engine's logs lie in files of its own in memory, written by hand. What else a broker stores (settings, pins, what channels have done) lies in a
folder of the real file system, and is written when a thread would have written it; there it stays whatever happens.
"""

import os
from pathlib import Path
from random import Random
from typing import Any, Final

from busway._core import Log, SimulatedFiles
from busway.errors import DataFailed
from busway.testing.simulation.kit.loop import VirtualLoop

_RETRY: Final = 0.1
"""Seconds after which a log tries again to write what it has promised."""


class Disk:
    """What is stored on one host. It outlives the processes there."""

    def __init__(self, loop: VirtualLoop, chance: Random, folder: Path) -> None:
        self.folder = folder
        self.pace = 0.0002
        """About how many seconds a write takes."""
        self.failed = 0
        """Writes after which not everything was written."""
        self._loop = loop
        self._chance = chance
        self._files: dict[str, SimulatedFiles] = {}
        self._logs: dict[str, Log] = {}
        self._fronts: list[Log] = []
        self._busy: set[str] = set()
        self._life = 0

    def pause(self) -> float:
        """How long half of a write takes."""
        return self.pace * self._chance.random()

    def open_log(self, folder: str | os.PathLike[str] | None, **settings: Any) -> Log:
        """As Log.open()."""
        if folder is None:
            return Log.open(None, **settings)
        place = os.fspath(folder)
        log = Log.open(self._files.setdefault(place, SimulatedFiles()), by_hand=True, **settings)
        handle = log.fileno()
        assert handle is not None, "one by hand has a bell"
        self._loop.bells.add(handle)
        self._logs[place] = log
        self._busy.discard(place)
        return log

    def open_front(self, **settings: Any) -> Log:
        """As Log.front(). Whoever stores it hears at once of what waits."""
        log = Log.front(**settings)
        if (handle := log.fileno()) is not None:
            self._loop.bells.add(handle)
        self._fronts.append(log)
        return log

    def drop_log(self, folder: str | os.PathLike[str]) -> None:
        """What was in a folder is not there any more."""
        self._files.pop(os.fspath(folder), None)

    def look(self) -> None:
        """Begin to write what has been appended."""
        for place, log in list(self._logs.items()):
            if place in self._busy:
                continue
            try:
                waiting = log.unwritten
            except DataFailed:  # it was closed
                del self._logs[place]
                continue
            if waiting:
                self._busy.add(place)
                self._loop.call_later(self.pause(), self._write, place, log, self._life)
        for log in list(self._fronts):
            try:
                handle = log.fileno() if log.unwritten else None
            except DataFailed:
                self._fronts.remove(log)
                continue
            if handle is not None:
                self._loop.ring(handle)

    def _write(self, place: str, log: Log, life: int) -> None:
        if life != self._life or self._logs.get(place) is not log:
            return
        try:
            log.write()
            left = log.unwritten
        except DataFailed:
            return
        self.failed += left > 0
        self._loop.call_later(self.pause(), self._written, place, log, life, bool(left))

    def _written(self, place: str, log: Log, life: int, again: bool) -> None:  # noqa: FBT001, a callback
        if life != self._life or self._logs.get(place) is not log:
            return
        handle = log.fileno()
        if handle is not None:
            self._loop.ring(handle)
        if again:
            self._loop.call_later(_RETRY, self._write, place, log, life)
        else:
            self._busy.discard(place)

    # What goes wrong.

    def died(self, *, power: bool) -> None:
        """The process that wrote is dead; without power, what was not synced may be lost."""
        self._life += 1
        self._busy.clear()
        logs, self._logs = self._logs, {}
        fronts, self._fronts = self._fronts, []
        for place, files in list(self._files.items()):
            left = files.survivor()
            if power:
                left.power_cut(self._chance.getrandbits(63))
            self._files[place] = left
        for log in (*logs.values(), *fronts):
            if (handle := log.fileno()) is not None:
                self._loop.bells.discard(handle)
                self._loop.remove_reader(handle)

    def fail(self, *, room: int | None = None, sync: bool = False) -> None:
        """From now on there is so much room, and syncs fail. Without arguments all is well again."""
        for files in self._files.values():
            files.fail(room=room, sync=sync)
