"""The inbox reader: takes messages out of the native inbox of a subscription or channel, one by one or in batches.

Subscriptions and channels own an InboxReader and delegate recv(), take(), batches() and iteration to it. The current
batch belongs to the reader, not to a consumer. So leaving a loop or cancelling a recv() loses no message, and several
consumers of one reader share its messages.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from copy import copy
from inspect import isawaitable
from itertools import islice
from operator import length_hint
from typing import Final, Protocol, TypeAlias

from busway._core import Inbox, Message
from busway.client.connection.core import Core
from busway.client.connection.registration import Registration, finish, running
from busway.common.checks import check_count
from busway.common.durations import Duration
from busway.errors import BusError

Handler: TypeAlias = Callable[[Message], object] | Callable[[Message], Awaitable[object]]
"""A user's function that is called with each message."""
BatchHook: TypeAlias = Callable[[list[Message]], None]

_BATCH: Final = 1024
"""Messages that are taken out of the native inbox at once for consumers that take one by one."""


class Sift(Protocol):
    """Removes messages from batches. `number` tells how many messages had arrived before the first one of a batch."""

    def iterate(self, batch: list[Message], number: int) -> Iterator[Message]:
        """Iterate over the remaining messages. Each is checked when it is requested."""

    def remaining(self, batch: list[Message], number: int) -> list[Message]:
        """The messages that remain now."""


class InboxReader:
    """Takes messages out of one native inbox for any number of consumers."""

    def __init__(
        self,
        core: Core,
        registration: Registration,
        *,
        accepts: Callable[[Message], bool] | None = None,
        on_refill: BatchHook | None = None,
        on_batch: BatchHook | None = None,
    ) -> None:
        self._core = core
        self._registration = registration
        self._accepts = accepts
        """Says which messages consumers get; the others are dropped. None: all."""
        self._on_refill = on_refill
        """Called with each batch that is taken out for consumers that take one by one; empty: nothing has arrived."""
        self._on_batch = on_batch
        """Called with each batch that one consumer gets."""
        self._sift: Sift | None = None
        self._inbox: Inbox | None = None
        self._take: Callable[[int], list[Message]] = _take_nothing
        self._ready: Iterator[Message] = iter(())
        """The current batch: messages that were taken out, and that no consumer has got yet."""

    def open(self, inbox: Inbox) -> None:
        """Read from this inbox from now on."""
        self._inbox = inbox
        self._take = inbox.take if self._accepts is None else self._take_accepted

    # For consumers.

    async def recv(self, timeout: Duration | None = None) -> Message:
        """The next message. Raises Timeout, Closed, or the error that ended the registration."""
        while True:
            for message in self._ready:
                return message
            if not self._refill():
                await self._registration.wait_open(timeout)

    async def take(self, most: int, timeout: Duration | None = None) -> list[Message]:
        """At least one message and at most so many; raises as recv() does."""
        check_count("most", most)
        while not (batch := self.batch(most)):
            await self._registration.wait_open(timeout)
        return batch

    async def each(self, owner: object) -> AsyncGenerator[Message, None]:
        """Iterate over the messages. The iterator keeps `owner` alive, which the program may have dropped."""
        while True:
            for message in self._ready:
                yield message
            if not self._refill() and not await self._registration.wait(None):
                del owner
                return

    async def batches(self, most: int, owner: object) -> AsyncGenerator[list[Message], None]:
        """Iterate over batches of at most so many messages. The iterator keeps `owner` alive."""
        check_count("most", most)
        while True:
            if batch := self.batch(most):
                yield batch
            elif not await self._registration.wait(None):
                del owner
                return

    async def drive(self, handle: Callable[[Message], Awaitable[None]]) -> None:
        """Pass each message to `handle`, until nothing more will arrive."""
        while True:
            for message in self._ready:
                await handle(message)
            if self._refill():
                await asyncio.sleep(0)  # a handler that never waits must not starve the loop
            elif not await self._registration.wait(None):
                return

    def batch(self, most: int) -> list[Message]:
        """At most so many messages that have arrived, without waiting."""
        batch = list(islice(self._ready, most))
        if self._sift is not None:
            while len(batch) < most and (more := self._take(most - len(batch))):
                batch += self._sift.remaining(more, self._number(more))
                self._core.report_room()
        elif len(batch) < most and (more := self._take(most - len(batch))):
            batch = batch + more if batch else more
            self._core.report_room()
        if self._on_batch is not None:
            self._on_batch(batch)
        return batch

    # For the owner.

    @property
    def pending(self) -> int:
        """Messages that have arrived and that no consumer has got yet."""
        return len(self._inbox) + length_hint(self._ready) if self._inbox is not None else 0

    @property
    def received(self) -> int:
        """Messages that have arrived in all."""
        return self._inbox.received if self._inbox is not None else 0

    @property
    def missed(self) -> int:
        """Messages that were dropped in all, by the broker or here."""
        return self._inbox.missed if self._inbox is not None else 0

    @property
    def full(self) -> bool:
        """Whether the inbox has reached its limit, and has not had much room again since."""
        return self._inbox is not None and self._inbox.full

    @property
    def unread(self) -> int:
        """Messages of the current batch that no consumer has got yet."""
        return length_hint(self._ready)

    def waiting(self) -> list[Message]:
        """The rest of the current batch, which stays with the reader."""
        return list(copy(self._ready))

    def put_back(self, batch: list[Message]) -> None:
        """Return messages that a consumer took, so that the next consumer gets them first."""
        self._ready = self._iterate([*batch, *self._ready])
        self._registration.wake()

    def sift(self, sift: Sift) -> None:
        """Remove messages from the current batch and from all later ones."""
        self._sift = sift
        self._ready = self._iterate(list(self._ready))

    def clear(self) -> list[Message]:
        """Take out all that has arrived, past the hooks."""
        left = list(self._ready)
        self._ready = iter(())
        while self._inbox is not None and (batch := self._inbox.take(_BATCH)):
            left += self._iterate(batch)
        return left

    # Inside.

    def _refill(self) -> bool:
        """Have a current batch; False if nothing has arrived."""
        if length_hint(self._ready):
            return True  # another consumer refilled it while this one worked on the last message of the batch before
        batch = self._take(_BATCH)
        if self._on_refill is not None:
            self._on_refill(batch)
        if not batch:
            return False
        self._ready = self._iterate(batch)
        self._core.report_room()
        return True

    def _iterate(self, batch: list[Message]) -> Iterator[Message]:
        """An iterator over a batch, the last one that was taken out."""
        return iter(batch) if self._sift is None else self._sift.iterate(batch, self._number(batch))

    def _number(self, batch: list[Message]) -> int:
        """The position of the first message of the last batch among all that have arrived, from 0."""
        return 0 if self._inbox is None else self._inbox.received - len(self._inbox) - len(batch)

    def _take_accepted(self, most: int) -> list[Message]:
        """Take messages out of the inbox until at least one is accepted, or the inbox is empty."""
        assert self._inbox is not None
        while batch := self._inbox.take(most):
            if accepted := list(filter(self._accepts, batch)):
                return accepted
            self._core.report_room()
        return []


class HandlerTasks:
    """The tasks that call a handler with each message of an inbox."""

    def __init__(
        self,
        core: Core,
        registration: Registration,
        reader: InboxReader,
        handle: Callable[[Message], Awaitable[None]],
        concurrency: int,
    ) -> None:
        self._core = core
        self._registration = registration
        self._reader = reader
        self._handle = handle
        self._concurrency = concurrency
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the tasks."""
        for _ in range(self._concurrency):
            name = f"busway handler of {self._registration.label!r}"
            self._tasks.add(self._core.loop.create_task(self._work(), name=name))

    async def finish(self, drain: float) -> None:
        """Let the handler finish the messages that have arrived, within so many seconds."""
        await finish(running(self._core, self._tasks), drain, f"the handler of {self._registration.label!r}")

    async def _work(self) -> None:
        registration = self._registration
        try:
            await self._reader.drive(self._handle)
        except BusError as error:  # the error that ended the registration, which no consumer gets
            self._core.report(error, f"the {registration.noun}", registration.label)


async def call_handler(core: Core, label: str, handler: Handler, message: Message) -> None:
    """Call a handler with one message. Its errors are reported."""
    try:
        result = handler(message)
        if isawaitable(result):
            await result
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        core.report(error, "the handler", label)
    except Exception as error:  # noqa: BLE001, reported
        core.report(error, "the handler", label)


class InboxProperties:
    """The properties that a subscription or channel delegates to its inbox reader."""

    _reader: InboxReader

    @property
    def pending(self) -> int:
        """Messages that have arrived and were not taken yet."""
        return self._reader.pending

    @property
    def received(self) -> int:
        """Messages that have arrived in all."""
        return self._reader.received

    @property
    def missed(self) -> int:
        """Messages that were dropped in all, by the broker or here."""
        return self._reader.missed

    @property
    def taken(self) -> int:
        """Messages that consumers have taken in all."""
        return self._reader.received - self._reader.pending

    @property
    def full(self) -> bool:
        """Whether the inbox has reached its limit, and has not had much room again since."""
        return self._reader.full


def _take_nothing(most: int) -> list[Message]:  # noqa: ARG001, as take() of an inbox
    return []
