"""One stream whose records lie in a native log, in memory or on disk: what everything around streams asks of it.

A stream that is kept elsewhere (`fronting`) answers the same questions, some of them later.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from busway._core import Log, Selection, matches
from busway.broker.channels.journal import FILE as JOURNAL, Journal
from busway.common import environment
from busway.errors import BusError
from busway.streams import DEFAULT, LEVELS, Level, Safety, StreamConfig

if TYPE_CHECKING:
    from busway.broker.channels.driver import ProgressLog
    from busway.broker.hub import Hub

log = logging.getLogger("busway.broker")

Block: TypeAlias = tuple[int, int, bytes]
"""The offset of the first record, the one to read on from, the records."""
BILLION: Final = 10**9
FOREVER: Final = 2**64 - 1


class Stream:
    """One stream: what it is, and its log."""

    def __init__(self, hub: "Hub", number: int, config: StreamConfig, log: Log, folder: Path | None) -> None:
        self.number = number
        self.config = config
        self.log = log
        self.folder = folder
        self._hub = hub
        self._stuck = False
        self._failure: str | None = None
        self._told: set[tuple[str, int, int, int | None, str]] = set()
        self._dropped = 0
        self._waits_for_nobody = False
        self._held_since: float | None = None
        self.watcher: Callable[[], object] | None = None
        """Hears when more of it may be written."""
        self.awaited = False
        """It may have lost its end, or something in its midst, which may come back from a mirror."""
        self._delayed: dict[Callable[[], object], None] = {}
        """Who is called when nothing more comes back."""
        self.new = False
        """It is made just now, and not opened again, or made in the place of one that is lost."""
        self.lost: list[str] = []
        """What was here before, and was missing when it was opened, if that has not come back."""
        self.unsettled = False
        """Whether its end may come back is not known yet: channels that were further are left there."""
        self.held = False
        """What its channels did may come back from a mirror: nothing is handed out of them."""
        self.copied = ""
        """The guid of the broker of whose stream it is a copy."""
        self._mirrored: bool | None = None

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def mirrored(self) -> bool | None:
        """Of a stream with the safety `mirrored`: whether acknowledgements wait for a mirror."""
        return self._mirrored

    @mirrored.setter
    def mirrored(self, yes: bool | None) -> None:
        if yes is not self._mirrored:
            self._mirrored = yes
            self.tell_level()

    @property
    def level(self) -> Level:
        """How safe a message is when it is acknowledged now."""
        if self.config.store == "memory":
            return "memory"
        safety = self.config.safety
        if safety == "mirrored":
            return "mirrored" if self._mirrored else "written"
        return "written" if safety == "memory" and self.config.in_database else safety

    @property
    def on_disk(self) -> bool:
        """Whether its messages are on the disk of the data folder."""
        return self.config.store in {"disk", "db"}

    def tell_level(self) -> None:
        """Have the engine tell clients the level with the next message."""
        self._hub.engine.set_level(self.number, LEVELS.index(self.level))

    # From start to stop.

    def start(self) -> None:
        """Listen to the log; the engine has it."""
        if (handle := self.log.fileno()) is not None:
            self._hub.loop.add_reader(handle, self._rung)

    def _stop_listening(self) -> None:
        if (handle := self.log.fileno()) is not None:
            self._hub.loop.remove_reader(handle)

    async def close(self) -> None:
        """Store what waits, and let go."""
        self._stop_listening()
        try:
            self.log.close()
        except BusError as error:
            log.error("stream %r: %s", self.config.name, error)  # noqa: TRY400, the disk's fault has no traceback of interest

    async def drop(self) -> None:
        """Remove what is stored outside of its folder. If that fails nothing is changed."""

    def change(self, config: StreamConfig) -> None:
        """Other settings, from now on."""
        self.config = config
        self.log.set(**settings(config))
        self.tell_level()
        self._hub.channels.changed(self)

    def _rung(self) -> None:
        self.log.hear()
        if bool(stuck := self.log.stuck) is not self._stuck:
            self._stuck = bool(stuck)
            if stuck:
                log.error("stream %r: %s", self.config.name, _stuck(*stuck))
            else:
                log.warning("stream %r: messages are written again", self.config.name)
        self._commit()
        self._tell_failure()
        if self.watcher is not None:
            self.watcher()

    def _tell_failure(self) -> None:
        """Log once when writes begin to fail, and when they succeed again."""
        failure = self.log.failure
        if failure is not None and self._failure is None:
            log.error(
                "stream %r: messages can't be written, and are refused until they can: %s", self.config.name, failure
            )
        elif failure is None and self._failure is not None:
            log.warning("stream %r: messages are written again", self.config.name)
        self._failure = failure

    def _commit(self) -> None:
        self._hub.handle(self._hub.engine.commit(self.number))

    def tell_damage(self) -> None:
        """Warn of what was found and not told yet."""
        damage = self.log.damage
        for one in damage:
            if one in self._told:
                continue
            file, position, begin, end, what = one
            place = f"{what} in {file} at byte {position}"
            if end is None:  # what was being written when the broker ended
                log.warning("stream %r: %s: from offset %d on", self.config.name, place, begin)
            elif end == begin:
                log.warning("stream %r: %s; nothing is lost", self.config.name, place)
            else:
                log.error("stream %r: %s: offsets %d to %d", self.config.name, place, begin, end - 1)
        self._told = set(damage)

    def miss(self, gone: Path | None) -> None:
        """Its folder was here before, or something in it, and is not any more. A log that is elsewhere is not empty then."""
        journal = None if self.folder is None else self.folder / JOURNAL
        if gone is None or (gone not in {self.folder, journal} and self.log.next > self.log.first):
            return
        begins = f"its messages are lost, and it begins with the offset {self.log.next}"
        if gone == self.folder:
            follows = f"it is made again, empty: {begins}, and its channels begin anew"
        else:
            follows = "its channels begin anew" if gone == journal else begins
        self.lost.append(str(gone))
        log.warning(
            "stream %r: %s is missing, which was here before: %s, unless a mirror has what is lost",
            self.name,
            gone,
            follows,
        )

    # Reading.

    def wait_for_mirror(self, *, yes: bool) -> None:
        """Whether what is missing may come back. Until then nobody reads on behind a hole."""
        self.awaited = yes
        if not yes:
            try:
                self.log.mended()
            except BusError as error:
                log.error("stream %r: %s", self.config.name, error)  # noqa: TRY400, the disk's fault has no traceback of interest
            delayed, self._delayed = self._delayed, {}
            for again in delayed:
                self._hub.loop.call_soon(again)

    @property
    def _holed(self) -> bool:
        """Something is missing in its midst, which may come back."""
        return self.awaited and any(end is not None and end > begin for _, _, begin, end, _ in self.log.damage)

    async def _whole(self) -> None:
        """Return when nothing more comes back."""
        while self._holed:
            here = asyncio.Event()
            self._delayed[here.set] = None
            await here.wait()

    @property
    def first(self) -> int:
        """The first offset that is there."""
        return self.log.first

    @property
    def safe(self) -> int:
        """Behind the last record that is as safe as promised."""
        return self.log.safe

    def read(self, offset: int, most: int, again: Callable[[], object]) -> Block | None:
        """A block from this offset on: (first, next, records). None: it is being fetched, and `again` is called when it is here.

        `first` above `offset`: what lies between is gone. `next` is where to read on. Raises DataFailed.
        """
        block = self.log.read(offset, most)
        if block[0] > offset:
            if self._holed and offset >= self.log.first:
                self._delayed[again] = None
                return None
            self.tell_damage()
        return block

    async def fetch(self, offset: int, most: int) -> Block:
        """The same, for one who can wait."""
        here = asyncio.Event()
        while (block := self.read(offset, most, here.set)) is None:
            await here.wait()
            here.clear()
        return block

    def begin_at(self, moment: int, found: Callable[[int], object]) -> int | None:
        """As find_time(). None: it is being looked for, and `found` is called with it. Raises DataFailed."""
        if self._holed:
            self._delayed[lambda: found(self._found_time(moment))] = None
            return None
        return self.log.find_time(moment)

    def _found_time(self, moment: int) -> int:
        """The same for one who can't be told of an error any more: rather too early than too late."""
        try:
            return self.log.find_time(moment)
        except BusError as error:
            log.error("stream %r: %s", self.config.name, error)  # noqa: TRY400, the disk's fault has no traceback of interest
            return self.log.first

    async def find_time(self, moment: int) -> int:
        """Offset of the first record that was stored at this time (nanoseconds) or later."""
        await self._whole()
        return self.log.find_time(moment)

    async def find(self, topic: str, sequence: int) -> int | None:
        """Offset of the first record of a topic with this sequence or a later one."""
        await self._whole()
        return self.log.find(topic, sequence)

    def skip(self, offset: int, selection: Selection) -> int:
        """From where on there may be something for a selection. Raises DataFailed."""
        return offset if self._holed else self.log.skip(offset, selection)

    async def topics(self) -> list[tuple[str, int, int, int]]:
        """What is there of each topic: first and last sequence, number of records."""
        return await asyncio.to_thread(self.log.topics)  # there may be very many

    def notes(self) -> "ProgressLog | None":
        """Where its channels are noted; None: they end with the broker."""
        return None if self.folder is None else Journal(self.folder, native(self.config.safety), new=self.new)

    # Time.

    def trim(self, clock: int) -> None:
        """Remove what is older, or more, than it may be."""
        try:
            self.log.set(hold=self._hold())
            records, size, _ = self.log.trim(clock)
        except BusError as error:
            log.warning("stream %r: old messages can't be removed: %s", self.config.name, error)
            return
        self._note_held(self.log.held[0])
        self._hub.channels.trimmed(self)
        self._tell_dropped()
        if records:
            log.debug("stream %r: %d old messages, %d bytes removed", self.config.name, records, size)

    def _hold(self) -> int:
        """Nothing from this offset on may be removed."""
        if (channel := self.config.retain_until) is None:
            return FOREVER
        floor = self._hub.channels.floor(self, channel)
        if floor is None and not self._waits_for_nobody:
            log.warning(
                "stream %r removes nothing before its channel %r has done it, and there is no such channel",
                self.config.name,
                channel,
            )
        self._waits_for_nobody = floor is None
        return floor or 0

    def _note_held(self, count: int) -> None:
        if not count:
            if self._held_since is not None:
                log.info("stream %r holds nothing beyond its limits any more", self.config.name)
            self._held_since = None
        elif self._held_since is None:
            self._held_since = environment.time_ns() / 1e9
            log.warning(
                "stream %r is beyond its limits: %d messages stay until its channel %r has done them",
                self.config.name,
                count,
                self.config.retain_until,
            )

    def _tell_dropped(self) -> None:
        dropped = self.log.waits[1]
        if (count := dropped - self._dropped) > 0:
            log.warning(
                "stream %r: %d messages were removed for its limits before they were due", self.config.name, count
            )
        self._dropped = dropped

    # What it is.

    def takes(self, pattern: str) -> bool:
        """Whether it may hold messages that match this pattern."""
        return takes(self.config, pattern)

    def figures(self) -> dict[str, Any]:
        """Its settings and how it is, as a StreamInfo has them."""
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
            "damage": len(self.log.damage) + len(self.lost),
            "stuck": stuck and _stuck(*stuck),
            "mirrored": self.mirrored,
            "level": self.level,
            "topic_count": self.log.topic_count,
            "channels": self._hub.channels.figures(self.number),
        }


def _stuck(error: str, count: int) -> str:
    return f"{count} acknowledged messages can't be written, and no others are taken: {error}"


def takes(config: StreamConfig, pattern: str) -> bool:
    """Whether a stream with these settings may hold messages that match this pattern."""
    if config.name == DEFAULT or pattern.startswith("re:"):
        return True
    return any(matches(pattern, topic) for topic in (*config.topics, *config.former))


def patience(config: StreamConfig) -> dict[str, Any]:
    """What the native log of a stream that is kept elsewhere is told: how long it remembers, how far ahead it looks."""
    return {"once_age": int(config.once * BILLION), "max_delay": int((config.max_age or 0) * BILLION)}


def native(safety: Safety) -> Literal["memory", "written", "synced"]:
    """What the disk of this broker does for it."""
    return "written" if safety == "mirrored" else safety


def settings(config: StreamConfig) -> dict[str, Any]:
    """What a native log is told."""
    return {
        "safety": native(config.safety),
        "max_age": int((config.max_age or 0) * BILLION),
        "max_bytes": config.max_bytes or 0,
        "max_count": config.max_count or 0,
        # Until it is asked where that channel is, everything stays: the log may remove messages by itself.
        "hold": FOREVER if config.retain_until is None else 0,
        **patience(config),
    }
