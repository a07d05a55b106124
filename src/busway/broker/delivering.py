"""All channels of a broker: who consumes which, what their frames ask for, and when something is due."""

import asyncio
import heapq
import logging
import time
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway._core import block_records
from busway.broker import channel_frames as frames
from busway.broker.burying import Burying
from busway.broker.channel_actions import Answer
from busway.broker.channel_frames import Entry, Join, What
from busway.broker.consumers import Who
from busway.broker.handing import Handing, Notes
from busway.broker.journal import Journal
from busway.broker.progress import ChannelConfig, ChannelState, Created, Deleted, Span, States
from busway.broker.stream import Stream
from busway.errors import BusError, Code, LimitExceeded, OutOfRange, Rejected

if TYPE_CHECKING:
    from busway.broker.hub import Hub
    from busway.broker.session import Session

log = logging.getLogger("busway.broker")

CHANNELS: Final = 10_000
"""The most channels a stream may have."""
_LATEST: Final = (1 << 63) - 1


class _NoNotes:
    """For streams in memory, which end with the broker as their channels do."""

    async def start(self) -> States:
        return {}

    def write(self, entries: object) -> "asyncio.Future[None]":  # noqa: ARG002, nothing is kept
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        told.set_result(None)
        return told

    async def stop(self) -> None:
        pass

    def figures(self) -> dict[str, Any]:
        return {}


class Delivering:
    """The channels of one hub, by stream and name."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._channels: dict[int, dict[str, Handing]] = {}
        self._notes: dict[int, Notes] = {}
        self._consumed: dict[int, dict[int, Handing]] = {}
        """By connection and the number that the connection has given the channel."""
        self._joining: dict[Who, int] = {}
        """Who is about to consume a channel, and the number of the frame that said so."""
        self._burying = Burying(hub)
        self._alarms: list[tuple[float, int, Handing]] = []
        self._serial = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.noting = 0
        """Acknowledgements that are answered when they are noted."""

    # Streams.

    async def added(self, stream: Stream) -> None:
        """A stream is there: its channels are where they were."""
        notes = stream.notes() or _NoNotes()
        states = await notes.start()
        self._notes[stream.number] = notes
        self._channels[stream.number] = {}
        for state in states.values():
            if state.config is None:
                log.warning("channel %r of stream %r has lost its settings", state.channel, stream.config.name)
                state.config = ChannelConfig()
            self._wait_for_somebody(self._open(stream, state))

    async def removed(self, stream: Stream) -> None:
        """A stream is gone, and its channels with it."""
        for handing in list(self._channels.pop(stream.number, {}).values()):
            self._end(handing, Code.NO_STREAM, f"the stream {stream.config.name!r} was removed")
        if (notes := self._notes.pop(stream.number, None)) is not None:
            await notes.stop()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for notes in self._notes.values():
            await notes.stop()

    def changed(self, stream: Stream) -> None:
        """A stream has other settings: what its channels note is as safe as it promises."""
        if isinstance(notes := self._notes.get(stream.number), Journal):
            notes.safety = stream.config.safety

    def stored(self, number: int) -> None:
        """More of a stream is safe."""
        for handing in self._channels.get(number, {}).values():
            if handing.consumers:
                handing.catch_up()

    def trimmed(self, stream: Stream) -> None:
        """Old messages of a stream are gone."""
        for handing in self._channels.get(stream.number, {}).values():
            handing.catch_up()

    def floor(self, stream: Stream, channel: str) -> int | None:
        """Everything below this offset is done by a channel; None: there is no such channel."""
        handing = self._channels.get(stream.number, {}).get(channel)
        return None if handing is None else handing.machine.floor

    # Channels.

    def get(self, stream: str, channel: str) -> Handing:
        number = self._hub.streaming.get(stream).number
        if (handing := self._channels.get(number, {}).get(channel)) is None:
            raise Rejected(f"the stream {stream!r} has no channel {channel!r}", code=Code.NO_CHANNEL)
        return handing

    async def declare(self, stream: str, channel: str, settings: dict[str, Any], start: tuple[str, Any]) -> Handing:
        """The channel with these settings; made if it is not there."""
        found = self._hub.streaming.get(stream)
        if (channels := self._channels.get(found.number)) is None:
            raise Rejected(f"the stream {stream!r} is being made or removed", code=Code.NO_STREAM)
        if (handing := channels.get(channel)) is not None:
            await self.configure(handing, settings)
            return handing
        if len(channels) >= CHANNELS:
            reason = f"the stream {stream!r} has {CHANNELS} channels, which is the limit"
            raise LimitExceeded(reason, code=Code.TOO_MANY_SUBSCRIPTIONS)
        config = frames.configured(ChannelConfig(), settings, stream, channel)
        floor = await self.place(found, start)
        if self._channels.get(found.number) is not channels:
            raise Rejected(f"the stream {stream!r} was removed", code=Code.NO_STREAM)
        if (handing := channels.get(channel)) is not None:  # somebody else has made it meanwhile
            await self.configure(handing, settings)
            return handing
        state = ChannelState(channel, config, time.time_ns() // 1000, floor)
        told = self._notes[found.number].write([Created(channel, state.epoch, floor, config)])
        handing = self._open(found, state)
        await told
        return handing

    async def configure(self, handing: Handing, settings: dict[str, Any]) -> None:
        machine = handing.machine
        config = frames.configured(machine.config, settings, handing.stream.config.name, handing.name)
        if config != machine.config:
            actions = machine.configure(config, handing.now)
            handing.configured()
            if (told := handing.do(actions)) is not None:
                await told

    async def seek(self, handing: Handing, start: tuple[str, Any]) -> int:
        """Put a channel to another place; its offset."""
        offset = await self.place(handing.stream, start)
        handing.catch_up()
        if (told := handing.do(handing.machine.seek(offset, handing.now))) is not None:
            await told
        return offset

    async def remove(self, handing: Handing) -> None:
        self._end(handing, Code.NO_CHANNEL, f"the channel {handing.name!r} was removed")
        await handing.notes.write([Deleted(handing.name)])

    async def place(self, stream: Stream, start: tuple[str, Any]) -> int:
        """The offset that is meant: first, new, (time, ns), (ago, ns), (offset, number), or (message, (offset, id))."""
        kind, value = start
        try:
            if kind == "first":
                return stream.first
            if kind == "new":
                return stream.safe
            if kind == "offset":
                return _offset(stream, msgspec.convert(value, int))
            if kind == "message":
                return await self._message(stream, *msgspec.convert(value, tuple[int, str]))
            moment = msgspec.convert(value, int)
        except msgspec.MsgspecError as error:
            raise Rejected(f"{kind}: {error}", code=Code.INVALID_SETTING) from error
        if kind not in {"time", "ago"}:
            raise Rejected(f"{kind!r} is no place to begin", code=Code.INVALID_SETTING)
        when = moment if kind == "time" else time.time_ns() - moment
        return await stream.find_time(min(max(when, 0), _LATEST))

    async def _message(self, stream: Stream, offset: int, id_: str) -> int:
        """An offset, if the message with this id is there."""
        _offset(stream, offset)
        first, _, block = await stream.fetch(offset, 1)
        if first == offset and block:
            row = block_records(block)[0]
            if f"{row[7]:016x}{row[8]:016x}" == id_:
                return offset
        raise OutOfRange(f"the message at offset {offset} of stream {stream.config.name!r} is not {id_}")

    def figures(self, number: int) -> list[dict[str, Any]]:
        """Of the channels of a stream."""
        return [handing.figures() for handing in self._channels.get(number, {}).values()]

    def _open(self, stream: Stream, state: ChannelState) -> Handing:
        handing = Handing(
            self._hub,
            stream,
            self._notes[stream.number],
            state,
            bury=self._burying.bury,
            deleted=lambda handing: self._end(handing, Code.NO_CHANNEL, "its last consumer has left"),
            alarm=self._set_alarm,
        )
        self._channels[stream.number][state.channel] = handing
        handing.do(handing.machine.open(stream.first, stream.safe, handing.now))
        return handing

    def _wait_for_somebody(self, handing: Handing) -> None:
        """Nobody consumes a channel; one that goes with its last consumer does so if that stays so."""
        handing.machine.alone(handing.now + self._hub.settings.grace)
        self._set_alarm(handing)

    def _end(self, handing: Handing, code: Code, text: str) -> None:
        handing.end()
        self._channels.get(handing.stream.number, {}).pop(handing.name, None)
        for conn, number in list(handing.consumers):
            self._consumed.get(conn, {}).pop(number, None)
            self._hub.engine.tell_ended(conn, number, code, text)
        handing.consumers.clear()

    # Frames.

    def frame(self, conn: int, kind: int, number: int, call: int, rest: bytes) -> None:
        """A CHANNEL, UNCHANNEL, TAKE or ACK."""
        try:
            if kind == frames.CHANNEL:
                self._begin((conn, number), call, frames.join_of(rest))
                return
            if (handing := self._consumed.get(conn, {}).get(number)) is None:
                if kind == frames.UNCHANNEL:  # it has ended meanwhile, or not begun yet
                    self._joining.pop((conn, number), None)
                    self._hub.engine.result(conn, call, Code.OK, 0, "")
                    return
                raise Rejected("this connection does not consume that channel", code=Code.NO_CHANNEL)
            if kind == frames.UNCHANNEL:
                self._leave((conn, number), handing)
                self._hub.engine.result(conn, call, Code.OK, 0, "")
            elif kind == frames.TAKE:
                self._take((conn, number), handing, call, frames.take_of(rest))
            else:
                self._settle((conn, number), handing, call, list(frames.entries_of(rest)))
        except BusError as error:
            self._hub.engine.result(conn, call, error.code, 0, error.reason)

    def _begin(self, who: Who, call: int, join: Join) -> None:
        conn, number = who
        if number in self._consumed.get(conn, {}) or who in self._joining:
            raise Rejected(f"the connection has a channel {number} already", code=Code.DUPLICATE)
        self._check_room(conn)
        self._joining[who] = call
        self._spawn(self._join(self._hub.sessions[conn], who, call, join))

    def _check_room(self, conn: int) -> None:
        if len(self._consumed.get(conn, ())) >= (most := self._hub.settings.subscriptions):
            raise LimitExceeded(f"a connection has {most} channels at most", code=Code.TOO_MANY_SUBSCRIPTIONS)

    async def _join(self, session: "Session", who: Who, call: int, join: Join) -> None:
        engine, conn = self._hub.engine, who[0]
        handing: Handing | None = None
        try:
            handing = await self._joined(join)
            if session.conn >= 0:
                self._enter(handing, who, call, join)
        except BusError as error:
            if session.conn >= 0:
                engine.result(conn, call, error.code, 0, error.reason)
        except Exception as error:  # noqa: BLE001, logged and counted by unexpected()
            self._hub.unexpected(error, session, "a channel")
        finally:
            if self._joining.get(who) == call:
                del self._joining[who]
            if handing is not None and not handing.consumers:
                self._wait_for_somebody(handing)
            self._hub.flush()

    def _enter(self, handing: Handing, who: Who, call: int, join: Join) -> None:
        conn, number = who
        if self._joining.get(who) != call or handing.over:
            raise Rejected(f"the channel {join.channel!r} was left or removed meanwhile", code=Code.NO_CHANNEL)
        self._check_room(conn)  # of those that came at once all had room
        handing.catch_up()
        actions = handing.machine.join(who, join.window, handing.now)
        if self._stopping:
            handing.machine.stop(who)
        handing.consumers.add(who)
        self._consumed.setdefault(conn, {})[number] = handing
        self._hub.engine.follow_stream(handing.stream.number, yes=True)
        self._hub.engine.result(conn, call, Code.OK, handing.machine.floor, "")
        handing.do(actions)

    async def _joined(self, join: Join) -> Handing:
        """The channel that somebody wants to consume, with the settings that he gave, unless it has its only consumer."""
        found = self._channels.get(self._hub.streaming.get(join.stream).number, {}).get(join.channel)
        if found is not None and found.consumers:
            found.machine.check_free(exclusive=bool(join.settings.get("exclusive")))
        if join.again and found is not None:
            return found
        if join.create:
            return await self.declare(join.stream, join.channel, join.settings, join.start)
        handing = self.get(join.stream, join.channel)
        await self.configure(handing, join.settings)
        return handing

    def _leave(self, who: Who, handing: Handing, grace: float = 0.0) -> None:
        self._consumed.get(who[0], {}).pop(who[1], None)
        handing.left(who)
        handing.do(handing.machine.leave(who, handing.now, grace=grace))
        number = handing.stream.number
        if not any(one.consumers for one in self._channels.get(number, {}).values()):
            self._hub.engine.follow_stream(number, yes=False)

    def _take(self, who: Who, handing: Handing, call: int, take: "frames.Take | int") -> None:
        machine = handing.machine
        if isinstance(take, int):
            handing.do(machine.cancel_take(who, take, handing.now))
        elif machine.takes(who) >= (most := self._hub.settings.pending):
            raise LimitExceeded(f"{most} takes wait already", code=Code.TOO_MANY_PENDING)
        else:
            handing.do(machine.take(who, call, take.most, take.timeout, handing.now, whole=take.whole))

    def _settle(self, who: Who, handing: Handing, call: int, entries: list[Entry]) -> None:
        """An ACK: answered when it is noted as safely as the stream promises."""
        good, left = 0, list[Span]()
        told: asyncio.Future[None] | None = None
        for actions in self._settled(who, handing, entries):
            for action in actions:
                if isinstance(action, Answer):
                    good += action.good
                    left += action.left
            told = handing.do(actions) or told
        if told is None or (told.done() and told.exception() is None):
            self._answer(who[0], call, good, left)
        else:
            session = self._hub.sessions.get(who[0])
            self.noting += 1
            told.add_done_callback(lambda told: self._answer_later(session, call, good, left, told))

    def _settled(self, who: Who, handing: Handing, entries: list[Entry]) -> Any:
        machine, now = handing.machine, handing.now
        at = 0
        while at < len(entries):
            what, _, _, delay = entries[at]
            end = at
            spans: list[Span] = []
            while end < len(entries) and entries[end].what is what and entries[end].delay == delay:
                spans.append((entries[end].start, entries[end].many))
                end += 1
            at = end
            if what is What.ACK:
                yield machine.ack(who, spans, now)
            elif what is What.EXTEND:
                yield machine.extend(who, spans, now)
            else:
                if what is What.RELEASE:
                    machine.stop(who)  # it is about to leave, and must not be given the same again
                yield machine.nack(who, spans, delay, now, counted=what is What.NACK)

    def _answer(self, conn: int, call: int, good: int, left: list[Span]) -> None:
        if left:
            self._hub.engine.result(conn, call, Code.ACK_LATE, good, msgspec.json.encode(left).decode())
        else:
            self._hub.engine.result(conn, call, Code.OK, good, "")

    def _answer_later(
        self, session: "Session | None", call: int, good: int, left: list[Span], told: "asyncio.Future[None]"
    ) -> None:
        self.noting -= 1
        if session is None or session.conn < 0:
            return  # it is gone, and somebody else may have its number
        error = None if told.cancelled() else told.exception()
        if isinstance(error, BusError):
            self._hub.engine.result(session.conn, call, error.code, 0, error.reason)
        else:
            self._answer(session.conn, call, good, left)
        self._hub.flush()

    # Connections.

    def room(self, conn: int) -> None:
        """There is room again in the outbox of a connection."""
        if self._stopping:
            return
        for number, handing in list(self._consumed.get(conn, {}).items()):
            handing.do(handing.machine.go_on((conn, number), handing.now))

    def hand_no_more(self) -> None:
        """The broker is about to stop: who works on a message may acknowledge it, but gets no other one."""
        self._stopping = True
        for conn, consumed in self._consumed.items():
            for number, handing in consumed.items():
                handing.machine.stop((conn, number))

    def left(self, conn: int) -> None:
        """A client says that it goes, and so it leaves all its channels."""
        for number, handing in list(self._consumed.get(conn, {}).items()):
            self._leave((conn, number), handing)

    def forget(self, conn: int) -> None:
        """A connection is over: what it had is for the others. If it was lost, its client may come back."""
        for number, handing in list(self._consumed.get(conn, {}).items()):
            self._leave((conn, number), handing, self._hub.settings.grace)
        self._consumed.pop(conn, None)
        for who in [who for who in self._joining if who[0] == conn]:
            del self._joining[who]

    # Time.

    def deadline(self) -> float | None:
        """When expire() is to be called next."""
        while self._alarms and self._alarms[0][0] != self._alarms[0][2].alarm_at:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def expire(self, now: float) -> None:
        while (when := self.deadline()) is not None and when <= now:
            _, _, handing = heapq.heappop(self._alarms)
            handing.alarm_at = None
            if not handing.over:
                handing.do(handing.machine.expire(now))

    def _set_alarm(self, handing: Handing) -> None:
        when = handing.machine.deadline()
        if when is not None and (handing.alarm_at is None or when < handing.alarm_at):
            handing.alarm_at = when
            heapq.heappush(self._alarms, (when, next(self._serial), handing))
            self._hub.pulse.arm()

    def _spawn(self, work: Any) -> None:
        task = self._hub.loop.create_task(work, name="busway channel")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What the hub's table calls.

    def own(self, ticket: int, code: int, text: str) -> None:
        """What became of a dead letter."""
        self._burying.told(ticket, code, text)


def _offset(stream: Stream, offset: int) -> int:
    if not stream.first <= offset <= stream.safe:
        reason = (
            f"offset {offset} is not in the stream {stream.config.name!r}, which has {stream.first} to {stream.safe}"
        )
        raise OutOfRange(reason)
    return offset


def frame(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.delivering.frame(*event[1:])


def own(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.delivering.own(*event[1:])


def stored(hub: "Hub", event: tuple[Any, ...]) -> None:
    hub.delivering.stored(event[1])
