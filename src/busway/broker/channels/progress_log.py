"""The progress of a stream's channels on disk: a native log in the folder of the stream.

The log groups, checks and recovers its records as a stream does. Its owner here keeps the state of each channel in
memory, for snapshots: `compaction` decides when they replace older records. Entries that could not be written are
covered by a snapshot of their channels with the next write. So no answer that waits for the log is sent for an entry
that the log lacks.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from busway._core import Log, block_records
from busway.broker.channels import journal_conversion
from busway.broker.channels.compaction import Compaction
from busway.broker.channels.journal_identity import JournalIdentity
from busway.broker.channels.progress_records import ENTRIES, SNAPSHOT, entries_of, record
from busway.broker.channels.state.progress import Deleted, Entry, Stamp, States, apply
from busway.broker.storage import data_folder
from busway.broker.streams.damage import DamageReport
from busway.common import environment
from busway.errors import BusError, DataFailed, StoreFailed
from busway.settings import MiB

log = logging.getLogger("busway.broker")

Safety: TypeAlias = Literal["memory", "written", "synced"]

_BUCKET: Final = MiB
"""The size of a bucket: the log grows by so much before a compaction can remove records."""
_BLOCK: Final = MiB
"""Bytes of one read at the start."""
_HEAD: Final = 80
"""About the bytes of a record besides its entries."""
_FOREVER: Final = 1 << 62
_QUICK: Final = 0.002
"""Seconds. After a slower write on the event loop the log's thread writes for a while, so that the loop is not blocked."""
_RESTING: Final = 5.0
"""Seconds for which the thread writes after a slow write on the event loop."""
_RETRY: Final = 0.15
"""Seconds after which a log that failed accepts records again."""


class _Waiting(NamedTuple):
    """A write that is not safe yet."""

    end: int
    """The offset behind its record."""
    names: Iterable[str]
    """The channels of its entries."""
    written: "asyncio.Future[None]"


def open_log(folder: Path, safety: Safety, **more: Any) -> Log:
    """Open the progress log in this folder."""
    return environment.open_log(
        folder,
        name=f"{folder.parent.name}/{folder.name}",
        # With the safety "memory" nobody waits for the log, but it is written all the same.
        safety="written" if safety == "memory" else safety,
        bucket_bytes=_BUCKET,
        bucket_age=_FOREVER,
        max_age=0,
        **more,
    )


class ProgressLog:
    """The progress log of one stream.

    `new`: the stream is being created. `copy`: the log is a replica of another broker's, and has the stamps of that one.
    """

    def __init__(self, folder: Path, safety: Safety = "written", *, new: bool = False, copy: bool = False) -> None:
        self.folder = folder / data_folder.CHANNELS
        self.lineage = None if copy else JournalIdentity(new=new)
        """The identity and length of the log. None for a replica."""
        self.stamp: Stamp | None = None
        """The last stamp that was written or read."""
        self.watcher: Callable[[list[Entry]], asyncio.Future[None] | None] | None = None
        """Gets all entries when they are written. May return a future that is done when a mirror has them, too."""
        self.failed = 0
        self.compactions = 0
        self._safety = safety
        self._copy = copy
        self._log: Log | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._states: States = {}
        self._waiting: deque[_Waiting] = deque()
        self._stale = False
        """Whether the log lacks entries. The next write begins with snapshots of their channels."""
        self._missing: dict[str, None] = {}
        """The channels whose entries the log lacks."""
        self._failing = False
        self._closed = False
        self._slow_until = 0.0
        self._compaction = Compaction()
        self._damage = DamageReport(log, f"channels of stream {folder.name!r}")
        self._unknown = 0
        """Records that this version can't read."""

    # Start and stop.

    async def start(self) -> States:
        """Read the log. Returns the state of each channel."""
        states = await asyncio.get_running_loop().run_in_executor(None, self.open)
        self.listen()
        return states

    def open(self) -> States:
        """Read the log, on any thread. Before the first write, call listen()."""
        journal_conversion.convert(self.folder, open_log, copy=self._copy)
        self._log = opened = open_log(self.folder, self._safety)
        offset = opened.first
        while offset < opened.safe:
            first, following, block = opened.read(offset, _BLOCK)
            for row in block_records(block):
                self._found(row[0], row[3], row[4])
            offset = max(first, following, offset + 1)
        self._damage.report(opened.damage)
        if self.lineage is not None:
            holes = any(end is not None and end > begin for _, _, begin, end, _ in opened.damage)
            self.lineage.begin(damaged=holes or bool(self._unknown))
        self._compaction.resume(opened.usage[0], len(self._states))
        return {name: state.copy() for name, state in self._states.items()}

    def _found(self, offset: int, topic: str, body: bytes) -> None:
        try:
            entries = entries_of(body)
        except ValueError as error:
            self._unknown += 1
            log.error("%s: the record at offset %d can't be read: %s", self.folder, offset, error)  # noqa: TRY400
            return
        for entry in entries:
            self._put(entry)
            if self.lineage is None:
                continue
            if isinstance(entry, Stamp):
                self.lineage.found(entry)
            elif topic == ENTRIES:
                self.lineage.found(None)

    def listen(self) -> None:
        """Begin to write."""
        assert self._log is not None, "open() comes first"
        self._loop = asyncio.get_running_loop()
        if (handle := self._log.fileno()) is not None:
            self._loop.add_reader(handle, self._rung)
        if self.lineage is not None:
            self._stale = True  # it lacks the stamp of this opening
            self.write([]).add_done_callback(ignore_failure)

    def kill(self) -> None:
        """Write nothing more, as if the process was killed."""
        self._compaction.fail()
        loop, self._loop = self._loop, None
        if loop is not None and self._log is not None and (handle := self._log.fileno()) is not None:
            loop.remove_reader(handle)

    def close(self) -> None:
        """Write what waits to be written, and close the log."""
        self.kill()
        if self._log is not None and not self._closed:
            self._closed = True
            refusal = None
            try:
                self._log.close()
            except DataFailed as error:
                log.error("%s: %s", self.folder, error)  # noqa: TRY400, a disk error
                refusal = self._refusal(error.reason)
            for waiting in self._waiting:
                _finish(waiting.written, refusal)

    async def stop(self) -> None:
        """Wait until all entries are written, or one retry has failed, and close the log."""
        if self._log is None or self._closed:
            return
        await self._all_written()
        if self._stale:
            await asyncio.sleep(_RETRY)
            await self._all_written()
        self.kill()
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    async def _all_written(self) -> None:
        written = self.write([])
        written.add_done_callback(ignore_failure)
        await asyncio.wait([written])

    @property
    def safety(self) -> Safety:
        return self._safety

    @safety.setter
    def safety(self, safety: Safety) -> None:
        self._safety = safety
        if self._log is not None:
            self._log.set(safety="written" if safety == "memory" else safety)

    def figures(self) -> dict[str, Any]:
        size, buckets, index = (0, 0, 0) if self._log is None else self._log.usage
        return {
            "folder": str(self.folder),
            "bytes": size + index,
            "buckets": buckets,
            "channels": len(self._states),
            "damage": self._unknown + (0 if self._log is None else len(self._log.damage)),
            "failed": self.failed,
            "compactions": self.compactions,
        }

    # Write.

    def write(self, entries: Iterable[Entry | Stamp]) -> "asyncio.Future[None]":
        """Write entries. The future is done when these and all earlier ones are as safe as promised; else StoreFailed.

        Without entries it reports the same of the earlier ones. With the safety "memory" the future is done at once,
        and a failure is only logged.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        given = list(entries)
        for entry in given:
            self._put(entry)
        plain = [entry for entry in given if not isinstance(entry, Stamp)]
        if self.lineage is not None:
            self.lineage.add(len(plain))
        mirrored = self.watcher(plain) if self.watcher is not None and plain else None
        self._write(given, dict.fromkeys(entry.channel for entry in plain), written)
        return written if mirrored is None else _both(written, mirrored)

    def mended(self, known: Stamp) -> None:
        """Record that the log has been restored up to this stamp from a mirror."""
        if self.lineage is not None:
            self.lineage.mended(known)
            self.write([self.lineage.stamp()]).add_done_callback(ignore_failure)

    def look(self, then: Callable[[list[Entry]], object]) -> None:
        """Call `then` with entries that make up the current state. The watcher gets all later entries."""
        then([entry for state in self._states.values() for entry in state.entries()])

    def _put(self, entry: Entry | Stamp) -> None:
        if isinstance(entry, Stamp):
            self.stamp = entry
        else:
            apply(self._states, entry)

    def _write(self, given: list[Entry | Stamp], names: dict[str, None], written: "asyncio.Future[None]") -> None:
        topic = ENTRIES
        if self._stale:
            self._missing.update(names)
            topic, names, given = SNAPSHOT, self._missing, self._snapshots(self._missing)
        try:
            assert self._log is not None, "listen() comes first"
            end = self._append(topic, given)[0] if given else self._log.next
        except DataFailed as error:
            self._fail(names, error.reason)
            _finish(written, None if self._safety == "memory" else self._refusal(error.reason))
            return
        self._stale, self._missing = False, {}
        self._waiting.append(_Waiting(end, names, written))
        if self._safety == "memory":
            written.set_result(None)
        self._release()
        if self._waiting:
            self._rung()  # a write that was tried at once has failed, or the thread writes
        if self._compaction.due:
            self._begin_compaction()

    def _append(self, topic: str, *records: Iterable[Entry | Stamp]) -> tuple[int, int]:
        """Append records. Returns the offset behind them, and their size. Raises DataFailed."""
        assert self._log is not None, "listen() comes first"
        rows = [record(topic, entries) for entries in records]
        placed = self._log.append(rows, environment.time_ns())
        self._flush(self._log)
        if len(placed) < len(rows):
            raise DataFailed("too much waits to be written")
        size = sum(_HEAD + len(row[1]) for row in rows)
        self._compaction.wrote(size)
        return placed[-1][0] + 1, size

    def _flush(self, opened: Log) -> None:
        """Write here, which is cheaper than waking the log's thread, as long as that is quick."""
        begin = environment.monotonic()
        opened.flush(here=begin >= self._slow_until)
        if (end := environment.monotonic()) - begin > _QUICK:
            self._slow_until = end + _RESTING

    def _snapshots(self, names: Iterable[str]) -> list[Entry | Stamp]:
        """The state of these channels, and the current stamp."""
        entries: list[Entry | Stamp] = []
        for name in names:
            state = self._states.get(name)
            entries += [Deleted(name)] if state is None else state.entries()
        stamp = self.stamp if self.lineage is None else self.lineage.stamp()
        return entries if stamp is None else [*entries, stamp]

    # What the log reports.

    def _rung(self) -> None:
        assert self._log is not None, "listen() comes first"
        if (lost := self._log.remove_unwritten()) is not None:
            self._lose(lost[0], lost[2])
        self._release()
        if self._waiting and (stuck := self._log.stuck) is not None:
            self._lose(self._log.safe, stuck[0])

    def _release(self) -> None:
        """Answer writes that are safe."""
        assert self._log is not None, "listen() comes first"
        safe = self._log.safe
        while self._waiting and self._waiting[0].end <= safe:
            _finish(self._waiting.popleft().written, None)
            if self._failing and not self._stale:
                self._failing = False
                log.warning("%s: the progress of channels is written again", self.folder)
        if (keep_from := self._compaction.safe(safe)) is not None:
            self._log.set(keep_from=keep_from)

    def _lose(self, offset: int, reason: str) -> None:
        """The records from this offset on could not be written."""
        refusal = self._refusal(reason)
        while self._waiting and self._waiting[-1].end > offset:
            _, names, written = self._waiting.pop()
            self._missing.update(dict.fromkeys(names))
            _finish(written, refusal)
        self._fail((), reason)

    def _fail(self, names: Iterable[str], reason: str) -> None:
        self._stale = True
        self._missing.update(dict.fromkeys(names))
        self._compaction.fail()
        self.failed += 1
        if not self._failing:  # logged once: all writes fail until the disk works again
            self._failing = True
            text = "%s: the progress of channels can't be written, and each later write retries it: %s"
            log.warning(text, self.folder, reason)

    def _refusal(self, reason: str) -> StoreFailed:
        return StoreFailed(f"{self.folder}: the progress of channels can't be written: {reason}")

    # Compaction.

    def _begin_compaction(self) -> None:
        assert self._log is not None, "listen() comes first"
        self._compaction.begin(self._states, self._log.next)
        asyncio.get_running_loop().call_soon(self._compact)

    def _compact(self) -> None:
        """Write the snapshots of some channels. A failure is only logged, because no entry depends on them."""
        if self._stale or (names := self._compaction.take()) is None:
            return
        records = [list(self._states[name].entries()) for name in names if name in self._states]
        try:
            # A stamp with each step, because the log must not lose the last one.
            end, size = self._append(SNAPSHOT, *records, self._snapshots(()))
        except DataFailed as error:
            self._fail((), error.reason)
            return
        if self._compaction.stepped(size, end):
            asyncio.get_running_loop().call_soon(self._compact)
        else:
            self.compactions += 1
            self._rung()


def _finish(written: "asyncio.Future[None]", error: BusError | None) -> None:
    if written.done():
        return  # it was cancelled
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)


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
    """Ignore the result of a write. The log reports a failure itself, and retries with the next write."""
    if not written.cancelled():
        written.exception()
