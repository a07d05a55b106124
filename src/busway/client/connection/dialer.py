"""Dialer of several servers in staggered parallel ("happy eyeballs"), and the schedule of delays between attempts.

A driver, used by the lifecycle. A server that drops all packets delays the others only by the stagger; a slow server is
dialled further beside the others. The lifecycle performs the handshake with one connection after the other, so an
unneeded server only sees a connection that is opened and closed.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import NoneType
from typing import Final, Self

from busway.client.connection.connection import Connection
from busway.common.checks import check_seconds, check_type
from busway.common.durations import Duration

STAGGER: Final = 0.25
"""Seconds between the dialling of one server and that of the next; less if many servers share a short timeout."""
_MIN_TIMEOUT: Final = 0.001


class Dialer:
    """One round of attempts to connect. Leaving its `async with` cancels the attempts in progress."""

    def __init__(
        self,
        urls: Sequence[str],
        dial: Callable[[str, float], Awaitable[Connection]],
        timeout: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._untried = deque(urls)
        self._dial = dial
        self._deadline = self._loop.time() + timeout
        self._stagger = min(STAGGER, timeout / (len(urls) + 1))
        self._due = self._loop.time()
        self._dialling: set[asyncio.Task[None]] = set()
        self._results: deque[tuple[str, Connection | Exception]] = deque()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        tasks = list(self._dialling)
        if not self._loop.is_closed():
            for task in tasks:
                task.cancel()
        if kind is not GeneratorExit:  # garbage-collected after its loop has ended: it can't wait
            await asyncio.gather(*tasks, return_exceptions=True)
        for _url, result in self._results:
            if isinstance(result, Connection):
                result.discard()

    async def next(self) -> tuple[str, Connection | Exception] | None:
        """The next result: an address with its connection or the error of its attempt. None if all were returned."""
        while not self._results:
            now = self._loop.time()
            if self._untried and (not self._dialling or now >= self._due):
                self._start(self._untried.popleft())
            if not self._dialling and not self._results:
                return None
            self._changed.clear()
            try:
                async with asyncio.timeout_at(self._due if self._untried else None):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return self._results.popleft()

    @property
    def handshake_timeout(self) -> float:
        """Seconds for the handshake with the server returned last: its share of the time that is left for all."""
        others = sum(isinstance(result, Connection) for _, result in self._results)
        others += bool(self._untried or self._dialling)
        return max((self._deadline - self._loop.time()) / (1 + others), _MIN_TIMEOUT)

    def _start(self, url: str) -> None:
        self._due = self._loop.time() + self._stagger
        task: asyncio.Task[None]
        task = self._loop.create_task(
            self._attempt(url, lambda: self._dialling.discard(task)), name=f"busway dial {url}"
        )
        self._dialling.add(task)

    async def _attempt(self, url: str, on_end: Callable[[], None]) -> None:
        result: Connection | Exception
        try:
            result = await self._dial(url, max(self._deadline - self._loop.time(), _MIN_TIMEOUT))
        except Exception as error:  # noqa: BLE001, the caller of next() raises it
            result = error
        finally:
            on_end()
        self._results.append((url, result))
        self._changed.set()


RECONNECT: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Delays in seconds before the attempts to reconnect; the last one repeats."""
JITTER: Final = 0.2
"""Fraction of a delay by which it may be longer or shorter."""


class RetrySchedule:
    """Delays in seconds before attempts; the last one repeats. Without delays the client does not reconnect.

    `chance` returns random numbers from 0 to 1.
    """

    def __init__(self, delays: Sequence[Duration] | None, jitter: float, chance: Callable[[], float]) -> None:
        given: object = delays  # a str is a sequence too
        kinds = NoneType if isinstance(given, str | bytes) else (Sequence, NoneType)
        check_type("reconnect", given, kinds, "a list of delays in seconds, or None for never")
        waits = tuple(check_seconds(f"reconnect[{index}]", delay) for index, delay in enumerate(delays or ()))
        if isinstance(jitter, bool) or not isinstance(jitter, int | float):
            raise TypeError(f"jitter must be a number from 0 to 1, not {jitter!r}")
        check_seconds("jitter", jitter)
        if jitter > 1:
            raise ValueError(f"jitter must be a fraction of each delay, from 0 to 1, not {jitter!r}")
        self._delays = waits
        self._jitter = jitter
        self._chance = chance
        self._step = 0

    def __bool__(self) -> bool:
        return bool(self._delays)

    def begin(self) -> None:
        """Start again with the first delay."""
        self._step = 0

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        delay = self._delays[min(self._step, len(self._delays) - 1)]
        self._step += 1
        return delay * (1 + self._jitter * (2 * self._chance() - 1))
