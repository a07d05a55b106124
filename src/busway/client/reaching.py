"""Which server answers: dials several, a moment apart, and gives those who are there one by one, for the greeting.

A driver. A server that lets everything it is sent vanish costs the others no more than that moment; a slow one goes on being dialled
beside them, and is taken if it answers first after all. Nobody is greeted who is not needed: a server that is dialled for
nothing sees a connection come and go.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Self

from busway.client.connection import Connection

STAGGER: Final = 0.25
"""Seconds that a server has for itself before the next one is dialled, too; less if there are many for the time there is."""
_LEAST: Final = 0.001


class Reaching:
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
