"""Pending answers of one client: futures by the number of the request frame, with one timer for all their deadlines.

The core resolves the futures; the senders of requests wait for them.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

from busway.errors import BusError, Timeout


class Pending:
    """Futures by number. An answer, a deadline or the loss of the connection completes each exactly once.

    All deadlines are in one heap, so a request needs no timer of its own. Answered entries are removed from the heap
    when they outnumber the pending ones. `expired` is called with the number of each future that timed out.
    """

    __slots__ = ("_deadlines", "_expired", "_futures", "_held", "_loop", "_timer", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[int], object]) -> None:
        self._loop = loop
        self._expired = expired
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._held: dict[int, Any] = {}
        self._deadlines: list[tuple[float, int, float, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0

    def __len__(self) -> int:
        return len(self._futures)

    def __contains__(self, number: int) -> bool:
        return number in self._futures

    def add(self, number: int, timeout: float | None = None, topic: str = "") -> asyncio.Future[Any]:
        """Create a future of the answer to `number`."""
        future = self._futures[number] = self._loop.create_future()
        if timeout is not None:
            when = self._loop.time() + timeout
            deadlines = self._deadlines
            heapq.heappush(deadlines, (when, number, timeout, topic))
            if self._timer is None:
                self._arm(when)
            elif when < self._when:
                self._timer.cancel()
                self._arm(when)
            if len(deadlines) > 1024 and len(deadlines) > 4 * len(self._futures):
                self._clean()
        return future

    def pop(self, number: int) -> asyncio.Future[Any] | None:
        """Remove and return the future of `number`; None if it is not pending."""
        return self._futures.pop(number, None)

    def hold(self, number: int, part: Any) -> None:
        """Store a partial answer to `number` in place of the previous one."""
        self._held[number] = part

    def held(self, number: int) -> Any:
        """Remove and return the last partial answer to `number`, if there is one."""
        return self._held.pop(number, None)

    def fail(self, error: BusError) -> None:
        """Fail all futures with this error."""
        futures, self._futures = self._futures, {}
        self._deadlines.clear()
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future in futures.values():
            if not future.done():
                future.set_exception(type(error)(error.reason, code=error.code))

    def _arm(self, when: float) -> None:
        self._when = when
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        deadlines = self._deadlines
        futures = self._futures
        now = self._loop.time()
        while deadlines:
            when, number, timeout, topic = deadlines[0]
            if number in futures:
                if when > now:
                    self._arm(when)
                    return
                future = futures.pop(number)
                self._held.pop(number, None)
                if not future.done():
                    future.set_exception(Timeout(f"no answer on topic {topic!r} within {timeout:g} s"))
                    self._expired(number)
            heapq.heappop(deadlines)

    def _clean(self) -> None:
        futures = self._futures
        self._deadlines = [entry for entry in self._deadlines if entry[1] in futures]
        heapq.heapify(self._deadlines)
