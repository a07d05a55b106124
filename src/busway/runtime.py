"""`busway.run`: a program's main coroutine, ended in order by SIGTERM and SIGINT.

A driver. The first signal cancels the main task, so that the `async with` blocks of clients and servers drain. The second
signal ends the process at once.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, TypeVar

from busway.common.checks import check_seconds
from busway.common.durations import Duration

log = logging.getLogger("busway.client")

T = TypeVar("T")

DRAIN: Final = 30.0
"""Seconds to end in order, if nothing else is said."""
_AGAIN: Final = 0.5
"""Seconds between two cancellations of a main task whose time is over."""
_TIMES: Final = 10
"""So many of them, then the process is killed."""


def run(main: Coroutine[Any, Any, T], *, drain: Duration = DRAIN) -> T:
    """Run the main coroutine of a program, on uvloop where it is installed, and end it in order at SIGTERM and SIGINT.

    The first signal cancels the main task: what it has entered with `async with` drains, so handlers finish the messages they
    work on, which are acknowledged. After `drain` seconds what is left is cancelled. The second signal ends the
    process at once. A program that was ended by SIGTERM exits with status 143, one ended by SIGINT raises KeyboardInterrupt.
    """
    limit = check_seconds("drain", drain)
    if not asyncio.iscoroutine(main):
        raise ValueError(f"run() takes a coroutine such as main(), not {main!r}")
    signals = _Signals(limit)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(signals.during(main))
        except asyncio.CancelledError:
            if signals.came == signal.SIGTERM:
                raise SystemExit(128 + signal.SIGTERM) from None
            if signals.came == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415, not everywhere
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Signals:
    """The handlers of one run. Signals for which the program has its own handlers are left to them."""

    def __init__(self, drain: float) -> None:
        self.came: int | None = None
        self._drain = drain
        self._hurries = 0
        self._timer: asyncio.TimerHandle | None = None
        self._taken: list[int] = []
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._taken.append(signal.SIGINT)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._taken.append(signal.SIGTERM)

    async def during(self, main: Coroutine[Any, Any, T]) -> T:
        """Await the main coroutine with the handlers in place."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        before = {number: signal.signal(number, self._handle) for number in self._taken}
        try:
            return await main
        finally:
            for number, handler in before.items():
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, handler)
            if self._timer is not None:
                self._timer.cancel()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """Called between two instructions of the main thread, also if the loop is blocked."""
        if self.came is not None:
            _die(number)
        self.came = number
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        log.info("%s: ending in order within %g s", signal.Signals(self.came or 0).name, self._drain)
        self._task.cancel()
        self._timer = self._loop.call_later(self._drain, self._hurry)

    def _hurry(self) -> None:
        if self._hurries == 0:
            log.warning("not drained within %g s: what is left is cancelled", self._drain)
        self._hurries += 1
        if self._hurries > _TIMES:
            _die(self.came or signal.SIGTERM)
        self._task.cancel()
        self._timer = self._loop.call_later(_AGAIN, self._hurry)


def _die(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
