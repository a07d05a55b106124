"""CloudEvents as messages and messages as CloudEvents, so that a way there and back loses nothing. Values only.

The attributes of an event are fields `ce-id`, `ce-source`, … of its message, its extensions are fields of their own name, which
rules of subscriptions can ask for; its subject is the topic, its data the payload. A message that never was an event has
its own id, sender and time as those of the event, and fields that are no extensions go in one extension `buswayfields`.
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
"""Digits of a message's id that tell the session of its sender."""


class Sent(Protocol):
    """What is asked of a message."""

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
    """Topic, payload and fields of an event; its subject is the topic if none is given. EventError, InvalidTopic."""
    if topic is None:
        if event.subject is None:
            raise EventError("neither the address nor the subject of the event names a topic")
        topic = event.subject
    topic = check_topic(topic)
    fields = {
        PREFIX + name: value
        for name in _ATTRIBUTES
        if (value := getattr(event, name)) is not None and (name != "subject" or value != topic)
    }
    extensions = dict(event.extensions)
    more = unpack(extensions.pop(TYPED)) if TYPED in extensions else {}
    return topic, event.data or b"", {**extensions, **fields, **more}


def from_message(message: Sent) -> Event:
    """The event that a message is; one that was no event before is made one."""
    fields = message.fields
    attributes = {name: fields[PREFIX + name] for name in _ATTRIBUTES if PREFIX + name in fields}
    attributes = {name: value for name, value in attributes.items() if isinstance(value, str) and value}
    extensions: dict[str, Scalar] = {}
    more: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) in attributes:
            continue
        if is_extension(name) and name != TYPED and is_scalar(value):
            extensions[name] = value
        else:
            more[name] = value
    if more:
        extensions[TYPED] = pack(more)
    payload = message.payload
    if "datacontenttype" not in attributes and (kind := _kind(payload)) is not None:
        attributes["datacontenttype"] = kind
    usual = {
        "id": message.id,
        "source": source(message),
        "type": f"busway.{message.kind}",
        "subject": message.topic or None,
        "time": message.time.isoformat().replace("+00:00", "Z"),
    }
    data = payload if payload or "datacontenttype" in attributes else None
    try:
        return Event(**{**usual, **attributes}, data=data, extensions=extensions)
    except EventError:  # fields that look like attributes, and aren't
        return _as_fields(usual, fields, data)


def _as_fields(usual: Mapping[str, Any], fields: Mapping[str, Any], data: bytes | None) -> Event:
    kind = None if data is None else _kind(data)
    return Event(**usual, data=data, datacontenttype=kind, extensions={TYPED: pack(fields)})


def source(message: Sent) -> str:
    """Who sent it, as a reference: its name, or its session."""
    return quote(message.sender, safe="/:@") if message.sender else f"busway:{message.id[:_SESSION]}"


def _kind(payload: bytes) -> str | None:
    """What a payload looks like. JSON needs no type."""
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
