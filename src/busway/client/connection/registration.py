"""What subscriptions and services have in common: registered with the broker, restored after a loss, ended, waited on."""

import asyncio
import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from copy import copy
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from busway.client.connection.core import Core
from busway.common.checks import check_timeout
from busway.common.durations import Duration
from busway.errors import BusError, Disconnected, LocalProtocolError, Rejected, Timeout

WAIT: Final = 0x40
"""The flag of a SUBSCRIBE or SERVE that is answered when all nodes know of it. Only the first time: after a loss nobody waits for it."""


class Registration(ABC):
    """One registration of a client. Registered once it is entered or awaited, and only once."""

    noun: ClassVar[str]
    handled: bool
    """Whether closing it has to wait for somebody's function."""
    _handler: Any = None

    def __init__(self, core: Core, label: str, drain: float) -> None:
        self.label = label
        self.live = False
        """Registered, and to be restored after a reconnect."""
        self._core = core
        self._drain = drain
        self._id = 0
        self._started = False
        self._over = False
        self._error: BusError | None = None
        self._waiters: list[asyncio.Future[bool]] = []

    @property
    def closed(self) -> bool:
        """Whether no more will arrive."""
        return self._over

    async def start(self) -> Self:
        """Register with the broker."""
        if self._started:
            raise LocalProtocolError(f"this {self.noun} has been entered already; make a new one")
        core = self._core
        core.usable()
        self._started = True
        self._id = core.next_id()
        self._enter()
        if self._handler is not None:
            core.held.add(self)
        try:
            await core.result(self.announce())
        except BaseException as error:
            if not isinstance(error, BusError) and core.connection is not None and core.connection.greeted:
                self._withdraw()  # cancelled: the broker may have registered it
            self.ended(None)
            raise
        self.live = not self._over
        return self

    async def close(self) -> None:
        """Take no more. Handlers get what has arrived before this returns, within the drain time.

        Messages that nobody took can still be received; requests that nobody took are failed.
        """
        core = self._core
        if not self.live:
            self._over = True
            return
        self.live = False
        try:
            if core.connection is not None and core.connection.greeted:
                async with asyncio.timeout(self._drain):
                    await core.result(self._withdraw())
        except TimeoutError:
            core.report(
                Timeout(f"the broker did not answer within {self._drain:g} s"), f"closing the {self.noun}", self.label
            )
        except (Disconnected, Rejected):
            pass  # the broker has forgotten it already
        finally:
            self._over = True
            self._wake()
            try:
                await self._finish()
            finally:
                core.held.discard(self)
                self._leave()

    def ended(self, error: BusError | None) -> None:
        """No more will come. Whoever waits hears of it after what has arrived."""
        self.live = False
        self._over = True
        self._error = error
        self._core.held.discard(self)
        self._leave()
        self._wake()

    def restored(self) -> None:
        """There is a new connection, and the broker knows it again."""
        return

    @abstractmethod
    def announce(self) -> int:
        """Encode the frame that registers it; its number."""

    @abstractmethod
    def _withdraw(self) -> int:
        """Encode the frame that takes it back; its number."""

    @abstractmethod
    def _enter(self) -> None:
        """Enter the core's books."""

    @abstractmethod
    def _leave(self) -> None:
        """Leave the core's books."""

    @abstractmethod
    def _farewell(self) -> Callable[[], None]:
        """What the loop calls after the garbage collection of this part; it must not refer to the part."""

    @abstractmethod
    async def _finish(self) -> None:
        """Let handlers finish what has arrived."""

    def _others(self, tasks: "set[asyncio.Task[None]]") -> "set[asyncio.Task[None]]":
        """Those of the handler's tasks that don't themselves wait for the end."""
        left = {task for task in tasks if not task.done()}
        return left - {asyncio.current_task()} - self._core.closers

    def _wake(self) -> None:
        """Consumers look again."""
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(True)

    async def _wait(self, timeout: Duration | None) -> bool:
        """Wait to be woken. False: closed, no more will come. Raises Timeout or what ended this part."""
        core = self._core
        timeout = check_timeout("timeout", timeout)
        if not self._started:
            raise LocalProtocolError(f"this {self.noun} has not been entered: use `async with` or await it")
        if core.forked:
            raise core.unavailable_error()
        if self._over:
            if self._error is not None:
                raise copy(self._error)
            return False
        future: asyncio.Future[bool] = core.loop.create_future()
        self._waiters.append(future)  # each consumer its own: cancelling one must not cancel the others
        core.held.add(self)
        timer = core.loop.call_later(timeout, _expire, future) if timeout is not None else None
        try:
            woken = await future
        finally:
            if timer is not None:
                timer.cancel()
            if future in self._waiters:
                self._waiters.remove(future)
            if not self._waiters and self._handler is None:
                core.held.discard(self)
        if not woken:
            raise Timeout(f"nothing arrived on {self.label!r} within {timeout:g} s")
        return True

    def __del__(self) -> None:
        if not getattr(self, "live", False) or self._core.forked:
            return
        self.live = False
        text = f"the {self.noun} of {self.label!r} was not closed: use `async with`, or close() it"
        warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        self._core.drop(self._farewell())

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    async def __aenter__(self) -> Self:
        if not self._started:
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _expire(future: "asyncio.Future[bool]") -> None:
    if not future.done():
        future.set_result(False)


log = logging.getLogger("busway.client")

EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
"""Where tasks can start at once, a function that doesn't wait answers without a turn of the loop."""
_AFTER_CANCEL: Final = 1.0


async def finish(others: "set[asyncio.Task[None]]", seconds: float, what: str) -> None:
    """Wait for tasks within a time, then cancel those that are left."""
    if not others:
        return
    try:
        _, late = await asyncio.wait(others, timeout=seconds)
    except asyncio.CancelledError:
        for task in others:
            task.cancel()
        raise
    if late:
        log.warning("%s: %d of %d tasks were cancelled after %g s", what, len(late), len(others), seconds)
        for task in late:
            task.cancel()
        await asyncio.wait(late, timeout=_AFTER_CANCEL)
