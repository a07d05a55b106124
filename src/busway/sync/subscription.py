"""Subscriptions, services, requests and events of the blocking API.

Drivers around their asyncio counterparts, which they call through the portal. The blocking bus makes them. Invariant: a
subscription keeps the messages that it fetched and has not delivered, so an interrupt loses none.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from inspect import signature
from time import sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from busway import arrow as arrow_columns
from busway.arrow import PLACED
from busway.client.connection.delegates import CounterProperties, HasCounters, MessageProperties, position_before
from busway.client.connection.events import Event, EventStream
from busway.client.services.gather import Gathering as AsyncGathering
from busway.client.services.service import Request as AsyncRequest
from busway.client.typed.protocol import Received
from busway.client.typed_wrappers.wrappers import TypedRequest as AsyncTypedRequest
from busway.common.checks import check_count, check_seconds
from busway.common.durations import Duration
from busway.errors import Closed, Timeout
from busway.message import Failed, Message, Replies
from busway.positions import Positions
from busway.sync.portal import Portal

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)
Q = TypeVar("Q")
Q_co = TypeVar("Q_co", covariant=True)


class _AsyncSubscription(HasCounters, Protocol[M_co]):
    """The common methods of the asyncio Subscription and TypedSubscription."""

    def __await__(self) -> Generator[Any, None, Any]: ...
    async def take(self, most: int = 4096, timeout: Duration | None = None) -> list[Any]: ...
    async def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def pending(self) -> int: ...


class _AsyncService(Protocol[Q_co]):
    """The common methods of the asyncio Service and TypedService."""

    def __await__(self) -> Generator[Any, None, Any]: ...
    async def recv(self, timeout: Duration | None = None) -> Q_co: ...
    async def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def topic(self) -> str: ...


F = TypeVar("F", bound=Callable[..., Any])


def signed_as(original: Callable[..., Any]) -> Callable[[F], F]:
    """Decorator that gives a blocking verb the signature of the asyncio verb that it calls."""

    def sign(function: F) -> F:
        function.__signature__ = signature(original)  # type: ignore[attr-defined]
        return function

    return sign


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


class _AsyncClosable(Protocol):
    """The common methods of the asyncio Subscription, Channel and Service."""

    async def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...


class Registration(Closable):
    """A subscription, channel or service, with the thread pools of its functions."""

    _inner: _AsyncClosable

    def __init__(self, portal: Portal, *pools: ThreadPoolExecutor | None) -> None:
        self._portal = portal
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


class Subscription(Registration, CounterProperties, Generic[M]):
    """The messages of a pattern, by iteration, recv(), take() or batches().

    Threads may share a subscription: each message goes to one of them.
    """

    _inner: _AsyncSubscription[M]

    def __init__(self, portal: Portal, inner: _AsyncSubscription[M], pool: ThreadPoolExecutor | None) -> None:
        super().__init__(portal, pool)
        self._inner = inner
        self._fetched: deque[M] = deque()

    def __iter__(self) -> Iterator[M]:
        while self._has_more(1024):
            try:
                message = self._fetched.popleft()
            except IndexError:
                continue  # another thread took it
            yield message

    def recv(self, timeout: Duration | None = None) -> M:
        """The next message. Raises Timeout if none arrives in time."""
        while True:
            try:
                return self._fetched.popleft()
            except IndexError:
                self._fetch(1, timeout)

    def take(self, most: int = 4096, timeout: Duration | None = None) -> list[M]:
        """At least one and at most `most` messages."""
        while not self._fetched:
            self._fetch(most, timeout)
        return self._batch(most)

    def batches(self, most: int = 4096) -> Iterator[list[M]]:
        """Lists of arrived messages, until the subscription is closed."""
        while self._has_more(most):
            if batch := self._batch(most):
                yield batch

    def arrow(
        self, most: int = 4096, *, within: Duration = 0.1, columns: Sequence[str] = PLACED
    ) -> "Iterator[pa.RecordBatch]":
        """Like batches(), but an iterator over Arrow record batches, with the arguments of the asyncio arrow()."""
        arrow_columns.arrow()
        check_count("most", most)
        return self._arrow(most, check_seconds("within", within), arrow_columns.check_columns(columns))

    def _arrow(self, most: int, within: float, columns: tuple[str, ...]) -> "Iterator[pa.RecordBatch]":
        while self._has_more(most):
            if within and len(self._fetched) < most:
                sleep(within)
                with suppress(Timeout, Closed):
                    self._fetch(max(most - len(self._fetched), 1), 0.0)
            record_batch = arrow_columns.message_batch(map(_message_of, self._batch(most)), columns)
            if record_batch.num_rows:
                yield record_batch

    def _has_more(self, most: int) -> bool:
        """Wait for messages. False: the subscription has ended and all its messages were delivered."""
        try:
            if not self._fetched:
                self._fetch(most, None)
        except Closed:
            if self._inner.closed:
                return False
            raise
        return True

    def _batch(self, most: int) -> list[M]:
        """Remove and return up to `most` fetched messages."""
        batch: list[M] = []
        try:
            while len(batch) < most:
                batch.append(self._fetched.popleft())
        except IndexError:
            return batch
        return batch

    def _fetch(self, most: int, timeout: Duration | None) -> None:
        async def fetch() -> None:
            # Stored before the caller is woken: an interrupt in between must not lose the messages.
            self._fetched.extend(await self._inner.take(most, timeout))

        self._portal.call(fetch)

    @property
    def pending(self) -> int:
        """Number of messages that have arrived and were not taken yet."""
        return self._inner.pending + len(self._fetched)

    @property
    def position(self) -> Positions:
        """The position that its consumers have reached. A later subscription continues there with `since`."""

        async def reached() -> Positions:
            return position_before(self._inner.position, map(_message_of, list(self._fetched)))

        return self._portal.call(reached)


def _message_of(item: Any) -> Message:
    """The message of a plain or typed item of a subscription."""
    message: Message = item.message if isinstance(item, Received) else item
    return message


class _AnyRequest:
    """A received request, which waits for reply() or fail()."""

    _inner: "AsyncRequest | AsyncTypedRequest[Any]"

    def __init__(self, portal: Portal, inner: "AsyncRequest | AsyncTypedRequest[Any]") -> None:
        self._portal = portal
        self._inner = inner
        self.message = inner.message

    @property
    def topic(self) -> str:
        return self.message.topic

    def reply(self, payload: object = None, *, last: bool = True) -> None:
        """Answer the request. With last=False more replies may follow."""
        self._portal.call(lambda: self._inner.reply(payload, last=last))

    def fail(self, text: str, *, code: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        """Answer the request with an error. The requester gets a HandlerError with this code and these details."""
        self._portal.call(lambda: self._inner.fail(text, code=code, details=details))


class Request(_AnyRequest, MessageProperties):
    """A request that a service without a handler received."""


class TypedRequest(_AnyRequest, Generic[T]):
    """A request that a typed service without a handler received."""

    def __init__(self, portal: Portal, inner: AsyncTypedRequest[T]) -> None:
        super().__init__(portal, inner)
        self.value: T = inner.value


class Service(Registration, Generic[Q]):
    """A service: its handler answers the requests in threads, or the program iterates over them."""

    _inner: _AsyncService[Any]

    def __init__(
        self,
        portal: Portal,
        inner: _AsyncService[Any],
        wrap: Callable[[Portal, Any], Q],
        *pools: ThreadPoolExecutor | None,
    ) -> None:
        super().__init__(portal, *pools)
        self._inner = inner
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
        return self._wrap(self._portal, self._portal.call(lambda: self._inner.recv(timeout)))

    @property
    def topic(self) -> str:
        return self._inner.topic


class Gathering(Closable, Generic[M]):
    """Iterator over the replies to one request. close(), or leaving the loop, cancels the missing replies."""

    def __init__(self, portal: Portal, inner: "AsyncGathering[M]") -> None:
        self._portal = portal
        self._inner = inner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> M:
        try:
            return self._portal.call(self._inner.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def failed(self) -> list[Failed]:
        """Services that have failed to give a good reply so far."""
        return self._inner.failed

    def all(self) -> Replies[M]:
        """Wait for all replies and return them."""
        return self._portal.call(self._inner.all)

    def close(self) -> None:
        """Cancel the request for the missing replies."""
        if not self._portal.foreign:
            self._portal.call(self._inner.aclose)


class Events:
    """Iterator over the events of a client, until its bus is closed."""

    def __init__(self, portal: Portal, inner: EventStream) -> None:
        self._portal = portal
        self._inner = inner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return self._portal.call(self._inner.__anext__)
        except (StopAsyncIteration, Closed):
            raise StopIteration from None

    @property
    def dropped(self) -> int:
        """Number of events that were lost because this iterator was not read in time."""
        return self._inner.dropped
