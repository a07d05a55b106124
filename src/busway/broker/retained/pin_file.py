"""The pins on disk: an append-only file in the data folder, which is rewritten when most of it is obsolete.

One thread writes, and waiting entries share one fsync. The caller of store() gets the result once the entry is on disk
or has failed. Damaged records are skipped, logged and counted. If the disk can't be written, pins are refused and the
broker runs on.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from busway.broker.retained import pin_entries
from busway.broker.retained.pin_entries import Entry, Pin, Unpin
from busway.broker.retained.store import Key, Version
from busway.broker.storage import data_folder
from busway.broker.storage.record_file import RecordFile
from busway.broker.storage.record_format import Damage, Found
from busway.settings import MiB

log = logging.getLogger("busway.broker")

Done: TypeAlias = Callable[[OSError | None], object]

FILE: Final = "pins.log"
_WORTH: Final = MiB
"""A smaller file is not rewritten while the broker runs."""


class PinFile(RecordFile):
    """The file of pins of one broker. open() and the methods below it run on its thread, the others on the loop."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="busway pins")
        self._queue: list[tuple[Entry, Done]] = []
        self._writing: asyncio.Future[Any] | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._records: dict[Key, tuple[int, int]] = {}
        self.marks: dict[Key, Version] = {}
        """Removed pins with the version of their removal, the oldest ones first."""
        self._live = 0
        """The bytes of the file that are not obsolete."""
        self._next_check = _WORTH
        """The size of the file at which the next check for a rewrite is due."""
        self.refused = 0

    # On the loop.

    async def start(self) -> list[Pin]:
        """Read the file. Returns its pins, in order."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self.open)

    def store(self, entry: Entry, done: Done) -> None:
        """Write an entry. `done` is called with None when it is on disk, or with the error."""
        self._queue.append((entry, done))
        self._quiet.clear()
        self._write_next()

    async def stop(self) -> None:
        """Wait until all entries are written, and close the file."""
        await self._quiet.wait()
        await asyncio.get_running_loop().run_in_executor(self._executor, self.close)
        self._executor.shutdown(wait=False)

    def figures(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "bytes": self._end,
            "live_bytes": self._live,
            "records": len(self._records),
            "damaged": self.damaged,
            "damaged_bytes": self.damaged_bytes,
            "refused": self.refused,
            "rewritten": self.rewritten,
        }

    def _write_next(self) -> None:
        if self._writing is not None:
            return
        run = partial(asyncio.get_running_loop().run_in_executor, self._executor)
        if self._queue:
            batch, self._queue = self._queue, []
            self._writing = run(self.append, [entry for entry, _ in batch])
            self._writing.add_done_callback(partial(self._written, [done for _, done in batch]))
        elif self._end >= self._next_check and self._live * 2 < self._end:
            self._writing = run(self.rewrite)
            self._writing.add_done_callback(partial(self._written, ()))
        else:
            self._quiet.set()

    def _written(self, waiting: Sequence[Done], future: "asyncio.Future[list[OSError | None]]") -> None:
        self._writing = None
        if (error := future.exception()) is not None:
            # Errors of the disk are results. This is a bug, so the log has its traceback.
            log.error("unexpected error in the file of pins", exc_info=error)
            results: list[OSError | None] = [OSError(f"unexpected error: {error}")] * len(waiting)
        else:
            results = future.result()
        for done, result in zip(waiting, results, strict=True):
            done(result)
        self._write_next()

    # On the thread.

    def open(self) -> list[Pin]:
        """Read the file, cut off a torn end, and rewrite a file that has obsolete or damaged parts."""
        content = self._content()
        pins: dict[Key, Pin] = {}
        torn, damage = 0, False
        for found in pin_entries.scan(content):
            if isinstance(found, Damage):
                self._report(found)
                torn, damage = (found.size, damage) if found.torn else (torn, True)
                continue
            self._indexed(found)
            pins.pop(found.entry.key, None)
            if isinstance(found.entry, Pin):
                pins[found.entry.key] = found.entry
        self._end = len(content) - torn
        try:
            self._mend(torn, damage=damage)
        except OSError as error:
            log.warning("%s can't be written (%s): pins will be refused until that works", self.file, error.strerror)
        return list(pins.values())

    def append(self, entries: list[Entry]) -> list[OSError | None]:
        """Write entries with one fsync, or one by one if that fails: a small one may fit on a nearly full disk."""
        try:
            self._append(entries)
        except OSError as error:
            if len(entries) > 1:
                return [result for entry in entries for result in self.append([entry])]
            self.refused += 1
            log.warning("a pin could not be written to %s and was refused: %s", self.file, error.strerror or error)
            return [error]
        return [None] * len(entries)

    def rewrite(self) -> list[OSError | None]:
        """Replace the file by a new one without obsolete records."""
        try:
            self._rewrite()
        except OSError as error:
            log.warning("%s could not be rewritten, and stays as it is: %s", self.file, error.strerror or error)
        self._next_check = max(_WORTH, self._end * 2 if self._live * 2 < self._end else self._end)
        return []

    def _mend(self, torn: int, *, damage: bool) -> None:
        self._cut(torn, damage=damage)
        if self._live < self._end:
            self._rewrite()

    def _append(self, entries: list[Entry]) -> None:
        records = [pin_entries.encode(entry) for entry in entries]
        offset = self._end
        self._add(b"".join(records), os.fsync)
        for entry, record in zip(entries, records, strict=True):
            self._indexed(Found(offset, len(record), entry))
            offset += len(record)

    def _rewrite(self) -> None:
        old = self._open_file()
        records: dict[Key, tuple[int, int]] = {}

        def live() -> Iterator[bytes]:
            end = 0
            for key, (offset, size) in self._records.items():
                record = os.pread(old, size, offset)
                if not isinstance(next(pin_entries.scan(record), None), Found):
                    self._report(Damage(offset, size, False, "a record that could be read before"))
                    continue
                records[key] = end, len(record)
                end += len(record)
                yield record

        self._replace(live())
        self._live, self._records = self._end, records
        data_folder.sync(self.file.parent)

    def _indexed(self, found: Found[Entry]) -> None:
        key = found.entry.key
        self._forget(key)
        if isinstance(found.entry, Pin) or any(found.entry.version):
            self._records[key] = found.offset, found.size
            self._live += found.size
        if isinstance(found.entry, Unpin) and any(found.entry.version):
            self.marks[key] = found.entry.version
            while len(self.marks) > pin_entries.MARKS:
                self._forget(next(iter(self.marks)))

    def _forget(self, key: Key) -> None:
        self.marks.pop(key, None)
        if old := self._records.pop(key, None):
            self._live -= old[1]
