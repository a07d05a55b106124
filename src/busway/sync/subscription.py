"""Subscriptions, services, requests and events of the blocking face.

Drivers around their asyncio counterparts, reached through the portal. Invariant: messages that were fetched and not yet
handed out belong to the subscription, so an interrupt loses none. Made by sync.py.
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
from busway.message import Failed, Replies
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
    """What a plain and a typed subscription have in common."""

    def __await__(self) -> Generator[Any, None, Any]: ...
    async def take(self, most: int = 4096, timeout: Duration | None = None) -> list[Any]: ...
    async def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def pending(self) -> int: ...


class _AsyncService(Protocol[Q_co]):
    """What a plain and a typed service have in common."""

    def __await__(self) -> Generator[Any, None, Any]: ...
    async def recv(self, timeout: Duration | None = None) -> Q_co: ...
    async def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def topic(self) -> str: ...


F = TypeVar("F", bound=Callable[..., Any])


def signed_as(original: Callable[..., Any]) -> Callable[[F], F]:
    """Shows the parameters of a verb of the asyncio face, which the blocking one hands on as they are."""

    def sign(function: F) -> F:
        function.__signature__ = signature(original)  # type: ignore[attr-defined]
        return function

    return sign


class Closing(ABC):
    """Closed by `with`."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Closable(Protocol):
    async def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...


class Registration(Closing):
    """A subscription, channel or service, and the threads of its handler."""

    _inner: _Closable

    def __init__(self, portal: Portal, *pools: ThreadPoolExecutor | None) -> None:
        self._portal = portal
        self._pools = pools

    def close(self) -> None:
        """Take no more; handlers get what has arrived first. Messages that nobody took can still be taken."""
        if not self._portal.foreign:
            self._portal.call(self._inner.close)
        for pool in self._pools:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)

    @property
    def closed(self) -> bool:
        return self._inner.closed


class Subscription(Registration, CounterProperties, Generic[M]):
    """Messages of a pattern; iterate, recv(), take() or batches(). Threads may share one: each message goes to one of them."""

    _inner: _AsyncSubscription[M]

    def __init__(self, portal: Portal, inner: _AsyncSubscription[M], pool: ThreadPoolExecutor | None) -> None:
        super().__init__(portal, pool)
        self._inner = inner
        self._ahead: deque[M] = deque()

    def __iter__(self) -> Iterator[M]:
        while self._more(1024):
            try:
                message = self._ahead.popleft()
            except IndexError:
                continue  # another thread was quicker
            yield message

    def recv(self, timeout: Duration | None = None) -> M:
        """The next message; Timeout if none came in time."""
        while True:
            try:
                return self._ahead.popleft()
            except IndexError:
                self._fetch(1, timeout)

    def take(self, most: int = 4096, timeout: Duration | None = None) -> list[M]:
        """At least one message, at most `most`."""
        while not self._ahead:
            self._fetch(most, timeout)
        return self._hand_out(most)

    def batches(self, most: int = 4096) -> Iterator[list[M]]:
        """Lists of what has arrived, until the subscription is closed."""
        while self._more(most):
            if batch := self._hand_out(most):
                yield batch

    def arrow(
        self, most: int = 4096, *, within: Duration = 0.1, columns: Sequence[str] = PLACED
    ) -> "Iterator[pa.RecordBatch]":
        """As batches(), but an iterator over Arrow record batches, as arrow() of the asyncio face."""
        arrow_columns.arrow()
        check_count("most", most)
        return self._arrow(most, check_seconds("within", within), arrow_columns.check_columns(columns))

    def _arrow(self, most: int, within: float, columns: tuple[str, ...]) -> "Iterator[pa.RecordBatch]":
        while self._more(most):
            if within and len(self._ahead) < most:
                sleep(within)
                with suppress(Timeout, Closed):
                    self._fetch(max(most - len(self._ahead), 1), 0.0)
            held: list[Any] = list(self._hand_out(most))
            made = arrow_columns.message_batch(
                (one.message if isinstance(one, Received) else one for one in held), columns
            )
            if made.num_rows:
                yield made

    def _more(self, most: int) -> bool:
        """Wait until something is here; False when the subscription has ended and all of it was handed out."""
        try:
            if not self._ahead:
                self._fetch(most, None)
        except Closed:
            if self._inner.closed:
                return False
            raise
        return True

    def _hand_out(self, most: int) -> list[M]:
        batch: list[M] = []
        try:
            while len(batch) < most:
                batch.append(self._ahead.popleft())
        except IndexError:
            return batch
        return batch

    def _fetch(self, most: int, timeout: Duration | None) -> None:
        async def fetch() -> None:
            # Kept here before the caller is woken: an interrupt in between must not lose what was taken.
            self._ahead.extend(await self._inner.take(most, timeout))

        self._portal.call(fetch)

    @property
    def pending(self) -> int:
        return self._inner.pending + len(self._ahead)

    @property
    def position(self) -> Positions:
        """How far its consumers have come; given as `since` to a later subscription it goes on from there."""

        async def reached() -> Positions:
            held: list[Any] = list(self._ahead)
            messages = (one.message if isinstance(one, Received) else one for one in held)
            return position_before(self._inner.position, messages)

        return self._portal.call(reached)


class _Answerable:
    """Waits for reply() or fail()."""

    _inner: "AsyncRequest | AsyncTypedRequest[Any]"

    def __init__(self, portal: Portal, inner: "AsyncRequest | AsyncTypedRequest[Any]") -> None:
        self._portal = portal
        self._inner = inner
        self.message = inner.message

    @property
    def topic(self) -> str:
        return self.message.topic

    def reply(self, payload: object = None, *, last: bool = True) -> None:
        """Answer it; unless this is the `last` reply, more may follow."""
        self._portal.call(lambda: self._inner.reply(payload, last=last))

    def fail(self, text: str, *, code: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        """Answer it with an error, which the requester gets as HandlerError, with this code and these details."""
        self._portal.call(lambda: self._inner.fail(text, code=code, details=details))


class Request(_Answerable, MessageProperties):
    """A request of a service without a handler."""


class TypedRequest(_Answerable, Generic[T]):
    """A request of a typed service without a handler."""

    def __init__(self, portal: Portal, inner: AsyncTypedRequest[T]) -> None:
        super().__init__(portal, inner)
        self.value: T = inner.value


class Service(Registration, Generic[Q]):
    """Answers requests, in the threads of its handler or by iterating over them."""

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
        """The next request; Timeout if none came in time."""
        return self._wrap(self._portal, self._portal.call(lambda: self._inner.recv(timeout)))

    @property
    def topic(self) -> str:
        return self._inner.topic


class Gathering(Closing, Generic[M]):
    """Iterator over the replies to one request. close(), or leaving the loop, cancels what has not come."""

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
        """Services that were asked and gave no good reply, so far."""
        return self._inner.failed

    def all(self) -> Replies[M]:
        """Every reply that comes, until the end."""
        return self._portal.call(self._inner.all)

    def close(self) -> None:
        """Wait for no more replies."""
        if not self._portal.foreign:
            self._portal.call(self._inner.aclose)


class Events:
    """What happens to the connection, until the bus is closed."""

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
        return self._inner.dropped
