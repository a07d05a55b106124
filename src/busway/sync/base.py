"""Base classes of the blocking API: objects that wrap one of the asyncio API, and objects that `with` closes."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from busway.message import Message
from busway.sync.portal import Portal

A = TypeVar("A")
M = TypeVar("M")


class _AsyncClosable(Protocol):
    """The common methods of the asyncio Subscription, Channel and Service."""

    async def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...


C = TypeVar("C", bound=_AsyncClosable)
S = TypeVar("S", bound=AsyncIterator[Any])


class Closable(ABC):
    """An object that the end of its `with` closes."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Wrapper(Generic[A]):
    """Calls an object of the asyncio API in the loop thread."""

    def __init__(self, portal: Portal, inner: A) -> None:
        self._portal = portal
        self._inner = inner

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"


class Opened(Wrapper[A]):
    """A bus or a server: it uses the portal from its creation to its end."""

    def __init__(self, opening: Callable[[], Awaitable[A]]) -> None:
        portal = Portal.acquire()
        try:
            super().__init__(portal, portal.call(opening))
        except BaseException:
            portal.release()
            raise
        self._released = False

    def _end(self, ending: Callable[[], Awaitable[None]]) -> None:
        """Close it, unless that was done before or in the parent process."""
        if self._released or self._portal.foreign:
            return
        self._released = True
        try:
            self._portal.call(ending)
        finally:
            self._portal.release()


class Registration(Wrapper[C], Closable):
    """A subscription, channel or service, with the thread pools of its functions."""

    def __init__(self, portal: Portal, inner: C, *pools: ThreadPoolExecutor | None) -> None:
        super().__init__(portal, inner)
        self._pools = pools

    def close(self) -> None:
        """Receive no more. A handler first processes all arrived messages; without one they can still be taken."""
        if not self._portal.foreign:
            self._portal.call(self._inner.close)
        for pool in self._pools:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)

    @property
    def closed(self) -> bool:
        return self._inner.closed


class Results(Wrapper[S], Generic[S, M]):
    """A blocking iterator over an async one."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> M:
        try:
            item: M = self._portal.call(self._inner.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None
        return item


def listed(items: Any) -> Any:
    """The items of an iterable as a list, since the caller's generator has to run in the caller's thread."""
    if isinstance(items, str | Message) or not isinstance(items, Iterable):
        return items
    return list(items)
