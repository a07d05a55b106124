"""One stream over a native log in memory or on disk: reading, retention, figures, and reports of damage and failures.

The manager opens it; channels, replays and the cluster read it. A stream in a database (`database`) has the same
interface.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from busway._core import Log, Selection, matches
from busway.broker.storage.data_folder import CHANNELS
from busway.broker.streams.damage import DamageReport
from busway.broker.streams.stream_channels import StreamChannels
from busway.common import environment
from busway.errors import BusError
from busway.streams import DEFAULT, LEVELS, Level, Safety, StreamConfig

if TYPE_CHECKING:
    from busway.broker.channels.driver import ProgressStore
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.broker")

Block: TypeAlias = tuple[int, int, bytes]
"""The offset of the first record, the offset to read next, and the records."""
BILLION: Final = 10**9
"""Nanoseconds in a second."""
FOREVER: Final = 2**64 - 1
"""The value of `hold` that holds no message."""


class Stream:
    """One stream: its settings, its log and its state."""

    def __init__(
        self,
        runtime: "Runtime",
        channels: StreamChannels,
        number: int,
        config: StreamConfig,
        log: Log,
        folder: Path | None,
    ) -> None:
        self.number = number
        self.config = config
        self.log = log
        self.folder = folder
        self._runtime = runtime
        self._channels = channels
        self._stuck = False
        self._failure: str | None = None
        self._damage = DamageReport(logging.getLogger("busway.broker"), f"stream {config.name!r}")
        self._dropped = 0
        self._channel_missing = False
        """Whether the channel of `retain_until` does not exist."""
        self._held_since: float | None = None
        self.watcher: Callable[[], object] | None = None
        """Is called when more of the stream may have been written."""
        self.awaited = False
        """Whether a mirror may have lost messages, or own the stream. Readers wait until that is known."""
        self._delayed: dict[Callable[[], object], None] = {}
        """Functions that are called when no more lost messages can come back."""
        self.new = False
        """Whether the stream was created just now, and does not replace a lost one."""
        self.lost: list[str] = []
        """Files and folders that were missing when the stream was opened, and were not restored."""
        self.end_unconfirmed = False
        """Whether a lost end may come back. Until that is known, channels keep positions behind the current end."""
        self.held = False
        """Whether progress of the channels may come back from a mirror. The channels are suspended until then."""
        self.copied = ""
        """The guid of the broker that owns the stream, if this is a replica."""
        self._mirrored: bool | None = None

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def mirrored(self) -> bool | None:
        """Whether acknowledgements wait for a mirror; only of a stream with the safety `mirrored`."""
        return self._mirrored

    @mirrored.setter
    def mirrored(self, yes: bool | None) -> None:
        if yes is not self._mirrored:
            self._mirrored = yes
            self.report_level()

    @property
    def level(self) -> Level:
        """The safety that a message has now when it is acknowledged."""
        if self.config.store == "memory":
            return "memory"
        safety = self.config.safety
        if safety == "mirrored":
            return "mirrored" if self._mirrored else "written"
        return "written" if safety == "memory" and self.config.in_database else safety

    @property
    def on_disk(self) -> bool:
        """Whether the messages are in the data folder."""
        return self.config.store in {"disk", "db"}

    def report_level(self) -> None:
        """Set the level that the engine reports to clients with the next acknowledgement."""
        self._runtime.engine.set_level(self.number, LEVELS.index(self.level))

    # Start and stop.

    def start(self) -> None:
        """Watch the log for writes of its thread."""
        if (handle := self.log.fileno()) is not None:
            self._runtime.loop.add_reader(handle, self._rung)

    def _stop_listening(self) -> None:
        if (handle := self.log.fileno()) is not None:
            self._runtime.loop.remove_reader(handle)

    async def close(self) -> None:
        """Store queued messages, and close the log."""
        self._stop_listening()
        try:
            self.log.close()
        except BusError as error:
            log.error("stream %r: %s", self.config.name, error)  # noqa: TRY400, a disk error

    async def drop(self) -> None:
        """Remove records that are stored outside of the stream's folder. A failure changes nothing."""

    def change(self, config: StreamConfig) -> None:
        """Apply changed settings."""
        self.config = config
        self.log.set(**settings(config))
        self.report_level()
        self._channels.changed(self)

    def _rung(self) -> None:
        self.log.clear_signal()
        if bool(stuck := self.log.stuck) is not self._stuck:
            self._stuck = bool(stuck)
            if stuck:
                log.error("stream %r: %s", self.config.name, _stuck(*stuck))
            else:
                log.warning("stream %r: messages are written again", self.config.name)
        self._commit()
        self._report_failure()
        if self.watcher is not None:
            self.watcher()

    def _report_failure(self) -> None:
        """Log once when writes begin to fail, and when they succeed again."""
        failure = self.log.failure
        if failure is not None and self._failure is None:
            log.error(
                "stream %r: messages can't be written, and are refused until that works: %s", self.config.name, failure
            )
        elif failure is None and self._failure is not None:
            log.warning("stream %r: messages are written again", self.config.name)
        self._failure = failure

    def _commit(self) -> None:
        self._runtime.handle(self._runtime.engine.commit(self.number))

    def report_damage(self) -> None:
        """Log damage that was found and not reported yet."""
        self._damage.report(self.log.damage)

    def miss(self, gone: Path | None) -> None:
        """Report that the folder of the stream, or a file in it, is missing. A log elsewhere is not empty then."""
        journal = None if self.folder is None else self.folder / CHANNELS
        if gone is None or (gone not in {self.folder, journal} and self.log.next > self.log.first):
            return
        begins = f"its messages are lost, and it begins with the offset {self.log.next}"
        if gone == self.folder:
            follows = f"it is created again, empty: {begins}, and its channels begin anew"
        else:
            follows = "its channels begin anew" if gone == journal else begins
        self.lost.append(str(gone))
        log.warning(
            "stream %r: %s existed before and is missing: %s, unless a mirror restores them",
            self.name,
            gone,
            follows,
        )

    # Reading.

    def wait_for_mirror(self, *, yes: bool) -> None:
        """Set whether a mirror may have lost messages, or own the stream. Until that is known readers wait."""
        self.awaited = yes
        if not yes:
            try:
                self.log.mended()
            except BusError as error:
                log.error("stream %r: %s", self.config.name, error)  # noqa: TRY400, a disk error
            delayed, self._delayed = self._delayed, {}
            for again in delayed:
                self._runtime.loop.call_soon(again)

    async def readable(self) -> None:
        """Wait until the mirrors of the broker have answered."""
        while self.awaited:
            mended = asyncio.Event()
            self._delayed[mended.set] = None
            await mended.wait()

    @property
    def first(self) -> int:
        """The first offset that the stream still has."""
        return self.log.first

    @property
    def safe(self) -> int:
        """The offset behind the last record that is as safe as promised."""
        return self.log.safe

    def read(self, offset: int, most: int, again: Callable[[], object]) -> Block | None:
        """A block from this offset on: (first, next, records). None: it is being fetched, and `again` is called then.

        If `first` is above `offset`, the stream has no records between them. `next` is the offset to read next. Raises
        DataFailed.
        """
        if self.awaited:
            self._delayed[again] = None
            return None
        block = self.log.read(offset, most)
        if block[0] > offset:
            self.report_damage()
        return block

    async def fetch(self, offset: int, most: int) -> Block:
        """Read a block as read() does, and wait until it is fetched."""
        fetched = asyncio.Event()
        while (block := self.read(offset, most, fetched.set)) is None:
            await fetched.wait()
            fetched.clear()
        return block

    def begin_at(self, moment: int, found: Callable[[int], object]) -> int | None:
        """The result of find_time(). None: `found` is called with it later. Raises DataFailed."""
        if self.awaited:
            self._delayed[lambda: found(self._found_time(moment))] = None
            return None
        return self.log.find_time(moment)

    def _found_time(self, moment: int) -> int:
        """The result of find_time(), or after an error the first offset, so that no message is missed."""
        try:
            return self.log.find_time(moment)
        except BusError as error:
            log.error("stream %r: %s", self.config.name, error)  # noqa: TRY400, a disk error
            return self.log.first

    async def find_time(self, moment: int) -> int:
        """The offset of the first record that was stored at this time (nanoseconds) or later."""
        await self.readable()
        return self.log.find_time(moment)

    async def find(self, topic: str, sequence: int) -> int | None:
        """The offset of the first record of a topic with this sequence or a later one."""
        await self.readable()
        return self.log.find(topic, sequence)

    def skip(self, offset: int, selection: Selection) -> int:
        """The first offset, from this one on, whose record may match a selection. Raises DataFailed."""
        return offset if self.awaited else self.log.skip(offset, selection)

    async def topics(self) -> list[tuple[str, int, int, int]]:
        """Of each topic: its name, its first and last sequence, and the number of records."""
        return await asyncio.to_thread(self.log.topics)  # there may be very many

    def channel_journal(self) -> "ProgressStore | None":
        """The channel journal in the store of this stream. None: the channel manager writes one in the folder."""
        return None

    # Time.

    def trim(self, clock: int) -> None:
        """Remove messages beyond the limits of the stream."""
        try:
            self.log.set(hold=self._hold())
            records, size, _ = self.log.trim(clock)
        except BusError as error:
            log.warning("stream %r: old messages can't be removed: %s", self.config.name, error)
            return
        self._report_held(self.log.held[0])
        self._channels.trimmed(self)
        self._report_dropped()
        if records:
            log.debug("stream %r: %d old messages, %d bytes removed", self.config.name, records, size)

    def _hold(self) -> int:
        """The offset from which on no message may be removed."""
        if (channel := self.config.retain_until) is None:
            return FOREVER
        floor = self._channels.floor(self, channel)
        if floor is None and not self._channel_missing:
            log.warning(
                "stream %r removes no message before its channel %r has finished it, and there is no such channel: "
                "create it, or change retain_until",
                self.config.name,
                channel,
            )
        self._channel_missing = floor is None
        return floor or 0

    def _report_held(self, count: int) -> None:
        if not count:
            if self._held_since is not None:
                log.info("stream %r holds nothing beyond its limits any more", self.config.name)
            self._held_since = None
        elif self._held_since is None:
            self._held_since = environment.time_ns() / 1e9
            log.warning(
                "stream %r is beyond its limits: %d messages stay until its channel %r has finished them",
                self.config.name,
                count,
                self.config.retain_until,
            )

    def _report_dropped(self) -> None:
        dropped = self.log.waits[1]
        if (count := dropped - self._dropped) > 0:
            log.warning(
                "stream %r: %d messages were removed for its limits before they were due", self.config.name, count
            )
        self._dropped = dropped

    # Settings and figures.

    def takes(self, pattern: str) -> bool:
        """Whether the stream may have messages that match this pattern."""
        return takes(self.config, pattern)

    def figures(self, *, channels: bool = True) -> dict[str, Any]:
        """The settings and the state of the stream, with the keys of a StreamInfo."""
        size, buckets, index = self.log.usage
        waiting, dropped = self.log.waits
        held, held_bytes = self.log.held
        stuck = self.log.stuck
        return {
            **msgspec.to_builtins(self.config),
            "first": self.first,
            "next": self.safe,
            "end": self.log.next,
            "bytes": size,
            "index_bytes": index,
            "buckets": buckets,
            "waiting": waiting,
            "dropped": dropped,
            "held": held,
            "held_bytes": held_bytes,
            "held_since": self._held_since,
            "damage": len(self.log.damage) + len(self.lost) + self._channels.damage(self.number),
            "stuck": stuck and _stuck(*stuck),
            "mirrored": self.mirrored,
            "level": self.level,
            "topic_count": self.log.topic_count,
            "channels": self._channels.figures(self.number) if channels else [],
        }


def _stuck(error: str, count: int) -> str:
    return f"{count} acknowledged messages can't be written, and new ones are refused: {error}"


def takes(config: StreamConfig, pattern: str) -> bool:
    """Whether a stream with these settings may have messages that match this pattern."""
    if config.name == DEFAULT or pattern.startswith("re:"):
        return True
    return any(matches(pattern, topic) for topic in (*config.topics, *config.former))


def patience(config: StreamConfig) -> dict[str, Any]:
    """The settings that every native log has: how long it deduplicates publishes, and the longest delay."""
    return {"once_age": int(config.once * BILLION), "max_delay": int((config.max_age or 0) * BILLION)}


def native(safety: Safety) -> Literal["memory", "written", "synced"]:
    """The safety that the disk of this broker provides for it."""
    return "written" if safety == "mirrored" else safety


def settings(config: StreamConfig) -> dict[str, Any]:
    """The settings of a native log."""
    return {
        "safety": native(config.safety),
        "max_age": int((config.max_age or 0) * BILLION),
        "max_bytes": config.max_bytes or 0,
        "max_count": config.max_count or 0,
        # The log may remove messages by itself, so it holds all until the floor of that channel is known.
        "hold": FOREVER if config.retain_until is None else 0,
        **patience(config),
    }
