"""Bodies of JSON messages and payloads of the bus: what one side has sent, the other sees as what it is. Values only.

A text is its UTF-8, any other value is its JSON, as `bus.publish` does it. Where that could not be told apart again, a field
named `body` says what it was. A payload of the bus that is neither JSON nor text arrives in base64, and is marked.
"""

import base64
from typing import Any, Final

import msgspec

MARK: Final = "body"
"""The field that says what a payload is."""
TEXT: Final = "text"
NONE: Final = "none"
BYTES: Final = "bytes"
PARAMS: Final = "params"
"""The payload is the `params` of a call, not a body."""
BASE64: Final = "base64"
"""What the key `encoding` of a message says whose body is in base64."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_SIGNS: Final = '{["-0123456789tfn \t\r\n'
_BYTES: Final = frozenset(_SIGNS.encode())
"""What JSON may begin with. A text that begins otherwise is none."""


def payload_of(body: Any) -> tuple[bytes | str, str | None]:
    """What to publish for a body, and how it has to be marked."""
    if type(body) is str:
        return body, TEXT if body and body[0] in _SIGNS else None
    if body is None or body is msgspec.UNSET:
        return b"", NONE
    if type(body) is bytes:
        return body, BYTES
    return _encode(body), None


def body_of(payload: bytes, mark: object = None) -> tuple[Any, bool]:
    """The body that a payload is, to be encoded as JSON, and whether it is in base64. UNSET: there is none."""
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
            return msgspec.Raw(payload), False  # to the letter: a number keeps all its digits
    try:
        return payload.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), True
