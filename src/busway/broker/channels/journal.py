"""The journal of a stream's channels on disk: a file that is only appended to, and written anew when most of it is history.

One thread writes; many entries that wait share one write and, if the stream promises that, one fdatasync. With "written" an entry is
only copied to the system's memory, which takes less than waking a thread, so it is written at once as long as that goes quickly.
What is damaged is skipped, told and counted, and the rest is kept. What could not be written stays known here, and the next write begins with all
of it in a new file: so an answer that waited for the journal is never given for something that is missing in it.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from busway.broker.channels.journal_identity import JournalIdentity
from busway.broker.channels.state.progress import Entry, Stamp, States, apply
from busway.broker.storage import data_folder, record_format
from busway.broker.storage.record_file import RecordFile
from busway.broker.storage.record_format import Damage
from busway.common import environment
from busway.errors import StoreFailed
from busway.settings import MiB

log = logging.getLogger("busway.broker")

Safety: TypeAlias = Literal["memory", "written", "synced"]

FILE: Final = "channels.log"
_WORTH: Final = MiB
"""A smaller file is not written anew for its size."""
_TIMES: Final = 4
"""So many times its content the file may be."""
_BEHIND: Final = 65_536
"""So many entries may wait for the disk before those who need not wait do."""
_QUICK: Final = 0.002
"""Seconds. After a write at once that took longer, the thread writes for a while: the loop waits for no disk twice."""
_RESTING: Final = 5.0

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Entry | Stamp] = msgspec.msgpack.Decoder(Entry | Stamp)


def encode(entry: Entry | Stamp) -> bytes:
    """One record of the file."""
    return record_format.frame(_encoder.encode(entry))


def decode(body: bytes) -> Entry | Stamp:
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


class Journal(RecordFile):
    """The file of one stream. open() and the methods below it run on its thread, the others on the loop.

    append() runs on either: on the loop only while the thread has nothing to do.
    `new`: it is that of a stream which is made just now. `copy`: it follows that of another broker, and has the stamps of that one.
    """

    def __init__(self, folder: Path, safety: Safety = "written", *, new: bool = False, copy: bool = False) -> None:
        super().__init__(folder / FILE)
        self.safety = safety
        self.lineage = None if copy else JournalIdentity(new=new)
        """How far it goes with what was given to be written."""
        self._stamp: Stamp | None = None
        """The last one in the file,"""
        self._since = 0
        """and how many entries stand behind it."""
        self.stamp: Stamp | None = None
        """The last one that was given to be written, of one that follows another."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="busway journal")
        self._queue: list[Entry | Stamp] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._writing: asyncio.Future[OSError | None] | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._states: States = {}
        self._next_look = _WORTH
        self._stale = False
        self._slow_until = 0.0
        self._failing = 0
        self._looking: list[Callable[[list[Entry]], object]] = []
        self.watcher: Callable[[list[Entry]], asyncio.Future[None] | None] | None = None
        """Hears of all entries when they are given to be written; may say when they are safe elsewhere, too."""
        self.failed = 0
        self.batches = 0

    # On the loop.

    async def start(self) -> States:
        """Read the file; where each channel stands."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self.open)

    def write(self, entries: Iterable[Entry | Stamp]) -> "asyncio.Future[None]":
        """Write these; done when they and all before them are as safe as promised, StoreFailed if they aren't yet.

        Without entries it tells the same of those before. With safety "memory" nobody waits unless the disk is far behind,
        and a failure is only logged.
        """
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        given = list(entries)
        self._queue += given
        plain = self._count(given)
        elsewhere = self.watcher(plain) if self.watcher is not None and plain else None
        if self.safety == "memory" and len(self._queue) <= _BEHIND:
            told.set_result(None)
        else:
            self._waiting.append(told)
        if self._writing is None and self._may_write_here():
            self._write_here()
        else:
            self._quiet.clear()
            self._write_next()
        return told if elsewhere is None else _both(told, elsewhere)

    def _count(self, given: list[Entry | Stamp]) -> list[Entry]:
        """Those that are entries."""
        plain = [one for one in given if not isinstance(one, Stamp)]
        if self.lineage is not None:
            self.lineage.add(len(plain))
        elif len(plain) < len(given):
            self.stamp = next(one for one in reversed(given) if isinstance(one, Stamp))
        return plain

    def mended(self, known: Stamp) -> None:
        """What somebody else knew of it up to there is in it now."""
        if self.lineage is not None:
            self.lineage.mended(known)
            self.write([self.lineage.stamp()]).add_done_callback(heard)

    def look(self, then: Callable[[list[Entry]], object]) -> None:
        """Give `then` the entries that make what was given to be written so far, now or soon; the watcher hears of what comes behind."""
        self._looking.append(then)
        if self._writing is None:
            self._show()

    def _show(self) -> None:
        looking, self._looking = self._looking, []
        if looking:
            entries = [entry for state in self._states.values() for entry in state.entries()]
            entries += [one for one in self._queue if not isinstance(one, Stamp)]
            for then in looking:
                then(entries)

    async def stop(self) -> None:
        """Wait until everything is written, or was tried once more, and let go of the file."""
        await self._quiet.wait()
        if self._stale:
            await asyncio.wait([self.write([])])
        await asyncio.get_running_loop().run_in_executor(self._executor, self.close)
        self._executor.shutdown(wait=False)

    def figures(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "bytes": self._end,
            "channels": len(self._states),
            "damaged": self.damaged,
            "damaged_bytes": self.damaged_bytes,
            "failed": self.failed,
            "batches": self.batches,
            "rewritten": self.rewritten,
        }

    def _may_write_here(self) -> bool:
        """Whether a write needs nothing but a copy, and the last ones were quick."""
        plain = self.safety == "written" and not self._stale and self._fd >= 0 and self._end < self._next_look
        return plain and environment.monotonic() >= self._slow_until

    def _write_here(self) -> None:
        batch, self._queue = self._queue, []
        waiting, self._waiting = self._waiting, []
        begin = environment.monotonic()
        error: Exception | None
        try:
            error = self.append(batch)
        except Exception as unexpected:  # noqa: BLE001, told and logged as one of the thread is
            self._log_unexpected(error := unexpected)
        if (end := environment.monotonic()) - begin > _QUICK:
            self._slow_until = end + _RESTING
        self._tell(waiting, error)

    def _write_next(self) -> None:
        if self._writing is not None:
            return
        if not self._queue and not self._waiting:
            self._quiet.set()
            return
        batch, self._queue = self._queue, []
        waiting, self._waiting = self._waiting, []
        self._writing = asyncio.get_running_loop().run_in_executor(self._executor, self._work, batch)
        self._writing.add_done_callback(lambda future: self._written(waiting, future))

    def _written(self, waiting: list["asyncio.Future[None]"], future: "asyncio.Future[OSError | None]") -> None:
        self._writing = None
        if (unexpected := future.exception()) is not None:
            self._log_unexpected(unexpected)
        self._tell(waiting, unexpected or future.result())
        self._show()
        self._write_next()

    def _log_unexpected(self, error: BaseException) -> None:
        # No error of the disk: that is a result. It is ours, so it is told with its traceback.
        log.error("unexpected error in the journal %s", self.file, exc_info=error)

    def _tell(self, waiting: list["asyncio.Future[None]"], error: BaseException | None) -> None:
        for told in waiting:
            if told.done():
                continue  # whoever waited was cancelled
            if error is None:
                told.set_result(None)
            else:
                told.set_exception(StoreFailed(f"the channels' journal {self.file} can't be written: {_reason(error)}"))

    # On the thread.

    def open(self) -> States:
        """Read what is there, cut a torn end off, and write anew what is damaged or mostly history."""
        content = self._content()
        torn, damage = 0, False
        for found in record_format.scan(content, decode):
            if isinstance(found, Damage):
                self._told(found)
                torn, damage = (found.size, damage) if found.torn else (torn, True)
            else:
                self._put(found.entry)
                if self.lineage is not None:
                    self.lineage.found(found.entry if isinstance(found.entry, Stamp) else None)
        self._end = len(content) - torn
        self.stamp = self._stamp
        if self.lineage is not None:
            self.lineage.begin(damaged=damage)
            self._put(begun := self.lineage.stamp())
        try:
            self._mend(torn, None if self.lineage is None else begun, damage=damage)
        except OSError as error:
            self._stale = True
            log.warning("%s can't be written: %s", self.file, _reason(error))
        return {name: state.copy() for name, state in self._states.items()}

    def _put(self, entry: Entry | Stamp) -> None:
        if isinstance(entry, Stamp):
            self._stamp, self._since = entry, 0
        else:
            self._since += 1
            apply(self._states, entry)

    def _work(self, entries: list[Entry | Stamp]) -> OSError | None:
        error = self.append(entries)
        if error is None:
            self._look()
        return error

    def append(self, entries: list[Entry | Stamp]) -> OSError | None:
        """Write a batch. If that fails they are known nevertheless, and the file is behind until it was written anew."""
        for entry in entries:
            self._put(entry)
        behind, self._stale = self._stale, True  # whatever happens now, until it went well
        try:
            if behind:
                self._rewrite(self._snapshot())
            elif entries:
                self._add(b"".join(map(encode, entries)), _sync if self.safety == "synced" else None)
        except OSError as error:
            self.failed += 1
            if not self._failing:  # once: they all fail until the disk is well again
                log.warning("what channels did can't be written to %s: %s", self.file, _reason(error))
            self._failing += len(entries)
            return error
        if self._failing:
            log.warning("%s is written again, with the %d entries that waited", self.file, self._failing)
            self._failing = 0
        self._stale = False
        self.batches += 1
        return None

    def _mend(self, torn: int, begun: Stamp | None, *, damage: bool) -> None:
        self._cut(torn, damage=damage)
        if damage:
            self._rewrite(self._snapshot())
            return
        if begun is not None:
            self._add(encode(begun), None)
        self._look()

    def _look(self) -> None:
        """Write the file anew if it is worth it. That is no condition for anything, so a failure is only told."""
        if self._end < self._next_look:
            return
        snapshot = self._snapshot()
        if len(snapshot) * _TIMES < self._end:
            try:
                self._rewrite(snapshot)
            except OSError as error:
                log.warning("%s could not be written anew: %s", self.file, _reason(error))
                self._next_look = self._end * 2
                return
        self._next_look = max(_WORTH, len(snapshot) * _TIMES)

    def _snapshot(self) -> bytes:
        """The stamp is the last record: what stands in a new file is not counted, but what follows is."""
        parts = [encode(entry) for state in self._states.values() for entry in state.entries()]
        if (stamp := self._stamp) is not None:
            if self.lineage is not None:
                stamp = msgspec.structs.replace(stamp, count=stamp.count + self._since)
                self._stamp, self._since = stamp, 0
            parts.append(encode(stamp))
        return b"".join(parts)

    def _rewrite(self, content: bytes) -> None:
        """Put a new file with this content in the place of the old one."""
        self._replace([content])
        data_folder.sync(self.file.parent)


def _both(one: "asyncio.Future[None]", two: "asyncio.Future[None]") -> "asyncio.Future[None]":
    """Done when both are; the first failure is its own."""
    both: asyncio.Future[None] = one.get_loop().create_future()

    def look(told: "asyncio.Future[None]") -> None:
        error = None if told.cancelled() else told.exception()  # asked for, so that it counts as heard
        if both.done():
            return
        if error is not None:
            both.set_exception(error)
        elif one.done() and two.done():
            both.set_result(None)

    for told in (one, two):
        told.add_done_callback(look)
    return both


def heard(told: "asyncio.Future[None]") -> None:
    """For a write that nobody waits for: a failure is logged by the journal, which knows it all the same and tries again with the next one."""
    if not told.cancelled():
        told.exception()


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _sync(fd: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:  # macOS
        os.fsync(fd)
