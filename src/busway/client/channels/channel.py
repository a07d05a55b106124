"""A channel: messages of a stream that its consumers share, each to be acknowledged.

With a window the broker hands messages out as they come, so many at a time; without one it does so when they are taken.
What is not acknowledged is handed out again: to another consumer, or to this one after a lost connection.
"""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from copy import copy
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias
from weakref import ref

import msgspec

from busway._core import Message, handed
from busway.client.channels.acks import ACK, EXTEND, NACK, RELEASE, AckOutcome, Acks, Run, Runs
from busway.client.channels.duplicates import Duplicates
from busway.client.channels.failures import Misfit, described, misfit
from busway.client.channels.lease_renewal import LeaseRenewal, Places
from busway.client.channels.positions import Start, info_of, start_of
from busway.client.connection.connection import Connection
from busway.client.connection.core import Core
from busway.client.connection.events import Event
from busway.client.connection.log_lines import GONE
from busway.client.connection.registration import Entered, Registration
from busway.client.subscriptions.inbox import Handler, HandlerTasks, InboxProperties, InboxReader
from busway.common.checks import check_count, check_timeout, check_type
from busway.common.durations import Duration, seconds
from busway.errors import (
    BusError,
    Closed,
    Code,
    Disconnected,
    LocalProtocolError,
    PayloadError,
    Reject,
    Rejected,
    Timeout,
)
from busway.positions import Position
from busway.streams import ChannelInfo

if TYPE_CHECKING:
    from busway.client.channels.dead_letters import DeadLetters, Progress, Since
    from busway.dead_letters import DeadLetter, Redrive

Call: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Any]]

_CHANNEL: Final = 0x30
_UNCHANNEL: Final = 0x31
_TAKE: Final = 0x32
_ASKED: Final = struct.Struct("<II")
_CANCEL: Final = struct.Struct("<IQ")
_WHOLE: Final = 0x80000000
_EVER: Final = (1 << 32) - 1
_MOST: Final = 65_536
MAX_PROCESSING: Final = 3600.0
"""Seconds that a message may be worked on before its lease is no longer extended, unless the user says otherwise."""
_LATE: Final = 5.0
"""Seconds that the answer of the broker may be late when a take's time is over."""


class ChannelRegistrar:
    """Encodes CHANNEL and UNCHANNEL for one channel."""

    noun = "channel"

    def __init__(self, core: Core, request: dict[str, Any]) -> None:
        self._core = core
        self._request = request
        """The map of the CHANNEL frame."""

    def announce(self, number: int, *, again: bool) -> int:
        # With `again` the broker keeps the settings that were changed since the first CHANNEL.
        request = {**self._request, "again": again}
        return self._core.session.channel(_CHANNEL, number, msgspec.msgpack.encode(request))

    def withdraw(self, number: int) -> int:
        return self._core.session.channel(_UNCHANNEL, number, b"")

    def forget(self, number: int) -> None:
        if self._core.subscriptions.pop(number, None) is not None:
            self._forget(number)

    def drop(self, number: int) -> None:
        if self._core.greeted:
            self.withdraw(number)
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._core.session.forget(number)
        self._core.session.own(number, None)


class Channel(Entered, InboxProperties):
    """Made by `bus.channel(...)`. Iterate over it, or use recv(), take() or batches(), and ack() each message."""

    policy: Final = "block"
    patience: Final = 5.0

    def __init__(
        self,
        core: Core,
        stream: str,
        name: str,
        *,
        call: Call,
        window: int,
        create: bool,
        start: tuple[str, Any],
        settings: dict[str, Any],
        handler: Handler | None = None,
        concurrency: int = 1,
        drain: float = 0.0,
        max_processing: Duration | None = MAX_PROCESSING,
        letters: "DeadLetters",
    ) -> None:
        if type(window) is not int or not 0 <= window <= _MOST:
            raise ValueError(f"window must be a whole number from 0 to {_MOST}, but is {window!r}")
        if handler is not None and not window:
            raise ValueError("a handler needs a window above 0")
        check_count("concurrency", concurrency)
        request = {
            "stream": stream,
            "channel": name,
            "window": window,
            "create": create,
            "start": start,
            "settings": settings,
        }
        self._core = core
        self._drain = drain
        self._registration = Registration(core, ChannelRegistrar(core, request), f"{stream}/{name}", drain)
        self._reader = InboxReader(core, self._registration, on_refill=self._worked_on, on_batch=self._worked_on)
        self.handled = handler is not None
        self._handlers: HandlerTasks | None = None
        if handler is not None:
            handle = partial(self._handle, handler)
            self._handlers = HandlerTasks(core, self._registration, self._reader, handle, concurrency)
        self.stream = stream
        self.name = name
        self.window = window
        self.lost = 0
        """Messages that the stream has removed before they were acknowledged, as far as this consumer was told; the event `gap` reports each time."""
        self._call = call
        self._letters = letters
        self._renewal = LeaseRenewal(
            core,
            self.label,
            limit=_limit(max_processing),
            joined=lambda: self._joined,
            waiting=self._waiting,
            pending=lambda: self.pending + len(self.ahead),
        )
        self._settling = Acks(core, self.label, self._check, lambda: self._joined, self._acked, self._renewal.abandon)
        self._settling.sent_to = self._renewal.settled if self._renewal.tracks and handler is None else None
        self._closing = False
        self._done: set[Message] = set()
        """The messages that handlers work on now and have acknowledged, nacked or rejected themselves."""
        self._takes: dict[int, asyncio.Future[int]] = {}
        """Answers that somebody waits for, by the numbers of their frames."""
        self.owner: ref[object] = ref(self)
        """What its messages refer to as their channel, which they do not keep alive; the blocking face puts itself here."""
        self.ahead: deque[Message] = deque()
        """What the blocking face has taken out and nobody was given yet."""
        self._known: Connection | None = None
        """Over which the broker was told of it."""
        self._ghosts = Duplicates()
        self._sifting = False
        """Whether duplicates may have arrived."""
        self._renewed = False
        """It has lost a connection: what was handed out over that may be here once more."""

    # Receiving.

    async def recv(self, timeout: Duration | None = None) -> Message:
        """The next message. Raises Timeout, Closed, or what ended the channel."""
        if self.window:
            return await self._reader.recv(timeout)
        return (await self.take(1, timeout))[0]

    async def take(self, most: int = 64, timeout: Duration | None = None, *, whole: bool = False) -> list[Message]:
        """At least one message and at most so many; raises as recv() does.

        With `whole` it waits until there are so many, and returns fewer only when the time is over.
        """
        check_count("most", most)
        timeout = check_timeout("timeout", timeout)
        if most > _MOST:
            raise ValueError(f"most: {_MOST} messages can be taken at once, not {most}")
        loop = self._core.loop if self._registration.started else asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        batch = self._reader.batch(most)
        while not batch or (whole and len(batch) < most):
            left = None if until is None else max(until - loop.time(), 0.0)
            try:
                if self.window:
                    await self._registration.wait_open(left)
                else:
                    batch += await self._pull(most - len(batch), left, whole=whole)
            except Timeout:
                if not batch:
                    raise
                break
            except BaseException:
                self.put_back(batch)
                raise
            batch += self._reader.batch(most - len(batch))
        return batch

    def put_back(self, batch: list[Message]) -> None:
        """Messages that were taken and are for the next consumer."""
        if batch:
            self._reader.put_back(batch)

    async def _pull(self, most: int, timeout: float | None, *, whole: bool) -> list[Message]:
        """Have the broker hand out so many; none if whoever waits has to look again."""
        core = self._core
        self._check()
        if not self._joined:
            # It comes back by itself; whoever waits goes on waiting.
            await self._registration.wait_open(timeout)
            return []
        milliseconds = _EVER if timeout is None else min(int(timeout * 1000 + 0.999), _EVER - 1)
        number = core.session.channel(
            _TAKE, self._registration.number, _ASKED.pack(most | _WHOLE * whole, milliseconds)
        )
        answer = self._takes[number] = core.answer(number)
        begin = core.loop.time()
        got: int
        try:
            if timeout is None:
                got = await answer
            else:
                async with asyncio.timeout(timeout + _LATE):
                    got = await answer
        except Disconnected:
            return []
        except (asyncio.CancelledError, TimeoutError) as error:
            self._call_off(number, answer)
            if isinstance(error, asyncio.CancelledError):
                raise
            got = 0
        finally:
            del self._takes[number]
        if not got and timeout is not None and core.loop.time() >= begin + timeout:
            raise Timeout(f"nothing to take from {self.label!r} within {timeout:g} s")
        return self._reader.batch(got) if got else []

    @property
    def _joined(self) -> bool:
        """Whether the broker of the moment knows that this is its consumer."""
        return self._known is not None and self._known is self._core.connection

    def _call_off(self, number: int, answer: "asyncio.Future[int]") -> None:
        """Nobody waits for this any more; what it has got is for those who do."""
        if not answer.cancelled():  # it came at the same moment
            self._called_off(answer)
        elif self._joined:
            self._core.answer(number).add_done_callback(self._called_off)
            self._core.session.channel(_TAKE, self._registration.number, _CANCEL.pack(0, number))

    def _called_off(self, answer: "asyncio.Future[int]") -> None:
        if not answer.cancelled() and answer.exception() is None and answer.result():
            # The others wait for answers of their own, and don't look at what has arrived before they get them.
            for number in self._takes:
                self._core.session.channel(_TAKE, self._registration.number, _CANCEL.pack(0, number))

    def _end_takes(self) -> None:
        """End every take that waits for an answer of the broker."""
        for answer in self._takes.values():
            if not answer.done():
                answer.set_result(0)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._reader.each(self) if self.window else self._pulled()

    async def _pulled(self) -> AsyncGenerator[Message, None]:
        while True:
            try:
                message = await self.recv()
            except Closed:
                return
            yield message

    async def batches(self, most: int = 64) -> AsyncGenerator[list[Message], None]:
        """Lists of at most so many messages: the fast way to take many."""
        while True:
            try:
                batch = await self.take(most)
            except Closed:
                return
            yield batch

    # Settling.

    def ack(self, messages: Message | Iterable[Message]) -> AckOutcome:
        """These are done. Await it to know that this is stored; AckLate if one had gone to somebody else meanwhile."""
        return self._settle(ACK, messages)

    def nack(
        self,
        messages: Message | Iterable[Message],
        delay: Duration | None = None,
        reason: str | None = None,
    ) -> AckOutcome:
        """These could not be dealt with: they are redelivered, after the delay, without one as the channel's backoff says.

        The reason is recorded in their dead letters if they become some.
        """
        return self._fail(messages, delay, described(reason, consumer=self._core.name))

    def reject(self, messages: Message | Iterable[Message], reason: str) -> AckOutcome:
        """No consumer can deal with these: they become dead letters at once, with this reason."""
        check_type("reason", reason, str, "a text")
        return self._fail(messages, None, described(reason, consumer=self._core.name), reject=True)

    def refuse(self, message: Message, error: PayloadError) -> AckOutcome:
        """The payload of a message does not fit its type: report it and make it a dead letter at once."""
        self._core.report(error, "a dead letter", self.label)
        return self._fail(message, None, misfit(error, consumer=self._core.name), reject=True)

    def extend(self, messages: Message | Iterable[Message]) -> AckOutcome:
        """Work on these goes on: their lease begins anew."""
        return self._settle(EXTEND, messages)

    def _settle(self, what: int, messages: Message | Iterable[Message]) -> AckOutcome:
        return self._settling.add(what, self._places(what, messages))

    def _fail(
        self,
        messages: Message | Iterable[Message],
        delay: Duration | None,
        failure: dict[str, Any],
        *,
        reject: bool = False,
    ) -> AckOutcome:
        pause = None if delay is None else 0.0 if delay == 0 else seconds("delay", delay)
        return self._settling.fail(self._places(NACK, messages), pause, failure, reject=reject)

    def _places(self, what: int, messages: Message | Iterable[Message]) -> Runs:
        batch = (messages,) if isinstance(messages, Message) else list(messages)
        places = handed(batch, self.owner)
        if places is None:
            raise Rejected(f"a message that is not of the channel {self.label!r}", code=Code.NO_CHANNEL)
        if not places:
            raise ValueError("no message is given")
        if self.handled and what != EXTEND:
            # Not the offset: a message of an earlier delivery says nothing about the one that a handler works on.
            self._done.update(message for message in batch if message in self._renewal.working)
        return places

    def _acked(self, broker: str, runs: list[Run], late: list[Run]) -> None:
        """These are done, but for some. What was handed out again after a lost connection, and was done by then, is not given to anybody.

        That may be one between two brokers, of which nothing is seen here.

        It has arrived before this answer, for the broker hands out nothing that is done.
        """
        if not (self._renewed or broker != self._core.broker) or not (self.pending or self.ahead):
            return
        done = {offset for first, many in runs for offset in range(first, first + many)}
        done.difference_update(offset for first, many in late for offset in range(first, first + many))
        if not done:
            return
        if not self._sifting:
            self._sifting = True
            self._reader.sift(self._ghosts)
        if self.pending:
            self._ghosts.add(broker, done, self.received)
        for message in [one for one in self.ahead if one.offset in done and one.broker == broker]:  # these are few
            with suppress(ValueError):  # another thread was quicker
                self.ahead.remove(message)

    def _worked_on(self, batch: list[Message]) -> None:
        if batch and self._renewal.tracks and not self.handled:
            self._renewal.taken(handed(batch, self.owner) or ())

    def _waiting(self) -> Places:
        """What was taken out of the inbox and waits for its consumer."""
        return handed([*self._reader.waiting(), *self.ahead.copy()], self.owner) or ()

    # The channel itself.

    async def seek(self, start: Start) -> int:
        """Go to an offset, a position, a time, a length of time back, first or new, for all consumers; the offset.

        In a cluster a position or a message moves the part of the node that has stored it, an offset that of the node one is
        connected to, anything else all parts: StoreFailed tells if some could not be reached, the others have moved then.
        A Message is checked: OutOfRange if another one is at its offset. What was in flight may come again.
        """
        answer = await self._ask("seek", start=start_of(start, self.stream))
        offset: int = answer["offset"]
        return offset

    async def dead(
        self,
        *,
        last: int | None = 100,
        topic: str = "**",
        reason: str | None = None,
        since: "Since | None" = None,
        redriven: bool = False,
    ) -> "list[DeadLetter]":
        """The last dead letters of the channel, as Bus.dead_letters() gives them."""
        return await self._letters.listed(
            self.stream, self.name, last=last, topic=topic, reason=reason, since=since, redriven=redriven
        )

    async def redrive(
        self,
        letters: "DeadLetter | str | Iterable[DeadLetter | str] | None" = None,
        *,
        topic: str = "**",
        reason: str | None = None,
        since: "Since | None" = None,
        progress: "Progress | None" = None,
    ) -> "Redrive":
        """Send dead letters back to the channel, each once, as Bus.redrive_channel() does."""
        return await self._letters.redrive(
            self.stream, self.name, letters, topic=topic, reason=reason, since=since, progress=progress
        )

    async def pause(self) -> None:
        """Hand nothing out, to nobody, until resume(). It outlives the broker."""
        await self._ask("update", settings={"paused": True})

    async def resume(self) -> None:
        await self._ask("update", settings={"paused": False})

    async def info(self) -> ChannelInfo:
        """Its settings, where it stands, how many messages are in flight and how many are still to come, over all nodes."""
        return info_of((await self._ask("list"))["channels"][0])

    async def _ask(self, verb: str, **more: Any) -> Any:
        return await self._call(f"$bus/channel/{verb}", {"stream": self.stream, "channel": self.name, **more})

    # Inside.

    async def start(self) -> Self:
        """Join the channel. Its messages are delivered after this."""
        core = self._core
        number = self._registration.begin()
        # The window limits the inbox.
        self._reader.open(core.session.inbox(number, messages=1 << 31, bytes=1 << 40, policy=0))
        core.session.own(number, self.owner)
        core.subscriptions[number] = self
        self._settling.begin(number)
        self._renewal.begin(number)
        if self._handlers is not None:
            core.held.add(self)
        try:
            await self._registration.register()
        except BaseException:
            self.ended(None)
            raise
        if self._handlers is not None:
            self._handlers.start()
        self._known = core.connection
        self._renewal.joined()
        return self

    def announce(self) -> int:
        # What came over a lost connection is handed out again.
        self._known = None
        self._drop()
        self._renewal.announced()
        return self._registration.announce()

    def arrived(self) -> None:
        """Wake the consumers: the inbox was empty and has messages now."""
        self._renewal.arrived()
        self._registration.wake()

    def restored(self) -> None:
        """There is a new connection, and the broker knows the channel."""
        self._known = self._core.connection
        self._renewed = True
        self._renewal.joined()
        self._registration.wake()

    def ended(self, error: BusError | None) -> None:
        """As all parts; what nobody took can't be acknowledged any more, and is for the others."""
        self._drop()
        self._renewal.stop()
        self._core.held.discard(self)
        self._registration.end(error)
        self._end_takes()

    def gap(self, place: Position, count: int) -> None:  # noqa: ARG002, where is of no use to the consumers
        self.lost += count
        self._core.log_lines.missed(self.label, count, GONE)
        self._core.events.emit(Event(kind="gap", topic=self.label, count=count))

    def _drop(self) -> list[Message]:
        """What nobody has taken."""
        left: list[Message] = []
        while self.ahead:
            with suppress(IndexError):  # another thread was quicker
                left.append(self.ahead.popleft())
        left += self._reader.clear()
        self._ghosts.clear()
        return left

    def _check(self) -> None:
        registration = self._registration
        if not registration.started:
            raise LocalProtocolError("this channel has not been entered: use `async with` or await it")
        if registration.over and not self._closing:
            if registration.error is not None:
                raise copy(registration.error)
            raise Closed(f"the channel {self.label!r} is closed: what was not acknowledged is handed out again")

    async def close(self) -> None:
        """Take no more. A handler gets what has arrived; what nobody took is for the others, as is what was not acknowledged."""
        if self.live:
            self._closing = True
            try:
                if self._handlers is not None:
                    self._registration.over = True
                    self._registration.wake()
                    await self._handlers.finish(self._drain)
                if (left := handed(self._drop(), self.owner)) and self._joined:
                    self._settling.add(RELEASE, left)
                async with asyncio.timeout(self._drain):
                    await self._settling.sent()
            except TimeoutError:
                self._core.report(Timeout(f"no answer within {self._drain:g} s"), "closing the channel", self.label)
            finally:
                self._closing = False
        self._renewal.stop()
        try:
            await self._registration.close(self._finish)
        finally:
            self._core.held.discard(self)

    async def _finish(self) -> None:
        self._end_takes()
        if self._handlers is not None:
            await self._handlers.finish(self._drain)

    def __repr__(self) -> str:
        return f"<Channel {self.label!r}{' closed' if self.closed else ''}>"

    async def _handle(self, handler: Handler, message: Message) -> None:
        """Acknowledged when its function returns, given back when that raises, unless it has done so itself."""
        self._renewal.working[message] = self._core.loop.time()
        try:
            result = handler(message)
            if isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            self._failed(message, error)
        except Exception as error:  # noqa: BLE001, reported
            self._failed(message, error)
        else:
            if message not in self._done:
                self.ack(message)
        finally:
            self._renewal.finished(message)
            self._done.discard(message)

    def _failed(self, message: Message, error: BaseException) -> None:
        if isinstance(error, Misfit):
            self.refuse(message, error.error)
            return
        if not isinstance(error, Reject):
            self._core.report(error, "the handler", self.label)
        if message not in self._done:
            failure = described(None, error, consumer=self._core.name)
            self._fail(message, None, failure, reject=isinstance(error, Reject))


def _limit(max_processing: Any) -> float | None:
    """Seconds; None: no limit, 0: nothing is renewed."""
    if max_processing is None:
        return None
    return seconds("max_processing", max_processing) if max_processing else 0.0
