"""All channels of a broker: opens, declares, moves and removes them, and gives them the time.

The hub passes the frames of consumers and the events of streams to this module.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway._core import block_records
from busway.broker.channels import frames
from busway.broker.channels.acks import Acks
from busway.broker.channels.dead_letters.move import DeadLetters
from busway.broker.channels.driver import ChannelDriver, ProgressLog
from busway.broker.channels.frames import Join
from busway.broker.channels.journal import Journal
from busway.broker.channels.ownership import Ownership
from busway.broker.channels.sinks import ClientSink, Sink
from busway.broker.channels.state.consumers import Who
from busway.broker.channels.state.progress import ChannelConfig, ChannelState, Created, Deleted, States
from busway.broker.streams.stream import Stream, native
from busway.common import environment
from busway.errors import BusError, Code, LimitExceeded, OutOfRange, Rejected, StoreFailed

if TYPE_CHECKING:
    from busway.broker.hub import Hub
    from busway.broker.peers import ChannelPeers, Members
    from busway.broker.session import Session

log = logging.getLogger("busway.broker")

CHANNELS: Final = 10_000
"""The most channels a stream may have."""
_LATEST: Final = (1 << 63) - 1
"""The latest time (ns) that a stream can be searched for."""


class _NoJournal:
    """A journal that stores nothing. Streams in memory end with the broker, and so do their channels."""

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


def _journal_of(stream: Stream) -> ProgressLog:
    """A journal in the folder of a stream. A stream in memory has no folder, and its channels end with the broker."""
    if stream.folder is None:
        return _NoJournal()
    return Journal(stream.folder, native(stream.config.safety), new=stream.new)


class Channels:
    """The channels of one hub, by stream and name."""

    def __init__(self, hub: "Hub", peers: "ChannelPeers", members: "Members") -> None:
        self._hub = hub
        self._peers = peers
        self._members = members
        self.channels: dict[int, dict[str, ChannelDriver]] = {}
        """The channels of each stream: by the number of the stream and the name of the channel."""
        self.journals: dict[int, ProgressLog] = {}
        """The channel journal of each stream, by the number of the stream."""
        self._consumed: dict[int, dict[int, ChannelDriver]] = {}
        """The consumed channels: by connection and the number that the connection has given the channel."""
        self._joining: dict[Who, int] = {}
        """Consumers whose join is in progress, with the call number of their CHANNEL frame."""
        self._dead_letters = DeadLetters(hub)
        self._clients = ClientSink(hub, peers)
        self.outlets: dict[int, Sink] = {}
        """The sinks of links to other nodes, by connection. All other connections are clients."""
        self._shared_takes: dict[tuple[Who, int], Callable[[int], None]] = {}
        """Takes that are part of a take from several nodes, with the function that gets their count."""
        self._alarms: list[tuple[float, int, ChannelDriver]] = []
        self._serial = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.acks = Acks(hub, peers)
        self.ownership = Ownership(self)

    # Streams.

    async def added(self, stream: Stream) -> None:
        """Open the channels of a new or reopened stream at their recorded progress."""
        journal = stream.notes() or _journal_of(stream)
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

    async def removed(self, stream: Stream) -> None:
        """End all channels of a removed stream."""
        for driver in list(self.channels.pop(stream.number, {}).values()):
            self.end(driver, Code.NO_STREAM, f"the stream {stream.config.name!r} was removed")
        if (journal := self.journals.pop(stream.number, None)) is not None:
            await journal.stop()

    async def close(self) -> None:
        self._dead_letters.stop()
        for task in list(self._tasks):
            task.cancel()
        for journal in self.journals.values():
            await journal.stop()

    def kill(self) -> None:
        """Close the files without writing, as if the process was killed."""
        for journal in self.journals.values():
            if isinstance(journal, Journal):
                journal.close()

    def changed(self, stream: Stream) -> None:
        """Apply the new safety of a stream to its channel journal."""
        if isinstance(journal := self.journals.get(stream.number), Journal):
            journal.safety = native(stream.config.safety)

    def notes(self, stream: Stream) -> ProgressLog | None:
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
        number = self._hub.streams.get(stream).number
        if (driver := self.channels.get(number, {}).get(channel)) is None:
            raise Rejected(f"the stream {stream!r} has no channel {channel!r}", code=Code.NO_CHANNEL)
        return driver

    def found(self, stream: str, channel: str | None) -> list[ChannelDriver]:
        """One channel of a stream, or all."""
        if channel is not None:
            return [self.get(stream, channel)]
        return list(self.channels.get(self._hub.streams.get(stream).number, {}).values())

    async def declare(
        self, stream: str, channel: str, settings: dict[str, Any], start: tuple[str, Any]
    ) -> ChannelDriver:
        """Find or create a channel, and apply these settings."""
        return await self._declare(self._hub.streams.get(stream), channel, settings, start)

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
        self._hub.flush()
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
            self._peers.changed(driver.stream.name, driver.name, settings, start and elsewhere(start))

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
                if guid in {"", self._hub.guid}:
                    return await self._message(stream, offset, id_)
                return self._position_on_node(stream, kind, guid)
            if kind in {"position", "near"}:
                guid, offset = msgspec.convert(value, tuple[str, int])
                if guid != self._hub.guid:
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

    def figures(self, number: int) -> list[dict[str, Any]]:
        """The figures of all channels of a stream."""
        return [driver.figures() for driver in self.channels.get(number, {}).values()]

    def open(self, stream: Stream, state: ChannelState, *, whole: bool = True) -> ChannelDriver:
        """Open a channel at its recorded state. Not whole: the stream may lack its end, so nothing is rewound."""
        driver = ChannelDriver(
            self._hub,
            stream,
            self.journals[stream.number],
            state,
            bury=self._dead_letters.bury,
            deleted=lambda driver: self.end(driver, Code.NO_CHANNEL, "its last consumer has left"),
            alarm=self._set_alarm,
        )
        self.channels[stream.number][state.channel] = driver
        if stream.held or (self.ownership.suspended and not stream.copied):
            driver.machine.suspend()
        lacks = bool(stream.copied) or stream.unsettled or not whole
        driver.do(driver.machine.open(stream.first, stream.safe, driver.now, copy=lacks))
        return driver

    def await_consumer(self, driver: ChannelDriver) -> None:
        """Start the grace period of a channel without consumers. One with `delete_on_leave` is deleted at its end."""
        driver.machine.alone(driver.now + self._hub.settings.grace)
        self._set_alarm(driver)

    def end(self, driver: ChannelDriver, code: Code, text: str) -> None:
        """End a channel for all its consumers."""
        driver.end()
        self.channels.get(driver.stream.number, {}).pop(driver.name, None)
        for conn, number in list(driver.consumers):
            self._consumed.get(conn, {}).pop(number, None)
            self.outlet((conn, number)).ended((conn, number), code, text)
            if conn not in self.outlets:
                self._peers.left((conn, number))
        driver.consumers.clear()

    def outlet(self, who: Who) -> Sink:
        """The sink of a consumer."""
        return self.outlets.get(who[0], self._clients)

    def taken(self, who: Who, number: int, got: int) -> None:
        """Answer a take that has ended with so many messages."""
        if (finish := self._shared_takes.pop((who, number), None)) is not None:
            finish(got)
        else:
            self.outlet(who).result(who, number, Code.OK, got, "")

    # Frames.

    def frame(self, conn: int, kind: int, number: int, call: int, rest: bytes) -> None:
        """Handle a CHANNEL, UNCHANNEL, TAKE, ACK or NACK frame."""
        try:
            if kind == frames.CHANNEL:
                self._begin((conn, number), call, frames.join_of(rest))
                return
            if (driver := self._consumed.get(conn, {}).get(number)) is None:
                if kind == frames.UNCHANNEL:  # the channel has ended, or its join is not finished
                    self._joining.pop((conn, number), None)
                    self.outlet((conn, number)).result((conn, number), call, Code.OK, 0, "")
                    return
                raise Rejected("this connection does not consume that channel; join it first", code=Code.NO_CHANNEL)
            if kind == frames.UNCHANNEL:
                self._leave((conn, number), driver, lost=rest == frames.LOST)
                self.outlet((conn, number)).result((conn, number), call, Code.OK, 0, "")
            elif kind == frames.TAKE:
                self._take((conn, number), driver, call, frames.take_of(rest))
            elif kind == frames.NACK:
                self._nacked((conn, number), driver, call, frames.nack_of(rest))
            else:
                self._acked((conn, number), driver, call, rest)
        except BusError as error:
            self.outlet((conn, number)).result((conn, number), call, error.code, 0, error.reason)

    def _acked(self, who: Who, driver: ChannelDriver, call: int, rest: bytes) -> None:
        """Handle an ACK: for messages of this broker, or of another node of the cluster."""
        guid, entries = frames.entries_of(rest)
        if self._is_here(who, guid):
            self._acknowledge(who, lambda: self.acks.settle(who, driver, call, entries))
        elif self._members.clustered:
            self._peers.acknowledge(who, guid or "", call, frames.ACK, rest[frames.GUID :])

    def _nacked(self, who: Who, driver: ChannelDriver, call: int, nack: "frames.Nack") -> None:
        """Handle a NACK: for messages of this broker, or of another node of the cluster."""
        if self._is_here(who, nack.broker or None):
            self._acknowledge(who, lambda: self.acks.fail(who, driver, call, nack))
        elif self._members.clustered:
            rest = msgspec.msgpack.encode(msgspec.structs.replace(nack, broker=""))
            self._peers.acknowledge(who, nack.broker, call, frames.NACK, rest)

    def _is_here(self, who: Who, guid: str | None) -> bool:
        """True if this broker has stored the messages. Raises StoreFailed if `guid` is not a known node."""
        if guid is None or guid == self._hub.guid:
            return True
        if not self._members.clustered or who[0] in self.outlets:
            raise StoreFailed(f"the broker {guid} has stored the message and is not known here; it may be redelivered")
        return False

    def _acknowledge(self, who: Who, work: Callable[[], None]) -> None:
        work()
        if who[0] not in self.outlets:
            self._peers.acknowledged_here(who)

    def _begin(self, who: Who, call: int, join: Join) -> None:
        conn, number = who
        driver = self._consumed.get(conn, {}).get(number)
        if (
            driver is not None
            and join.again
            and (driver.stream.config.name, driver.name) == (join.stream, join.channel)
        ):
            self.window(who, join.window)
            if conn not in self.outlets:
                self._peers.joined(who, join, driver)
            self.outlet(who).result(who, call, Code.OK, driver.machine.floor, "")
            return
        if driver is not None or who in self._joining:
            raise Rejected(f"the connection consumes a channel with number {number} already", code=Code.DUPLICATE)
        self._check_room(conn)
        self._joining[who] = call
        self._spawn(self._join(self._hub.sessions.get(conn), who, call, join))

    def _check_room(self, conn: int) -> None:
        if conn not in self.outlets and len(self._consumed.get(conn, ())) >= (most := self._hub.settings.subscriptions):
            reason = f"the connection consumes {most} channels, which is the limit; leave one first"
            raise LimitExceeded(reason, code=Code.TOO_MANY_SUBSCRIPTIONS)

    async def _join(self, session: "Session | None", who: Who, call: int, join: Join) -> None:
        driver: ChannelDriver | None = None
        try:
            driver = await self._joined(join)
            if session is None or session.conn >= 0:
                self._enter(driver, who, call, join)
        except BusError as error:
            if session is None or session.conn >= 0:
                self.outlet(who).result(who, call, error.code, 0, error.reason)
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            self._hub.unexpected(error, session, "a channel")
        finally:
            if self._joining.get(who) == call:
                del self._joining[who]
            if driver is not None and not driver.consumers:
                self.await_consumer(driver)
            self._hub.flush()

    def _enter(self, driver: ChannelDriver, who: Who, call: int, join: Join) -> None:
        conn, number = who
        if self._joining.get(who) != call or driver.over:
            raise Rejected(f"the channel {join.channel!r} was left or removed during the join", code=Code.NO_CHANNEL)
        self._check_room(conn)  # again: several joins may have been in progress
        driver.catch_up()
        session = self._hub.sessions.get(conn)
        actions = driver.machine.join(who, join.window, driver.now, "" if session is None else session.name)
        if self._stopping:
            driver.machine.stop(who)
        driver.consumers.add(who)
        if conn in self.outlets:
            driver.drained.add(who)
        self._consumed.setdefault(conn, {})[number] = driver
        if not driver.stream.copied:
            self._hub.engine.follow_stream(driver.stream.number, yes=True)
        self.outlet(who).result(who, call, Code.OK, driver.machine.floor, "")
        if conn not in self.outlets:
            self._peers.joined(who, join, driver)
        driver.do(actions)

    async def _joined(self, join: Join) -> ChannelDriver:
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

    def _stream(self, join: Join) -> Stream:
        """The stream of this broker, or the replica that this broker has taken over from another one."""
        if not join.part or join.part == self._hub.guid:
            return self._hub.streams.get(join.stream)
        return self.ownership.get(join.part, join.stream)

    def _leave(self, who: Who, driver: ChannelDriver, *, lost: bool = False, grace: float = 0.0) -> None:
        self._consumed.get(who[0], {}).pop(who[1], None)
        for key in [key for key in self._shared_takes if key[0] == who]:
            del self._shared_takes[key]
        if who[0] not in self.outlets:
            self._peers.left(who, lost=lost)
        driver.left(who)
        driver.do(driver.machine.leave(who, driver.now, lost=lost, grace=grace))
        number = driver.stream.number
        if not driver.stream.copied and not any(one.consumers for one in self.channels.get(number, {}).values()):
            self._hub.engine.follow_stream(number, yes=number in self._hub.watched)

    def _take(self, who: Who, driver: ChannelDriver, call: int, take: "frames.Take | int") -> None:
        machine = driver.machine
        if who[0] in self.outlets:
            driver.drained.add(who)
        elif self._peers.take(who, call, take):
            return
        if isinstance(take, int):
            driver.do(machine.cancel_take(who, take, driver.now))
        elif machine.takes(who) >= (most := self._hub.settings.pending):
            reason = f"the consumer has {most} takes pending, which is the limit; await one first"
            raise LimitExceeded(reason, code=Code.TOO_MANY_PENDING)
        else:
            driver.do(machine.take(who, call, take.most, take.timeout, driver.now, whole=take.whole))

    def take_here(self, who: Who, number: int, most: int, finish: Callable[[int], None]) -> None:
        """Deliver up to so many of this broker's messages at once, as part of a take from several nodes.

        `finish` is called with the number of messages delivered.
        """
        driver = self._consumed.get(who[0], {}).get(who[1])
        if driver is None:
            finish(0)
            return
        self._shared_takes[who, number] = finish
        driver.drained.add(who)
        driver.do(driver.machine.take(who, number, most, 0.0, driver.now))

    def in_flight(self, who: Who) -> int:
        """The number of messages that a consumer has in flight."""
        driver = self._consumed.get(who[0], {}).get(who[1])
        return 0 if driver is None else driver.machine.count_in_flight(who)

    def window(self, who: Who, window: int) -> None:
        """Set how many of this broker's messages a consumer may have in flight."""
        if (driver := self._consumed.get(who[0], {}).get(who[1])) is not None:
            driver.do(driver.machine.join(who, window, driver.now))

    # Connections.

    def room(self, conn: int) -> None:
        """Resume delivery to a connection that has room in its outbox again."""
        if self._stopping:
            return
        for number, driver in list(self._consumed.get(conn, {}).items()):
            driver.do(driver.machine.unstop((conn, number), driver.now))

    def stop_delivering(self) -> None:
        """Deliver no more messages, because the broker is about to stop. Consumers can still acknowledge."""
        self._stopping = True
        for conn, consumed in self._consumed.items():
            for number, driver in consumed.items():
                driver.machine.stop((conn, number))

    def left(self, conn: int) -> None:
        """A client closes its connection: it leaves all its channels."""
        for number, driver in list(self._consumed.get(conn, {}).items()):
            self._leave((conn, number), driver)

    def forget(self, conn: int) -> None:
        """A connection was lost: its messages are redelivered to other consumers. The client may come back."""
        for number, driver in list(self._consumed.get(conn, {}).items()):
            self._leave((conn, number), driver, lost=True, grace=self._hub.settings.grace)
        self._consumed.pop(conn, None)
        for who in [who for who in self._joining if who[0] == conn]:
            del self._joining[who]

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
        had = {who: machine.count_in_flight(who) for who in driver.consumers if who[0] in self.outlets}
        yield
        for who, before in had.items():
            if machine.count_in_flight(who) < before:
                self.outlet(who).more(who)

    def _set_alarm(self, driver: ChannelDriver) -> None:
        when = driver.machine.deadline()
        if when is not None and (driver.alarm_at is None or when < driver.alarm_at):
            driver.alarm_at = when
            heapq.heappush(self._alarms, (when, next(self._serial), driver))
            self._hub.clock.arm()

    def _spawn(self, work: Any) -> None:
        task = self._hub.loop.create_task(work, name="busway channel")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What the hub's table calls.

    def own(self, ticket: int, code: int, text: str) -> None:
        """A dead letter was stored or refused."""
        self._dead_letters.stored(ticket, code, text)


def elsewhere(start: tuple[str, Any]) -> tuple[str, Any]:
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


def frame(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.channels.frame(*event[1:])


def own(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.channels.own(*event[1:])


def stored(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.channels.stored(event[1])
