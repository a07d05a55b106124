"""A request that several shared services answer: an async iterator over their replies.

`Bus.request_many()` makes a Gathering, and the core passes it the replies. The broker ends it, at the latest at the
requester's timeout. The iteration ends exactly once: normally, or with one error. The failure of one service does not
end it, but is added to `failed`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, Self, TypeVar
from weakref import ref

from busway._core import Message
from busway.client.connection.core import END, PARTIAL, Core
from busway.client.connection.sender import GATHER, REQUEST, limits, scope_flags
from busway.common.checks import check_timeout
from busway.common.durations import Duration
from busway.errors import BusError, LimitExceeded, LocalProtocolError, PayloadError, ServiceError, Timeout, from_reply
from busway.message import Failed, Replies
from busway.settings import Scope

M = TypeVar("M")

_MARGIN: Final = 0.5
"""Seconds after the timeout in which the broker's own end, which names the late services, may arrive."""
_MOST: Final = 65_536
"""Most replies that wait for the consumer."""


class Gathering(Generic[M]):
    """Async iterator over the replies to one request, made by `bus.request_many(...)`.

    The first `async for` or anext() sends the request. Leaving the loop, or aclose(), cancels it.
    """

    _number = 0

    def __init__(
        self,
        core: Core,
        topic: str,
        payload: bytes | str,
        fields: bytes,
        read: Callable[[Message], M],
        *,
        timeout: Duration | None,
        each: Duration | None,
        scope: Scope,
    ) -> None:
        self.failed: list[Failed] = []
        """The services that have failed so far."""
        self._core = core
        self._topic = topic
        self._payload = payload
        self._fields = fields
        self._read = read
        self._timeout = check_timeout("timeout", timeout)
        self._aux, self._each = limits(self._timeout, each)
        self._flags = GATHER | scope_flags(scope)
        self._ready: deque[M] = deque()
        self._answered = False
        """Whether any service has replied or failed."""
        self._over = False
        self._error: BusError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # Called by the consumer.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        if not self._number and not self._over:
            await self._start()
        while not self._ready:
            if self._over:
                error, self._error = self._error, None
                raise error or StopAsyncIteration
            if self._waiter is not None:
                raise LocalProtocolError("another task already waits for the next reply: iterate in one task")
            self._waiter = self._core.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Stop waiting for replies, and cancel the request at the broker if it has not ended."""
        self._ready.clear()
        self._cancel()
        self._error = None

    async def all(self) -> Replies[M]:
        """Wait for the end, and return all replies."""
        try:
            replies = [reply async for reply in self]
        finally:
            await self.aclose()
        return Replies(replies, self.failed)

    def __del__(self) -> None:
        # The program left the loop before the end. This may be any thread.
        if self._number and not self._over and not self._core.loop.is_closed():
            self._core.loop.call_soon_threadsafe(_forget, self._core, self._number, self._timer)

    # Called by the core.

    def replied(self, code: int, flags: int, message: Message) -> None:
        """Handle one more reply, or the end."""
        if self._over:
            return
        last = not flags & PARTIAL
        error = from_reply(code, message.text, message.fields) if code else None
        if error is not None and not isinstance(error, ServiceError) and not message.sender:
            self.end(error)  # an error of the broker, such as no service, or a limit
            return
        self._answered = True
        if error is not None:
            self.failed.append(Failed(message.sender, error))
        elif not flags & END:
            try:
                self._ready.append(self._read(message))
            except PayloadError as wrong:
                self.failed.append(Failed(message.sender, wrong))
        if last:
            self.end(None)
        elif len(self._ready) > _MOST:
            self._cancel()
            self._error = LimitExceeded(f"more than {_MOST} replies on {self._topic!r} wait: iterate over them faster")
        self._wake()

    def end(self, error: BusError | None) -> None:
        """End it, with the error that the consumer gets after the replies that have arrived."""
        if self._over:
            return
        self._over = True
        self._error = error
        self._core.gathering.pop(self._number, None)
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    # Inside.

    async def _start(self) -> None:
        core = self._core
        connection = core.usable()
        if connection.paused:
            await connection.room()
            core.usable()
        self._number = core.session.send(
            REQUEST, self._topic, self._payload, flags=self._flags, aux=self._aux, each=self._each, fields=self._fields
        )
        core.gathering[self._number] = self
        if self._timeout is not None:
            self._timer = core.loop.call_later(self._timeout + _MARGIN, _time_out, ref(self))

    def time_out(self) -> None:
        """End it, for the broker has not ended it in time."""
        error = Timeout(f"no answer on topic {self._topic!r} within {self._timeout:g} s")
        self._cancel()
        if self._answered:
            self.failed.append(Failed("", error))
        else:
            self._error = error

    def _cancel(self) -> None:
        if self._number and not self._over and self._core.connection is not None:
            self._core.session.cancel(self._number)
        self.end(None)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _time_out(gathering: "ref[Gathering[Any]]") -> None:
    if (found := gathering()) is not None:
        found.time_out()


def _forget(core: Core, number: int, timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
    if core.connection is not None:
        core.session.cancel(number)
