"""A deterministic asyncio event loop with virtual time: if no callback is ready, the clock jumps to the next timer.

The loop has no selector, thread or socket, so each run is the same. Functions for an executor run in the loop after
some virtual time, and calls that need a socket raise an error. If no callback or timer is left, the loop raises Stuck
with the waiting tasks.
"""

# ruff: noqa: SLF001, the loop uses asyncio's internals

import asyncio
import heapq
import logging
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextvars import Context
from itertools import count
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple, Unpack

from busway._core import hold_clock
from busway.testing.simulation.process import CURRENT, Process

log = logging.getLogger("busway.simulation")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH: Final = 1_700_000_000 * 10**9
"""The start of virtual time, in nanoseconds since 1970."""
_BILLION: Final = 10**9
_BUSY: Final = 200_000
"""Callbacks at the same time after which the loop raises Stuck."""
_PURGE: Final = 256
"""Cancelled timers that may stay in the heap."""


_MISSING: Final = frozenset(
    name
    for name in dir(asyncio.AbstractEventLoop)
    if name.startswith(("sock_", "subprocess_", "create_unix_", "connect_", "add_signal", "remove_signal", "getaddr"))
    or name in {"call_soon_threadsafe", "create_connection", "create_server", "create_datagram_endpoint", "start_tls"}
    or name in {"sendfile", "getnameinfo", "add_writer", "remove_writer", "set_default_executor", "run_forever"}
)


def _refuse(*_arguments: Any, **_keywords: Any) -> NoReturn:
    raise RuntimeError("a simulated loop has no threads, sockets, signals or processes: use sim:// addresses")


_MAX_FAILURES: Final = 1000
"""The most errors that a run remembers for its report."""


class Stuck(RuntimeError):  # noqa: N818, the name states what happened
    """The loop has no callback or timer left, or time does not advance."""


class _Future(asyncio.Future[T]):
    """A future whose hash is a serial number, so that sets of futures have the same order in every process."""

    def __init__(self, *, loop: "VirtualLoop") -> None:
        self.serial = next(loop.serials)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.serial


class _Task(asyncio.Task[T]):
    """A task whose hash is a serial number, so that sets of tasks have the same order in every process."""

    serial: int
    process: Process | None = None

    def __new__(cls, *_arguments: Any, loop: "VirtualLoop", **_keywords: Any) -> "_Task[T]":
        self = super().__new__(cls)
        self.serial = next(loop.serials)  # __hash__ is called before __init__ has returned
        return self

    def __hash__(self) -> int:
        return self.serial


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop with virtual time. After `limit` seconds it raises Stuck.

    `pause` returns half the duration of a function in an executor.
    """

    def __init__(self, pause: Callable[[], float] = lambda: 0.0, limit: float = 3600.0) -> None:
        self.serials = count()
        self.turns = 0
        self.limit = limit
        self.fatal: BaseException | None = None
        """An error that ends the run."""
        self.failures: list[dict[str, Any]] = []
        """Contexts of unhandled exceptions in callbacks and tasks."""
        self._pause = pause
        self._now = 0.0
        self._stamp = 0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._cancelled = 0
        self._still = 0
        self.bells: set[int] = set()
        self._readers: dict[int, asyncio.Handle] = {}
        self._running = False
        self._closed = False

    # Time.

    def time(self) -> float:
        """Return the seconds since the start."""
        return self._now

    def time_ns(self) -> int:
        """Return the nanoseconds since 1970 by the clock of the current process."""
        process = CURRENT.get()
        return EPOCH + round(self._now * _BILLION) + (process.skew if process is not None else 0)

    def _advance(self) -> None:
        """Advance the time to the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._cancelled -= 1
        if not timers:
            raise Stuck(f"no callback or timer is left; {self.waiting()}")
        if timers[0][0] > self._now:
            if timers[0][0] > self.limit:
                raise Stuck(f"not over after {self.limit:g} s; {self.waiting()}")
            self._now = timers[0][0]
            self._still = 0
        self._ready.append(heapq.heappop(timers)[2])

    # Running.

    def run_until_complete(self, future: Any) -> Any:
        """Run until the future is done, and return its result."""
        if self._running or events._get_running_loop() is not None:
            raise RuntimeError("a simulated loop can't run while another event loop runs in this thread")
        wanted: asyncio.Future[Any] = asyncio.ensure_future(future, loop=self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finish_generator)
        events._set_running_loop(self)
        self._running = True
        try:
            while not wanted.done():
                self._turn()
                if self.fatal is not None:
                    raise self.fatal
        finally:
            self._running = False
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            hold_clock(0)
            self._stamp = 0
        return wanted.result()

    def _turn(self) -> None:
        ready = self._ready
        if not ready:
            self._advance()
        handle = ready.popleft()
        if handle.cancelled():
            return
        self.turns += 1
        self._still += 1
        if self._still > _BUSY:
            raise Stuck(f"time stands still at {self._now:.3f} s; {self.waiting()}")
        process = handle._context.get(CURRENT)  # type: ignore[attr-defined]
        if process is None:
            self._switch(0)
            handle._run()
        elif process.held is not None:
            process.held.append(handle)
        elif process.alive:
            self._switch(process.skew)
            handle._run()
            if process.disk is not None:
                process.disk.look()

    def resume(self, process: Process) -> None:
        """Run the callbacks that became due while the process was suspended, in their order."""
        held, process.held = process.held, None
        self._ready.extend(held or ())

    def enter(self, process: Process, function: Callable[[Unpack[Ts]], object], *arguments: *Ts) -> None:
        """Call a function as another process: at once, or when it resumes. A dead process calls nothing."""
        if not process.alive:
            return
        if process.held is not None:
            process.held.append(asyncio.Handle(function, arguments, self, process.context))
            return
        before = CURRENT.get()
        if before is process:
            function(*arguments)
            return
        self._switch(process.skew)
        process.context.run(function, *arguments)
        if process.disk is not None:
            process.disk.look()
        self._switch(before.skew if before is not None else 0)

    def _switch(self, skew: int) -> None:
        """Set the engine's clock to that of the host whose code runs next."""
        stamp = EPOCH + round(self._now * _BILLION) + skew
        if stamp != self._stamp:
            self._stamp = stamp
            hold_clock(stamp)

    def waiting(self) -> str:
        """Describe the waiting tasks for an error message."""
        tasks = self.tasks()
        if not tasks:
            return "no task is left"
        return "these tasks wait: " + "; ".join(_described(task) for task in tasks)

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks of living processes, in the order of their creation."""
        found: list[_Task[Any]] = [task for task in asyncio.all_tasks(self) if isinstance(task, _Task)]
        return [
            task for task in sorted(found, key=lambda task: task.serial) if task.process is None or task.process.alive
        ]

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        self._readers.clear()

    def get_debug(self) -> bool:
        return False

    # Callbacks and tasks.

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self.serials), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:  # noqa: ARG002, called by asyncio
        self._cancelled += 1
        if self._cancelled > _PURGE and self._cancelled * 2 > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None, **more: Any) -> Any:
        task: _Task[Any] = _Task(coro, loop=self, name=name or f"task {next(self.serials)}", context=context, **more)
        task.process = CURRENT.get() if context is None else context.get(CURRENT)
        return task

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # noqa: ARG002
        """Call the function in the loop, in the middle of a pause: a process may die before or after the call."""
        future: asyncio.Future[T] = self.create_future()
        self.call_later(self._pause(), self._work, future, func, args)
        return future

    def _work(self, future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        try:
            self.call_later(self._pause(), _settle, future, func(*args), None)
        except Exception as error:  # noqa: BLE001, the error is the result
            self.call_later(self._pause(), _settle, future, None, error)

    # File descriptors of logs: `add_reader` accepts only these, and `ring` makes them readable.

    def add_reader(self, fd: Any, callback: Callable[[Unpack[Ts]], Any], *args: *Ts) -> None:
        if fd not in self.bells:
            _refuse()
        self._readers[fd] = asyncio.Handle(callback, args, self, None)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def ring(self, fd: int) -> None:
        """Make a log's file descriptor readable."""
        if (handle := self._readers.get(fd)) is not None:
            self._ready.append(handle)

    # Errors.

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record the failure for the report of the run, unless the loop is closed."""
        if self._closed:
            return
        if len(self.failures) < _MAX_FAILURES:  # a defect that repeats forever must not fill the memory
            self.failures.append(context)
        log.error("%s", context.get("message"), exc_info=context.get("exception"))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_exception_handler(self) -> None:
        return None

    # Asynchronous generators that are not exhausted.

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: generators end when they are garbage-collected."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: the loop has no executor."""


for _name in _MISSING:
    setattr(VirtualLoop, _name, _refuse)


def _settle(future: asyncio.Future[T], result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _described(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    place = f" at {frames[0].f_code.co_qualname}" if frames else ""
    return f"{task.get_name()}{place}"
