"""The streams of a broker: opens their logs, lends them to the engine, and does what goes beyond one message.

Appending, answering and delivering is the engine's. Here streams are made, changed and removed, old messages leave, and
what was stored to be due later is delivered when its time has come.
"""

import heapq
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from busway._core import Log, Selection, matches
from busway.broker.data import replace, sync
from busway.errors import BusError, Code, DataFailed, Rejected
from busway.streams import DEFAULT, SETTINGS, Store, StreamConfig

if TYPE_CHECKING:
    from busway.broker.handing import Notes
    from busway.broker.hub import Hub

log = logging.getLogger("busway.broker")

FOLDER: Final = "streams"
CONFIG: Final = "stream.json"
_TRIM: Final = 10.0
"""Seconds between two looks for old messages."""
_SEALED: Final = 0.2
"""And after settings were changed."""
_BILLION: Final = 10**9


Block: TypeAlias = tuple[int, int, bytes]


class Stream:
    """One stream: what it is, and its log."""

    def __init__(self, number: int, config: StreamConfig, log: Log, folder: Path | None) -> None:
        self.number = number
        self.config = config
        self.log = log
        self.folder = folder

    @property
    def first(self) -> int:
        """The first offset that is there."""
        return self.log.first

    @property
    def safe(self) -> int:
        """Behind the last record that is as safe as promised."""
        return self.log.safe

    def read(self, offset: int, most: int, again: Callable[[], object]) -> Block | None:  # noqa: ARG002
        """A block from this offset on: (first, next, records). None: it is being fetched, and `again` is called when it is here.

        `first` above `offset`: what lies between is gone. `next` is where to read on. Raises DataFailed.
        """
        return self.log.read(offset, most)

    async def fetch(self, offset: int, most: int) -> Block:
        """The same, for one who can wait."""
        return self.log.read(offset, most)

    def notes(self) -> "Notes | None":
        """Where its channels are noted, if that is not the usual file in its folder."""
        return None

    def takes(self, pattern: str) -> bool:
        """Whether it may hold messages that match this pattern."""
        return takes(self.config, pattern)

    def skip(self, offset: int, selection: Selection) -> int:
        """From where on there may be something for a selection. Raises DataFailed."""
        return self.log.skip(offset, selection)

    async def find_time(self, moment: int) -> int:
        """Offset of the first record that was stored at this time (nanoseconds) or later."""
        return self.log.find_time(moment)

    async def find(self, topic: str, sequence: int) -> int | None:
        """Offset of the first record of a topic with this sequence or a later one."""
        return self.log.find(topic, sequence)

    async def topics(self) -> list[tuple[str, int, int, int]]:
        """What is there of each topic: first and last sequence, number of records."""
        return self.log.topics()

    def figures(self) -> dict[str, Any]:
        """Its settings and how it is, as a StreamInfo has them."""
        size, buckets = self.log.usage
        return {
            **msgspec.to_builtins(self.config),
            "first": self.first,
            "next": self.safe,
            "bytes": size,
            "buckets": buckets,
            "damage": len(self.log.damage),
            "topic_count": self.log.topic_count,
            "channels": [],
        }


def takes(config: StreamConfig, pattern: str) -> bool:
    """Whether a stream with these settings may hold messages that match this pattern."""
    if config.name == DEFAULT or pattern.startswith("re:"):
        return True
    return any(matches(pattern, topic) for topic in (*config.topics, *config.former))


class Streaming:
    """All streams of one hub."""

    def __init__(self, hub: "Hub", folder: Path | None) -> None:
        self._hub = hub
        self._folder = folder / FOLDER if folder is not None else None
        self._guid = bytes.fromhex(hub.guid)
        self.streams: dict[str, Stream] = {}
        self._numbers = 0
        self._due: list[tuple[int, int, int]] = []  # when, stream, offset
        self._trimmed = hub.loop.time()
        self._closed = False

    # From start to stop.

    def open(self) -> None:
        """Open what is in the data folder, and the default stream."""
        configs = {config.name: config for config in self._found()}
        if DEFAULT not in configs:
            configs[DEFAULT] = StreamConfig(name=DEFAULT, store=self.best)
        for config in configs.values():
            try:
                self._check(config)
            except Rejected as error:
                raise DataFailed(f"the stream {config.name!r} can't be opened: {error}") from error
            self._add(config)

    @property
    def best(self) -> Store:
        """Where streams are stored that don't say so."""
        return "memory" if self._folder is None else "disk"

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
        found = []
        for folder in folders:
            if folder.name.startswith("."):
                shutil.rmtree(folder, ignore_errors=True)  # removed, but for its files
            elif (config := _read(folder)) is not None:
                found.append(config)
        return found

    def close(self) -> None:
        """Write what waits, and let go of the files."""
        self._closed = True
        for stream in self.streams.values():
            self._unwatch(stream)
            try:
                stream.log.close()
            except BusError as error:
                log.error("stream %r: %s", stream.config.name, error)  # noqa: TRY400, the disk's fault has no traceback of interest

    # Streams come and go.

    def create(self, config: StreamConfig) -> Stream:
        """Make a stream. One that is there with the same settings is fine."""
        if (old := self.streams.get(config.name)) is not None:
            if msgspec.structs.replace(old.config, former=()) == config:
                return old
            raise Rejected(f"there is a stream {config.name!r} with other settings; update it", code=Code.DUPLICATE)
        self._check(config)
        stream = self._add(config, new=True)
        self._hub.replaying.added(stream)
        return stream

    def update(self, config: StreamConfig) -> Stream:
        """Change a stream: everything but its store. What it keeps no longer goes at once."""
        stream, before = self.get(config.name), self.get(config.name).config
        if (before.store, before.url) != (config.store, config.url):
            raise Rejected(
                f"the store of stream {config.name!r} can't be changed; make another stream", code=Code.INVALID_SETTING
            )
        self._check(config)
        if stream.folder is not None:
            try:
                self._write(stream.folder, config)
            except OSError as error:
                raise DataFailed(f"stream {config.name!r} can't be changed: {error.strerror}") from error
        stream.config = config
        stream.log.set(**_settings(config))
        self._lend(stream)
        self._hub.replaying.widened(stream, before)
        self._trim(stream, time.time_ns())
        # What was sealed just now can go when that is written.
        self._trimmed = self._hub.loop.time() - _TRIM + _SEALED
        self._hub.pulse.arm()
        return stream

    def remove(self, name: str) -> None:
        """Remove a stream and all that is stored in it."""
        if name == DEFAULT:
            raise Rejected("the stream 'default' can't be removed", code=Code.INVALID_SETTING)
        stream = self.get(name)
        del self.streams[name]
        self._unwatch(stream)
        if behind := self._hub.replaying.removed(stream):
            log.warning("stream %r is removed; %d subscriptions had not come to its end", name, behind)
        self._hub.engine.remove_stream(stream.number)
        try:
            stream.log.close()
        except BusError as error:
            log.warning("stream %r is removed, and could not be closed before: %s", name, error)
        if stream.folder is not None:
            _discard(stream.folder)

    def get(self, name: str) -> Stream:
        if (stream := self.streams.get(name)) is None:
            raise Rejected(f"there is no stream {name!r}", code=Code.NO_STREAM)
        return stream

    def _check(self, config: StreamConfig) -> None:
        if config.store == "db":
            raise Rejected("this broker has no streams in databases", code=Code.INVALID_SETTING)
        if config.store == "disk" and self._folder is None:
            raise Rejected(
                "a stream on disk needs a broker with a data folder (busway serve --data FOLDER)",
                code=Code.INVALID_SETTING,
            )
        for other in self.streams.values():
            if other.config.name == config.name:
                continue
            for mine in config.topics:
                for theirs in other.config.topics:
                    if matches(mine, theirs):
                        raise Rejected(
                            f"{mine!r} overlaps {theirs!r} of the stream {other.config.name!r}; each topic is in one stream",
                            code=Code.DUPLICATE,
                        )

    def _add(self, config: StreamConfig, *, new: bool = False) -> Stream:
        folder = None
        if config.store == "disk" and self._folder is not None:
            folder = self._folder / config.name
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if new or not (folder / CONFIG).exists():
                    self._write(folder, config)
            except OSError as error:
                raise DataFailed(f"stream {config.name!r} can't be made in {folder}: {error.strerror}") from error
        try:
            native = Log.open(folder / "log" if folder else None, name=config.name, **_settings(config))
        except DataFailed:
            if new and folder is not None:
                shutil.rmtree(folder, ignore_errors=True)  # or the broker would not start again
            raise
        stream = Stream(self._numbers, config, native, folder)
        self._numbers += 1
        self.streams[config.name] = stream
        for file, position, begin, end, what in native.damage:
            log.warning(
                "stream %r: %s in %s at byte %d: offsets %d to %s", config.name, what, file, position, begin, end
            )
        self._lend(stream)
        self._watch(stream)
        for when, offset in native.due(time.time_ns()):
            self.later(stream.number, when, offset)
        return stream

    @staticmethod
    def _write(folder: Path, config: StreamConfig) -> None:
        replace(folder / CONFIG, msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")

    def _lend(self, stream: Stream) -> None:
        patterns = None if stream.config.name == DEFAULT else list(stream.config.topics)
        self._hub.engine.add_stream(stream.number, stream.config.name, self._guid, stream.log, patterns)

    # What the logs tell.

    def _watch(self, stream: Stream) -> None:
        if (handle := stream.log.fileno()) is not None:
            self._hub.loop.add_reader(handle, self._rung, stream)

    def _unwatch(self, stream: Stream) -> None:
        if (handle := stream.log.fileno()) is not None:
            self._hub.loop.remove_reader(handle)

    def _rung(self, stream: Stream) -> None:
        stream.log.hear()
        self._hub.handle(self._hub.engine.commit(stream.number))

    # Time.

    def later(self, number: int, when: int, offset: int) -> None:
        """A stored message that is to be delivered at a time."""
        heapq.heappush(self._due, (when, number, offset))
        self._hub.pulse.arm()

    def deadline(self) -> float | None:
        """When expire() is to be called next, by the loop's clock."""
        ahead = self._trimmed + _TRIM
        if self._due:
            ahead = min(ahead, self._hub.loop.time() + max(self._due[0][0] - time.time_ns(), 0) / _BILLION)
        return ahead

    def expire(self, now: float) -> None:
        """Deliver what is due, remove what is old."""
        clock = time.time_ns()
        by_number = {stream.number: stream for stream in self.streams.values()}
        while self._due and self._due[0][0] <= clock:
            _, number, offset = heapq.heappop(self._due)
            if (stream := by_number.get(number)) is not None:
                self._release(stream, offset)
        if now >= self._trimmed + _TRIM:
            self._trimmed = now
            for stream in self.streams.values():
                self._trim(stream, clock)

    def _release(self, stream: Stream, offset: int) -> None:
        try:
            first, _, block = stream.log.read(offset, 1)
        except BusError as error:
            log.error("stream %r: a message that is due can't be read: %s", stream.config.name, error)  # noqa: TRY400, the disk's fault has no traceback of interest
            return
        if first == offset and block:
            self._hub.engine.release(stream.number, block, self._hub.replaying.before(stream.number, offset))

    def _trim(self, stream: Stream, clock: int) -> None:
        try:
            records, size, _ = stream.log.trim(clock)
        except BusError as error:
            log.warning("stream %r: old messages can't be removed: %s", stream.config.name, error)
            return
        if records:
            self._hub.delivering.trimmed(stream)
            log.debug("stream %r: %d old messages, %d bytes removed", stream.config.name, records, size)


def _discard(folder: Path) -> None:
    """Remove a stream's folder, so that a crash leaves either all of it or nothing that counts."""
    gone = folder.with_name(f".{folder.name}.removed")
    try:
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        sync(folder.parent)
    except OSError as error:
        raise DataFailed(
            f"stream {folder.name!r} is closed, but its folder {folder} can't be removed ({error.strerror}): "
            "remove it, or the stream is there again when the broker starts"
        ) from error
    shutil.rmtree(gone, ignore_errors=True)  # what stays goes when the broker starts again


def _read(folder: Path) -> StreamConfig | None:
    """What a folder's stream is; None: it was never finished."""
    file = folder / CONFIG
    try:
        config = msgspec.json.decode(file.read_bytes(), type=StreamConfig)
        made = StreamConfig.make(config.name, **{key: getattr(config, key) for key in SETTINGS})
    except FileNotFoundError:
        if not (folder / "log").exists():
            return None
        raise DataFailed(f"the stream in {folder} can't be opened: its {CONFIG} is missing") from None
    except OSError as error:
        raise DataFailed(f"the stream in {folder} can't be opened: {CONFIG}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise DataFailed(f"the stream in {folder} can't be opened: {CONFIG}: {error}") from error
    if config.name != folder.name:
        raise DataFailed(f"{file} speaks of the stream {config.name!r}; was the folder renamed?")
    return msgspec.structs.replace(made, former=config.former)


def later(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.streaming.later(*event[1:])


def _settings(config: StreamConfig) -> dict[str, Any]:
    return {
        "safety": config.safety,
        "max_age": int((config.max_age or 0) * _BILLION),
        "max_bytes": config.max_bytes or 0,
        "max_count": config.max_count or 0,
        "once_age": int(config.once * _BILLION),
    }
