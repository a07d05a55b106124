"""The registration of one subscription, channel or service with the broker: its state and its waiting tasks.

A subscription, channel or service owns a Registration and calls it. The owner passes a Registrar, which encodes its
frames. The lifecycle and the reclaim see the owner as a Registrant, the core and the flow control as a Receiver.
"""

import asyncio
import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, Self

from busway.client.connection.core import Core
from busway.common.checks import check_timeout
from busway.common.durations import Duration
from busway.errors import BusError, Closed, Disconnected, LocalProtocolError, Rejected, Timeout
from busway.positions import Position
from busway.settings import Policy

log = logging.getLogger("busway.client")

WAIT: Final = 0x40
"""The flag of a SUBSCRIBE or SERVE that is answered when all nodes know of it. Only the first registration sets it."""
EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
"""Options of a task that starts at once, so that a function that does not wait answers in the same turn of the loop."""
_AFTER_CANCEL: Final = 1.0
"""Seconds that cancelled tasks may take to end."""


class Registrar(Protocol):
    """Encodes the frames of one registration. It must not refer to the owner, which is else never freed."""

    noun: str
    """What is registered: "subscription", "channel" or "service"."""

    def announce(self, number: int, *, again: bool) -> int:
        """Encode the frame that registers this id. Returns the frame's number."""

    def withdraw(self, number: int) -> int:
        """Encode the frame that withdraws this id. Returns the frame's number."""

    def forget(self, number: int) -> None:
        """Remove this id from the tables of the core and of the session."""

    def drop(self, number: int) -> None:
        """Withdraw and forget this id, whose owner was garbage-collected."""


class Registrant(Protocol):
    """The owner of a registration: a subscription, channel or service."""

    @property
    def label(self) -> str:
        """The topic, pattern or channel, for log lines and errors."""

    @property
    def live(self) -> bool:
        """Whether it is registered, and is to be restored after a reconnect."""

    @property
    def handled(self) -> bool:
        """Whether close() has to wait for a handler."""

    def announce(self) -> int:
        """Encode the frame that registers it. Returns the frame's number."""

    def restored(self) -> None:
        """React to a reconnect: the broker has registered it again."""

    def ended(self, error: BusError | None) -> None:
        """End it, with the error that its consumers get after the messages that have arrived."""

    async def close(self) -> None:
        """Withdraw it from the broker, and wait for its handler."""


class Receiver(Registrant, Protocol):
    """The owner of an inbox: a subscription or channel."""

    @property
    def policy(self) -> Policy: ...
    @property
    def patience(self) -> float: ...
    @property
    def missed(self) -> int: ...
    @property
    def taken(self) -> int: ...
    @property
    def full(self) -> bool: ...

    def arrived(self) -> None:
        """React to messages in an inbox that was empty."""

    def gap(self, place: Position, count: int) -> None:
        """Record that this many messages from `place` on are lost; 0: stored messages begin there."""


class Registration:
    """State of one registration, and the tasks that wait for its messages or requests. It is registered only once."""

    def __init__(self, core: Core, registrar: Registrar, label: str, drain: float) -> None:
        self.label = label
        self.noun = registrar.noun
        self.number = 0
        """The id that the broker knows it by."""
        self.live = False
        """Whether the broker has registered it, and is to do so again after a reconnect."""
        self.started = False
        self.over = False
        """Whether nothing more will arrive."""
        self.error: BusError | None = None
        """The error that ended it."""
        self._core = core
        self._registrar = registrar
        self._drain = drain
        self._waiters: list[asyncio.Future[bool]] = []

    def begin(self) -> int:
        """Assign the id. Raises if it has been entered before, or if the client has no connection."""
        if self.started:
            raise LocalProtocolError(f"this {self.noun} has been entered already; make a new one")
        self._core.usable()
        self.started = True
        self.number = self._core.next_id()
        return self.number

    async def register(self) -> None:
        """Register with the broker."""
        core = self._core
        try:
            await core.result(self.announce())
        except BaseException as error:
            if not isinstance(error, BusError) and core.greeted:
                self._registrar.withdraw(self.number)  # after a cancellation the broker may have registered it
            raise
        self.live = not self.over

    def announce(self) -> int:
        """Encode the frame that registers it, at first or after a reconnect. Returns the frame's number."""
        return self._registrar.announce(self.number, again=self.live)

    async def close(self, finish: Callable[[], Awaitable[None]]) -> None:
        """Withdraw it from the broker within the drain time, then call `finish`, which waits for handlers."""
        core = self._core
        if not self.live:
            self.over = True
            return
        self.live = False
        try:
            if core.greeted:
                async with asyncio.timeout(self._drain):
                    await core.result(self._registrar.withdraw(self.number))
        except TimeoutError:
            core.report(
                Timeout(f"the broker did not answer within {self._drain:g} s"), f"closing the {self.noun}", self.label
            )
        except (Disconnected, Rejected):
            pass  # the broker has ended it already
        finally:
            self.over = True
            self.wake()
            try:
                await finish()
            finally:
                core.held.discard(self)
                self._registrar.forget(self.number)

    def end(self, error: BusError | None) -> None:
        """End it without the broker. Waiting tasks get the error after the messages that have arrived."""
        self.live = False
        self.over = True
        self.error = error
        self._core.held.discard(self)
        self._registrar.forget(self.number)
        self.wake()

    def wake(self) -> None:
        """Wake the waiting tasks; each looks for messages again."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for future in waiters:
                if not future.done():
                    future.set_result(True)

    async def wait(self, timeout: Duration | None) -> bool:
        """Wait for wake(). Returns False if nothing more will arrive; raises Timeout, or the error that ended it."""
        core = self._core
        timeout = check_timeout("timeout", timeout)
        if not self.started:
            raise LocalProtocolError(f"this {self.noun} has not been entered: use `async with` or await it")
        if core.forked:
            raise core.unavailable_error()
        if self.over:
            if self.error is not None:
                raise copy(self.error)
            return False
        future: asyncio.Future[bool] = core.loop.create_future()
        self._waiters.append(future)  # one for each task: cancelling a task must not cancel the others
        core.held.add(self)
        timer = core.loop.call_later(timeout, _expire, future) if timeout is not None else None
        try:
            woken = await future
        finally:
            if timer is not None:
                timer.cancel()
            if future in self._waiters:
                self._waiters.remove(future)
            if not self._waiters:
                core.held.discard(self)
        if not woken:
            raise Timeout(f"nothing arrived on {self.label!r} within {timeout:g} s")
        return True

    async def wait_open(self, timeout: Duration | None) -> None:
        """Wait as wait() does; raises Closed if nothing more will arrive."""
        if not await self.wait(timeout):
            raise Closed(f"the {self.noun} of {self.label!r} is closed")

    def __del__(self) -> None:
        if not self.live or self._core.forked:
            return
        self.live = False
        text = f"the {self.noun} of {self.label!r} was not closed: use `async with`, or close() it"
        warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        self._core.drop(partial(self._registrar.drop, self.number))


class Entered(ABC):
    """The owner of a registration as an async context manager, with the properties that it delegates."""

    _registration: Registration

    @abstractmethod
    async def start(self) -> Self:
        """Register with the broker."""

    @abstractmethod
    async def close(self) -> None:
        """Withdraw it from the broker."""

    @property
    def label(self) -> str:
        """The topic, pattern or channel, for log lines and errors."""
        return self._registration.label

    @property
    def live(self) -> bool:
        """Whether it is registered, and is restored after a reconnect."""
        return self._registration.live

    @property
    def closed(self) -> bool:
        """Whether nothing more will arrive."""
        return self._registration.over

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    async def __aenter__(self) -> Self:
        if not self._registration.started:
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def running(core: Core, tasks: "set[asyncio.Task[None]]") -> "set[asyncio.Task[None]]":
    """The unfinished tasks that do not themselves wait for close()."""
    left = {task for task in tasks if not task.done()}
    return left - {asyncio.current_task()} - core.closers


async def finish(tasks: "set[asyncio.Task[None]]", seconds: float, noun: str) -> None:
    """Wait so many seconds for tasks, then cancel the unfinished ones. `noun` names them in the log."""
    if not tasks:
        return
    try:
        _, late = await asyncio.wait(tasks, timeout=seconds)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    if late:
        log.warning("%s: %d of %d tasks were cancelled after %g s", noun, len(late), len(tasks), seconds)
        for task in late:
            task.cancel()
        await asyncio.wait(late, timeout=_AFTER_CANCEL)


def _expire(future: "asyncio.Future[bool]") -> None:
    if not future.done():
        future.set_result(False)
