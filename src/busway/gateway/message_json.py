"""A message as a JSON object: as `busway sub --json` prints it, and as the file door gives and takes it in lines. Values only."""

import base64
from typing import Any

import msgspec

from busway.message import Message


def as_object(message: Message) -> dict[str, Any]:
    """A message for people and programs; a payload that is no UTF-8 is in base64."""
    made: dict[str, Any] = {"topic": message.topic}
    try:
        made["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        made["payload_base64"] = base64.b64encode(message.payload).decode()
    made |= {"id": message.id, "time": message.time, "sender": message.sender, "kind": message.kind}
    if fields := message.fields:
        made["fields"] = fields
    if message.kept:
        made["kept"] = True
    if (position := message.position) is not None:
        made |= {"position": str(position), "stream": position.stream, "offset": position.offset}
        made["sequence"] = position.sequence
        if position.safety is not None:
            made["safety"] = position.safety
    if message.deliveries:
        made["deliveries"] = message.deliveries
    if message.missed:
        made["missed"] = message.missed
    return made


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    payload: Any = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET
    fields: dict[str, Any] = {}


def of_object(line: bytes) -> tuple[bytes, dict[str, Any]]:
    """Payload and fields of an object that is to be published. ValueError: it is none.

    A payload that is a text is taken as it is, any other as JSON.
    """
    try:
        given = msgspec.json.decode(line, type=_Given)
        if isinstance(given.payload_base64, str):
            if given.payload is not msgspec.UNSET:
                raise ValueError("payload and payload_base64")
            return base64.b64decode(given.payload_base64, validate=True), given.fields
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"no object with payload and fields: {error}") from None
    if given.payload is msgspec.UNSET:
        return b"", given.fields
    if isinstance(given.payload, str):
        return given.payload.encode(), given.fields
    return msgspec.json.encode(given.payload), given.fields
