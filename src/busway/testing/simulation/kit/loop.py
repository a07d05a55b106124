"""An event loop of asyncio whose time is a number: when nothing is ready it jumps to the next timer.

There is no selector, no thread and no socket, so what runs on it runs the same way each time. What asks for a thread is run
here, after a while of virtual time; what asks for a socket is refused. When nothing can happen any more, that is an error
which names the tasks that wait.
"""

# ruff: noqa: SLF001, a loop is a part of asyncio

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
from busway.testing.simulation.kit.process import CURRENT, Process

log = logging.getLogger("busway.simulation")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH: Final = 1_700_000_000 * 10**9
"""Where time begins, in nanoseconds since 1970."""
_BILLION: Final = 10**9
_BUSY: Final = 200_000
"""Callbacks without a step of time, after which it is said that time stands still."""
_PURGE: Final = 256
"""Cancelled timers that may be in the heap."""


_MISSING: Final = frozenset(
    name
    for name in dir(asyncio.AbstractEventLoop)
    if name.startswith(("sock_", "subprocess_", "create_unix_", "connect_", "add_signal", "remove_signal", "getaddr"))
    or name in {"call_soon_threadsafe", "create_connection", "create_server", "create_datagram_endpoint", "start_tls"}
    or name in {"sendfile", "getnameinfo", "add_writer", "remove_writer", "set_default_executor", "run_forever"}
)


def _refuse(*_arguments: Any, **_keywords: Any) -> NoReturn:
    raise RuntimeError("a simulated loop has no threads, sockets, signals or processes: use sim:// addresses")


class Stuck(RuntimeError):  # noqa: N818, it is a state
    """Nothing can happen any more, or time stands still."""


class _Future(asyncio.Future[T]):
    """Sets of futures have the same order in every process: what tells them apart is a number, not an address."""

    def __init__(self, *, loop: "VirtualLoop") -> None:
        self.serial = next(loop.serials)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.serial


class _Task(asyncio.Task[T]):
    """As _Future."""

    serial: int
    process: Process | None = None

    def __new__(cls, *_arguments: Any, loop: "VirtualLoop", **_keywords: Any) -> "_Task[T]":
        self = super().__new__(cls)
        self.serial = next(loop.serials)  # it is asked for before __init__ is over
        return self

    def __hash__(self) -> int:
        return self.serial


class VirtualLoop(asyncio.AbstractEventLoop):
    """See above. `pause` says how long work takes that was meant for a thread; after `limit` seconds it is an error to go on."""

    def __init__(self, pause: Callable[[], float] = lambda: 0.0, limit: float = 3600.0) -> None:
        self.serials = count()
        self.turns = 0
        self.limit = limit
        self.fatal: BaseException | None = None
        """Set to end the run with it."""
        self.failures: list[dict[str, Any]] = []
        """What callbacks and tasks raised where nobody waited for it."""
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
        """Seconds since the beginning."""
        return self._now

    def time_ns(self) -> int:
        """Nanoseconds since 1970, by the clock of the process that is running."""
        process = CURRENT.get()
        return EPOCH + round(self._now * _BILLION) + (process.skew if process is not None else 0)

    def _advance(self) -> None:
        """To the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._cancelled -= 1
        if not timers:
            raise Stuck(f"nothing can happen any more; {self.waiting()}")
        if timers[0][0] > self._now:
            if timers[0][0] > self.limit:
                raise Stuck(f"not over after {self.limit:g} s; {self.waiting()}")
            self._now = timers[0][0]
            self._still = 0
        self._ready.append(heapq.heappop(timers)[2])

    # Running.

    def run_until_complete(self, future: Any) -> Any:
        """Run until this is done; its result."""
        if self._running or events._get_running_loop() is not None:
            raise RuntimeError("a simulated loop runs where no other loop does, and one thing at a time")
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

    def go_on(self, process: Process) -> None:
        """A process that slept does now what was due meanwhile, in its order."""
        held, process.held = process.held, None
        self._ready.extend(held or ())

    def enter(self, process: Process, function: Callable[[Unpack[Ts]], object], *arguments: *Ts) -> None:
        """Call this at once as that process, unless it is dead; or when it wakes."""
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
        """The clock of the engine is that of the host whose code runs next."""
        stamp = EPOCH + round(self._now * _BILLION) + skew
        if stamp != self._stamp:
            self._stamp = stamp
            hold_clock(stamp)

    def waiting(self) -> str:
        """The tasks that wait, for a message to people."""
        tasks = self.tasks()
        if not tasks:
            return "no task is left"
        return "these tasks wait: " + "; ".join(_described(task) for task in tasks)

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Tasks of living processes that are not done, in the order in which they began."""
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
        """Call it here, in the middle of a pause of virtual time: a process that dies meanwhile has done it or has not."""
        future: asyncio.Future[T] = self.create_future()
        self.call_later(self._pause(), self._work, future, func, args)
        return future

    def _work(self, future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        try:
            self.call_later(self._pause(), _settle, future, func(*args), None)
        except Exception as error:  # noqa: BLE001, it is the result
            self.call_later(self._pause(), _settle, future, None, error)

    # What a log rings when its thread has written: `add_reader` is only for these, and `ring` makes them readable.

    def add_reader(self, fd: Any, callback: Callable[[Unpack[Ts]], Any], *args: *Ts) -> None:
        if fd not in self.bells:
            _refuse()
        self._readers[fd] = asyncio.Handle(callback, args, self, None)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def ring(self, fd: int) -> None:
        """It is readable now."""
        if (handle := self._readers.get(fd)) is not None:
            self._ready.append(handle)

    # Errors.

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Remember it: whoever runs the simulation looks. What dead processes leave is nobody's concern."""
        if self._closed:
            return
        self.failures.append(context)
        log.error("%s", context.get("message"), exc_info=context.get("exception"))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_exception_handler(self) -> None:
        return None

    # Generators that are not run to their end.

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """They end with what holds them."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""


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
