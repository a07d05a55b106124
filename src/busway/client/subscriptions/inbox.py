"""Messages as they arrive, one by one, in batches, or through a handler: what subscriptions and channels have in common.

Messages wait in the native inbox and are taken out in batches. The batch in progress belongs to the part, not to whoever
iterates: breaking out of a loop or cancelling a recv() loses nothing, and several consumers share the messages, each going
to one of them.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from inspect import isawaitable
from itertools import islice
from operator import length_hint
from typing import Final, Self, TypeAlias

from busway._core import Inbox, Message
from busway.client.connection.core import Core
from busway.client.connection.registration import Registration, finish
from busway.common.checks import check_count
from busway.common.durations import Duration
from busway.errors import BusError, Closed
from busway.positions import Position
from busway.settings import Policy

Handler: TypeAlias = Callable[[Message], object] | Callable[[Message], Awaitable[object]]

_BATCH: Final = 1024


class InboxReader(Registration):
    """A part with an inbox. Iterate over it, or use recv(), take() or batches()."""

    policy: Policy = "block"
    patience = 5.0
    _inbox: Inbox
    _take: Callable[[int], list[Message]]

    def __init__(self, core: Core, label: str, drain: float, *, handler: Handler | None, concurrency: int) -> None:
        check_count("concurrency", concurrency)
        super().__init__(core, label, drain)
        self.handled = handler is not None
        self._handler = handler
        self._concurrency = concurrency
        self._ready: Iterator[Message] = iter(())
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Self:
        """Register with the broker; after this its messages are delivered."""
        await super().start()
        if self._handler is not None:
            for _ in range(self._concurrency):
                name = f"busway handler of {self.label!r}"
                self._tasks.add(self._core.loop.create_task(self._work(self._handler), name=name))
        return self

    # Receiving.

    async def recv(self, timeout: Duration | None = None) -> Message:
        """The next message. Raises Timeout, Closed, or what ended it."""
        while True:
            for message in self._ready:
                return message
            if not self._refill():
                await self._more(timeout)

    async def take(self, most: int = 4096, timeout: Duration | None = None) -> list[Message]:
        """At least one message and at most so many; raises as recv() does."""
        check_count("most", most)
        while not (batch := self._batch(most)):
            await self._more(timeout)
        return batch

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._each()

    async def _each(self) -> AsyncGenerator[Message, None]:
        while True:
            for message in self._ready:
                yield message
            if not self._refill() and not await self._wait(None):
                return

    async def batches(self, most: int = 4096) -> AsyncGenerator[list[Message], None]:
        """Lists of at most so many messages: the fast way to take many."""
        check_count("most", most)
        while True:
            if batch := self._batch(most):
                yield batch
            elif not await self._wait(None):
                return

    @property
    def pending(self) -> int:
        """Messages that have arrived and were not taken yet."""
        return len(self._inbox) + length_hint(self._ready) if self._started else 0

    @property
    def received(self) -> int:
        """Messages that have arrived in all."""
        return self._inbox.received if self._started else 0

    @property
    def missed(self) -> int:
        """Messages that were dropped in all, by the broker or here."""
        return self._inbox.missed if self._started else 0

    # Inside.

    def arrived(self) -> None:
        """The inbox was empty and has messages now."""
        self._wake()

    @property
    def taken(self) -> int:
        """Messages that consumers have taken in all."""
        return self.received - self.pending

    @property
    def full(self) -> bool:
        """Over its limit, and not much room again since."""
        return self._inbox.full

    @abstractmethod
    def gap(self, place: Position, count: int) -> None:
        """Messages from this place on are gone for good; none: it begins here."""

    def _refill(self) -> bool:
        """Have something ready; False if nothing has arrived."""
        if length_hint(self._ready):
            return True  # another consumer has taken them out, while this one was busy with the last of those before
        if not self._started or not (batch := self._take(_BATCH)):
            return False
        self._taken(batch)
        self._ready = self._laid_out(batch)
        self._core.report_room()
        return True

    def _laid_out(self, batch: list[Message]) -> Iterator[Message]:
        """A batch that was taken out, for those who take one by one."""
        return iter(batch)

    def _taken(self, batch: list[Message]) -> None:
        """A batch is about to be shared out."""

    def _batch(self, most: int) -> list[Message]:
        batch = list(islice(self._ready, most))
        if self._started and len(batch) < most and (more := self._take(most - len(batch))):
            batch = batch + more if batch else more
            self._core.report_room()
        return batch

    async def _more(self, timeout: Duration | None) -> None:
        if not await self._wait(timeout):
            raise Closed(f"the {self.noun} of {self.label!r} is closed")

    async def _finish(self) -> None:
        await finish(self._others(self._tasks), self._drain, f"the handler of {self.label!r}")

    async def _handle(self, handler: Handler, message: Message) -> None:
        """Have one message handled; what it raises is reported."""
        try:
            result = handler(message)
            if isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            self._core.report(error, "the handler", self.label)
        except Exception as error:  # noqa: BLE001, reported
            self._core.report(error, "the handler", self.label)

    async def _work(self, handler: Handler) -> None:
        """What each of the handler's tasks does until it is over."""
        try:
            while True:
                for message in self._ready:
                    await self._handle(handler, message)
                if self._refill():
                    await asyncio.sleep(0)  # a handler that never waits must not starve the loop
                elif not await self._wait(None):
                    return
        except BusError as error:  # what ended it; there is nobody else to raise it to
            self._core.report(error, f"the {self.noun}", self.label)
