"""The short way of the commonest message: a flat `pub` of a text or of JSON with an id that is a text, and nothing else. Values only.

What it can't do says so, and goes the long way; the message is the same by either.
"""

from typing import Any, Final, TypeAlias

import msgspec

from busway._core import Message
from busway.gateway import bodies
from busway.gateway.envelope import shown

_SIGNS: Final = b'{["-0123456789tfn \t\r\n'
_SHORT: Final = 33
"""Longest id, with its quotes, whose MessagePack has one letter in front."""


class _Pub(msgspec.Struct, forbid_unknown_fields=True):
    cmd: str
    mq: str
    id: msgspec.Raw
    body: msgspec.Raw
    ack: bool = True


class _Flat(msgspec.Struct):
    sender: str
    id: Any
    offset: int | None
    body: Any


Pub: TypeAlias = tuple[str, bytes, bytes, bytes, bool]
"""A message to publish: its queue, its id as it is in JSON, its payload, its fields as they are on the wire, and whether it is answered."""

_pub: Final = msgspec.json.Decoder(_Pub).decode
_encode: Final = msgspec.json.Encoder().encode
_pack: Final = msgspec.msgpack.Encoder().encode
_LENGTHS: Final = [bytes((max(158 + size, 160),)) for size in range(_SHORT + 1)]
"""How MessagePack begins a text, by its length with quotes."""
_TEXT: Final = _pack(bodies.MARK) + _pack(bodies.TEXT)


def packed(sender: str) -> bytes:
    """A part of the fields of all that a client publishes."""
    return _pack("sender") + _pack(sender)


def read(data: bytes, sender: bytes) -> Pub | None:
    """What a frame publishes; None: it goes the long way."""
    if b'"pub"' not in data:
        return None
    try:
        pub = _pub(data)
        if not data.isascii():
            data.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if pub.cmd != "pub":
        return None
    ident, payload = bytes(pub.id), bytes(pub.body)
    size = len(ident)
    if size > _SHORT or ident[:1] != b'"' or b"\\" in ident:
        return None
    head = b"\x82\xa2id"
    if payload[:1] == b'"':
        if b"\\" in payload:
            return None
        payload = payload[1:-1]
        if payload[:1] in _SIGNS and payload:
            head, sender = b"\x83\xa2id", sender + _TEXT
    elif payload == b"null":
        return None
    return (pub.mq, ident, payload, head + _LENGTHS[size] + ident[1:-1] + sender, pub.ack)


def begin(mq: str, channel: str) -> bytes:
    """How every message of a subscription begins."""
    return _encode({"mq": mq, "channel": channel})[:-1] + b","


def delivery(begin: bytes, mq: str, channel: str, message: Message) -> bytes:
    """A stored message as a subscriber of the flat form without a window gets it."""
    fields = message.fields
    if len(fields) != 2:
        return _encode(shown(0, mq, channel, message))
    payload = message.payload
    try:
        sender, ident = fields["sender"], fields["id"]
        if payload[:1] in _SIGNS:
            body, coded = bodies.body_of(payload)
            if coded:
                return _encode(shown(0, mq, channel, message))
        else:
            body = payload.decode()
    except (KeyError, UnicodeDecodeError):
        return _encode(shown(0, mq, channel, message))
    return begin + _encode(_Flat(sender, ident, message.offset, body))[1:]
