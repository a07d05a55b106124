"""The disk of a simulated host: logs that take virtual time to write, run out of space, fail and lose power.

The logs of streams and of channel progress use in-memory files of the engine, which this module writes explicitly. A
broker stores its other data (settings, pins) in a folder of the real file system, which survives all faults.
"""

import os
from pathlib import Path
from random import Random
from typing import Any, Final

from busway._core import Log, SimulatedFiles
from busway.errors import DataFailed
from busway.testing.simulation.loop import VirtualLoop

_RETRY: Final = 0.1
"""Seconds after which a log retries a failed write."""


class Disk:
    """The disk of a host. It outlives the host's processes."""

    def __init__(self, loop: VirtualLoop, chance: Random, folder: Path) -> None:
        self.folder = folder
        self.pace = 0.0002
        """Average seconds of a write."""
        self.failed = 0
        """The number of incomplete writes."""
        self._loop = loop
        self._chance = chance
        self._files: dict[str, SimulatedFiles] = {}
        self._logs: dict[str, Log] = {}
        self._fronts: list[Log] = []
        self._busy: set[str] = set()
        self._life = 0

    def pause(self) -> float:
        """Return the duration of half a write."""
        return self.pace * self._chance.random()

    def open_log(self, folder: str | os.PathLike[str] | None, **settings: Any) -> Log:
        """Open a log on this disk, with the arguments of Log.open()."""
        if folder is None:
            return Log.open(None, **settings)
        place = os.fspath(folder)
        log = Log.open(self._files.setdefault(place, SimulatedFiles()), by_hand=True, **settings)
        handle = log.fileno()
        assert handle is not None, "a log with by_hand has a file descriptor"
        self._loop.bells.add(handle)
        self._logs[place] = log
        self._busy.discard(place)
        return log

    def open_front(self, **settings: Any) -> Log:
        """Open a front, with the arguments of Log.front(). Its store is notified at once of waiting records."""
        log = Log.front(**settings)
        if (handle := log.fileno()) is not None:
            self._loop.bells.add(handle)
        self._fronts.append(log)
        return log

    def drop_log(self, folder: str | os.PathLike[str]) -> None:
        """Delete the log of a folder."""
        self._files.pop(os.fspath(folder), None)

    def move_log(self, folder: str | os.PathLike[str], place: str | os.PathLike[str]) -> None:
        """Move the log of a folder."""
        if (files := self._files.pop(os.fspath(folder), None)) is not None:
            self._files[os.fspath(place)] = files

    def look(self) -> None:
        """Schedule the writes of appended records."""
        for place, log in list(self._logs.items()):
            if place in self._busy:
                continue
            try:
                waiting = log.unwritten
            except DataFailed:  # the log was closed
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

    # Faults.

    def died(self, *, power: bool) -> None:
        """The process that wrote is dead. `power`: the host lost power, and data that was not synced may be lost."""
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
        """Limit the free space, or make syncs fail. Without arguments the disk works again."""
        for files in self._files.values():
            files.fail(room=room, sync=sync)
