"""Codecs between payload bytes and typed values: msgspec for structs, dataclasses and plain types, pydantic for models.

Protocol declarations and Message.json() call it. No I/O. Every error of a payload is raised as PayloadError with
topic and field.
"""

import re
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, cast, is_typeddict

import msgspec

from busway.dead_letters import DeadLetter
from busway.errors import PayloadError
from busway.message import Message

Encoding = Literal["json", "msgpack"]
T = TypeVar("T")

_AT = re.compile(r"^(?P<reason>.*?) - at `(?P<path>[^`]*)`$", re.DOTALL)
_NAMED = re.compile(r"(?:missing required|contains unknown) field `(?P<name>[^`]*)`")


class Codec(Generic[T]):
    """Encodes and decodes one type. The type is resolved on first use, so annotations may name later classes."""

    __slots__ = ("_class", "_decode", "_encode", "encoding", "type")

    def __init__(self, type_: object, encoding: Encoding) -> None:
        if encoding not in ("json", "msgpack"):
            raise ValueError(f"encoding must be 'json' or 'msgpack', but is {encoding!r}")
        self.type = type_
        self.encoding: Encoding = encoding
        # isinstance() can't check a float, for which an int is valid, nor a TypedDict, which is a dict.
        checkable = isinstance(type_, type) and type_ is not float and not is_typeddict(type_)
        self._class = type_ if checkable else None
        self._encode: Callable[[Any], bytes] | None = None
        self._decode: Callable[[bytes], Any] | None = None

    @property
    def name(self) -> str:
        """The name of the type, for errors."""
        return getattr(self.type, "__name__", None) or str(self.type)

    def encode(self, topic: str, value: T) -> bytes:
        """Encode a value. A PayloadError names the topic."""
        if self._class is not None and not isinstance(value, cast("type[Any]", self._class)):
            raise PayloadError(topic, "", f"is a {type(value).__name__}, expected {self.name}")
        encode = self._encode or self._prepare()[0]
        try:
            return encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise PayloadError(topic, "", f"can't be encoded as {self.encoding}: {error}") from error

    def decode(self, topic: str, payload: bytes) -> T:
        """Decode a payload. A PayloadError names the topic and the field."""
        decode = self._decode or self._prepare()[1]
        try:
            return cast("T", decode(payload))
        except (ValueError, RecursionError) as error:  # msgspec's and pydantic's errors are ValueErrors
            field, reason = _explain(error)
            raise PayloadError(topic, field, f"{reason} (type {self.name})") from error

    def read(self, message: Message | DeadLetter) -> T:
        """Decode a message or a dead letter. A PayloadError names its topic, the field, and its position."""
        try:
            return self.decode(message.topic, message.payload)
        except PayloadError as error:
            raise PayloadError(error.topic, error.field, error.reason, message.position) from error.__cause__

    def _prepare(self) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
        made = _pydantic(self.type, self.encoding) if hasattr(self.type, "__pydantic_validator__") else None
        if made is None:
            made = _msgspec(self.type, self.encoding)
        self._encode, self._decode = made
        return made


def encode_any(topic: str, value: object) -> bytes:
    """Encode an object without a declared type as JSON."""
    try:
        return _ANY.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PayloadError(topic, "", f"can't be encoded as json: {error}") from error


def no_json(message: Message, error: Exception) -> Exception:
    """The PayloadError of message.json() for an error of the decoder. Other errors are returned unchanged."""
    if not isinstance(error, ValueError | RecursionError):
        return error
    field, reason = _explain(error)
    made = PayloadError(message.topic, field, reason, message.position)
    made.__cause__ = error
    return made


def _hook(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # a pydantic model
    if dump is None:
        raise TypeError(f"objects of type {type(value).__name__} are not supported")
    return dump(mode="json")


_ANY = msgspec.json.Encoder(enc_hook=_hook)


def _msgspec(type_: object, encoding: Encoding) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    wanted = cast("type[Any]", type_)
    if encoding == "json":
        return msgspec.json.Encoder(enc_hook=_hook).encode, msgspec.json.Decoder(wanted).decode
    return msgspec.msgpack.Encoder(enc_hook=_hook).encode, msgspec.msgpack.Decoder(wanted).decode


def _pydantic(type_: object, encoding: Encoding) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - only pydantic models need pydantic

    adapter: TypeAdapter[Any] = TypeAdapter(cast("type[Any]", type_))
    if encoding == "json":
        return adapter.dump_json, adapter.validate_json
    encode = msgspec.msgpack.Encoder(enc_hook=str).encode  # URLs, addresses and paths of pydantic become text
    decode = msgspec.msgpack.Decoder().decode
    return lambda value: encode(adapter.dump_python(value)), lambda payload: adapter.validate_python(decode(payload))


def _explain(error: Exception) -> tuple[str, str]:
    """The field path and the reason of a decoder's error. The path is empty if the whole payload is wrong."""
    details = getattr(error, "errors", None)
    if callable(details):  # pydantic
        found = details(include_url=False, include_context=False, include_input=False)
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in found[0]["loc"])
        return path.removeprefix("."), found[0]["msg"] + more
    text = str(error)
    at = _AT.match(text)
    path, reason = (at["path"], at["reason"]) if at else ("$", text)
    named = _NAMED.search(reason)
    if named:
        path += f".{named['name']}"
    return path.removeprefix("$").removeprefix("."), reason
