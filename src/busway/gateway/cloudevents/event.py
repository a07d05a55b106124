"""CloudEvents 1.0 over HTTP: reads and writes events in binary, structured and batch mode. Values only.

The data of an event is bytes in every mode. JSON data is not written anew, so it arrives byte by byte as it was sent.
`cloudevents/http.py` and `mapping.py` call this module.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes

import msgspec

Scalar: TypeAlias = str | int | bool

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
VERSION: Final = "1.0"
TYPED: Final = "buswayfields"
"""The extension for values that other extensions can't express: a map of names and values, in base64 of MessagePack."""

_NAME: Final = re.compile(r"[a-z0-9]{1,64}")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SAFE: Final = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Characters that a header of binary mode has unescaped, besides letters and digits."""
_JSON: Final = re.compile(r"[^/;\s]+/(?:[^/;\s]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_KNOWN: Final = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
_RESERVED: Final = frozenset({*_KNOWN, "data", "data_base64"})
_LEAST: Final = -(2**31)
_MOST: Final = 2**31 - 1


class EventError(ValueError):
    """The data is not a valid CloudEvent; `status` is the status of the answer."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Raises EventError if an attribute is invalid."""

    id: str
    source: str
    type: str
    data: bytes | None = None
    subject: str | None = None
    time: str | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    extensions: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _KNOWN[1:]:
            value = getattr(self, name)
            if value is None and name not in {"id", "source", "type"}:
                continue
            _check_text(name, value)
            if not value:
                raise EventError(f"the attribute {name} is empty")
        if self.time is not None:
            _check_time(self.time)
        for name, value in self.extensions.items():
            if name in _RESERVED or not is_extension(name):
                raise EventError(f"{name!r} can't name an extension: use at most 64 lower-case letters and digits")
            if isinstance(value, bool):
                continue
            if isinstance(value, int):
                if not _LEAST <= value <= _MOST:
                    raise EventError(f"the extension {name} is beyond 32 bits: {value}")
            else:
                _check_text(name, value)


def is_extension(name: str) -> bool:
    """Whether an extension may have this name."""
    return name not in _RESERVED and _NAME.fullmatch(name) is not None


def is_scalar(value: object) -> bool:
    """Whether an extension may have this value."""
    if isinstance(value, int):  # bool, too
        return _LEAST <= value <= _MOST
    return isinstance(value, str) and _CONTROL.search(value) is None


def is_json(kind: str | None) -> bool:
    """Whether data of this content type is JSON. Without a type it is."""
    return kind is None or _JSON.fullmatch(kind) is not None


def decode(headers: Mapping[str, str], body: bytes) -> list[Event]:
    """The events of a request or response, in the mode that its headers name. Raises EventError."""
    lowered = {name.lower(): value for name, value in headers.items()}
    kind = lowered.get("content-type", "").partition(";")[0].strip().lower()
    if kind == STRUCTURED:
        return [from_json(body)]
    if kind == BATCH:
        try:
            listed = msgspec.json.decode(body, type=list[msgspec.Raw])
        except (ValueError, RecursionError) as error:
            raise EventError(f"a batch must be a JSON array of events: {error}") from error
        events = []
        for number, text in enumerate(listed):
            try:
                events.append(from_json(text))
            except EventError as error:
                raise EventError(f"event {number + 1} of {len(listed)}: {error}") from error
        return events
    if kind.startswith("application/cloudevents"):
        raise EventError(f"the type {kind} is not supported: use {STRUCTURED} or {BATCH}", 415)
    if "ce-specversion" not in lowered:
        raise EventError(f"not a CloudEvent: it needs the header ce-specversion or the type {STRUCTURED} or {BATCH}")
    return [_from_binary(lowered, body)]


def from_json(text: bytes | msgspec.Raw) -> Event:
    """The event in a text of structured mode. Raises EventError."""
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        data, encoded = members.pop("data", None), members.pop("data_base64", None)
        attributes = {name: _integer(msgspec.json.decode(value)) for name, value in members.items()}
    except (ValueError, RecursionError) as error:
        raise EventError(f"an event must be a JSON object: {error}") from error
    attributes = {name: value for name, value in attributes.items() if value is not None}
    return _event(attributes, _data(data, encoded, attributes.get("datacontenttype")))


def _integer(value: Any) -> Any:
    """A float without a fraction as an int, because JSON makes no difference between `5.0` and `5`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _data(data: msgspec.Raw | None, encoded: msgspec.Raw | None, kind: Any) -> bytes | None:
    if data is not None and bytes(data) == b"null":
        data = None
    if encoded is not None and bytes(encoded) != b"null":
        if data is not None:
            raise EventError("an event can't have both data and data_base64")
        try:
            return base64.b64decode(msgspec.json.decode(encoded, type=str), validate=True)
        except (msgspec.DecodeError, binascii.Error, ValueError) as error:
            raise EventError(f"data_base64 is not valid base64: {error}") from error
    if data is None:
        return None
    if isinstance(kind, str) and not is_json(kind) and bytes(data)[:1] == b'"':
        try:
            return msgspec.json.decode(data, type=str).encode()
        except ValueError as error:
            raise EventError(f"data can't be read: {error}") from error
    try:
        msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise EventError(f"data is not valid JSON: {error}") from error
    return bytes(data)


def _from_binary(headers: Mapping[str, str], body: bytes) -> Event:
    attributes: dict[str, Any] = {}
    for name, value in headers.items():
        if name.startswith("ce-"):
            if name == "ce-datacontenttype":
                raise EventError("ce-datacontenttype is not allowed: in binary mode use the header content-type")
            attributes[name.removeprefix("ce-")] = _plain_header(name, value)
    if kind := headers.get("content-type"):
        attributes["datacontenttype"] = kind
    if (typed := attributes.pop(TYPED, None)) is not None:
        fields = unpack(typed)
        exact = {
            name: value for name, value in fields.items() if is_extension(name) and is_scalar(value) and name != TYPED
        }
        attributes |= exact
        if rest := {name: value for name, value in fields.items() if name not in exact}:
            attributes[TYPED] = pack(rest)
    return _event(attributes, body or None)


def _event(attributes: dict[str, Any], data: bytes | None) -> Event:
    for name in ("specversion", "id", "source", "type"):
        if name not in attributes:
            raise EventError(f"the attribute {name} is missing")
    if (version := attributes.pop("specversion")) != VERSION:
        raise EventError(f"specversion {version!r} is not supported: use {VERSION}")
    known = {name: attributes.pop(name) for name in _KNOWN[1:] if name in attributes}
    return Event(**known, data=data, extensions=attributes)


def to_json(event: Event) -> bytes:
    """The text of an event in structured mode. Data that is neither JSON nor text goes in base64."""
    whole: dict[str, Any] = {"specversion": VERSION}
    whole |= {name: value for name in _KNOWN[1:] if (value := getattr(event, name)) is not None}
    whole |= event.extensions
    if event.data is not None:
        whole |= _members(event.data, event.datacontenttype)
    return msgspec.json.encode(whole)


def _members(data: bytes, kind: str | None) -> dict[str, Any]:
    if is_json(kind):
        try:
            msgspec.json.decode(data)
        except (ValueError, RecursionError):
            return {"data_base64": base64.b64encode(data).decode()}
        # A reader would take null for missing data.
        return {"data": msgspec.Raw(data)} if data.strip() != b"null" else {"data_base64": "bnVsbA=="}
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(data).decode()}


def to_batch(events: Iterable[Event]) -> bytes:
    """The text of events in batch mode."""
    return msgspec.json.encode([msgspec.Raw(to_json(event)) for event in events])


def to_binary(event: Event) -> tuple[dict[str, str], bytes]:
    """Headers and body of an event in binary mode."""
    headers = {"ce-specversion": VERSION}
    for name in ("id", "source", "type", "subject", "time", "dataschema"):
        if (value := getattr(event, name)) is not None:
            headers[f"ce-{name}"] = _header(value)
    exact: dict[str, Any] = {}
    for name, value in event.extensions.items():
        if isinstance(value, str):
            headers[f"ce-{name}"] = _header(value)
        else:
            headers[f"ce-{name}"] = str(value).lower()
            exact[name] = value
    if exact:
        typed = event.extensions.get(TYPED)
        headers[f"ce-{TYPED}"] = pack(exact | (unpack(typed) if isinstance(typed, str) else {}))
    if event.datacontenttype is not None:
        headers["content-type"] = event.datacontenttype
    elif event.data is not None:
        headers["content-type"] = "application/json"
    return headers, event.data or b""


def pack(fields: Mapping[str, Any]) -> str:
    """The text of the extension `buswayfields` for values of any type."""
    return base64.b64encode(msgspec.msgpack.encode(fields)).decode()


def unpack(text: object) -> dict[str, Any]:
    """The values in the text of the extension `buswayfields`. Raises EventError."""
    if not isinstance(text, str):
        raise EventError(f"the extension {TYPED} must be text, not {text!r:.100}")
    try:
        return msgspec.msgpack.decode(base64.b64decode(text, validate=True), type=dict[str, Any])
    except (ValueError, binascii.Error, RecursionError) as error:
        raise EventError(f"the extension {TYPED} can't be read: {error}") from error


def _header(value: str) -> str:
    """Text as a header, with %XX for all characters but plain ASCII, and for blanks, quotes and percent signs."""
    return quote(value, safe=_SAFE)


def _plain_header(name: str, value: str) -> str:
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeError as error:
        raise EventError(f"the header {name} is not UTF-8: {error}") from error


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        kinds = "text" if name in _RESERVED else "text, a whole number, true or false"
        raise EventError(f"the attribute {name} must be {kinds}, not {value!r:.100}")
    if _CONTROL.search(value):
        raise EventError(f"the attribute {name} has control characters: {value!r:.100}")


def _check_time(text: str) -> None:
    try:
        sound = datetime.fromisoformat(text).tzinfo is not None and text[10:11] in {"T", "t"}
    except ValueError:
        sound = False
    if not sound:
        example = "2026-11-05T17:31:00Z"
        raise EventError(f"the attribute time must be a time of RFC 3339, such as {example}, not {text!r:.100}")
