"""Which server answers: dials several, a moment apart, and gives those who are there one by one, for the greeting.

A driver. A server that lets everything it is sent vanish costs the others no more than that moment; a slow one goes on being dialled
beside them, and is taken if it answers first after all. Nobody is greeted who is not needed: a server that is dialled for
nothing sees a connection come and go.
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
"""Seconds that a server has for itself before the next one is dialled, too; less if there are many for the time there is."""
_LEAST: Final = 0.001


class Dialer:
    """One round of attempts. `async with` it: those that are still under way end with it."""

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
        self._there: deque[tuple[str, Connection | Exception]] = deque()
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        tasks = list(self._dialling)
        if not self._loop.is_closed():
            for task in tasks:
                task.cancel()
        if kind is not GeneratorExit:  # thrown away by a loop that runs no more: then nothing can be waited for
            await asyncio.gather(*tasks, return_exceptions=True)
        for _url, one in self._there:
            if isinstance(one, Connection):
                one.discard()

    async def next(self) -> tuple[str, Connection | Exception] | None:
        """An address with the connection to it, or with why there is none; None: that was all."""
        while not self._there:
            now = self._loop.time()
            if self._untried and (not self._dialling or now >= self._due):
                self._start(self._untried.popleft())
            if not self._dialling and not self._there:
                return None
            self._news.clear()
            try:
                async with asyncio.timeout_at(self._due if self._untried else None):
                    await self._news.wait()
            except TimeoutError:
                continue
        return self._there.popleft()

    @property
    def share(self) -> float:
        """Seconds for the greeting of the one that was given last, so that those who are there and those who may come have theirs."""
        others = sum(isinstance(one, Connection) for _, one in self._there) + bool(self._untried or self._dialling)
        return max((self._deadline - self._loop.time()) / (1 + others), _LEAST)

    def _start(self, url: str) -> None:
        self._due = self._loop.time() + self._stagger
        task: asyncio.Task[None]
        task = self._loop.create_task(self._reach(url, lambda: self._dialling.discard(task)), name=f"busway dial {url}")
        self._dialling.add(task)

    async def _reach(self, url: str, over: Callable[[], None]) -> None:
        found: Connection | Exception
        try:
            found = await self._dial(url, max(self._deadline - self._loop.time(), _LEAST))
        except Exception as error:  # noqa: BLE001, raised by who asks for the next
            found = error
        finally:
            over()
        self._there.append((url, found))
        self._news.set()


RECONNECT: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Delays before the attempts to reconnect; the last one repeats."""
JITTER: Final = 0.2
"""The part of a delay by which it may be longer or shorter."""


class RetrySchedule:
    """Delays in seconds; the last one repeats. Without any there is no coming back. `chance` gives numbers from 0 to 1."""

    def __init__(self, delays: Sequence[Duration] | None, jitter: float, chance: Callable[[], float]) -> None:
        given: object = delays  # a str is a sequence too
        kinds = NoneType if isinstance(given, str | bytes) else (Sequence, NoneType)
        check_type("reconnect", given, kinds, "a list of delays in seconds, or None for never")
        waits = tuple(check_seconds(f"reconnect[{place}]", delay) for place, delay in enumerate(delays or ()))
        if isinstance(jitter, bool) or not isinstance(jitter, int | float):
            raise TypeError(f"jitter must be a number from 0 to 1, not {jitter!r}")
        check_seconds("jitter", jitter)
        if jitter > 1:
            raise ValueError(f"jitter is a part of each delay, from 0 to 1, not {jitter!r}")
        self._delays = waits
        self._jitter = jitter
        self._chance = chance
        self._step = 0

    def __bool__(self) -> bool:
        return bool(self._delays)

    def begin(self) -> None:
        """From the first delay on."""
        self._step = 0

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        delay = self._delays[min(self._step, len(self._delays) - 1)]
        self._step += 1
        return delay * (1 + self._jitter * (2 * self._chance() - 1))
