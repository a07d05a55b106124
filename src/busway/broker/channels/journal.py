"""The journal of a stream's channels on disk: an append-only file, rewritten when most of its entries are obsolete.

One thread writes. Waiting entries share one write and, with the safety "synced", one fdatasync. With "written" an entry
is only copied to the page cache, which is cheaper than waking a thread; so the event loop writes it, as long as that is
quick. Damaged records are skipped, logged and counted. Entries that could not be written stay in memory, and the next
write puts all entries into a new file. So no answer that waits for the journal is sent for an entry that the file
lacks.
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

_WORTH: Final = MiB
"""A smaller file is not rewritten for its size."""
_TIMES: Final = 4
"""The file may be so many times larger than its live content."""
_BEHIND: Final = 65_536
"""So many entries may be queued before writers with the safety "memory" have to wait, too."""
_QUICK: Final = 0.002
"""Seconds. After a slower write on the event loop the thread writes for a while, so that the loop is not blocked."""
_RESTING: Final = 5.0
"""Seconds for which the thread writes after a slow write on the event loop."""

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
    """The journal of one stream. open() and the methods below it run on its thread, the others on the loop.

    append() runs on either: on the loop only while the thread is idle. `new`: the stream is being created. `copy`: the
    journal is a replica of another broker's journal, and has the stamps of that one.
    """

    def __init__(self, folder: Path, safety: Safety = "written", *, new: bool = False, copy: bool = False) -> None:
        super().__init__(folder / data_folder.CHANNELS)
        self.safety = safety
        self.lineage = None if copy else JournalIdentity(new=new)
        """The identity and length of the journal, with the queued entries. None for a replica."""
        self._stamp: Stamp | None = None
        """The last stamp in the file."""
        self._since = 0
        """The number of entries in the file behind its last stamp."""
        self.stamp: Stamp | None = None
        """The last stamp that was queued or read; only for a replica."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="busway journal")
        self._queue: list[Entry | Stamp] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._writing: asyncio.Future[OSError | None] | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._states: States = {}
        self._next_check = _WORTH
        """The size of the file at which the next check for a rewrite is due."""
        self._stale = False
        self._slow_until = 0.0
        self._failing = 0
        self._readers: list[Callable[[list[Entry]], object]] = []
        self.watcher: Callable[[list[Entry]], asyncio.Future[None] | None] | None = None
        """Gets all entries when they are queued. May return a future that is done when a mirror has them, too."""
        self.failed = 0
        self.batches = 0

    # On the loop.

    async def start(self) -> States:
        """Read the file. Returns the state of each channel."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self.open)

    def write(self, entries: Iterable[Entry | Stamp]) -> "asyncio.Future[None]":
        """Write entries. The future is done when these and all earlier ones are as safe as promised; else StoreFailed.

        Without entries it reports the same of the earlier ones. With the safety "memory" the future is done at once
        unless the disk is far behind, and a failure is only logged.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        given = list(entries)
        self._queue += given
        plain = self._count(given)
        mirrored = self.watcher(plain) if self.watcher is not None and plain else None
        if self.safety == "memory" and len(self._queue) <= _BEHIND:
            written.set_result(None)
        else:
            self._waiting.append(written)
        if self._writing is None and self._may_write_here():
            self._write_here()
        else:
            self._quiet.clear()
            self._write_next()
        return written if mirrored is None else _both(written, mirrored)

    def _count(self, given: list[Entry | Stamp]) -> list[Entry]:
        """Count the queued entries. Returns them without the stamps."""
        plain = [entry for entry in given if not isinstance(entry, Stamp)]
        if self.lineage is not None:
            self.lineage.add(len(plain))
        elif len(plain) < len(given):
            self.stamp = next(entry for entry in reversed(given) if isinstance(entry, Stamp))
        return plain

    def mended(self, known: Stamp) -> None:
        """Record that the journal has been restored up to this stamp from a mirror."""
        if self.lineage is not None:
            self.lineage.mended(known)
            self.write([self.lineage.stamp()]).add_done_callback(ignore_failure)

    def look(self, then: Callable[[list[Entry]], object]) -> None:
        """Call `then`, now or soon, with entries that make up the current state. The watcher gets all later entries."""
        self._readers.append(then)
        if self._writing is None:
            self._answer_readers()

    def _answer_readers(self) -> None:
        readers, self._readers = self._readers, []
        if readers:
            entries = [entry for state in self._states.values() for entry in state.entries()]
            entries += [entry for entry in self._queue if not isinstance(entry, Stamp)]
            for then in readers:
                then(entries)

    async def stop(self) -> None:
        """Wait until all entries are written, or one retry has failed, and close the file."""
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
        """Whether the event loop may write: it is only a copy to the page cache, and the last ones were quick."""
        plain = self.safety == "written" and not self._stale and self._fd >= 0 and self._end < self._next_check
        return plain and environment.monotonic() >= self._slow_until

    def _write_here(self) -> None:
        batch, self._queue = self._queue, []
        waiting, self._waiting = self._waiting, []
        begin = environment.monotonic()
        error: Exception | None
        try:
            error = self.append(batch)
        except Exception as unexpected:  # noqa: BLE001, logged, and set on the waiting futures
            self._log_unexpected(error := unexpected)
        if (end := environment.monotonic()) - begin > _QUICK:
            self._slow_until = end + _RESTING
        self._finish(waiting, error)

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
        self._finish(waiting, unexpected or future.result())
        self._answer_readers()
        self._write_next()

    def _log_unexpected(self, error: BaseException) -> None:
        # An error of the disk is a result of append(). This is a bug, so the log has its traceback.
        log.error("unexpected error in the journal %s", self.file, exc_info=error)

    def _finish(self, waiting: list["asyncio.Future[None]"], error: BaseException | None) -> None:
        for written in waiting:
            if written.done():
                continue  # it was cancelled
            if error is None:
                written.set_result(None)
            else:
                text = f"the channels' journal {self.file} can't be written: {_reason(error)}"
                written.set_exception(StoreFailed(text))

    # On the thread.

    def open(self) -> States:
        """Read the file, cut off a torn end, and rewrite a file that is damaged or mostly obsolete."""
        content = self._content()
        torn, damage = 0, False
        for found in record_format.scan(content, decode):
            if isinstance(found, Damage):
                self._report(found)
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
            self._compact()
        return error

    def append(self, entries: list[Entry | Stamp]) -> OSError | None:
        """Write a batch. If that fails, the entries stay in memory, and the file is stale until it is rewritten."""
        for entry in entries:
            self._put(entry)
        behind, self._stale = self._stale, True  # until the write has succeeded
        try:
            if behind:
                self._rewrite(self._snapshot())
            elif entries:
                self._add(b"".join(map(encode, entries)), _sync if self.safety == "synced" else None)
        except OSError as error:
            self.failed += 1
            if not self._failing:  # logged once: all writes fail until the disk works again
                log.warning(
                    "the channels' journal %s can't be written, and each later write retries it: %s",
                    *(self.file, _reason(error)),
                )
            self._failing += len(entries)
            return error
        if self._failing:
            log.warning("the channels' journal %s is written again, with %d queued entries", self.file, self._failing)
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
        self._compact()

    def _compact(self) -> None:
        """Rewrite the file if most of it is obsolete. A failure is only logged, because no entry depends on it."""
        if self._end < self._next_check:
            return
        snapshot = self._snapshot()
        if len(snapshot) * _TIMES < self._end:
            try:
                self._rewrite(snapshot)
            except OSError as error:
                log.warning("%s could not be rewritten, and stays as it is: %s", self.file, _reason(error))
                self._next_check = self._end * 2
                return
        self._next_check = max(_WORTH, len(snapshot) * _TIMES)

    def _snapshot(self) -> bytes:
        """The content of a new file. The stamp is its last record, because only entries behind a stamp are counted."""
        parts = [encode(entry) for state in self._states.values() for entry in state.entries()]
        if (stamp := self._stamp) is not None:
            if self.lineage is not None:
                stamp = msgspec.structs.replace(stamp, count=stamp.count + self._since)
                self._stamp, self._since = stamp, 0
            parts.append(encode(stamp))
        return b"".join(parts)

    def _rewrite(self, content: bytes) -> None:
        """Replace the file by one with this content."""
        self._replace([content])
        data_folder.sync(self.file.parent)


def _both(one: "asyncio.Future[None]", two: "asyncio.Future[None]") -> "asyncio.Future[None]":
    """A future that is done when both are, with the exception of the first one that fails."""
    both: asyncio.Future[None] = one.get_loop().create_future()

    def check(future: "asyncio.Future[None]") -> None:
        error = None if future.cancelled() else future.exception()  # retrieved, so that asyncio does not log it
        if both.done():
            return
        if error is not None:
            both.set_exception(error)
        elif one.done() and two.done():
            both.set_result(None)

    for future in (one, two):
        future.add_done_callback(check)
    return both


def ignore_failure(written: "asyncio.Future[None]") -> None:
    """Ignore the result of a write. The journal logs a failure itself, and retries with the next write."""
    if not written.cancelled():
        written.exception()


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _sync(fd: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:  # macOS
        os.fsync(fd)
