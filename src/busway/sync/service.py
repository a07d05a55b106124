"""Services of the blocking API. The blocking bus makes them."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from busway.common.durations import Duration
from busway.errors import Closed
from busway.sync.base import Registration
from busway.sync.portal import Portal

Q = TypeVar("Q")


class _AsyncService(Protocol):
    """The common methods of the asyncio Service and TypedService."""

    def __await__(self) -> Generator[Any, None, Any]: ...
    async def recv(self, timeout: Duration | None = None) -> Any: ...
    async def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def topic(self) -> str: ...


class Service(Registration[_AsyncService], Generic[Q]):
    """A service: its handler answers the requests in threads, or the program iterates over them."""

    def __init__(
        self,
        portal: Portal,
        inner: _AsyncService,
        wrap: Callable[[Portal, Any], Q],
        *pools: ThreadPoolExecutor | None,
    ) -> None:
        super().__init__(portal, inner, *pools)
        self._wrap = wrap

    def __iter__(self) -> Iterator[Q]:
        while True:
            try:
                request = self.recv()
            except Closed:
                if self._inner.closed:
                    return
                raise
            yield request

    def recv(self, timeout: Duration | None = None) -> Q:
        """The next request. Raises Timeout if none arrives in time."""
        return self._wrap(self._portal, self._portal.call(self._inner.recv, timeout))

    @property
    def topic(self) -> str:
        return self._inner.topic
