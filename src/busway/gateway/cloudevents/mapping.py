"""Mapping between CloudEvents and messages; a round trip in either direction loses nothing. Values only.

The subject of an event becomes the topic, its data the payload, its attributes the fields `ce-id`, `ce-source`, …,
and its extensions fields of the same names, which rules of subscriptions can use. A message that was no event gives
its id, sender and time to the event. Fields that can't be extensions go into the extension `buswayfields`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from busway.gateway.cloudevents.event import TYPED, Event, EventError, Scalar, is_extension, is_scalar, pack, unpack
from busway.topic import check_topic

PREFIX: Final = "ce-"
_ATTRIBUTES: Final = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
_SESSION: Final = 16
"""Digits of a message id that identify the session of its sender."""


class MessageLike(Protocol):
    """The attributes of a message that the mapping reads."""

    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def id(self) -> str: ...
    @property
    def time(self) -> datetime: ...
    @property
    def sender(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def fields(self) -> dict[str, Any]: ...


def to_message(event: Event, topic: str | None = None) -> tuple[str, bytes, dict[str, Any]]:
    """Topic, payload and fields of an event. The default topic is its subject. Raises EventError or InvalidTopic."""
    if topic is None:
        if event.subject is None:
            raise EventError("the topic is missing: give it in the URL or as the subject of the event")
        topic = event.subject
    topic = check_topic(topic)
    fields = {
        PREFIX + name: value
        for name in _ATTRIBUTES
        if (value := getattr(event, name)) is not None and (name != "subject" or value != topic)
    }
    extensions = dict(event.extensions)
    others = unpack(extensions.pop(TYPED)) if TYPED in extensions else {}
    return topic, event.data or b"", {**extensions, **fields, **others}


def from_message(message: MessageLike) -> Event:
    """The event of a message; a message that was no event becomes one."""
    fields = message.fields
    attributes = {name: fields[PREFIX + name] for name in _ATTRIBUTES if PREFIX + name in fields}
    attributes = {name: value for name, value in attributes.items() if isinstance(value, str) and value}
    extensions: dict[str, Scalar] = {}
    others: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) in attributes:
            continue
        if is_extension(name) and name != TYPED and is_scalar(value):
            extensions[name] = value
        else:
            others[name] = value
    if others:
        extensions[TYPED] = pack(others)
    payload = message.payload
    if "datacontenttype" not in attributes and (kind := _kind(payload)) is not None:
        attributes["datacontenttype"] = kind
    defaults = {
        "id": message.id,
        "source": source(message),
        "type": f"busway.{message.kind}",
        "subject": message.topic or None,
        "time": message.time.isoformat().replace("+00:00", "Z"),
    }
    data = payload if payload or "datacontenttype" in attributes else None
    try:
        return Event(**{**defaults, **attributes}, data=data, extensions=extensions)
    except EventError:  # fields have the names of attributes, but invalid values
        return _as_fields(defaults, fields, data)


def _as_fields(defaults: Mapping[str, Any], fields: Mapping[str, Any], data: bytes | None) -> Event:
    kind = None if data is None else _kind(data)
    return Event(**defaults, data=data, datacontenttype=kind, extensions={TYPED: pack(fields)})


def source(message: MessageLike) -> str:
    """The sender of a message as a URI reference: its name, or its session."""
    return quote(message.sender, safe="/:@") if message.sender else f"busway:{message.id[:_SESSION]}"


def _kind(payload: bytes) -> str | None:
    """The content type of a payload; None for JSON, which is the default."""
    if not payload:
        return None
    try:
        msgspec.json.decode(payload)
    except (ValueError, RecursionError):
        pass
    else:
        return None
    try:
        payload.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain; charset=utf-8"
