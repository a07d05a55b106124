"""The progress of a stream's channels on disk: a native log in the folder of the stream.

The log groups, checks and recovers its records as a stream does. Its owner here keeps the state of each channel in
memory, for snapshots: `compaction` decides when they replace older records. Entries that could not be written are
covered by a snapshot of their channels with the next write. So no answer that waits for the log is sent for an entry
that the log lacks.

A mirror copies the log, and may restore records that it lacks. Until that is certain the log rests: it writes nothing.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from busway._core import Log
from busway.broker.channels import journal_conversion
from busway.broker.channels.compaction import Compaction
from busway.broker.channels.progress_records import ENTRIES, SNAPSHOT, read_states, record
from busway.broker.channels.state.progress import Deleted, Entry, States, apply
from busway.broker.storage import data_folder
from busway.broker.streams.damage import DamageReport
from busway.common import environment
from busway.errors import BusError, DataFailed, StoreFailed
from busway.settings import MiB

if TYPE_CHECKING:
    from busway._core import Damage

log = logging.getLogger("busway.broker")

Safety: TypeAlias = Literal["memory", "written", "synced"]

_BUCKET: Final = MiB
"""The size of a bucket: the log grows by so much before a compaction can remove records."""
_HEAD: Final = 80
"""About the bytes of a record besides its entries."""
_FOREVER: Final = 1 << 62
_QUICK: Final = 0.002
"""Seconds. After a slower write on the event loop the log's thread writes for a while, so that the loop is not blocked."""
_RESTING: Final = 5.0
"""Seconds for which the thread writes after a slow write on the event loop."""
_RETRY: Final = 0.15
"""Seconds after which a log that failed accepts records again."""
_ALL: Final = 1 << 40
"""Bytes: all records may wait to be written."""


class _Waiting(NamedTuple):
    """A write that is not safe yet."""

    end: int
    """The offset behind its record."""
    names: Iterable[str]
    """The channels of its entries."""
    written: "asyncio.Future[None]"


class _Rest(NamedTuple):
    """The log when it began to rest."""

    end: int
    damage: "list[Damage]"
    names: frozenset[str]
    """The channels that it had."""


def open_log(folder: Path, safety: Safety = "written", **more: Any) -> Log:
    """Open the native log of a progress log in this folder."""
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


def open_converted(folder: Path, safety: Safety = "written") -> Log:
    """Open the native log in this folder, after a journal of Busway 0.1.0 beside it was converted. Raises DataFailed."""
    journal_conversion.convert(folder, create_log)
    return open_log(folder, safety)


def create_log(folder: Path, states: States) -> None:
    """Create a log with these states, complete on the disk. Raises DataFailed.

    It is never empty: an empty log is one that was lost, and a mirror's copy of a lost log is restored.
    """
    created = open_log(folder, "synced", pending_bytes=_ALL)
    rows = [record(SNAPSHOT, []), *(record(SNAPSHOT, state.entries()) for state in states.values())]
    created.append(rows, environment.time_ns())
    created.close()


class ProgressLog:
    """The progress log of one stream. Its owner may call it from the thread of the event loop only.

    `new`: the stream is being created. `opened`: the native log, if it is open already; close() leaves it open.
    `written` is called when the log may have more records on the disk.
    """

    def __init__(
        self,
        folder: Path,
        safety: Safety = "written",
        *,
        new: bool = False,
        opened: Log | None = None,
        written: Callable[[], object] = lambda: None,
    ) -> None:
        self.folder = folder / data_folder.CHANNELS
        self.failed = 0
        self.compactions = 0
        self._safety = safety
        self._new = new
        self._opened = opened
        self._log: Log | None = opened
        self._notify = written
        self._loop: asyncio.AbstractEventLoop | None = None
        self._states: States = {}
        self._waiting: deque[_Waiting] = deque()
        self._stale = False
        """Whether the log lacks entries. The next write begins with snapshots of their channels."""
        self._missing: dict[str, None] = {}
        """The channels whose entries the log lacks."""
        self._rest: _Rest | None = None
        self._deferred: list[asyncio.Future[None]] = []
        """Writes that wait until the log rests no more."""
        self._failing = False
        self._closed = False
        self._slow_until = 0.0
        self._compaction = Compaction()
        self._damage = DamageReport(log, f"channels of stream {folder.name!r}")
        self._unreadable: list[str] = []
        """Records that this version can't read."""

    # Start and stop.

    async def start(self) -> States:
        """Read the log. Returns the state of each channel."""
        states = await asyncio.get_running_loop().run_in_executor(None, self.open)
        self.listen()
        return states

    def open(self) -> States:
        """Read the log, on any thread. Before the first write, call listen()."""
        if self._log is None:
            if self._new:
                create_log(self.folder, {})
            self._log = open_converted(self.folder, self._safety)
        self._states = self._read()
        self._compaction.resume(self._log.usage[0], len(self._states))
        return {name: state.copy() for name, state in self._states.items()}

    def _read(self) -> States:
        states, self._unreadable = read_states(self.native)
        for problem in self._unreadable:
            log.error("%s: %s", self.folder, problem)
        self._damage.report(self.native.damage)
        return states

    @property
    def native(self) -> Log:
        """The log of the engine, which a mirror copies."""
        assert self._log is not None, "open() comes first"
        return self._log

    def listen(self) -> None:
        """Begin to write."""
        self._loop = asyncio.get_running_loop()
        if (handle := self.native.fileno()) is not None:
            self._loop.add_reader(handle, self._rung)

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
            if self._rest is not None:
                self.refuse("no mirror has restored lost records before the broker stopped")
            try:
                if self._opened is None:
                    self._log.close()
            except DataFailed as error:
                log.error("%s: %s", self.folder, error)  # noqa: TRY400, a disk error
                self.refuse(error.reason)
            for waiting in self._waiting:
                _finish(waiting.written, None)

    async def stop(self) -> None:
        """Wait until all entries are written, or one retry has failed, and close the log."""
        if self._log is None or self._closed:
            return
        self.confirm(None)
        if self._rest is None:
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
            "damage": len(self._unreadable) + (0 if self._log is None else len(self._log.damage)),
            "failed": self.failed,
            "compactions": self.compactions,
        }

    # Write.

    def write(self, entries: Iterable[Entry]) -> "asyncio.Future[None]":
        """Write entries. The future is done when these and all earlier ones are as safe as promised; else StoreFailed.

        Without entries it reports the same of the earlier ones. With the safety "memory" the future is done at once,
        and a failure is only logged.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        given = list(entries)
        for entry in given:
            apply(self._states, entry)
        names = dict.fromkeys(entry.channel for entry in given)
        if self._rest is None:
            self._write(given, names, written)
        else:
            self._stale = True
            self._missing.update(names)
            self._deferred.append(written)
        return written

    def _write(self, given: list[Entry], names: dict[str, None], written: "asyncio.Future[None]") -> None:
        topic = ENTRIES
        if self._stale:
            self._missing.update(names)
            topic, names, given = SNAPSHOT, self._missing, self._snapshots(self._missing)
        try:
            end = self._append(topic, given)[0] if given else self.native.next
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
        else:
            self._notify()
        if self._compaction.due:
            self._begin_compaction()

    def _append(self, topic: str, *records: Iterable[Entry]) -> tuple[int, int]:
        """Append records. Returns the offset behind them, and their size. Raises DataFailed."""
        rows = [record(topic, entries) for entries in records]
        placed = self.native.append(rows, environment.time_ns())
        self._flush(self.native)
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

    def _snapshots(self, names: Iterable[str]) -> list[Entry]:
        """The state of these channels."""
        entries: list[Entry] = []
        for name in names:
            state = self._states.get(name)
            entries += [Deleted(name)] if state is None else state.entries()
        return entries

    # Mirrors.

    def confirm(self, upto: int | None) -> None:
        """A mirror has the records below this offset; writes above it wait. None: no write waits for a mirror."""
        if not self._closed:
            self.native.confirm(upto)
            self._release()

    def rest(self) -> None:
        """Defer all writes until wake(), because a mirror may restore records that this log has lost."""
        self._compaction.fail()
        self._rest = _Rest(self.native.next, self.native.damage, frozenset(self._states))

    def restored(self) -> tuple[States, frozenset[str]] | None:
        """The states of a resting log, and the channels that it had before the rest. None: nothing was restored.

        The next write repeats the states, because deferred entries follow those that were restored.
        """
        if self._rest is None or (self.native.next, self.native.damage) == self._rest[:2]:
            return None
        states = self._read()
        self._stale = True
        self._missing.update(dict.fromkeys(states))
        return states, self._rest.names

    def wake(self) -> None:
        """Write again, at first what was deferred."""
        self._rest = None
        deferred, self._deferred = self._deferred, []
        for written in deferred:
            self._write([], {}, written)

    def refuse(self, reason: str) -> None:
        """Fail all writes that wait, though their entries may be written."""
        refused = [*self._deferred, *(waiting.written for waiting in self._waiting)]
        self._deferred.clear()
        self._waiting.clear()
        for written in refused:
            _finish(written, self._refusal(reason))

    # What the log reports.

    def _rung(self) -> None:
        if (lost := self.native.remove_unwritten()) is not None:
            self._lose(lost[0], lost[2])
        self._release()
        if self._waiting and (stuck := self.native.stuck) is not None:
            self._lose(self.native.written, stuck[0])
        self._notify()

    def _release(self) -> None:
        """Answer writes that are safe."""
        safe = self.native.safe
        while self._waiting and self._waiting[0].end <= safe:
            _finish(self._waiting.popleft().written, None)
            if self._failing and not self._stale:
                self._failing = False
                log.warning("%s: the progress of channels is written again", self.folder)
        if (keep_from := self._compaction.safe(safe)) is not None:
            self.native.set(keep_from=keep_from)

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
        self._compaction.begin(self._states, self.native.next)
        asyncio.get_running_loop().call_soon(self._compact)

    def _compact(self) -> None:
        """Write the snapshots of some channels. A failure is only logged, because no entry depends on them."""
        if self._stale or (names := self._compaction.take()) is None:
            return
        records = [list(self._states[name].entries()) for name in names if name in self._states] or [[]]
        try:
            end, size = self._append(SNAPSHOT, *records)
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


def ignore_failure(written: "asyncio.Future[None]") -> None:
    """Ignore the result of a write. The log reports a failure itself, and retries with the next write."""
    if not written.cancelled():
        written.exception()
