"""A consumer of a channel: gets messages of a stream, which it shares with other consumers, and acknowledges each.

`Bus.channel()` makes it. With a window the broker delivers that many messages in advance, without one only when
take() asks for them. The broker redelivers a message that is not acknowledged: to another consumer, or to this one
after a reconnect.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from copy import copy
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Self, TypeAlias, Unpack
from weakref import ref

from busway._core import Message, delivered_offsets
from busway.client.channels.acks import ACK, EXTEND, NACK, RELEASE, RETURN, AckOutcome, Acks, Run, Runs
from busway.client.channels.dead_letters import DeadLetters, ListOptions, RedriveOptions
from busway.client.channels.duplicates import Duplicates
from busway.client.channels.failures import Misfit, described, misfit
from busway.client.channels.lease_renewal import LeaseRenewal, Places
from busway.client.channels.positions import Start, info_of, start_of
from busway.client.channels.registrar import ChannelRegistrar
from busway.client.channels.takes import Takes
from busway.client.connection.connection import Connection
from busway.client.connection.core import Core
from busway.client.connection.events import Event
from busway.client.connection.log_lines import GONE
from busway.client.connection.registration import Entered, Registration
from busway.client.subscriptions.inbox import Handler, HandlerTasks, InboxProperties, InboxReader
from busway.common.checks import check_count, check_timeout, check_type
from busway.common.durations import Duration, seconds
from busway.common.options import takes_options
from busway.dead_letters import DeadLetter, Redrive
from busway.errors import (
    BusError,
    Closed,
    Code,
    LocalProtocolError,
    PayloadError,
    Reject,
    Rejected,
    Timeout,
)
from busway.positions import Position
from busway.streams import ChannelInfo

Call: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Any]]

_MOST: Final = 65_536
MAX_PROCESSING: Final = 3600.0
"""Seconds that a message may be in work before its lease is no longer renewed, by default."""


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
        letters: DeadLetters,
    ) -> None:
        if type(window) is not int or not 0 <= window <= _MOST:
            raise ValueError(f"window must be a whole number from 0 to {_MOST}, but is {window!r}")
        if handler is not None and not window:
            raise ValueError("a handler needs a window above 0, but window is 0")
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
        self._registrar = ChannelRegistrar(core, request)
        self._registration = Registration(core, self._registrar, f"{stream}/{name}", drain)
        self._reader = InboxReader(core, self._registration, on_refill=self._track, on_batch=self._track)
        self.handled = handler is not None
        self._handlers: HandlerTasks | None = None
        if handler is not None:
            handle = partial(self._handle, handler)
            self._handlers = HandlerTasks(core, self._registration, self._reader, handle, concurrency)
        self.stream = stream
        self.name = name
        self.window = window
        self.lost = 0
        """Messages that the stream removed before they were acknowledged. `bus.events()` reports each gap."""
        self._call = call
        self._dead_letters = letters
        self._renewal = LeaseRenewal(
            core,
            self.label,
            limit=_limit(max_processing),
            joined=lambda: self._joined,
            waiting=self._waiting,
            pending=lambda: self.pending + len(self.ahead),
            taking=lambda: self._takes.pending,
            handlers=0 if handler is None else concurrency,
            received=lambda: self.received,
            on_stalled=self._stalled,
        )
        self._acks = Acks(
            core,
            self.label,
            self._check,
            lambda: self._joined,
            on_acked=self._drop_duplicates,
            on_failed=self._renewal.abandon,
            on_sent=self._renewal.acknowledged if self._renewal.tracks and handler is None else None,
        )
        self._closing = False
        self._done: set[Message] = set()
        """The messages that handlers work on now and have acknowledged, nacked or rejected themselves."""
        self._takes = Takes(core, self._registration, lambda: self._joined)
        self.owner: ref[object] = ref(self)
        """The object that Message.ack() calls: this channel, or the one of `busway.sync` that wraps it."""
        self.ahead: deque[Message] = deque()
        """Messages that the wrapper of `busway.sync` has fetched, and that no consumer has got yet."""
        self._joined_by: Connection | None = None
        """The connection by which it has joined the channel."""
        self._duplicates = Duplicates()
        self._sifting = False
        """Whether duplicates may have arrived."""
        self._reconnected = False
        """Whether it has lost a connection, so that messages may have been redelivered to it."""

    # Receiving.

    async def recv(self, timeout: Duration | None = None) -> Message:
        """The next message. Raises Timeout, Closed, or the error that ended the channel."""
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
            raise ValueError(f"most must be at most {_MOST}, but is {most}")
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
                    raise Timeout(f"nothing to take from {self.label!r} within {timeout:g} s") from None
                break
            except BaseException:
                self.put_back(batch)
                raise
            batch += self._reader.batch(most - len(batch))
        return batch

    def put_back(self, batch: list[Message]) -> None:
        """Return messages that a consumer took, so that the next consumer gets them first."""
        if batch:
            self._reader.put_back(batch)

    async def _pull(self, most: int, timeout: float | None, *, whole: bool) -> list[Message]:
        """Ask the broker for so many messages. An empty list means that the caller has to try again."""
        self._check()
        if not self._joined:
            # The reconnect joins the channel again.
            await self._registration.wait_open(timeout)
            return []
        got = await self._takes.take(most, timeout, whole=whole)
        return self._reader.batch(got) if got else []

    @property
    def _joined(self) -> bool:
        """Whether it has joined the channel by the current connection."""
        return self._joined_by is not None and self._joined_by is self._core.connection

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._reader.each(self) if self.window else self._each_taken()

    async def _each_taken(self) -> AsyncGenerator[Message, None]:
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

    # Acknowledging.

    def ack(self, messages: Message | Iterable[Message]) -> AckOutcome:
        """Acknowledge messages. Await it to know that this is stored. Raises AckLate if one had been redelivered."""
        return self._add(ACK, messages)

    def nack(
        self,
        messages: Message | Iterable[Message],
        delay: Duration | None = None,
        reason: str | None = None,
    ) -> AckOutcome:
        """Have failed messages redelivered, after the delay or, without one, after the channel's backoff.

        If a message becomes a dead letter, the reason is recorded in it.
        """
        return self._fail(messages, delay, described(reason, consumer=self._core.name))

    def reject(self, messages: Message | Iterable[Message], reason: str) -> AckOutcome:
        """Move messages to the dead-letter topic at once, with this reason: no consumer can process them."""
        check_type("reason", reason, str, "a text")
        return self._fail(messages, None, described(reason, consumer=self._core.name), reject=True)

    def refuse(self, message: Message, error: PayloadError) -> AckOutcome:
        """Report a message whose payload does not fit its type, and move it to the dead-letter topic."""
        self._core.report(error, "a dead letter", self.label)
        return self._fail(message, None, misfit(error, consumer=self._core.name), reject=True)

    def extend(self, messages: Message | Iterable[Message]) -> AckOutcome:
        """Restart the leases of messages that are still in work."""
        return self._add(EXTEND, messages)

    def _add(self, action: int, messages: Message | Iterable[Message]) -> AckOutcome:
        return self._acks.add(action, self._places(action, messages))

    def _fail(
        self,
        messages: Message | Iterable[Message],
        delay: Duration | None,
        failure: dict[str, Any],
        *,
        reject: bool = False,
    ) -> AckOutcome:
        pause = None if delay is None else 0.0 if delay == 0 else seconds("delay", delay)
        return self._acks.fail(self._places(NACK, messages), pause, failure, reject=reject)

    def _places(self, action: int, messages: Message | Iterable[Message]) -> Runs:
        batch = (messages,) if isinstance(messages, Message) else list(messages)
        places = delivered_offsets(batch, self.owner)
        if places is None:
            reason = f"the channel {self.label!r} did not deliver this message: acknowledge it at the channel that did"
            raise Rejected(reason, code=Code.NO_CHANNEL)
        if not places:
            raise ValueError("no message was given to acknowledge: give a message or several")
        if self.handled and action != EXTEND:
            # Not the offset: a message of an earlier delivery says nothing about the one that a handler works on.
            self._done.update(message for message in batch if message in self._renewal.working)
        return places

    def _drop_duplicates(self, broker: str, runs: list[Run], late: list[Run]) -> None:
        """Drop duplicates of messages whose acknowledgement the broker has just confirmed, but for the late ones.

        A duplicate was redelivered after a lost connection, of this client or between two brokers. It has arrived
        before this confirmation, since the broker delivers no acknowledged message.
        """
        if not (self._reconnected or broker != self._core.broker) or not (self.pending or self.ahead):
            return
        acked = {offset for first, many in runs for offset in range(first, first + many)}
        acked.difference_update(offset for first, many in late for offset in range(first, first + many))
        if not acked:
            return
        if not self._sifting:
            self._sifting = True
            self._reader.sift(self._duplicates)
        if self.pending:
            self._duplicates.add(broker, acked, self.received)
        # self.ahead is short.
        for message in [ahead for ahead in self.ahead if ahead.offset in acked and ahead.broker == broker]:
            with suppress(ValueError):  # another thread has taken it
                self.ahead.remove(message)

    def _track(self, batch: list[Message]) -> None:
        """Record that the program works on these messages, so that their leases are renewed.

        The batch is empty if a consumer asks for messages and none have arrived.
        """
        if self._renewal.stalled:
            self._renewal.stalled = False
            if self.live and not self._closing:
                self._resize(self.window)
        if batch and self._renewal.tracks and not self.handled:
            self._renewal.taken(delivered_offsets(batch, self.owner) or ())

    def _stalled(self) -> None:
        """Return the waiting messages to the channel, and request none until a consumer asks for one."""
        self._resize(0)
        if waiting := delivered_offsets(self._take_out(), self.owner):
            self._acks.add(RETURN, waiting)
            self._core.report_room()

    def _resize(self, window: int) -> None:
        if self._joined:
            number = self._registrar.resize(self._registration.number, window)
            self._core.answer(number).add_done_callback(lambda answer: answer.cancelled() or answer.exception())

    def _waiting(self) -> Places:
        """The messages that were taken out of the inbox and wait for a consumer."""
        return delivered_offsets([*self._reader.waiting(), *self.ahead.copy()], self.owner) or ()

    # The channel itself.

    async def seek(self, start: Start) -> int:
        """Move the channel, for all consumers, to an offset, position, message, time, "1h" back, "first" or "new".

        Returns the offset. In a cluster a position or a message moves the part of the node that has stored it, an
        offset the part of the node that this client is connected to, and anything else all parts. StoreFailed means
        that some nodes could not be reached; the parts of the others have moved. OutOfRange means that another
        message is at the offset of the given one. Messages in flight may be delivered again.
        """
        answer = await self._ask("seek", start=start_of(start, self.stream))
        offset: int = answer["offset"]
        return offset

    @takes_options(DeadLetters.listed)
    async def dead(self, **options: Unpack[ListOptions]) -> list[DeadLetter]:
        """The last dead letters of the channel, as from Bus.dead_letters()."""
        return await self._dead_letters.listed(self.stream, self.name, **options)

    @takes_options(DeadLetters.redrive)
    async def redrive(
        self,
        letters: DeadLetter | str | Iterable[DeadLetter | str] | None = None,
        **options: Unpack[RedriveOptions],
    ) -> Redrive:
        """Send dead letters back to the channel, each once, as Bus.redrive_channel() does."""
        return await self._dead_letters.redrive(self.stream, self.name, letters, **options)

    async def pause(self) -> None:
        """Deliver nothing to any consumer until resume(), also after a restart of the broker."""
        await self._ask("update", settings={"paused": True})

    async def resume(self) -> None:
        """Deliver again after pause()."""
        await self._ask("update", settings={"paused": False})

    async def info(self) -> ChannelInfo:
        """The channel's settings and position, its messages in flight and its backlog, over all nodes."""
        return info_of((await self._ask("list"))["channels"][0])

    async def _ask(self, verb: str, **more: Any) -> Any:
        return await self._call(f"$bus/channel/{verb}", {"stream": self.stream, "channel": self.name, **more})

    # Starting and ending: called by the program, the core, the lifecycle and the reclaim.

    async def start(self) -> Self:
        """Join the channel. Its messages are delivered after this."""
        core = self._core
        number = self._registration.begin()
        # The window limits the inbox.
        self._reader.open(core.session.inbox(number, messages=1 << 31, bytes=1 << 40, policy=0))
        core.session.own(number, self.owner)
        core.subscriptions[number] = self
        self._acks.begin(number)
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
        self._joined_by = core.connection
        self._renewal.joined()
        return self

    def announce(self) -> int:
        """Encode the frame that registers it, at first or after a reconnect. Returns the frame's number."""
        self._joined_by = None
        self._take_out()  # the broker redelivers the messages of the lost connection
        self._renewal.announced()
        return self._registration.announce()

    def arrived(self) -> None:
        """Wake the consumers: the inbox was empty and has messages now."""
        self._renewal.arrived()
        self._registration.wake()

    def restored(self) -> None:
        """Resume after a reconnect: the broker has registered it again."""
        self._joined_by = self._core.connection
        self._reconnected = True
        self._renewal.joined()
        self._registration.wake()

    def ended(self, error: BusError | None) -> None:
        """End it. Messages that no consumer took are dropped, for they can't be acknowledged any more."""
        self._take_out()
        self._renewal.stop()
        self._core.held.discard(self)
        self._registration.end(error)
        self._takes.end()

    def gap(self, place: Position, count: int) -> None:  # noqa: ARG002, consumers have no use for the place
        """Count and report that the stream has removed this many messages before they were acknowledged."""
        self.lost += count
        self._core.log_lines.missed(self.label, count, GONE)
        self._core.events.emit(Event(kind="gap", topic=self.label, count=count))

    def _take_out(self) -> list[Message]:
        """Take out all messages that no consumer has got."""
        left: list[Message] = []
        while self.ahead:
            with suppress(IndexError):  # another thread has taken the last one
                left.append(self.ahead.popleft())
        left += self._reader.clear()
        self._duplicates.clear()
        return left

    def _check(self) -> None:
        registration = self._registration
        if not registration.started:
            raise LocalProtocolError("this channel has not been entered: use `async with` or await it")
        if registration.over and not self._closing:
            if registration.error is not None:
                raise copy(registration.error)
            raise Closed(f"the channel {self.label!r} is closed: unacknowledged messages are redelivered")

    async def close(self) -> None:
        """Leave the channel. A handler finishes the messages that have arrived.

        All others, and those that are not acknowledged, are redelivered to other consumers.
        """
        if self.live:
            self._closing = True
            try:
                if self._handlers is not None:
                    self._registration.over = True
                    self._registration.wake()
                    await self._handlers.finish(self._drain)
                if (left := delivered_offsets(self._take_out(), self.owner)) and self._joined:
                    self._acks.add(RELEASE, left)
                async with asyncio.timeout(self._drain):
                    await self._acks.flush()
            except TimeoutError:
                self._core.report(
                    Timeout(f"the broker did not answer within {self._drain:g} s"), "closing the channel", self.label
                )
            finally:
                self._closing = False
        self._renewal.stop()
        try:
            await self._registration.close(self._finish)
        finally:
            self._core.held.discard(self)

    async def _finish(self) -> None:
        self._takes.end()
        if self._handlers is not None:
            await self._handlers.finish(self._drain)

    def __repr__(self) -> str:
        return f"<Channel {self.label!r}{' closed' if self.closed else ''}>"

    async def _handle(self, handler: Handler, message: Message) -> None:
        """Call the handler. Acknowledge the message if it returns and nack it if it raises, unless the handler did."""
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
    """`max_processing` in seconds; None: no limit, 0: nothing is renewed."""
    if max_processing is None:
        return None
    return seconds("max_processing", max_processing) if max_processing else 0.0
