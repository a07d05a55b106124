"""The replicas of one primary's streams on a mirror's disk.

They are in `mirrors/<guid of the primary>/<stream>` of the data folder, and each folder has the files of a stream.
Clients can read replicas, but not publish to them. The replica driver owns them; failover delivers from their channels.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from busway._core import Log
from busway.broker.channels.progress_log import ProgressLog
from busway.broker.channels.state.progress import Created, Deleted, Stamp
from busway.broker.storage.data_folder import CHANNELS, sync
from busway.broker.storage.permissions import make_folder
from busway.broker.streams.folder import LOG, read, write
from busway.broker.streams.stream import FOREVER, Stream, settings
from busway.broker.streams.stream_channels import StreamChannels
from busway.cluster.replication.messages import Noted
from busway.common import environment
from busway.errors import BusError, DataFailed
from busway.settings import KiB, MiB
from busway.streams import StreamConfig

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.cluster")

FOLDER: Final = "mirrors"
_RESERVE: Final = 64 * MiB
"""Bytes of the disk that replicas leave free."""
_BUCKET: Final = 64 * MiB

free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free  # noqa: E731, a test replaces it


def limits(config: StreamConfig) -> dict[str, Any]:
    """The settings of a replica's log. The primary decides on retention, and buckets are about as large as there."""
    part = max((config.max_bytes or 8 * _BUCKET) // 8, 64 * KiB)
    free_of = {"max_age": 0, "max_bytes": 0, "max_count": 0, "max_delay": 0, "hold": FOREVER}
    return {**settings(config), **free_of, "bucket_bytes": min(part, _BUCKET)}


class Copy(Stream):
    """The replica of another node's stream."""

    def __init__(
        self,
        runtime: "Runtime",
        channels: StreamChannels,
        number: int,
        guid: str,
        config: StreamConfig,
        native: Log,
        folder: Path,
        rung: "Callable[[Copy], object]",
    ) -> None:
        super().__init__(runtime, channels, number, config, native, folder)
        self._notify = rung
        self.copied = guid
        self.journal = ProgressLog(folder, copy=True)
        self.channels: set[str] = set()
        self.fresh = False
        """The replica has a full snapshot of the channel progress."""
        self._snapshot_open = False
        self.last_write: asyncio.Future[None] | None = None
        """The last write of channel progress, which may be in progress."""

    def _rung(self) -> None:
        self.log.clear_signal()
        self._notify(self)

    def start(self) -> None:
        self.channels = set(self.journal.open())
        self.journal.listen()
        super().start()

    def change(self, config: StreamConfig) -> None:
        self.config = config
        self.log.set(**limits(config))

    async def close(self) -> None:
        await super().close()
        await self.journal.stop()

    def note(self, noted: Noted) -> None:
        """Write channel progress. The journal logs a failure and starts the next write with a full snapshot."""
        gone = [Deleted(name) for name in sorted(self.channels)] if noted.all else []
        if noted.all:
            self.channels, self.fresh, self._snapshot_open = set(), False, True
        for entry in noted.entries:
            if isinstance(entry, Deleted):
                self.channels.discard(entry.channel)
            elif isinstance(entry, Created):
                self.channels.add(entry.channel)
        stamp = [] if noted.stamp is None else [noted.stamp]
        self.last_write = self.journal.write([*gone, *noted.entries, *stamp])
        self.last_write.add_done_callback(_log_failure)
        if self._snapshot_open and not noted.more:
            self.fresh, self._snapshot_open = True, False


class CopyBroker(Protocol):
    """What the replicas ask of their own broker."""

    def channels(self) -> StreamChannels:
        """The channels of all streams."""

    def number(self) -> int:
        """A number that no other stream of the broker has."""

    def copied(self, guid: str, stream: Stream, *, there: bool) -> None:
        """The broker has a replica of another node's stream, or has it no longer."""


class Copies:
    """The replicas of one primary; implements the CopyStore of `replica`."""

    def __init__(
        self, runtime: "Runtime", broker: "CopyBroker", root: Path, guid: str, rung: Callable[[Copy], object]
    ) -> None:
        self._runtime = runtime
        self._broker = broker
        self._root = root / FOLDER / guid
        self._guid = guid
        self._rung = rung
        self._closing: set[asyncio.Task[None]] = set()
        self.streams: dict[str, Copy] = {}

    def open(self) -> None:
        """Open the replicas on the disk. A replica that can't be opened is logged, and later copied again."""
        try:
            folders = sorted(path for path in self._root.iterdir() if path.is_dir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataFailed(f"can't read the replicas in {self._root}: {error.strerror}") from error
        for folder in folders:
            if folder.name.startswith("."):
                if folder.name.endswith(".removed"):
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            try:
                if (config := read(folder)) is not None:
                    self._add(config, folder, 0)
            except DataFailed as error:
                log.error("can't use the replica in %s: %s", folder, error.reason)  # noqa: TRY400, needs no traceback

    def _add(self, config: StreamConfig, folder: Path, begin: int) -> Copy:
        native = environment.open_log(folder / LOG, name=config.name, begin=begin, **limits(config))
        channels, number = self._broker.channels(), self._broker.number()
        copy = Copy(self._runtime, channels, number, self._guid, config, native, folder, self._rung)
        copy.start()
        copy.report_damage()
        self.streams[config.name] = copy
        self._announce(copy, there=True)
        return copy

    def _announce(self, copy: Copy, *, there: bool) -> None:
        """Announce a replica, so that clients can read it here."""
        self._broker.copied(self._guid, copy, there=there)

    # CopyStore.

    def names(self) -> Iterable[str]:
        return list(self.streams)

    def find(self, name: str) -> Log | None:
        copy = self.streams.get(name)
        return None if copy is None else copy.log

    def make(self, config: StreamConfig, begin: int) -> Log:
        self.remove(config.name, keep=True)
        folder = self._root / config.name
        try:
            make_folder(folder)
            write(folder, config)
        except OSError as error:
            raise DataFailed(f"can't create a replica in {folder}: {error.strerror}") from error
        return self._add(config, folder, begin).log

    def configure(self, config: StreamConfig) -> None:
        copy = self.streams[config.name]
        if copy.config == config:
            return
        try:
            write(self._root / config.name, config)
        except OSError as error:
            raise DataFailed(f"can't write {self._root / config.name}: {error.strerror}") from error
        copy.change(config)
        self._announce(copy, there=True)

    def remove(self, name: str, *, keep: bool) -> None:
        if (copy := self.streams.pop(name, None)) is not None:
            self._announce(copy, there=False)
            self._close_soon(copy)
        folder = self._root / name
        if not folder.exists():
            return
        aside = self._root / f".{name}.{'aside' if keep else 'removed'}"
        old = self._root / f".{name}.old.removed"
        try:
            shutil.rmtree(old, ignore_errors=True)
            if aside.exists():
                aside.rename(old)
            folder.rename(aside)
            environment.drop_log(folder / LOG)
            environment.drop_log(folder / CHANNELS)
            sync(self._root)
        except OSError as error:
            raise DataFailed(f"can't put the replica in {folder} aside: {error.strerror}") from error
        for gone in (old,) if keep else (old, aside):
            self._runtime.loop.run_in_executor(None, partial(shutil.rmtree, gone, ignore_errors=True))
        if keep:
            log.warning("the old replica of stream %r of node %s is now in %s", name, self._guid[:8], aside)

    def noted(self, name: str) -> Stamp | None:
        copy = self.streams.get(name)
        return None if copy is None else copy.journal.stamp

    def note(self, name: str, noted: Noted) -> None:
        self.streams[name].note(noted)

    def check_room(self, size: int) -> None:
        try:
            left = free(self._root)
        except OSError as error:
            raise DataFailed(f"{self._root}: {error.strerror}") from error
        if left < size + _RESERVE:
            raise DataFailed(
                f"the disk of the mirror is too full: {left / MiB:.1f} MiB are free,"
                f" of which {_RESERVE / MiB:.0f} MiB are reserved for others"
            )

    # Close.

    def _close_soon(self, copy: Copy) -> None:
        copy.log.close()  # now, since another replica gets its folder
        copy.journal.close()
        task = self._runtime.loop.create_task(copy.close(), name=f"busway replica {copy.config.name}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def kill(self) -> None:
        """Close the files without writing."""
        for copy in self.streams.values():
            copy.journal.kill()

    async def close(self) -> None:
        for copy in self.streams.values():
            await copy.close()
        if self._closing:
            await asyncio.wait(self._closing)


def found(root: Path) -> list[str]:
    """The guids of the nodes whose replicas are in this data folder."""
    try:
        return sorted(path.name for path in (root / FOLDER).iterdir() if path.is_dir())
    except OSError:
        return []


def _log_failure(future: "asyncio.Future[None]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None and not isinstance(error, BusError):
        log.error("unexpected error in the journal of a replica", exc_info=error)
