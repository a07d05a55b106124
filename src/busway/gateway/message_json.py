"""Conversion between messages and JSON objects, for `busway sub --json` and lines of the file door. Values only."""

import base64
from typing import Any

import msgspec

from busway.message import Message


def as_object(message: Message) -> dict[str, Any]:
    """The JSON object of a message. A payload that is not UTF-8 is in base64."""
    result: dict[str, Any] = {"topic": message.topic}
    try:
        result["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        result["payload_base64"] = base64.b64encode(message.payload).decode()
    result |= {"id": message.id, "time": message.time, "sender": message.sender, "kind": message.kind}
    if fields := message.fields:
        result["fields"] = fields
    if message.kept:
        result["kept"] = True
    if (position := message.position) is not None:
        result |= {"position": str(position), "stream": position.stream, "offset": position.offset}
        result["sequence"] = position.sequence
        if position.safety is not None:
            result["safety"] = position.safety
    if message.deliveries:
        result["deliveries"] = message.deliveries
    if message.missed:
        result["missed"] = message.missed
    return result


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON object that a program writes to publish a message."""

    payload: Any = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET
    fields: dict[str, Any] = {}


def of_object(line: bytes) -> tuple[bytes, dict[str, Any]]:
    """Payload and fields of an object to publish. A text is the payload itself, any other value its JSON.

    Raises ValueError if the line is not such an object.
    """
    try:
        decoded = msgspec.json.decode(line, type=_Line)
        if isinstance(decoded.payload_base64, str):
            if decoded.payload is not msgspec.UNSET:
                raise ValueError("an object can't have both payload and payload_base64")
            return base64.b64decode(decoded.payload_base64, validate=True), decoded.fields
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not a JSON object with payload and fields: {error}") from None
    if decoded.payload is msgspec.UNSET:
        return b"", decoded.fields
    if isinstance(decoded.payload, str):
        return decoded.payload.encode(), decoded.fields
    return msgspec.json.encode(decoded.payload), decoded.fields
