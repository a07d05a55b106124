"""Typed protocols: a class and a topic prefix declare the type of the messages on the topics below the prefix.

Programs declare protocols with Protocol or protocol(). The verbs of a Bus read the declaration, a Kind, and the
modules of `typed_wrappers` apply it to subscriptions, channels and services. A payload that does not fit its type
raises PayloadError with topic and field.
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
from busway.dead_letters import DeadLetter
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
    """The declaration of a protocol: its prefix, its type and, for requests, the type of the reply."""

    __slots__ = ("codec", "prefix", "reply")

    def __init__(self, type_: type[T], prefix: str, reply: object, encoding: Encoding) -> None:
        self.prefix = _core.check_topic(prefix, wildcards=False) if prefix else ""
        self.codec: Codec[T] = Codec(type_, encoding)
        self.reply: Codec[Any] | None = None if reply is msgspec.UNSET else Codec(reply, encoding)

    def topic(self, topic: str) -> str:
        """The full topic of a topic below the prefix; "" is the prefix alone."""
        topic = topic.removeprefix("/")
        if not topic or not self.prefix:
            return self.prefix or topic
        return f"{self.prefix}/{topic}"

    def pattern(self, pattern: str) -> str:
        """The full pattern of a pattern below the prefix; a regular expression matches only topics below the prefix."""
        if pattern.startswith("re:") and self.prefix:
            return f"re:{re.escape(self.prefix)}/(?:{pattern[3:]})"
        return pattern if pattern.startswith("re:") else self.topic(pattern)

    def channel_topic(self, topic: str | None) -> str | None:
        """The setting `topic` of a channel, so that it delivers only messages of this protocol."""
        return self.pattern("**" if topic is None else topic) if self.prefix else topic

    def receive(self, message: Message) -> "Received[T]":
        """A message with its value. The value of a "notify" message, which ends the retained ones, is None."""
        try:
            value = self.codec.read(message)
        except PayloadError:
            if message.kind != "notify":
                raise
            value = cast("T", None)
        return _received(message, value)

    def reply_codec(self) -> Codec[Any]:
        """The codec of the reply. Raises TypeError if the protocol declares no reply type."""
        if self.reply is None:
            name = self.codec.name
            raise TypeError(
                f"{name} has no reply type: declare it with {name}(..., reply=TYPE), or use request(..., reply=TYPE)"
            )
        return self.reply

    def handler(self, handler: Callable[["Received[T]"], object]) -> Callable[[Message], object]:
        """Wrap a typed handler of a subscription into one that takes messages."""
        return lambda message: handler(self.receive(message))

    def answering(self, handler: Callable[[T], object]) -> Callable[[Message], object]:
        """Wrap a typed handler of a service into one that takes messages and returns payloads."""
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
        """Wrap a typed `ask` function of a service into one that takes messages."""
        return lambda message: ask(self.codec.read(message))


class _Reply(Generic[S, X]):
    """For type checkers: the type of a request and the type of its reply."""


class Declares(TypingProtocol[S, X]):
    """For type checkers: a request whose class declares the type of the reply."""

    def __busway_reply__(self) -> _Reply[S, X]: ...


class UndeclaredClass(TypingProtocol[T_co]):
    """For type checkers: a class that declares no reply type. Classes that do give __sizeof__ another signature."""

    def __call__(self, *args: Any, **kwargs: Any) -> T_co: ...
    def __sizeof__(self, value: Any, /) -> int: ...  # type: ignore[override]


class WithReply(Generic[X]):
    """Base of a dataclass or pydantic model that is a request; its parameter is the type of the reply.

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
    """The X of `class Request(Protocol[X])` or `class Request(WithReply[X], ...)`."""
    for base in bases:
        name = getattr(get_origin(base), "__name__", "")
        if name in {"Protocol", "WithReply"} and not isinstance(get_args(base)[0], TypeVar):
            return get_args(base)[0]
    return msgspec.UNSET


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Protocol(msgspec.Struct, Generic[R_co], metaclass=_ProtocolMeta, frozen=True):
    """Base of typed messages: `class Hello(Protocol, prefix="hello"): name: str`.

    A request names its reply type: `class Ask(Protocol[Answer], prefix="ask")`, or `reply=Answer`, which type
    checkers do not see. Values are immutable. Without a prefix the class is only a base of other classes.
    """

    if TYPE_CHECKING:

        def __init_subclass__(
            cls, *, prefix: str | None = None, reply: object = ..., encoding: Encoding = "json", **config: Any
        ) -> None: ...

        def __busway_reply__(self) -> _Reply[Self, R_co]: ...
        def __sizeof__(self) -> None: ...  # type: ignore[override]  # see UndeclaredClass

    @classmethod
    def decode(cls, message: Message | DeadLetter | bytes) -> Self:
        """Decode a message, a dead letter or a payload in the encoding of the protocol. Raises PayloadError if it does not fit."""
        return decode(cls, message)

    def encode(self) -> bytes:
        """Encode this value in the encoding of the protocol."""
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
    """Declare a msgspec struct, dataclass or pydantic model as a protocol, and return it. Also a decorator."""

    def declare(cls: type[T]) -> type[T]:
        declared = _declared_reply(getattr(cls, "__orig_bases__", ()))
        if msgspec.UNSET not in (declared, reply) and declared is not reply:
            raise TypeError(f"{cls.__name__}: WithReply[...] and reply= name different types")
        setattr(cls, _KIND, Kind(cls, prefix, declared if reply is msgspec.UNSET else reply, encoding))
        _DECLARED.add(cls)
        return cls

    return declare if cls is None else declare(cls)


def declared() -> list[type]:
    """The protocols of this process, ordered by prefix and name."""
    return sorted(_DECLARED, key=lambda cls: (kind_for(cls).prefix, cls.__name__))


def kind_of(value: object) -> Kind[Any] | None:
    """The declaration of a value's class; None if the class is not a protocol. A subclass needs its own declaration."""
    return type(value).__dict__.get(_KIND)


def kind_for(cls: type[T]) -> Kind[T]:
    """The declaration of a class. Raises TypeError if the class is not a protocol."""
    kind = getattr(cls, "__dict__", {}).get(_KIND)
    if kind is None:
        raise TypeError(
            f"{getattr(cls, '__name__', cls)!s} is not a protocol: give it a prefix "
            '(class X(busway.Protocol, prefix="x") or busway.protocol(X, prefix="x"))'
        )
    return cast("Kind[T]", kind)


def decode(cls: type[T], message: Message | DeadLetter | bytes) -> T:
    """Decode a message, a dead letter or a payload in the encoding of the protocol. Raises PayloadError if it does not fit.

    A type that is not a protocol, such as the type of a reply, is decoded from JSON.
    """
    codec = _codec_for(cls)
    return codec.decode("", message) if isinstance(message, bytes) else codec.read(message)


def encode(value: object) -> bytes:
    """Encode a value in the encoding of its protocol, or as JSON if its type is not a protocol."""
    kind = kind_of(value)
    return encode_any("", value) if kind is None else kind.codec.encode("", value)


def _codec_for(cls: type[T]) -> Codec[T]:
    kind = getattr(cls, "__dict__", {}).get(_KIND)
    return json_codec(cast("Any", cls)) if kind is None else cast("Kind[T]", kind).codec


@lru_cache(maxsize=256)
def json_codec(type_: Any) -> Codec[Any]:
    """The codec of a type that is not a protocol."""
    return Codec(type_, "json")


def reply_codec(payload: object, reply: Any) -> Codec[Any] | None:
    """The codec of the replies to a request; None: they stay messages. `reply` is the requester's type, or None."""
    kind = kind_of(payload)
    if reply is not None:
        return json_codec(reply) if kind is None or kind.codec.encoding == "json" else Codec(reply, kind.codec.encoding)
    return None if kind is None else kind.reply_codec()


def outgoing(topic: str, payload: object) -> tuple[str, bytes]:
    """The full topic and the payload bytes of a value to send."""
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
    """A typed message that has arrived: `topic, value = received`. The topic includes the prefix."""

    message: Message
    """The untyped message, with id, time, sender and payload."""


def receive_reply(codec: Codec[T]) -> Callable[[Message], Received[T]]:
    """A function that decodes a reply into a typed one."""
    return lambda message: _received(message, codec.read(message))


def _received(message: Message, value: T) -> Received[T]:
    received = Received(message.topic, value)
    received.message = message
    return received
