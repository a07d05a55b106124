"""All channels of a broker: opens, declares, moves and removes them, and gives them the time.

The hub passes the events of streams to this module, and the frames of consumers to `consumers`.
"""

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway._core import block_records
from busway.broker.channels import frames
from busway.broker.channels.consumers import ChannelConsumers
from busway.broker.channels.dead_letters.move import DeadLetters
from busway.broker.channels.driver import ChannelDriver, ProgressStore
from busway.broker.channels.frames import Join
from busway.broker.channels.ownership import Ownership
from busway.broker.channels.progress_log import ProgressLog
from busway.broker.channels.state.progress import ChannelConfig, ChannelState, Created, Deleted, States
from busway.broker.streams.stream import Stream, native
from busway.broker.streams.table import StreamTable
from busway.common import environment
from busway.errors import Code, LimitExceeded, OutOfRange, Rejected
from busway.streams import StreamConfig

if TYPE_CHECKING:
    from busway.broker.peers import ChannelPeers, Members
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.broker")

CHANNELS: Final = 10_000
"""The most channels a stream may have."""
_LATEST: Final = (1 << 63) - 1
"""The latest time (ns) that a stream can be searched for."""


class _NoProgressLog:
    """A progress log that stores nothing. Streams in memory end with the broker, and so do their channels."""

    async def start(self) -> States:
        return {}

    def __init__(self) -> None:
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done.set_result(None)

    def write(self, entries: object) -> "asyncio.Future[None]":  # noqa: ARG002, nothing is stored
        return self._done

    async def stop(self) -> None:
        pass

    def figures(self) -> dict[str, Any]:
        return {}


class Channels:
    """The channels of one broker, by stream and name."""

    def __init__(
        self,
        runtime: "Runtime",
        streams: StreamTable,
        peers: "ChannelPeers",
        members: "Members",
        create_stream: Callable[[StreamConfig], Awaitable[object]],
    ) -> None:
        self._runtime = runtime
        self._streams = streams
        self._peers = peers
        self._members = members
        self.channels: dict[int, dict[str, ChannelDriver]] = {}
        """The channels of each stream: by the number of the stream and the name of the channel."""
        self.journals: dict[int, ProgressStore] = {}
        """The channel journal of each stream, by the number of the stream."""
        self._dead_letters = DeadLetters(runtime, streams, create_stream)
        self._alarms: list[tuple[float, int, ChannelDriver]] = []
        self._serial = count()
        self.consumers = ChannelConsumers(runtime, self, peers, members)
        self.ownership = Ownership(self)

    # Streams.

    async def added(self, stream: Stream) -> None:
        """Open the channels of a new or reopened stream at their recorded progress."""
        journal = stream.channel_journal() or self._new_log(stream)
        states = await journal.start()
        self.journals[stream.number] = journal
        self.channels[stream.number] = {}
        for state in states.values():
            if state.config is None:
                log.warning(
                    "channel %r of stream %r: its settings are missing in the journal, so it uses the defaults",
                    *(state.channel, stream.config.name),
                )
                state.config = ChannelConfig()
            self.await_consumer(self.open(stream, state))

    def _new_log(self, stream: Stream) -> ProgressStore:
        """A progress log in the folder of a stream. A stream in memory has none: its channels end with the broker."""
        if stream.folder is None:
            return _NoProgressLog()
        written = partial(self._peers.progress_written, stream)
        return ProgressLog(stream.folder, native(stream.config.safety), new=stream.new, written=written)

    async def removed(self, stream: Stream) -> None:
        """End all channels of a removed stream."""
        for driver in list(self.channels.pop(stream.number, {}).values()):
            self.end(driver, Code.NO_STREAM, f"the stream {stream.config.name!r} was removed")
        if (journal := self.journals.pop(stream.number, None)) is not None:
            await journal.stop()

    async def close(self) -> None:
        self._dead_letters.stop()
        self.consumers.close()
        for journal in self.journals.values():
            await journal.stop()

    def kill(self) -> None:
        """Close the files without writing, as if the process was killed."""
        for journal in self.journals.values():
            if isinstance(journal, ProgressLog):
                journal.kill()

    def changed(self, stream: Stream) -> None:
        """Apply the new safety of a stream to its channel journal."""
        if isinstance(journal := self.journals.get(stream.number), ProgressLog):
            journal.safety = native(stream.config.safety)

    def journal_of(self, stream: Stream) -> ProgressStore | None:
        """The channel journal of a stream; None: the stream has been removed."""
        return self.journals.get(stream.number)

    def stored(self, number: int) -> None:
        """Deliver messages of a stream that have become safe."""
        for driver in self.channels.get(number, {}).values():
            if driver.consumers:
                driver.catch_up()

    def trimmed(self, stream: Stream) -> None:
        """Skip messages that retention has dropped from a stream."""
        for driver in self.channels.get(stream.number, {}).values():
            driver.catch_up()

    def floor(self, stream: Stream, channel: str) -> int | None:
        """A channel has finished all offsets below this one; None: there is no such channel."""
        driver = self.channels.get(stream.number, {}).get(channel)
        return None if driver is None else driver.machine.floor

    # Channels.

    def get(self, stream: str, channel: str) -> ChannelDriver:
        number = self._streams.get(stream).number
        if (driver := self.channels.get(number, {}).get(channel)) is None:
            raise Rejected(f"the stream {stream!r} has no channel {channel!r}", code=Code.NO_CHANNEL)
        return driver

    def found(self, stream: str, channel: str | None) -> list[ChannelDriver]:
        """One channel of a stream, or all."""
        if channel is not None:
            return [self.get(stream, channel)]
        return list(self.channels.get(self._streams.get(stream).number, {}).values())

    async def declare(
        self, stream: str, channel: str, settings: dict[str, Any], start: tuple[str, Any]
    ) -> ChannelDriver:
        """Find or create a channel, and apply these settings."""
        return await self._declare(self._streams.get(stream), channel, settings, start)

    async def _declare(
        self, found: Stream, channel: str, settings: dict[str, Any], start: tuple[str, Any]
    ) -> ChannelDriver:
        stream = found.name
        if (channels := self.channels.get(found.number)) is None:
            raise Rejected(f"the stream {stream!r} is being created or removed; retry later", code=Code.NO_STREAM)
        if (driver := channels.get(channel)) is not None:
            await self.configure(driver, settings)
            return driver
        if len(channels) >= CHANNELS:
            reason = f"the stream {stream!r} has {CHANNELS} channels, which is the limit; remove one first"
            raise LimitExceeded(reason, code=Code.TOO_MANY_SUBSCRIPTIONS)
        config = frames.configured(ChannelConfig(), settings, stream, channel)
        if not config.delete_on_leave and not found.copied:
            self._peers.check_limit(f"{stream}/{channel}")
        floor = await self.position(found, start)
        if self.channels.get(found.number) is not channels:
            raise Rejected(f"the stream {stream!r} was removed", code=Code.NO_STREAM)
        if (driver := channels.get(channel)) is not None:  # another request has created it during the await
            await self.configure(driver, settings)
            return driver
        state = ChannelState(channel, config, environment.time_ns() // 1000, floor)
        written = self.journals[found.number].write([Created(channel, state.epoch, floor, config)])
        driver = self.open(found, state)
        self._define_on_nodes(driver, start)
        await written
        return driver

    async def configure(self, driver: ChannelDriver, settings: dict[str, Any]) -> None:
        machine = driver.machine
        config = frames.configured(machine.config, settings, driver.stream.config.name, driver.name)
        if config != machine.config:
            actions = machine.configure(config, driver.now)
            driver.configured()
            self._define_on_nodes(driver, None)
            if (written := driver.do(actions)) is not None:
                await written

    async def seek(self, driver: ChannelDriver, start: tuple[str, Any]) -> int:
        """Move a channel to another position. Returns its offset."""
        offset = await self.position(driver.stream, start)
        driver.catch_up()
        with self._windows(driver):
            written = driver.do(driver.machine.seek(offset, driver.now))
        self._runtime.flush()
        if written is not None:
            await written
        return offset

    async def remove(self, driver: ChannelDriver) -> None:
        written = self.forget_channel(driver)
        if not driver.machine.config.delete_on_leave:
            self._peers.changed(driver.stream.name, driver.name, None, None)
        await written

    def forget_channel(self, driver: ChannelDriver) -> "asyncio.Future[None]":
        """Remove a channel from this broker only. The future is done when the journal has recorded that."""
        self.end(driver, Code.NO_CHANNEL, f"the channel {driver.name!r} was removed")
        return driver.journal.write([Deleted(driver.name)])

    def _define_on_nodes(self, driver: ChannelDriver, start: tuple[str, Any] | None) -> None:
        """Define a channel on the other nodes. Consumers create a channel with `delete_on_leave` there themselves."""
        config = driver.machine.config
        if not config.delete_on_leave and not driver.stream.copied:
            settings = msgspec.to_builtins(config, builtin_types=(bytes,))
            self._peers.changed(driver.stream.name, driver.name, settings, start and for_other_nodes(start))

    async def position(self, stream: Stream, start: tuple[str, Any]) -> int:
        """The offset of a start position.

        A start is first, new, (time, ns), (ago, ns), (offset, number), (position, (guid, offset)) or (message, (offset,
        id)). If the position is in the part of another node, the channel begins here at the first offset.
        """
        kind, value = start
        try:
            if kind == "first":
                return stream.first
            if kind == "new":
                return stream.safe
            if kind == "offset":
                return _offset(stream, msgspec.convert(value, int))
            if kind == "message":
                offset, id_, guid = msgspec.structs.astuple(msgspec.convert(value, frames.OneMessage))
                if guid in {"", self._runtime.guid}:
                    return await self._message(stream, offset, id_)
                return self._position_on_node(stream, kind, guid)
            if kind in {"position", "near"}:
                guid, offset = msgspec.convert(value, tuple[str, int])
                if guid != self._runtime.guid:
                    return self._position_on_node(stream, kind, guid)
                return _offset(stream, offset) if kind == "position" else min(max(offset, stream.first), stream.safe)
            moment = msgspec.convert(value, int)
        except msgspec.MsgspecError as error:
            raise Rejected(f"{kind}: {error}", code=Code.INVALID_SETTING) from error
        if kind not in {"time", "ago"}:
            reason = f"{kind!r} is no start position; use first, new, time, ago, offset, position or message"
            raise Rejected(reason, code=Code.INVALID_SETTING)
        when = moment if kind == "time" else environment.time_ns() - moment
        return await stream.find_time(min(max(when, 0), _LATEST))

    def _position_on_node(self, stream: Stream, kind: str, guid: str) -> int:
        """The offset at which a channel begins here if its start position is in the part of another node."""
        if kind != "near" and not self._members.knows(guid):
            raise OutOfRange(f"{kind}: the broker {guid}, which owns that position, is not known here")
        return stream.first

    async def _message(self, stream: Stream, offset: int, id_: str) -> int:
        """Check that the message at this offset has this id. Returns the offset."""
        _offset(stream, offset)
        first, _, block = await stream.fetch(offset, 1)
        if first == offset and block:
            row = block_records(block)[0]
            if f"{row[7]:016x}{row[8]:016x}" == id_:
                return offset
        raise OutOfRange(f"the message at offset {offset} of stream {stream.config.name!r} is not {id_}")

    def damage(self, number: int) -> int:
        """Damaged places in the progress log of a stream."""
        journal = self.journals.get(number)
        return 0 if journal is None else int(journal.figures().get("damage", 0))

    def figures(self, number: int) -> list[dict[str, Any]]:
        """The figures of all channels of a stream."""
        return [driver.figures() for driver in self.channels.get(number, {}).values()]

    def open(self, stream: Stream, state: ChannelState, *, whole: bool = True) -> ChannelDriver:
        """Open a channel at its recorded state. Not whole: the stream may lack its end, so nothing is rewound."""
        driver = ChannelDriver(
            self._runtime,
            self.consumers,
            stream,
            self.journals[stream.number],
            state,
            move=self._dead_letters.move,
            deleted=lambda driver: self.end(driver, Code.NO_CHANNEL, "its last consumer has left"),
            alarm=self._set_alarm,
        )
        self.channels[stream.number][state.channel] = driver
        if stream.held or (self.ownership.suspended and not stream.copied):
            driver.machine.suspend()
        lacks = bool(stream.copied) or stream.end_unconfirmed or not whole
        driver.do(driver.machine.open(stream.first, stream.safe, driver.now, copy=lacks))
        return driver

    async def find_or_declare(self, join: Join) -> ChannelDriver:
        """Find or create the channel for this request. Raises ChannelBusy if it is exclusive and has a consumer."""
        stream = self._stream(join)
        found = self.channels.get(stream.number, {}).get(join.channel)
        if found is not None and found.consumers:
            found.machine.check_free(exclusive=bool(join.settings.get("exclusive")))
        if join.again and found is not None:
            return found
        if join.create:
            return await self._declare(stream, join.channel, join.settings, join.start)
        if found is None:
            raise Rejected(f"the stream {join.stream!r} has no channel {join.channel!r}", code=Code.NO_CHANNEL)
        await self.configure(found, join.settings)
        return found

    def topics(self, stream: str, channel: str | None, topic: str | None = None) -> tuple[str, ...]:
        """The patterns of the messages that a channel delivers, or will deliver with this `topic`.

        It is the pattern of the channel, else those of its stream.
        """
        found = self._streams.get(stream)
        known = None if channel is None else self.channels.get(found.number, {}).get(channel)
        patterns = (
            {topic or "**"} if known is None else {topic or known.machine.config.topic, known.machine.config.topic}
        )
        if "**" in patterns:
            patterns = {*patterns - {"**"}, *(found.config.topics or ("**",))}
        return tuple(sorted(patterns))

    def _stream(self, join: Join) -> Stream:
        """The stream of this broker, or the replica that this broker has taken over from another one."""
        if not join.part or join.part == self._runtime.guid:
            return self._streams.get(join.stream)
        return self.ownership.get(join.part, join.stream)

    def await_consumer(self, driver: ChannelDriver) -> None:
        """Start the grace period of a channel without consumers. One with `delete_on_leave` is deleted at its end."""
        driver.machine.alone(driver.now + self._runtime.settings.grace)
        self._set_alarm(driver)

    def end(self, driver: ChannelDriver, code: Code, text: str) -> None:
        """End a channel for all its consumers."""
        driver.end()
        self.channels.get(driver.stream.number, {}).pop(driver.name, None)
        self.consumers.end(driver, code, text)

    # Time.

    def deadline(self) -> float | None:
        """The time at which expire() has to be called next."""
        while self._alarms and self._alarms[0][0] != self._alarms[0][2].alarm_at:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def expire(self, now: float) -> None:
        while (when := self.deadline()) is not None and when <= now:
            _, _, driver = heapq.heappop(self._alarms)
            driver.alarm_at = None
            if driver.over:
                continue
            with self._windows(driver):
                driver.do(driver.machine.expire(now))

    @contextmanager
    def _windows(self, driver: ChannelDriver) -> Iterator[None]:
        """Report to other nodes which of their consumers have fewer messages in flight after the body has run.

        Those nodes manage the windows of their consumers, and don't see a lease end.
        """
        machine = driver.machine
        had = {
            consumer: machine.count_in_flight(consumer)
            for consumer in driver.consumers
            if consumer[0] in self.consumers.node_sinks
        }
        yield
        for consumer, before in had.items():
            if machine.count_in_flight(consumer) < before:
                self.consumers.sink(consumer).more(consumer)

    def _set_alarm(self, driver: ChannelDriver) -> None:
        when = driver.machine.deadline()
        if when is not None and (driver.alarm_at is None or when < driver.alarm_at):
            driver.alarm_at = when
            heapq.heappush(self._alarms, (when, next(self._serial), driver))
            self._runtime.arm()

    # Dead letters.

    def dead_letter_stored(self, ticket: int, code: int, text: str) -> None:
        """A dead letter was stored or refused."""
        self._dead_letters.stored(ticket, code, text)


def for_other_nodes(start: tuple[str, Any]) -> tuple[str, Any]:
    """The same start position for the parts of the stream on other nodes, independent of the time it is applied."""
    kind, value = start
    if kind == "new":
        return "time", environment.time_ns()
    if kind == "ago" and isinstance(value, int):
        return "time", environment.time_ns() - value
    if kind == "position":
        return "near", value
    if kind == "message" and isinstance(value, list | tuple) and len(value) > 2:
        return "near", (value[2], value[0])
    return start if kind in {"time", "near"} else ("first", None)


def _offset(stream: Stream, offset: int) -> int:
    if not stream.first <= offset <= stream.safe:
        reason = (
            f"offset {offset} is not in the stream {stream.config.name!r}, which has {stream.first} to {stream.safe}"
        )
        raise OutOfRange(reason)
    return offset
