"""Messages as JSON objects for the console, with long payloads cut. Values only."""

import base64
from typing import Any, Final

from busway.dead_letters import DeadLetter
from busway.message import Message

PREVIEW: Final = 4 * 1024
"""Bytes of a payload in a list."""
LARGEST: Final = 8 * 1024 * 1024
"""Bytes of the payload of a single message."""
_FIELDS: Final = 16 * 1024
"""Characters of the fields in a list."""
_EXACT: Final = 2**53
"""JavaScript holds smaller integers exactly."""


def message_object(message: Message, most: int = PREVIEW) -> dict[str, Any]:
    """The JSON object of a message, with at most so many bytes of its payload."""
    found: dict[str, Any] = {
        "topic": message.topic,
        "id": message.id,
        "time": message.time_ns / 1e6,
        "sender": message.sender,
        "kind": message.kind,
        "fields": _fields(message.fields, most),
        **payload_object(message.payload, most),
    }
    if message.kept:
        found["kept"] = True
    if message.offset is not None:
        found |= {"stream": message.stream, "broker": message.broker, "offset": message.offset}
        found |= {"sequence": message.sequence, "stored": (message.stored_ns or 0) / 1e6}
    return found


def payload_object(payload: bytes, most: int = PREVIEW) -> dict[str, Any]:
    """The size of a payload, and its beginning as text, or in base64 if it is not UTF-8."""
    shown = payload[:most]
    found: dict[str, Any] = {"size": len(payload), "cut": len(shown) < len(payload)}
    try:
        found["text"] = shown.decode()
    except UnicodeDecodeError as error:
        if found["cut"] and error.end == len(shown) and error.reason == "unexpected end of data":
            found["text"] = shown[: error.start].decode()  # without the character that was cut
        else:
            found["base64"] = base64.b64encode(shown).decode()
    return found


def letter_object(letter: DeadLetter) -> dict[str, Any]:
    """The JSON object of a dead letter."""
    return {
        "id": letter.id,
        "stream": letter.stream,
        "channel": letter.channel,
        "topic": letter.topic,
        "offset": letter.offset,
        "broker": letter.part,
        "sender": letter.sender,
        "time": letter.time_ns / 1e6,
        "died": letter.died.timestamp() * 1e3 if letter.died is not None else None,
        "deliveries": letter.deliveries,
        "reason": letter.reason,
        "error": letter.error,
        "traceback": letter.traceback,
        "consumer": letter.consumer,
        "node": letter.node,
        "redriven": letter.redriven,
        "gone": letter.gone,
        "fields": _fields(letter.fields, PREVIEW),
        **payload_object(letter.payload),
    }


def _fields(fields: dict[str, Any], most: int) -> dict[str, Any]:
    """The fields with values that JSON and JavaScript can hold. Fields beyond the limit of a list are left out."""
    room = _FIELDS if most <= PREVIEW else 1 << 30
    found = {}
    for name, value in fields.items():
        room -= len(name) + (len(value) if isinstance(value, str | bytes) else 16)
        if room < 0:
            found["…"] = "more fields"
            break
        found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _EXACT:
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
