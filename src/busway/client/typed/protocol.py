"""Typed protocols: a class and a topic prefix that together say what travels on the topics below the prefix.

Kind is the declaration; `typed_wrappers` puts it on top of subscriptions, channels and services. Invariant: a payload that
doesn't fit its type raises PayloadError with topic and field. Called by bus.py.
"""

import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    Protocol as TypingProtocol,
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
from busway.client.typed.codec import Codec, Encoding, encode_any
from busway.errors import PayloadError
from busway.message import Message

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R_co = TypeVar("R_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")
X = TypeVar("X")

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

    def channel_topic(self, topic: str | None) -> str | None:
        """The setting `topic` of a channel that delivers only messages of this protocol."""
        return self.pattern("**" if topic is None else topic) if self.prefix else topic

    def receive(self, message: Message) -> "Received[T]":
        """A message with its value; the word that everything kept has been handed over has none."""
        try:
            value = self.codec.read(message)
        except PayloadError:
            if message.kind != "notify":
                raise
            value = cast("T", None)
        return _received(message, value)

    def reply_codec(self) -> Codec[Any]:
        if self.reply is None:
            name = self.codec.name
            raise TypeError(
                f"{name} has no reply type: declare it with {name}(..., reply=TYPE), or ask for request(..., reply=TYPE)"
            )
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
        return lambda message: ask(self.codec.read(message))


class _Reply(Generic[S, X]):
    """For type checkers: a request's own type and that of the reply to it, and no others."""


class Declares(TypingProtocol[S, X]):
    """For type checkers: a value whose class declares the type of the reply to it."""

    def __busway_reply__(self) -> _Reply[S, X]: ...


class UndeclaredClass(TypingProtocol[T_co]):
    """For type checkers: a class whose values do not declare the type of the reply; the others give __sizeof__ another type."""

    def __call__(self, *args: Any, **kwargs: Any) -> T_co: ...
    def __sizeof__(self, value: Any, /) -> int: ...  # type: ignore[override]


class WithReply(Generic[X]):
    """Base of a dataclass or pydantic model that is a request: names the type of the reply to it.

    ::

        class GetBalance(pydantic.BaseModel, busway.WithReply[Balance]):
            account: int

        busway.protocol(GetBalance, prefix="balance")
    """

    if TYPE_CHECKING:

        def __busway_reply__(self) -> _Reply[Self, X]: ...
        def __sizeof__(self) -> None: ...  # type: ignore[override]  # see UndeclaredClass


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
        declared = _declared_reply(namespace.get("__orig_bases__", ()))
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


def _declared_reply(bases: Iterable[object]) -> object:
    """X of `class Request(Protocol[X])` or `class Request(WithReply[X], ...)`."""
    for base in bases:
        name = getattr(get_origin(base), "__name__", "")
        if name in {"Protocol", "WithReply"} and not isinstance(get_args(base)[0], TypeVar):
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

        def __busway_reply__(self) -> _Reply[Self, R_co]: ...
        def __sizeof__(self) -> None: ...  # type: ignore[override]  # see UndeclaredClass

    @classmethod
    def decode(cls, message: Message | bytes) -> Self:
        """The value of a message or of a payload, in the encoding of the protocol; PayloadError if it doesn't fit."""
        return decode(cls, message)

    def encode(self) -> bytes:
        """The payload of this value, in the encoding of the protocol."""
        return encode(self)


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
        declared = _declared_reply(getattr(cls, "__orig_bases__", ()))
        if msgspec.UNSET not in (declared, reply) and declared is not reply:
            raise TypeError(f"{cls.__name__}: WithReply[...] and reply= name different types")
        setattr(cls, _KIND, Kind(cls, prefix, declared if reply is msgspec.UNSET else reply, encoding))
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


def decode(cls: type[T], message: Message | bytes) -> T:
    """The value of a message or of a payload; PayloadError if it doesn't fit the type.

    The encoding is that of the protocol. A type that is no protocol, such as the one of a reply, is read as JSON.
    """
    codec = _codec_for(cls)
    return codec.decode("", message) if isinstance(message, bytes) else codec.read(message)


def encode(value: object) -> bytes:
    """The payload of a value: in the encoding of its protocol, or as JSON if its type is no protocol."""
    kind = kind_of(value)
    return encode_any("", value) if kind is None else kind.codec.encode("", value)


def _codec_for(cls: type[T]) -> Codec[T]:
    kind = getattr(cls, "__dict__", {}).get(_KIND)
    return json_codec(cast("Any", cls)) if kind is None else cast("Kind[T]", kind).codec


@lru_cache(maxsize=256)
def json_codec(type_: Any) -> Codec[Any]:
    """The codec of a type that is no protocol."""
    return Codec(type_, "json")


def reply_codec(payload: object, reply: Any) -> Codec[Any] | None:
    """How the replies to a request are read; None: as they come. `reply` is the type that the requester named, or None."""
    kind = kind_of(payload)
    if reply is not None:
        return json_codec(reply) if kind is None or kind.codec.encoding == "json" else Codec(reply, kind.codec.encoding)
    return None if kind is None else kind.reply_codec()


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


def receive_reply(codec: Codec[T]) -> Callable[[Message], Received[T]]:
    """Makes a reply a typed one."""
    return lambda message: _received(message, codec.read(message))


def _received(message: Message, value: T) -> Received[T]:
    received = Received(message.topic, value)
    received.message = message
    return received
