"""The channel frames of the wire protocol as checked values: CHANNEL, TAKE, ACK and NACK. Values only."""

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
"""The body of an UNCHANNEL between nodes if the connection of the consumer was lost."""
_TAKE: Final = struct.Struct("<II")
_CANCEL: Final = struct.Struct("<IQ")
_ENTRY: Final = struct.Struct("<QIB3xI")
_WHOLE: Final = 0x80000000
MILLI: Final = 0.001
_EVER: Final = (1 << 32) - 1
GUID: Final = 16
_MOST: Final = 65_536
"""The most entries of one ACK. All may be too late, and its answer lists those."""


class What(IntEnum):
    """The action of an ACK entry on its messages."""

    ACK = 0
    NACK = 1
    EXTEND = 2
    RELEASE = 3
    """A consumer that is about to leave returns messages that it has not processed."""
    RENEW = 4
    """The consumer is alive: the leases of all its messages in flight begin anew. The only entry of its frame."""
    LAPSE = 5
    """RENEW does not extend these any more: their leases end."""
    RETURN = 6
    """A consumer that stays returns messages that it has not processed."""


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The map of CHANNEL."""

    stream: str
    channel: str
    window: Annotated[int, msgspec.Meta(ge=0, le=WINDOW)] = 64
    create: bool = True
    """Whether a missing channel is created."""
    start: tuple[str, Any] = ("first", None)
    """The start position of a created channel, see `Channels.position`."""
    settings: dict[str, Any] = {}
    """The settings that the user gave. The others keep their values, or their defaults in a new channel."""
    part: str = ""
    """The guid of the broker whose part of the stream is consumed, if a mirror has taken it over."""
    again: bool = False
    """The client reconnects to the channel: the settings apply only if the channel has to be created.

    If the connection already consumes the channel, only the window of the consumer changes.
    """


class OneMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message as a start position."""

    offset: int
    id: str
    broker: str = ""
    """The guid of the broker that has stored the message. Empty: the broker that gets the frame."""


class Take(NamedTuple):
    """A TAKE frame. `whole`: it ends only with `most` messages, or at its timeout."""

    most: int
    timeout: float
    whole: bool


class Nack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The map of NACK."""

    spans: Annotated[tuple[Span, ...], msgspec.Meta(min_length=1, max_length=_MOST)]
    delay: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] | None = None
    """Milliseconds until the messages are redelivered; None: the backoff of the channel."""
    reject: bool = False
    """Whether the messages become dead letters at once."""
    failure: Failure = Failure()
    broker: Annotated[str, msgspec.Meta(max_length=2 * GUID)] = ""
    """The guid of the broker that has stored the messages. Empty: the broker that gets the frame."""


class Entry(NamedTuple):
    """One entry of an ACK frame."""

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
    """The name, if it is a valid channel name."""
    try:
        return check_name("channel", name)
    except ValueError as error:
        raise Rejected(str(error), code=Code.INVALID_SETTING) from error


def configured(old: ChannelConfig, settings: dict[str, Any], stream: str, channel: str) -> ChannelConfig:
    """The old settings changed by these, checked."""
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
    """The dead-letter topic of a channel. Empty: it has none, and drops exhausted messages."""
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
    """The take of a TAKE frame, or the number of the take that it cancels."""
    if len(rest) == _CANCEL.size:
        return int(_CANCEL.unpack(rest)[1])
    if len(rest) != _TAKE.size:
        reason = f"TAKE: {len(rest)} bytes instead of {_TAKE.size} or {_CANCEL.size}"
        raise Rejected(reason, code=Code.INVALID_SETTING)
    most, milliseconds = _TAKE.unpack(rest)
    whole, most = bool(most & _WHOLE), most & ~_WHOLE
    if not 0 < most <= WINDOW:
        raise Rejected(f"take() of {most} messages; 1 to {WINDOW} can be taken at once", code=Code.INVALID_SETTING)
    return Take(most, inf if milliseconds == _EVER else milliseconds * MILLI, whole)


def entries_of(rest: bytes) -> tuple[str | None, list[Entry]]:
    """The entries of an ACK frame, after the guid of the broker that has stored the messages (None: this one)."""
    guid = None
    if len(rest) % _ENTRY.size == GUID:
        guid, rest = rest[:GUID].hex(), rest[GUID:]
    if not rest or len(rest) % _ENTRY.size:
        raise Rejected(f"ACK: {len(rest)} bytes are no list of entries", code=Code.INVALID_SETTING)
    if len(rest) > _MOST * _ENTRY.size:
        raise Rejected(f"ACK: more than {_MOST} entries; send several frames", code=Code.INVALID_SETTING)
    entries = list(_entries(rest))
    if len(entries) > 1 and any(entry.what is What.RENEW for entry in entries):
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
            raise Rejected(f"ACK: unknown action {what}", code=Code.INVALID_SETTING) from error
