"""`busway.run`: runs a program's main coroutine and shuts it down gracefully at SIGTERM and SIGINT.

The first signal cancels the main task, so that the `async with` blocks of clients and servers drain. The second signal
ends the process at once. User programs and the CLI call it.
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
"""Default of the seconds for a graceful shutdown."""
_CANCEL_INTERVAL: Final = 0.5
"""Seconds between two cancellations of a main task that exceeded the limit."""
_MOST_CANCELS: Final = 10
"""The number of cancellations after which the process is killed."""


def run(main: Coroutine[Any, Any, T], *, drain: Duration = DRAIN) -> T:
    """Run the main coroutine of a program, on uvloop if installed, and shut it down gracefully at SIGTERM and SIGINT.

    The first signal cancels the main task. Its `async with` blocks drain: handlers finish their messages, which are
    acknowledged. After `drain` seconds the remaining work is cancelled. The second signal ends the process at once.
    After SIGTERM the program exits with status 143; after SIGINT this function raises KeyboardInterrupt.
    """
    limit = check_seconds("drain", drain)
    if not asyncio.iscoroutine(main):
        raise ValueError(f"run() takes a coroutine such as main(), not {main!r}")
    signals = _Signals(limit)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(signals.during(main))
        except asyncio.CancelledError:
            if signals.received == signal.SIGTERM:
                raise SystemExit(128 + signal.SIGTERM) from None
            if signals.received == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415, an optional package
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Signals:
    """Signal handlers of one run. A signal for which the program has set its own handler keeps that handler."""

    def __init__(self, drain: float) -> None:
        self.received: int | None = None
        self._drain = drain
        self._cancels = 0
        self._timer: asyncio.TimerHandle | None = None
        self._handled: list[int] = []
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._handled.append(signal.SIGINT)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._handled.append(signal.SIGTERM)

    async def during(self, main: Coroutine[Any, Any, T]) -> T:
        """Await the main coroutine while the handlers are installed."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        previous = {number: signal.signal(number, self._handle) for number in self._handled}
        try:
            return await main
        finally:
            for number, handler in previous.items():
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, handler)
            if self._timer is not None:
                self._timer.cancel()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """Python calls this between two instructions of the main thread, even while the loop is blocked."""
        if self.received is not None:
            _kill(number)
        self.received = number
        self._loop.call_soon_threadsafe(self._drain_main)

    def _drain_main(self) -> None:
        log.info("%s: shutting down within %g s", signal.Signals(self.received or 0).name, self._drain)
        self._task.cancel()
        self._timer = self._loop.call_later(self._drain, self._cancel_main)

    def _cancel_main(self) -> None:
        if self._cancels == 0:
            log.warning("not drained within %g s: cancelling the remaining tasks", self._drain)
        self._cancels += 1
        if self._cancels > _MOST_CANCELS:
            _kill(self.received or signal.SIGTERM)
        self._task.cancel()
        self._timer = self._loop.call_later(_CANCEL_INTERVAL, self._cancel_main)


def _kill(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
