"""Fast path of a flat `pub` whose body is a text or JSON and whose id is a text: reads frames, writes answers by table.

`websocket.py` calls it. Anything unusual falls back to the general path, which must produce the same message. Values
only.
"""

from typing import Any, Final, Literal, TypeAlias

import msgspec

from busway._core import Message
from busway.gateway.json import bodies

_SIGNS: Final = b'{["-0123456789tfn \t\r\n'
_BYTES: Final = frozenset(_SIGNS)
_QUOTE: Final = ord('"')
_ESCAPE: Final = ord("\\")  # searching bytes for a number is ten times as fast as for bytes
_EMPTY: Final = 2
_SHORT: Final = 33
"""Longest id, with its quotes, whose MessagePack header is one byte."""


class _Pub(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    cmd: Literal["pub"]
    mq: str
    id: msgspec.Raw
    body: msgspec.Raw
    ack: bool = True


class _Flat(msgspec.Struct, gc=False):
    sender: str
    id: Any
    offset: int | None
    body: Any


Pub: TypeAlias = tuple[str, bytes, bytes, bytes, bytes, bool]
"""A message to publish: queue, payload, fields in MessagePack, id and body in JSON, and whether to answer."""

_pub: Final = msgspec.json.Decoder(_Pub).decode
_encode: Final = msgspec.json.Encoder().encode
_pack: Final = msgspec.msgpack.Encoder().encode
_LENGTHS: Final = [bytes((max(158 + size, 160),)) for size in range(_SHORT + 1)]
"""The MessagePack header of a text, by its length with quotes."""
_TWO: Final = [b"\x82\xa2id" + length for length in _LENGTHS]
"""The beginning of a map of two fields whose first is the id."""
_THREE: Final = [b"\x83\xa2id" + length for length in _LENGTHS]
"""The beginning of a map of three fields whose first is the id."""
_TEXT: Final = _pack(bodies.MARK) + _pack(bodies.TEXT)


def packed(sender: str) -> bytes:
    """The field `sender` in MessagePack, which is part of every message of a client."""
    return _pack("sender") + _pack(sender)


def read(data: bytes, sender: bytes) -> Pub | None:
    """The message that a frame publishes. None: the general path must read it."""
    try:
        pub = _pub(data)
        if not data.isascii():
            data.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    ident, body = bytes(pub.id), bytes(pub.body)
    size = len(ident)
    if size > _SHORT or ident[0] != _QUOTE or _ESCAPE in ident:
        return None
    if body[0] != _QUOTE:
        if body == b"null":
            return None
        return pub.mq, body, _TWO[size] + ident[1:-1] + sender, ident, body, pub.ack
    if _ESCAPE in body:
        return None
    if body[1] in _BYTES and len(body) > _EMPTY:
        return pub.mq, body[1:-1], _THREE[size] + ident[1:-1] + sender + _TEXT, ident, body, pub.ack
    return pub.mq, body[1:-1], _TWO[size] + ident[1:-1] + sender, ident, body, pub.ack


def sent_by(sender: str) -> bytes:
    """The JSON of the member `sender`, which subscribers get with every message of a client."""
    return b'"sender":' + _encode(sender) + b',"id":'


def tail(sent_by: bytes, ident: bytes, offset: int, body: bytes) -> bytes:
    """The JSON of a message after the prefix, for subscribers of the flat form without a window."""
    return b'%b%b,"offset":%d,"body":%b}' % (sent_by, ident, offset, body)


def prefix(mq: str, channel: str) -> bytes:
    """The beginning of the JSON of every message of a subscription."""
    return _encode({"mq": mq, "channel": channel})[:-1] + b","


def plain(message: Message, base: int) -> bytes | None:
    """Like tail(), for a stored message. None: the message has other fields, so the general path must write it."""
    fields = message.fields
    if len(fields) != 2:
        return None
    payload = message.payload
    try:
        sender, ident = fields["sender"], fields["id"]
        if payload[:1] in _SIGNS:
            body, coded = bodies.body_of(payload)
            if coded:
                return None
        else:
            body = payload.decode()
    except (KeyError, UnicodeDecodeError):
        return None
    offset = None if message.offset is None else message.offset - base
    return _encode(_Flat(sender, ident, offset, body))[1:]


def framed(size: int) -> bytes:
    """The header of a WebSocket text frame of `size` bytes that a server sends."""
    if size < len(_HEADS):
        return _HEADS[size]
    if size < 65_536:
        return bytes((0x81, 126, size >> 8, size & 255))
    return bytes((0x81, 127)) + size.to_bytes(8)


_HEADS: Final = [bytes((0x81, size)) for size in range(126)] + [
    bytes((0x81, 126, size >> 8, size & 255)) for size in range(126, 1024)
]
