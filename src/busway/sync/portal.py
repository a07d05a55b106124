"""The portal: a thread that runs an event loop, and runs coroutines there for other threads.

A driver. All blocking buses and servers of the process share one portal, which starts with the first and ends with the
last of them.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, ClassVar, ParamSpec, TypeVar

from busway.errors import Closed, Forked

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """The loop thread; acquire() and release() count its users."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar["Portal | None"] = None

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        begun = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(begun,), name="busway-sync", daemon=True)
        self._thread.start()
        begun.wait()

    @classmethod
    def acquire(cls) -> "Portal":
        """Return the process's portal for one more user, who has to release() it."""
        with cls._lock:
            portal = cls._shared = cls._shared or cls()
            portal._users += 1  # noqa: SLF001 - own class
            return portal

    def release(self) -> None:
        """Remove one user. Without users the thread ends."""
        with Portal._lock:
            self._users -= 1
            if self._users or self.foreign:
                return
            Portal._shared = None
            loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            loop.call_soon_threadsafe(stop.set)
            self._thread.join()

    @classmethod
    def forget(cls) -> None:
        """Drop the portal in a forked child, where the parent's thread does not exist."""
        cls._lock = threading.Lock()
        cls._shared = None

    @property
    def foreign(self) -> bool:
        """Whether this portal belongs to the parent process."""
        return self._pid != os.getpid()

    def call(self, begin: Callable[P, Awaitable[T]], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Run an async function in the loop thread and wait for its result. An interrupted wait cancels it."""
        if self.foreign:
            raise Forked(f"this bus belongs to the parent process: connect again in the child process {os.getpid()}")
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "blocking call refused: it was made in the bus's own thread, perhaps in an on_error function, "
                "and would wait for itself; use another thread"
            )
        loop = self._loop
        if loop is None:
            raise Closed("this bus is closed")

        started: list[asyncio.Task[Any]] = []
        future: concurrent.futures.Future[T] | None = None

        async def run() -> T:
            started.extend(filter(None, [asyncio.current_task()]))
            return await begin(*arguments, **keywords)

        work = run()
        try:
            try:
                future = asyncio.run_coroutine_threadsafe(work, loop)
            except RuntimeError:  # another thread has just closed the last bus
                work.close()
                raise Closed("this bus is closed") from None
            return future.result()
        except concurrent.futures.CancelledError:
            raise Closed("this bus was closed during the call") from None
        except BaseException:
            # An interrupt may come before `future` is assigned. The task must end in this case, too: it would take
            # messages that are meant for the next call.
            if future is None or not future.done():
                with contextlib.suppress(RuntimeError):  # a loop that has ended has nothing to cancel
                    loop.call_soon_threadsafe(_cancel, started)
            raise

    def run(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Run a plain function in the loop thread and wait for its result."""

        async def called() -> T:
            return function(*arguments, **keywords)

        return self.call(called)

    def each(
        self, make: Callable[P, AsyncGenerator[T, None]], *arguments: P.args, **keywords: P.kwargs
    ) -> Generator[T, None, None]:
        """A blocking generator over an async one. Wrong arguments raise at the call, as in the asyncio API."""
        return self._items(self.run(make, *arguments, **keywords))

    def _items(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        try:
            while True:
                try:
                    item = self.call(items.__anext__)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self.call(items.aclose)

    def _main(self, begun: threading.Event) -> None:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(self._until_stopped(begun))

    async def _until_stopped(self, begun: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        begun.set()
        await self._stop.wait()
        self._loop = None


def _cancel(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Portal.forget)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
