"""Typed subscriptions, services and requests: wrappers that decode and encode payloads for their untyped counterparts.

The verbs of a Bus make them. A payload that does not fit its type raises PayloadError with topic and field, or fails
the request with it.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from busway.client.connection.delegates import CounterProperties, position_before
from busway.client.services.errors import explained
from busway.client.typed.protocol import Kind, Received
from busway.common.durations import Duration
from busway.errors import PayloadError
from busway.message import Message
from busway.positions import Positions

if TYPE_CHECKING:
    from busway.client.channels.channel import Channel
    from busway.client.services.service import Request, Service
    from busway.client.subscriptions.subscription import Subscription

T = TypeVar("T")


class Wrapper:
    """Delegates start, await, `async with` and close to the wrapped subscription, channel or service."""

    _inner: "Subscription | Channel | Service"

    async def start(self) -> Self:
        """Register with the broker, as start() of the untyped form."""
        await self._inner.start()
        return self

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    async def close(self) -> None:
        """Withdraw it from the broker, as close() of the untyped form."""
        await self._inner.close()


class TypedSubscription(Wrapper, CounterProperties, Generic[T]):
    """A subscription to Received[T] messages.

    A payload that does not fit raises PayloadError when its message is next; the next recv() or `async for` continues
    after it.
    """

    _inner: "Subscription"

    def __init__(self, inner: "Subscription", kind: Kind[T]) -> None:
        self._inner = inner
        self._kind = kind
        self._ahead: deque[Message] = deque()  # the rest of a batch after a payload that does not fit

    async def __aiter__(self) -> AsyncIterator[Received[T]]:
        while self._ahead:
            yield self._kind.receive(self._ahead.popleft())
        async for message in self._inner:
            yield self._kind.receive(message)

    async def recv(self, timeout: Duration | None = None) -> Received[T]:
        """The next message. Raises PayloadError if it does not fit, and as recv() of a subscription."""
        message = self._ahead.popleft() if self._ahead else await self._inner.recv(timeout)
        return self._kind.receive(message)

    async def take(self, most: int = 4096, timeout: Duration | None = None) -> list[Received[T]]:
        """At least one message, at most `most`. The list ends before a misfit, for which the next call raises."""
        return self._fitting(self._rest(most) or await self._inner.take(most, timeout))

    async def batches(self, most: int = 4096) -> AsyncIterator[list[Received[T]]]:
        """Lists of the messages that have arrived, as from take(), until the subscription is closed."""
        while rest := self._rest(most):
            yield self._fitting(rest)
        async for batch in self._inner.batches(most):
            yield self._fitting(batch)
            while rest := self._rest(most):
                yield self._fitting(rest)

    @property
    def position(self) -> Positions:
        """How far its consumers have come. Given as `since`, a later subscription resumes from there."""
        return position_before(self._inner.position, self._ahead)

    def _rest(self, most: int) -> list[Message]:
        """The next messages of the rest of a batch."""
        return [self._ahead.popleft() for _ in range(min(most, len(self._ahead)))]

    def _fitting(self, batch: list[Message]) -> list[Received[T]]:
        receive = self._kind.receive
        found: list[Received[T]] = []
        try:
            for message in batch:
                found.append(receive(message))  # noqa: PERF401 - the messages before an error are returned
        except PayloadError:
            self._ahead.extendleft(reversed(batch[len(found) + (not found) :]))
            if not found:
                raise
        return found

    @property
    def closed(self) -> bool:
        return self._inner.closed and not self._ahead

    @property
    def pending(self) -> int:
        return self._inner.pending + len(self._ahead)


class TypedRequest(Generic[T]):
    """A typed request. The program answers it by reply() or fail()."""

    def __init__(self, inner: "Request", kind: Kind[T], value: T) -> None:
        self._inner = inner
        self._kind = kind
        self.value = value

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def message(self) -> Message:
        return self._inner.message

    async def reply(self, value: object, *, last: bool = True) -> None:
        """Send a reply. More replies may follow unless this is the `last` one."""
        await self._inner.reply(self._kind.reply_codec().encode(self.topic, value), last=last)

    async def fail(self, text: str, *, code: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        """Answer with an error. The requester gets a HandlerError with this text, code and details."""
        await self._inner.fail(text, code=code, details=details)


class TypedService(Wrapper, Generic[T]):
    """A service of TypedRequest[T] requests. It fails and reports requests that do not fit, with their PayloadError."""

    _inner: "Service"

    def __init__(self, inner: "Service", kind: Kind[T], report: Callable[[BaseException], object]) -> None:
        self._inner = inner
        self._kind = kind
        self._report = report

    async def __aiter__(self) -> AsyncIterator[TypedRequest[T]]:
        async for request in self._inner:
            typed = await self._fit(request)
            if typed is not None:
                yield typed

    async def recv(self, timeout: Duration | None = None) -> TypedRequest[T]:
        """The next request that fits."""
        while True:
            typed = await self._fit(await self._inner.recv(timeout))
            if typed is not None:
                return typed

    async def _fit(self, request: "Request") -> TypedRequest[T] | None:
        try:
            value = self._kind.codec.decode(request.topic, request.message.payload)
        except PayloadError as error:
            text, code, details = explained(error)
            await request.fail(text, code=code, details=details)
            self._report(error)
            return None
        return TypedRequest(request, self._kind, value)

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def closed(self) -> bool:
        return self._inner.closed
