"""What the frames about channels say: CHANNEL, TAKE, ACK and NACK, read and checked. Values only."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from math import inf
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from busway._core import Selection
from busway.broker.channels.dead_letters.failures import Failure
from busway.broker.channels.state.progress import ChannelConfig, Span
from busway.errors import Code, Forbidden, Rejected
from busway.streams import check_name
from busway.topic import RESERVED, check_topic, is_reserved

CHANNEL: Final = 0x30
UNCHANNEL: Final = 0x31
TAKE: Final = 0x32
ACK: Final = 0x33
NACK: Final = 0x34

WINDOW: Final = 65_536
"""The most messages that one consumer may have in flight, and take at once."""

LOST: Final = b"\x01"
"""What follows an UNCHANNEL between nodes if the connection of the consumer ended before it left."""
_TAKE: Final = struct.Struct("<II")
_CANCEL: Final = struct.Struct("<IQ")
_ENTRY: Final = struct.Struct("<QIB3xI")
_WHOLE: Final = 0x80000000
MILLI: Final = 0.001
_EVER: Final = (1 << 32) - 1
GUID: Final = 16
_MOST: Final = 65_536
"""Entries of one ACK; those that are too late must fit into its answer."""


class What(IntEnum):
    """What became of messages."""

    ACK = 0
    NACK = 1
    EXTEND = 2
    RELEASE = 3
    """Given back by a consumer that has not looked at them and is about to leave."""
    RENEW = 4
    """The consumer is alive: the leases of all messages that it has in flight begin anew. The only entry of its frame."""
    LAPSE = 5
    """RENEW does not extend these any more: their leases end."""


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The map of CHANNEL."""

    stream: str
    channel: str
    window: Annotated[int, msgspec.Meta(ge=0, le=WINDOW)] = 64
    create: bool = True
    """Whether a channel that is not there is made."""
    start: tuple[str, Any] = ("first", None)
    """Where one that is made begins: first, new, (time, ns), (ago, ns), (offset, number), (position, (guid, number)) or a message."""
    settings: dict[str, Any] = {}
    """Those that the user gave; the others stay, or are the usual ones."""
    part: str = ""
    """The broker whose part of the stream is meant, if another one stands in for it."""
    again: bool = False
    """It consumed the channel before a lost connection: the settings hold only if the channel has to be made."""


class OneMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message as a place."""

    offset: int
    id: str
    broker: str = ""
    """The guid of who has stored it; empty: the broker that is asked."""


class Take(NamedTuple):
    most: int
    timeout: float
    whole: bool


class Nack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The map of NACK."""

    spans: Annotated[tuple[Span, ...], msgspec.Meta(min_length=1, max_length=_MOST)]
    delay: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] | None = None
    """Milliseconds until they are redelivered; None: as the channel's backoff says."""
    reject: bool = False
    """They are dead letters at once."""
    failure: Failure = Failure()
    broker: Annotated[str, msgspec.Meta(max_length=2 * GUID)] = ""
    """The guid of the broker that has stored them; empty: the one that is asked."""


class Entry(NamedTuple):
    what: What
    start: int
    many: int
    delay: float


def join_of(rest: bytes) -> Join:
    try:
        join = msgspec.msgpack.decode(rest, type=Join)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(f"CHANNEL: {error}", code=Code.INVALID_SETTING) from error
    check_channel(join.channel)
    return join


def check_channel(name: str | None) -> str:
    """A name that a channel may have."""
    try:
        return check_name("channel", name)
    except ValueError as error:
        raise Rejected(str(error), code=Code.INVALID_SETTING) from error


def configured(old: ChannelConfig, settings: dict[str, Any], stream: str, channel: str) -> ChannelConfig:
    """These settings instead of the old ones, checked."""
    try:
        builtins = msgspec.to_builtins(old, builtin_types=(bytes,)) | settings
        config = msgspec.convert(builtins, ChannelConfig, builtin_types=(bytes,))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise Rejected(f"channel {channel!r}: {error}", code=Code.INVALID_SETTING) from error
    if unknown := settings.keys() - set(ChannelConfig.__struct_fields__):
        raise Rejected(f"a channel has no setting {', '.join(sorted(unknown))}", code=Code.INVALID_SETTING)
    Selection(config.topic, config.where)
    dead_topic(config, stream, channel)
    return config


def dead_topic(config: ChannelConfig, stream: str, channel: str) -> str:
    """Where messages go that nobody could deal with; empty: nowhere."""
    text = config.dead_letter.replace("{stream}", stream).replace("{channel}", channel)
    if "{" in text or "}" in text:
        reason = f"dead_letter {config.dead_letter!r}: only {{stream}} and {{channel}} are filled in"
        raise Rejected(reason, code=Code.INVALID_SETTING)
    if not text:
        return ""
    if is_reserved(topic := check_topic(text, wildcards=False)):
        raise Forbidden(f"dead_letter: topics below {RESERVED!r} belong to the broker", code=Code.RESERVED)
    return topic


def take_of(rest: bytes) -> Take | int:
    """A TAKE; a number: the take that it calls off."""
    if len(rest) == _CANCEL.size:
        return int(_CANCEL.unpack(rest)[1])
    if len(rest) != _TAKE.size:
        raise Rejected(f"TAKE with {len(rest)} bytes", code=Code.INVALID_SETTING)
    most, milliseconds = _TAKE.unpack(rest)
    whole, most = bool(most & _WHOLE), most & ~_WHOLE
    if not 0 < most <= WINDOW:
        raise Rejected(f"take() of {most} messages; 1 to {WINDOW} can be taken at once", code=Code.INVALID_SETTING)
    return Take(most, inf if milliseconds == _EVER else milliseconds * MILLI, whole)


def entries_of(rest: bytes) -> tuple[str | None, list[Entry]]:
    """Whose messages an ACK means (the guid of another broker, or None), and its entries."""
    guid = None
    if len(rest) % _ENTRY.size == GUID:
        guid, rest = rest[:GUID].hex(), rest[GUID:]
    if not rest or len(rest) % _ENTRY.size:
        raise Rejected(f"ACK with {len(rest)} bytes", code=Code.INVALID_SETTING)
    if len(rest) > _MOST * _ENTRY.size:
        raise Rejected(f"ACK with more than {_MOST} entries", code=Code.INVALID_SETTING)
    entries = list(_entries(rest))
    if len(entries) > 1 and any(one.what is What.RENEW for one in entries):
        raise Rejected("ACK: renew (4) must be the only entry of its frame", code=Code.INVALID_SETTING)
    return guid, entries


def nack_of(rest: bytes) -> Nack:
    try:
        return msgspec.msgpack.decode(rest, type=Nack)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(f"NACK: {error}", code=Code.INVALID_SETTING) from error


def _entries(rest: bytes) -> Iterator[Entry]:
    for start, count, what, delay in _ENTRY.iter_unpack(rest):
        try:
            yield Entry(What(what), start, count, delay * MILLI)
        except ValueError as error:
            raise Rejected(f"ACK with {what}, which is nothing that can be done", code=Code.INVALID_SETTING) from error
