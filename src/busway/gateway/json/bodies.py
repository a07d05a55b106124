"""Conversion between bodies of JSON messages and payloads of the bus, without loss of type. Values only.

A text becomes its UTF-8 and any other value its JSON, as in `bus.publish`. If the payload alone would be ambiguous,
the message field `body` names the type. A payload that is neither JSON nor text becomes base64, and the key
`encoding` says so.
"""

import base64
from typing import Any, Final

import msgspec

MARK: Final = "body"
"""The message field that names the type of the payload."""
TEXT: Final = "text"
NONE: Final = "none"
BYTES: Final = "bytes"
PARAMS: Final = "params"
"""The payload is the `params` of a call, not a body."""
BASE64: Final = "base64"
"""Value of the key `encoding` in a JSON message whose body is in base64."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_SIGNS: Final = '{["-0123456789tfn \t\r\n'
_BYTES: Final = frozenset(_SIGNS.encode())
"""Bytes that JSON may begin with."""


def payload_of(body: Any) -> tuple[bytes | str, str | None]:
    """Payload of a body, and the mark that its message needs."""
    if type(body) is str:
        return body, TEXT if body and body[0] in _SIGNS else None
    if body is None or body is msgspec.UNSET:
        return b"", NONE
    if type(body) is bytes:
        return body, BYTES
    return _encode(body), None


def body_of(payload: bytes, mark: object = None) -> tuple[Any, bool]:
    """Body of a payload, ready to encode as JSON, and whether it is in base64. UNSET: the message had no body."""
    if mark == NONE and not payload:
        return msgspec.UNSET, False
    if mark == BYTES:
        return base64.b64encode(payload).decode(), True
    if mark != TEXT and payload and payload[0] in _BYTES:
        try:
            _decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
        else:
            return msgspec.Raw(payload), False  # unchanged: a number keeps all its digits
    try:
        return payload.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), True
