"""Typed protocols: a class and a topic prefix that together say what travels on the topics below the prefix.

Kind is the declaration, TypedSubscription and TypedService put it on top of their untyped counterparts. Invariant: a
payload that doesn't fit is told (PayloadError with topic and field) and never handed on as something else. Called by bus.py.
"""

import inspect
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    Self,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    overload,
)
from weakref import WeakSet

import msgspec

from busway import _core
from busway.client.codec import Codec, Encoding, encode_any
from busway.client.shown import ShowsFigures, before
from busway.errors import PayloadError
from busway.message import Message
from busway.positions import Positions

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from busway.client.service import Request, Service
    from busway.client.subscription import Subscription

    R_co = TypeVar("R_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)

T = TypeVar("T")

_KIND = "__busway__"
_DECLARED: "WeakSet[type]" = WeakSet()


class Kind(Generic[T]):
    """What was declared of a protocol: its prefix, its type and, for requests, the type of the reply."""

    __slots__ = ("codec", "prefix", "reply")

    def __init__(self, type_: type[T], prefix: str, reply: object, encoding: Encoding) -> None:
        self.prefix = _core.check_topic(prefix, wildcards=False) if prefix else ""
        self.codec: Codec[T] = Codec(type_, encoding)
        self.reply: Codec[Any] | None = None if reply is msgspec.UNSET else Codec(reply, encoding)

    def topic(self, topic: str) -> str:
        """The full topic of a user's topic; "" is the prefix alone."""
        topic = topic.removeprefix("/")
        if not topic or not self.prefix:
            return self.prefix or topic
        return f"{self.prefix}/{topic}"

    def pattern(self, pattern: str) -> str:
        """As topic(), for a subscription: a regular expression keeps to the topics below the prefix."""
        if pattern.startswith("re:") and self.prefix:
            return f"re:{re.escape(self.prefix)}/(?:{pattern[3:]})"
        return pattern if pattern.startswith("re:") else self.topic(pattern)

    def receive(self, message: Message) -> "Received[T]":
        """A message with its value; the word that everything kept has been handed over has none."""
        try:
            value = self.codec.decode(message.topic, message.payload)
        except PayloadError:
            if message.kind != "notify":
                raise
            value = cast("T", None)
        return _received(message, value)

    def receive_reply(self, message: Message) -> "Received[Any]":
        """A reply with its value."""
        return _received(message, self.reply_codec().decode(message.topic, message.payload))

    def reply_codec(self) -> Codec[Any]:
        if self.reply is None:
            raise TypeError(f"{self.codec.name} has no reply type: declare it with {self.codec.name}(..., reply=TYPE)")
        return self.reply

    def handler(self, handler: Callable[["Received[T]"], object]) -> Callable[[Message], object]:
        """A subscription's handler that takes messages."""
        return lambda message: handler(self.receive(message))

    def answering(self, handler: Callable[[T], object]) -> Callable[[Message], object]:
        """A service's handler that takes messages and gives payloads."""
        codec = self.reply_codec()

        def answer(message: Message) -> object:
            topic = message.topic
            return encoded(topic, handler(self.codec.decode(topic, message.payload)))

        def encoded(topic: str, result: object) -> object:
            if inspect.isawaitable(result):
                return later(topic, result)
            return each(topic, result) if inspect.isasyncgen(result) else codec.encode(topic, result)

        async def later(topic: str, result: Awaitable[object]) -> object:
            return encoded(topic, await result)

        async def each(topic: str, items: AsyncGenerator[object, Any]) -> AsyncGenerator[bytes, None]:
            async with aclosing(items):
                async for item in items:
                    yield codec.encode(topic, item)

        return answer

    def asking(self, ask: Callable[[T], bool | Awaitable[bool]]) -> Callable[[Message], bool | Awaitable[bool]]:
        """What a service is asked with, taking messages."""
        return lambda message: ask(self.codec.decode(message.topic, message.payload))


class _ProtocolMeta(msgspec.StructMeta):
    def __new__(  # noqa: PYI034 - as msgspec types it
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        prefix: str | None = None,
        reply: object = msgspec.UNSET,
        encoding: Encoding = "json",
        **config: Any,
    ) -> "_ProtocolMeta":
        cls = super().__new__(mcls, name, bases, namespace, **config)
        declared = _declared_reply(namespace)
        if declared is not msgspec.UNSET:
            if reply is not msgspec.UNSET and reply is not declared:
                raise TypeError(f"{name}: Protocol[...] and reply= name different types")
            reply = declared
        if prefix is not None:
            setattr(cls, _KIND, Kind(cls, prefix, reply, encoding))
            _DECLARED.add(cls)
        elif reply is not msgspec.UNSET:
            raise TypeError(f"{name}: a reply type needs a prefix")
        return cls


def _declared_reply(namespace: dict[str, Any]) -> object:
    """X of `class Request(Protocol[X])`."""
    for base in namespace.get("__orig_bases__", ()):
        if getattr(get_origin(base), "__name__", "") == "Protocol" and not isinstance(get_args(base)[0], TypeVar):
            return get_args(base)[0]
    return msgspec.UNSET


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Protocol(msgspec.Struct, Generic[R_co], metaclass=_ProtocolMeta, frozen=True):
    """Base of typed messages: `class Hello(Protocol, prefix="hello"): name: str`.

    A request names its reply: `class Ask(Protocol[Answer], prefix="ask")`, or `reply=Answer` if a type checker need not
    know. Values are immutable. Without a prefix the class is only a base for others.
    """

    if TYPE_CHECKING:

        def __init_subclass__(
            cls, *, prefix: str | None = None, reply: object = ..., encoding: Encoding = "json", **config: Any
        ) -> None: ...


@overload
def protocol(cls: type[T], *, prefix: str, reply: object = ..., encoding: Encoding = "json") -> type[T]: ...
@overload
def protocol(
    cls: None = None, *, prefix: str, reply: object = ..., encoding: Encoding = "json"
) -> Callable[[type[T]], type[T]]: ...
def protocol(
    cls: type[T] | None = None, *, prefix: str, reply: object = msgspec.UNSET, encoding: Encoding = "json"
) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a msgspec struct, dataclass or pydantic model a protocol; the class itself comes back. Also a decorator."""

    def declare(cls: type[T]) -> type[T]:
        setattr(cls, _KIND, Kind(cls, prefix, reply, encoding))
        _DECLARED.add(cls)
        return cls

    return declare if cls is None else declare(cls)


def declared() -> list[type]:
    """The protocols of this process, by their prefixes and names."""
    return sorted(_DECLARED, key=lambda cls: (kind_for(cls).prefix, cls.__name__))


def kind_of(value: object) -> Kind[Any] | None:
    """The declaration of a value's type, if it is a protocol. A subclass needs its own."""
    return type(value).__dict__.get(_KIND)


def kind_for(cls: type[T]) -> Kind[T]:
    kind = getattr(cls, "__dict__", {}).get(_KIND)
    if kind is None:
        raise TypeError(
            f"{getattr(cls, '__name__', cls)!s} is not a protocol: give it a prefix "
            '(class X(busway.Protocol, prefix="x") or busway.protocol(X, prefix="x"))'
        )
    return cast("Kind[T]", kind)


def outgoing(topic: str, payload: object) -> tuple[str, bytes]:
    """Full topic and payload bytes of whatever a caller wants to send."""
    kind = kind_of(payload)
    if kind is not None:
        topic = kind.topic(topic)
        return topic, kind.codec.encode(topic, payload)
    if isinstance(payload, bytes | bytearray | memoryview):
        return topic, bytes(payload)
    if isinstance(payload, str):
        return topic, payload.encode()
    return topic, encode_any(topic, payload)


class _Pair(NamedTuple, Generic[T]):
    topic: str
    value: T


class Received(_Pair[T]):
    """A typed message as it arrived: `topic, value = received`; the topic is the full one, with the prefix."""

    message: Message
    """The untyped message: id, time, sender, payload."""


def _received(message: Message, value: T) -> Received[T]:
    received = Received(message.topic, value)
    received.message = message
    return received


class _Around:
    """Entered, awaited and closed with what it is around."""

    _inner: "Subscription | Service"

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    def __await__(self) -> Generator[Any, None, Self]:
        return self._entered().__await__()

    async def _entered(self) -> Self:
        await self._inner
        return self

    async def close(self) -> None:
        await self._inner.close()


class TypedSubscription(_Around, ShowsFigures, Generic[T]):
    """A subscription that gives Received[T].

    A payload that doesn't fit raises PayloadError at its place in the stream; the next recv() or `async for` goes on after it.
    """

    _inner: "Subscription"

    def __init__(self, inner: "Subscription", kind: Kind[T]) -> None:
        self._inner = inner
        self._kind = kind
        self._ahead: deque[Message] = deque()  # rest of a batch that was cut

    async def __aiter__(self) -> AsyncIterator[Received[T]]:
        while self._ahead:
            yield self._kind.receive(self._ahead.popleft())
        async for message in self._inner:
            yield self._kind.receive(message)

    async def recv(self, timeout: float | None = None) -> Received[T]:
        """The next message; Timeout if none came in time, PayloadError if it doesn't fit."""
        message = self._ahead.popleft() if self._ahead else await self._inner.recv(timeout)
        return self._kind.receive(message)

    async def take(self, most: int = 4096, timeout: float | None = None) -> list[Received[T]]:
        """At least one message, at most `most`. One that doesn't fit ends the list before it; the next call raises for it."""
        return self._fitting(self._rest(most) or await self._inner.take(most, timeout))

    async def batches(self, most: int = 4096) -> AsyncIterator[list[Received[T]]]:
        """Lists of what has arrived, cut as by take(), until the subscription is closed."""
        while rest := self._rest(most):
            yield self._fitting(rest)
        async for batch in self._inner.batches(most):
            yield self._fitting(batch)
            while rest := self._rest(most):
                yield self._fitting(rest)

    @property
    def position(self) -> Positions:
        """How far its consumers have come; given as `since` to a later subscription it goes on from there."""
        return before(self._inner.position, self._ahead)

    def _rest(self, most: int) -> list[Message]:
        """What is left of a batch that was cut."""
        return [self._ahead.popleft() for _ in range(min(most, len(self._ahead)))]

    def _fitting(self, batch: list[Message]) -> list[Received[T]]:
        receive = self._kind.receive
        taken: list[Received[T]] = []
        try:
            for message in batch:
                taken.append(receive(message))  # noqa: PERF401 - what fits before an error is kept
        except PayloadError:
            self._ahead.extendleft(reversed(batch[len(taken) + (not taken) :]))
            if not taken:
                raise
        return taken

    @property
    def closed(self) -> bool:
        return self._inner.closed and not self._ahead

    @property
    def pending(self) -> int:
        return self._inner.pending + len(self._ahead)


class TypedRequest(Generic[T]):
    """A request that waits for reply() or fail()."""

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
        """Answer it; unless this is the `last` reply, more may follow."""
        await self._inner.reply(self._kind.reply_codec().encode(self.topic, value), last=last)

    async def fail(self, text: str) -> None:
        await self._inner.fail(text)


class TypedService(_Around, Generic[T]):
    """A service that gives TypedRequest[T]; requests that don't fit are failed with the PayloadError's text and reported."""

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

    async def recv(self, timeout: float | None = None) -> TypedRequest[T]:
        """The next request that fits."""
        while True:
            typed = await self._fit(await self._inner.recv(timeout))
            if typed is not None:
                return typed

    async def _fit(self, request: "Request") -> TypedRequest[T] | None:
        try:
            value = self._kind.codec.decode(request.topic, request.message.payload)
        except PayloadError as error:
            await request.fail(f"PayloadError: {error}")
            self._report(error)
            return None
        return TypedRequest(request, self._kind, value)

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def closed(self) -> bool:
        return self._inner.closed
