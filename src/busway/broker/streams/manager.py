"""The streams of a broker: opens, creates, updates and removes them, trims old messages and releases delayed ones.

The engine appends, acknowledges and delivers; this module registers the logs with it, and the hub calls this module. A
delayed message is stored once more when it is due; from then on it is a message like any other.
"""

import asyncio
import heapq
import logging
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from busway._core import matches
from busway.broker.storage.permissions import make_folder
from busway.broker.streams.database import FILE, DamagedDatabase, Databases, DatabaseStream
from busway.broker.streams.folder import (
    CONFIG,
    COPY,
    LOG,
    StoreUnnamed,
    copy_config,
    discard,
    handles,
    missing,
    read,
    write,
)
from busway.broker.streams.replay import Replays
from busway.broker.streams.stores.names import unknown_store
from busway.broker.streams.stream import BILLION, Stream, settings
from busway.broker.streams.stream_channels import StreamChannels
from busway.broker.streams.table import StreamTable
from busway.broker.streams.tombstones import Tombstones
from busway.common import environment
from busway.errors import BusError, Code, DataFailed, LimitExceeded, Rejected
from busway.streams import DEFAULT, DEFAULT_AGE, STORES, StreamConfig

if TYPE_CHECKING:
    from busway.broker.disk_watch import DiskWatch
    from busway.broker.peers import StreamPeers
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.broker")

FOLDER: Final = "streams"
_TRIM: Final = 10.0
"""Seconds between two removals of old messages."""
_SEALED: Final = 0.2
"""Seconds until the next removal of old messages after the settings of a stream were changed."""
_AGAIN: Final = BILLION
"""Nanoseconds until the release of a due message is retried that could not be stored."""
_HANDLES: Final = 64
"""File handles that stay free for connections and for reading when a stream is created."""


class Streams:
    """All streams of one broker."""

    def __init__(
        self,
        runtime: "Runtime",
        table: StreamTable,
        folder: Path | None,
        stores: Mapping[str, str],
        peers: "StreamPeers",
        channels: StreamChannels,
        replays: Replays,
        disk: "DiskWatch",
    ) -> None:
        self._runtime = runtime
        self._peers = peers
        self._channels = channels
        self._replays = replays
        self._disk = disk
        self._stores = stores
        """URLs of databases, by the names that the operator has given them."""
        self._folder = folder / FOLDER if folder is not None else None
        self._guid = bytes.fromhex(runtime.guid)
        self._table = table
        self.by_name, self.damaged, self.changes = table.by_name, table.damaged, table.changes
        self.get, self.taking, self.number, self.best = table.get, table.taking, table.number, table.best
        self._due: list[tuple[int, int, int]] = []  # when, stream, offset
        self._trimmed = runtime.loop.time()
        self._databases = Databases()
        self._ends = Tombstones(self._folder)
        self._changing = asyncio.Lock()
        self._end_unconfirmed = False

    # Start and stop.

    async def open(self, *, clustered: bool = False) -> None:
        """Open the streams of the data folder. `clustered`: a mirror may restore lost messages."""
        self._ends.open()
        self._end_unconfirmed = clustered
        known = self._folder is not None and self._folder.is_dir()
        configs = {config.name: config for config in self._found()}
        if DEFAULT not in configs:
            if DEFAULT in self.damaged:  # the broker needs it
                raise DataFailed(self.damaged[DEFAULT])
            configs[DEFAULT] = StreamConfig(name=DEFAULT, store=self.best, max_age=DEFAULT_AGE)
        async with self._changing:
            for config in configs.values():
                try:
                    self._check(config)
                except Rejected as error:
                    raise DataFailed(f"the stream {config.name!r} can't be opened: {error}") from error
                try:
                    await self._add(config, lost=known and config.name == DEFAULT)
                except DamagedDatabase as error:
                    if config.name == DEFAULT:
                        raise
                    self.damaged[config.name] = error.reason
        for reason in self.damaged.values():
            log.error(
                "%s; the broker runs without it: messages of its topics go to other streams, "
                "or are refused in a cluster that has the stream",
                reason,
            )

    @property
    def storing(self) -> bool:
        """Whether some messages are not yet as safe as promised."""
        return any(stream.log.next > stream.log.safe for stream in self.by_name.values())

    def _found(self) -> list[StreamConfig]:
        """The streams in the data folder."""
        if self._folder is None:
            return []
        try:
            folders = sorted(folder for folder in self._folder.iterdir() if folder.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataFailed(f"the streams in {self._folder} can't be read: {error.strerror}") from error
        found: list[StreamConfig] = []
        for folder in folders:
            if folder.name.startswith("."):
                shutil.rmtree(folder, ignore_errors=True)  # the stream was removed, and only files are left
                continue
            try:
                config = read(folder, self._stores)
            except StoreUnnamed:
                raise  # otherwise messages of its topics would go to another stream
            except DataFailed as error:
                self.damaged[folder.name] = error.reason
                continue
            if config is not None:
                found.append(config)
        return found

    async def close(self) -> None:
        """Write queued messages, and close the files."""
        async with self._changing:
            for stream in self.by_name.values():
                if stream.config.store == "memory":
                    self._ends.ended(stream.config.name, stream.safe)
            closing = [stream.close() for stream in self.by_name.values()]
            for error in await asyncio.gather(*closing, return_exceptions=True):
                if error is not None:
                    log.error("unexpected error while a stream was closed", exc_info=error)

    # Changes of streams, one at a time.

    async def create(self, config: StreamConfig, *, lost: bool = False) -> Stream:
        """Create a stream, unless it exists with the same settings. `lost`: the broker had it when it ran last."""
        async with self._changing:
            if (old := self.by_name.get(config.name)) is not None:
                if msgspec.structs.replace(old.config, former=()) == config:
                    return old
                raise Rejected(
                    f"there is a stream {config.name!r} with other settings ({old.config.differences(config)}); "
                    "use the settings that it has, or update it",
                    code=Code.DUPLICATE,
                )
            self._table.refuse_damaged(config.name)
            self._check(config)
            self._check_room(config.name)
            stream = await self._add(config, new=True, lost=lost)
            # In the same turn of the loop as the engine got the stream, so that no subscription gets a message twice.
            self._replays.added(stream)
            self._tell_nodes(stream)
            return stream

    async def update(self, config: StreamConfig) -> Stream:
        """Change all settings of a stream but its store. Messages beyond its new limits are removed at once."""
        async with self._changing:
            stream, before = self.get(config.name), self.get(config.name).config
            if before.store != config.store:
                raise Rejected(
                    f"the store of stream {config.name!r} can't be changed; create another stream",
                    code=Code.INVALID_SETTING,
                )
            self._check(config)
            if stream.folder is not None:
                try:
                    write(stream.folder, config)
                except OSError as error:
                    raise DataFailed(f"stream {config.name!r} can't be changed: {error.strerror}") from error
            stream.change(config)
            self._lend(stream)
            self._replays.widened(stream, before)
            self._tell_nodes(stream)
            stream.trim(environment.time_ns())
            # The bucket that was sealed just now can be removed after it is written.
            self._trimmed = self._runtime.loop.time() - _TRIM + _SEALED
            self._runtime.arm()
            return stream

    async def remove(self, name: str, still: Callable[[], bool] = lambda: True) -> None:
        """Remove a stream and its messages, if `still` returns true once all earlier changes are done."""
        if name == DEFAULT:
            raise Rejected("the stream 'default' can't be removed", code=Code.INVALID_SETTING)
        async with self._changing:
            if not still():
                return
            stream = self.get(name)
            # First the engine: from now on it stores nothing in the stream, so its end is final.
            self._runtime.engine.remove_stream(stream.number)
            self._runtime.flush()
            try:
                self._ends.ended(name, stream.log.next)
                await stream.drop()
            except BaseException:
                self._lend(stream)
                raise
            del self.by_name[name]
            self._tell_nodes(stream, there=False)
            if behind := self._replays.removed(stream):
                log.warning("stream %r is removed; %d subscriptions had not reached its end", name, behind)
            await self._channels.removed(stream)
            self._runtime.flush()
            try:
                await stream.close()
            except BusError as error:
                log.warning("stream %r is removed; closing it failed: %s", name, error)
            if stream.folder is not None:
                gone = discard(stream.folder)
                await asyncio.to_thread(shutil.rmtree, gone, ignore_errors=True)  # the next start removes the rest

    def _tell_nodes(self, stream: Stream, *, there: bool = True) -> None:
        self.changes.count += 1
        self._peers.changed(stream, there=there)
        self._runtime.flush()

    def _check_room(self, name: str) -> None:
        self._peers.check_limit(name)
        if len(self.by_name) >= (most := self._runtime.settings.streams):
            raise LimitExceeded(f"there are {most} streams already (setting streams)", code=Code.TOO_MANY_STREAMS)
        used, most = handles()
        if used + _HANDLES > most:
            raise LimitExceeded(
                f"{used} of {most} file handles are in use, and a stream needs some; "
                "raise the limit (ulimit -n) or remove streams",
                code=Code.TOO_MANY_STREAMS,
            )

    def check_mirror(self, config: StreamConfig) -> None:
        """Refuse the safety `mirrored` if this broker has no mirror. Only for requests of clients of this broker."""
        if config.safety == "mirrored" and not self._peers.mirrored:
            others = self._peers.mirrored_nodes()
            hint = f"; or ask {' or '.join(others)}, which has a mirror" * bool(others)
            raise Rejected(
                "this broker has no mirror, so no message can be mirrored: "
                f"start a broker with --mirror-of first{hint}",
                code=Code.INVALID_SETTING,
            )

    def without_mirror(self) -> None:
        """The broker is in no cluster, so it has no mirror: acknowledge without one."""
        for stream in self.by_name.values():
            if stream.config.safety == "mirrored":
                stream.mirrored = False
                log.warning(
                    "stream %r has safety=mirrored but this broker is in no cluster: "
                    "publishes here are acknowledged with one copy",
                    stream.config.name,
                )

    def has_ended(self, name: str) -> bool:
        """Whether a stream of this name was removed."""
        return name in self._ends

    def _check(self, config: StreamConfig) -> None:
        if config.store == "disk" and self._folder is None:
            raise Rejected(
                "a stream on disk needs a broker with a data folder (busway serve --data FOLDER)",
                code=Code.INVALID_SETTING,
            )
        if config.store == "db" and self._folder is None:
            raise Rejected(
                "the store 'db' is a SQLite file, and needs a broker with a data folder (busway serve --data FOLDER)",
                code=Code.INVALID_SETTING,
            )
        if config.store not in STORES and config.store not in self._stores:
            raise Rejected(unknown_store(config.store, self._stores), code=Code.INVALID_SETTING)
        for other in self.by_name.values():
            if other.config.name == config.name:
                continue
            for pattern in config.topics:
                for claimed in other.config.topics:
                    if matches(pattern, claimed):
                        raise Rejected(
                            f"{pattern!r} overlaps {claimed!r} of the stream {other.config.name!r}; "
                            "each topic is in one stream",
                            code=Code.DUPLICATE,
                        )

    async def _add(self, config: StreamConfig, *, new: bool = False, lost: bool = False) -> Stream:
        """Open or create a stream. `lost`: the broker had it before, so its folder should exist."""
        folder, made = None, False
        if config.store != "memory" and self._folder is not None:
            folder = self._folder / config.name
            try:
                made = not folder.exists()
                make_folder(folder)
                if new or not (folder / CONFIG).exists():
                    write(folder, config)
                else:
                    copy_config(folder)
            except OSError as error:
                raise DataFailed(f"stream {config.name!r} can't be created in {folder}: {error.strerror}") from error
        gone = None if folder is None or config.store != "disk" else missing(folder, made=made, new=new, lost=lost)
        try:
            stream = await self._open(config, folder)
            stream.new = new and not lost
            stream.end_unconfirmed = self._end_unconfirmed and not stream.new and config.store == "disk"
            stream.miss(gone)
            try:
                await self._channels.added(stream)
            except BaseException:
                await stream.close()
                raise
        except BaseException:
            if new and folder is not None:  # otherwise the broker could not start again
                (folder / CONFIG).unlink(missing_ok=True)
                (folder / COPY).unlink(missing_ok=True)
                if made:
                    shutil.rmtree(folder, ignore_errors=True)
            raise
        self.by_name[config.name] = stream
        self._lend(stream)
        stream.start()
        for when, offset in stream.log.waiting():
            self.later(stream.number, when, offset)
        return stream

    async def _open(self, config: StreamConfig, folder: Path | None) -> Stream:
        number = self.number()
        if config.in_database:
            address = self._stores.get(config.store) or (folder and folder / FILE)
            if address is None:
                raise DataFailed(f"stream {config.name!r} needs a data folder for its SQLite file")
            return await DatabaseStream.open(
                self._runtime,
                self._channels,
                number,
                config,
                folder,
                self._databases,
                address,
                self._ends.begin(config),
            )
        place = folder / LOG if folder else None
        native = environment.open_log(place, name=config.name, begin=self._ends.begin(config), **settings(config))
        stream = Stream(self._runtime, self._channels, number, config, native, folder)
        stream.report_damage()
        return stream

    def _lend(self, stream: Stream) -> None:
        patterns = None if stream.config.name == DEFAULT else list(stream.config.topics)
        self._runtime.engine.add_stream(stream.number, stream.config.name, self._guid, stream.log, patterns)
        stream.report_level()
        self._disk.added(stream)

    # Time.

    def later(self, number: int, when: int, offset: int) -> None:
        """Schedule the release of a delayed message."""
        heapq.heappush(self._due, (when, number, offset))
        self._runtime.arm()

    def deadline(self) -> float | None:
        """The time, by the loop's clock, at which expire() has to be called next."""
        ahead = self._trimmed + _TRIM
        if self._due:
            ahead = min(ahead, self._runtime.loop.time() + max(self._due[0][0] - environment.time_ns(), 0) / BILLION)
        return ahead

    def expire(self, now: float) -> None:
        """Release due messages and remove old ones."""
        clock = environment.time_ns()
        by_number = {stream.number: stream for stream in self.by_name.values()}
        while self._due and self._due[0][0] <= clock:
            _, number, offset = heapq.heappop(self._due)
            if (stream := by_number.get(number)) is not None:
                self._release(stream, offset)
        if now >= self._trimmed + _TRIM:
            self._trimmed = now
            for stream in self.by_name.values():
                stream.trim(clock)

    def _release(self, stream: Stream, offset: int) -> None:
        try:
            found = stream.read(offset, 1, partial(self._release_fetched, stream, offset))
        except BusError as error:
            name = stream.config.name
            log.error("stream %r: a due message can't be read, and is retried: %s", name, error)  # noqa: TRY400
            self.later(stream.number, environment.time_ns() + _AGAIN, offset)
            return
        if found is None:
            return
        if found[0] != offset or not found[2]:
            if stream.first <= offset:  # otherwise retention has removed it, which is logged
                log.error("stream %r: the due message at offset %d is damaged, and is lost", stream.config.name, offset)
        elif not self._runtime.engine.release(stream.number, found[2]):
            self.later(stream.number, environment.time_ns() + _AGAIN, offset)

    def _release_fetched(self, stream: Stream, offset: int) -> None:
        if self.by_name.get(stream.config.name) is stream:
            self._release(stream, offset)
            self._runtime.flush()
