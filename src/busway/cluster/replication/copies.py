"""The replicas of one primary's streams on a mirror's disk.

They are in `mirrors/<guid of the primary>/<stream>` of the data folder, and each folder has the files of a stream: the
logs with its messages and with the progress of its channels. Clients can read replicas, but not publish to them. The
replica driver owns them; failover delivers from their channels.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from busway._core import Log
from busway.broker.channels.progress_log import ProgressLog, open_converted, open_log
from busway.broker.channels.progress_records import read_states
from busway.broker.channels.state.progress import States
from busway.broker.storage.data_folder import CHANNELS, sync
from busway.broker.storage.permissions import make_folder
from busway.broker.streams.damage import DamageReport
from busway.broker.streams.folder import LOG, read, write
from busway.broker.streams.stream import FOREVER, Stream, settings
from busway.broker.streams.stream_channels import StreamChannels
from busway.cluster.replication.messages import progress_of, stream_of
from busway.common import environment
from busway.errors import DataFailed
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
    """The replica of another node's stream. `rung` is called with the name of a log that has written, or failed to."""

    def __init__(
        self,
        runtime: "Runtime",
        channels: StreamChannels,
        number: int,
        guid: str,
        config: StreamConfig,
        native: Log,
        progress: Log | None,
        folder: Path,
        rung: "Callable[[Copy, str], object]",
    ) -> None:
        super().__init__(runtime, channels, number, config, native, folder)
        self._path = folder
        self._notify = rung
        self.copied = guid
        self.progress = progress
        """The log with the progress of the channels; None: the stream is in memory."""
        self._adopted: ProgressLog | None = None
        self._progress_damage = DamageReport(log, f"replica of the channels of stream {config.name!r}")

    def logs(self) -> Iterator[tuple[str, Log]]:
        """The logs of the stream, by name."""
        yield self.name, self.log
        if self.progress is not None:
            yield progress_of(self.name), self.progress

    def _rung(self) -> None:
        self.log.clear_signal()
        self._notify(self, self.name)

    def _progress_rung(self) -> None:
        assert self.progress is not None, "only that log has this file descriptor"
        self.progress.clear_signal()
        self._notify(self, progress_of(self.name))

    def start(self) -> None:
        super().start()
        self._listen()

    def _listen(self) -> None:
        if self.progress is not None and (handle := self.progress.fileno()) is not None:
            self._runtime.loop.add_reader(handle, self._progress_rung)

    def open_progress(self, begin: int) -> Log:
        """Open the log with the progress of the channels. A new one begins with this offset."""
        self.progress = open_log(self._path / CHANNELS, begin=begin)
        self._listen()
        return self.progress

    def close_progress(self) -> None:
        progress, self.progress = self.progress, None
        if progress is not None:
            if (handle := progress.fileno()) is not None:
                self._runtime.loop.remove_reader(handle)
            self._close_log(progress)

    def report_damage(self) -> None:
        super().report_damage()
        if self.progress is not None:
            self._progress_damage.report(self.progress.damage)

    def change(self, config: StreamConfig) -> None:
        self.config = config
        self.log.set(**limits(config))

    def close_now(self) -> None:
        """Close the files, since another replica may get the folder."""
        self._stop_listening()
        self.release()
        self.close_progress()
        self._close_log(self.log)

    def _close_log(self, closed: Log) -> None:
        try:
            closed.close()
        except DataFailed as error:
            log.error("replica of stream %r: %s", self.name, error)  # noqa: TRY400, a disk error

    def kill(self) -> None:
        """Write nothing more, as if the process was killed."""
        if self._adopted is not None:
            self._adopted.kill()

    # Channels.

    def states(self) -> States:
        """The progress of the channels."""
        return {} if self.progress is None else read_states(self.progress)[0]

    def adopt(self, written: Callable[[], object]) -> tuple[ProgressLog, States]:
        """Deliver from the channels: their progress is written to this replica from now on.

        `written` is called when it has more records on the disk.
        """
        self._adopted = ProgressLog(self._path, opened=self.progress, written=written)
        states = self._adopted.open()
        self._adopted.listen()
        return self._adopted, states

    def release(self) -> None:
        """Another broker delivers from the channels again."""
        if self._adopted is not None:
            self._adopted.close()
            self._adopted = None
            self._listen()


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
        self, runtime: "Runtime", broker: "CopyBroker", root: Path, guid: str, rung: Callable[[Copy, str], object]
    ) -> None:
        self._runtime = runtime
        self._broker = broker
        self._root = root / FOLDER / guid
        self._guid = guid
        self._rung = rung
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
        progress = None if config.store == "memory" else open_converted(folder / CHANNELS)
        channels, number = self._broker.channels(), self._broker.number()
        copy = Copy(self._runtime, channels, number, self._guid, config, native, progress, folder, self._rung)
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
        return [name for copy in self.streams.values() for name, _ in copy.logs()]

    def find(self, log: str) -> Log | None:
        copy = self.streams.get(stream_of(log))
        return None if copy is None else dict(copy.logs()).get(log)

    def make(self, log: str, config: StreamConfig, begin: int) -> Log:
        folder, copy = self._root / config.name, self.streams.get(config.name)
        try:
            if log != config.name:
                if copy is None:
                    raise DataFailed(f"there is no replica of stream {config.name!r} yet")
                copy.close_progress()
                self._put_aside(folder / CHANNELS)
                return copy.open_progress(begin)
            self._let_go(config.name)
            self._put_aside(folder / LOG)
            make_folder(folder)
            write(folder, config)
        except OSError as error:
            raise DataFailed(f"can't create a replica in {folder}: {error.strerror}") from error
        return self._add(config, folder, begin).log

    def _put_aside(self, folder: Path) -> None:
        """Put the log in this folder aside, in place of an earlier one."""
        stream = folder.parent.name
        aside, old = self._root / f".{stream}.aside" / folder.name, self._root / f".{stream}.{folder.name}.removed"
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            make_folder(aside.parent)
            if aside.exists():
                aside.rename(old)
            folder.rename(aside)
            sync(self._root)
            self._delete(old)
            level = logging.WARNING if folder.name == LOG else logging.INFO  # progress differs after a take-over
            log.log(level, "the old replica of stream %r of node %s is now in %s", stream, self._guid[:8], aside)
        environment.drop_log(folder)

    def _delete(self, folder: Path) -> None:
        self._runtime.loop.run_in_executor(None, partial(shutil.rmtree, folder, ignore_errors=True))

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

    def remove(self, stream: str, *, keep: bool) -> None:
        self._let_go(stream)
        folder = self._root / stream
        if not folder.exists():
            return
        aside = self._root / f".{stream}.{'aside' if keep else 'removed'}"
        old = self._root / f".{stream}.old.removed"
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
            self._delete(gone)
        if keep:
            log.warning("the old replica of stream %r of node %s is now in %s", stream, self._guid[:8], aside)

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

    def _let_go(self, name: str) -> None:
        """Close the replica of a stream, because its folder goes or gets another one."""
        if (copy := self.streams.pop(name, None)) is not None:
            self._announce(copy, there=False)
            copy.close_now()

    def kill(self) -> None:
        """Write nothing more, as if the process was killed."""
        for copy in self.streams.values():
            copy.kill()

    def close(self) -> None:
        for copy in self.streams.values():
            copy.close_now()


def found(root: Path) -> list[str]:
    """The guids of the nodes whose replicas are in this data folder."""
    try:
        return sorted(path.name for path in (root / FOLDER).iterdir() if path.is_dir())
    except OSError:
        return []
