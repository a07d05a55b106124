"""The streams of a broker: opens their logs, lends them to the engine, and does what goes beyond one message.

Appending, answering and delivering is the engine's. Here streams are made, changed and removed, old messages leave, and
what was stored to be delivered later is stored once more when its time has come: then it is a message like any other.
"""

import asyncio
import heapq
import logging
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from busway.broker.streams.stores.names import unknown_store
from busway.broker.streams.stream import BILLION, Stream, settings
from busway.broker.streams.tombstones import Tombstones
from busway.common import environment
from busway.errors import BusError, Code, DataFailed, LimitExceeded, Rejected
from busway.streams import DEFAULT, DEFAULT_AGE, STORES, Store, StreamConfig

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.broker")

FOLDER: Final = "streams"
_TRIM: Final = 10.0
"""Seconds between two looks for old messages."""
_SEALED: Final = 0.2
"""And after settings were changed."""
_AGAIN: Final = BILLION
"""Nanoseconds until a message is tried again that was due and could not be stored."""
_HANDLES: Final = 64
"""File handles that are left for connections and for reading when a stream is made."""


class Changes:
    """How often a stream was made, changed or removed."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Streams:
    """All streams of one hub."""

    def __init__(self, hub: "Hub", folder: Path | None, stores: Mapping[str, str]) -> None:
        self._hub = hub
        self._stores = stores
        """URLs of databases by the names that the operator has given them."""
        self._folder = folder / FOLDER if folder is not None else None
        self._guid = bytes.fromhex(hub.guid)
        self.by_name: dict[str, Stream] = {}
        self.damaged: dict[str, str] = {}
        """Streams that can't be opened, and why."""
        self._numbers = 0
        self._due: list[tuple[int, int, int]] = []  # when, stream, offset
        self._trimmed = hub.loop.time()
        self._databases = Databases()
        self._ends = Tombstones(self._folder)
        self._changing = asyncio.Lock()
        self._unsettled = False
        self.changes = Changes()

    # From start to stop.

    async def open(self, *, clustered: bool = False) -> None:
        """Open what is in the data folder, and the default stream. `clustered`: there may be a mirror, from which something comes back."""
        self._ends.open()
        self._unsettled = clustered
        known = self._folder is not None and self._folder.is_dir()
        configs = {config.name: config for config in self._found()}
        if DEFAULT not in configs:
            if DEFAULT in self.damaged:  # there is no broker without it
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
                "%s; the broker goes on without it: what is published on its topics goes to other streams, or is refused in a cluster that has it",
                reason,
            )

    @property
    def best(self) -> Store:
        """Where streams are stored that don't say so."""
        return "memory" if self._folder is None else "disk"

    @property
    def storing(self) -> bool:
        """Whether there are messages that are not yet as safe as promised."""
        return any(stream.log.next > stream.log.safe for stream in self.by_name.values())

    def _found(self) -> list[StreamConfig]:
        """What the data folder says of its streams."""
        if self._folder is None:
            return []
        try:
            folders = sorted(one for one in self._folder.iterdir() if one.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataFailed(f"the streams in {self._folder} can't be read: {error.strerror}") from error
        found: list[StreamConfig] = []
        for folder in folders:
            if folder.name.startswith("."):
                shutil.rmtree(folder, ignore_errors=True)  # removed, but for its files
                continue
            try:
                config = read(folder, self._stores)
            except StoreUnnamed:
                raise  # without it, messages of its topics would go to another stream
            except DataFailed as error:
                self.damaged[folder.name] = error.reason
                continue
            if config is not None:
                found.append(config)
        return found

    async def close(self) -> None:
        """Write what waits, and let go of the files."""
        async with self._changing:
            for stream in self.by_name.values():
                if stream.config.store == "memory":
                    self._ends.ended(stream.config.name, stream.safe)
            closing = [stream.close() for stream in self.by_name.values()]
            for error in await asyncio.gather(*closing, return_exceptions=True):
                if error is not None:
                    log.error("unexpected error while a stream was closed", exc_info=error)

    # Streams come and go, one change at a time.

    async def create(self, config: StreamConfig, *, lost: bool = False) -> Stream:
        """Make a stream. One that is there with the same settings is fine. `lost`: it was here when the broker ran last."""
        async with self._changing:
            if (old := self.by_name.get(config.name)) is not None:
                if msgspec.structs.replace(old.config, former=()) == config:
                    return old
                raise Rejected(
                    f"there is a stream {config.name!r} with other settings ({old.config.differences(config)}); "
                    "ask for those that it has, or update it",
                    code=Code.DUPLICATE,
                )
            self._refuse_damaged(config.name)
            self._check(config)
            self._check_room(config.name)
            stream = await self._add(config, new=True, lost=lost)
            # In the same turn as the engine got it: who misses nothing of it gets nothing twice.
            self._hub.replays.added(stream)
            self._tell_nodes(stream)
            return stream

    async def update(self, config: StreamConfig) -> Stream:
        """Change a stream: everything but its store. What it keeps no longer goes at once."""
        async with self._changing:
            stream, before = self.get(config.name), self.get(config.name).config
            if before.store != config.store:
                raise Rejected(
                    f"the store of stream {config.name!r} can't be changed; make another stream",
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
            self._hub.replays.widened(stream, before)
            self._tell_nodes(stream)
            stream.trim(environment.time_ns())
            # What was sealed just now can go when that is written.
            self._trimmed = self._hub.loop.time() - _TRIM + _SEALED
            self._hub.clock.arm()
            return stream

    async def remove(self, name: str, still: Callable[[], bool] = lambda: True) -> None:
        """Remove a stream and all that is stored in it; if that is still wanted when nobody else changes one."""
        if name == DEFAULT:
            raise Rejected("the stream 'default' can't be removed", code=Code.INVALID_SETTING)
        async with self._changing:
            if not still():
                return
            stream = self.get(name)
            # First: from now on nothing is stored in it, so it is known where it ends.
            self._hub.engine.remove_stream(stream.number)
            self._hub.flush()
            try:
                self._ends.ended(name, stream.log.next)
                await stream.drop()
            except BaseException:
                self._lend(stream)
                raise
            del self.by_name[name]
            self._tell_nodes(stream, there=False)
            if behind := self._hub.replays.removed(stream):
                log.warning("stream %r is removed; %d subscriptions had not come to its end", name, behind)
            await self._hub.channels.removed(stream)
            self._hub.flush()
            try:
                await stream.close()
            except BusError as error:
                log.warning("stream %r is removed; closing it failed: %s", name, error)
            if stream.folder is not None:
                gone = discard(stream.folder)
                await asyncio.to_thread(shutil.rmtree, gone, ignore_errors=True)  # what stays goes at the next start

    def _tell_nodes(self, stream: Stream, *, there: bool = True) -> None:
        self.changes.count += 1
        if self._hub.nodes is not None:
            self._hub.nodes.stream(stream, there=there)
            self._hub.flush()

    def taking(self, topic: str) -> Stream | None:
        """The stream that takes a topic by its patterns; None: only the default one does."""
        for stream in self.by_name.values():
            if any(matches(topic, one) for one in stream.config.topics):
                return stream
        return None

    def get(self, name: str) -> Stream:
        if (stream := self.by_name.get(name)) is None:
            self._refuse_damaged(name)
            raise Rejected(f"there is no stream {name!r}", code=Code.NO_STREAM)
        return stream

    def _refuse_damaged(self, name: str) -> None:
        if (reason := self.damaged.get(name)) is not None:
            raise DataFailed(f"{reason}; mend or remove it, and start the broker again")

    def _check_room(self, name: str) -> None:
        if self._hub.nodes is not None:
            self._hub.nodes.check_room(name)
        if len(self.by_name) >= (most := self._hub.settings.streams):
            raise LimitExceeded(f"there are {most} streams already (setting streams)", code=Code.TOO_MANY_STREAMS)
        used, most = handles()
        if used + _HANDLES > most:
            raise LimitExceeded(
                f"{used} of {most} file handles are in use, and a stream needs some; raise the limit (ulimit -n) or remove streams",
                code=Code.TOO_MANY_STREAMS,
            )

    def check_mirror(self, config: StreamConfig) -> None:
        """Refuse what no message could wait for. For streams that somebody asks for here: other nodes may have a mirror."""
        nodes = self._hub.nodes
        if config.safety == "mirrored" and (nodes is None or not nodes.mirrored):
            others = [] if nodes is None else nodes.mirrored_elsewhere()
            there = f"; a client of {' or '.join(others)} can do this, of which there is a mirror" * bool(others)
            raise Rejected(
                f"nobody mirrors this broker, so no message can wait for that: start another one with --mirror-of first{there}",
                code=Code.INVALID_SETTING,
            )

    def without_mirror(self) -> None:
        """The broker is in no cluster, so nobody mirrors it."""
        for stream in self.by_name.values():
            if stream.config.safety == "mirrored":
                stream.mirrored = False
                log.warning("stream %r is to be mirrored, and this broker is in no cluster", stream.config.name)

    def has_ended(self, name: str) -> bool:
        """Whether there was a stream of this name that was removed."""
        return name in self._ends

    def number(self) -> int:
        """A number that no other stream has."""
        self._numbers += 1
        return self._numbers - 1

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
            for mine in config.topics:
                for theirs in other.config.topics:
                    if matches(mine, theirs):
                        raise Rejected(
                            f"{mine!r} overlaps {theirs!r} of the stream {other.config.name!r}; each topic is in one stream",
                            code=Code.DUPLICATE,
                        )

    async def _add(self, config: StreamConfig, *, new: bool = False, lost: bool = False) -> Stream:
        """`lost`: it was here before, so that its folder has to be, too."""
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
                raise DataFailed(f"stream {config.name!r} can't be made in {folder}: {error.strerror}") from error
        gone = None if folder is None or config.store != "disk" else missing(folder, made=made, new=new, lost=lost)
        try:
            stream = await self._open(config, folder)
            stream.new = new and not lost
            stream.unsettled = self._unsettled and not stream.new and config.store == "disk"
            stream.miss(gone)
            try:
                await self._hub.channels.added(stream)
            except BaseException:
                await stream.close()
                raise
        except BaseException:
            if new and folder is not None:  # or the broker would not start again
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
                self._hub, number, config, folder, self._databases, address, self._ends.begin(config)
            )
        place = folder / LOG if folder else None
        native = environment.open_log(place, name=config.name, begin=self._ends.begin(config), **settings(config))
        stream = Stream(self._hub, number, config, native, folder)
        stream.tell_damage()
        return stream

    def _lend(self, stream: Stream) -> None:
        patterns = None if stream.config.name == DEFAULT else list(stream.config.topics)
        self._hub.engine.add_stream(stream.number, stream.config.name, self._guid, stream.log, patterns)
        stream.tell_level()
        self._hub.disk.added(stream)

    # Time.

    def later(self, number: int, when: int, offset: int) -> None:
        """A stored message that waits for its time."""
        heapq.heappush(self._due, (when, number, offset))
        self._hub.clock.arm()

    def deadline(self) -> float | None:
        """When expire() is to be called next, by the loop's clock."""
        ahead = self._trimmed + _TRIM
        if self._due:
            ahead = min(ahead, self._hub.loop.time() + max(self._due[0][0] - environment.time_ns(), 0) / BILLION)
        return ahead

    def expire(self, now: float) -> None:
        """Release what is due, remove what is old."""
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
            log.error("stream %r: a message that is due can't be read: %s", stream.config.name, error)  # noqa: TRY400, the disk's fault has no traceback of interest
            self.later(stream.number, environment.time_ns() + _AGAIN, offset)
            return
        if found is None:
            return
        if found[0] != offset or not found[2]:
            if stream.first <= offset:  # or it went with old messages, which was told
                log.error("stream %r: the message at offset %d was due, and is damaged", stream.config.name, offset)
        elif not self._hub.engine.release(stream.number, found[2]):
            self.later(stream.number, environment.time_ns() + _AGAIN, offset)

    def _release_fetched(self, stream: Stream, offset: int) -> None:
        if self.by_name.get(stream.config.name) is stream:
            self._release(stream, offset)
            self._hub.flush()


def later(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.streams.later(*event[1:])
