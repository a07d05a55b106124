"""Encodes the start of a channel for the broker, and decodes the broker's description of a channel. No I/O."""

from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from busway._core import Message
from busway.common.durations import seconds
from busway.errors import RemoteProtocolError
from busway.positions import Position, moment
from busway.streams import ChannelInfo

Start: TypeAlias = str | float | datetime | Position | Message
"""The start of a channel: "first", "new", an offset, a position, a message, a time, or a length of time back."""

_BILLION: Final = 10**9


def start_of(start: Start | None, stream: str) -> tuple[str, Any]:
    """Encode the start of a channel of this stream."""
    if start is None or (isinstance(start, str) and start == "first"):
        return "first", None
    if isinstance(start, str) and start == "new":
        return "new", None
    if isinstance(start, Message | Position) and start.stream != stream:
        raise ValueError(f"start: the position is in the stream {start.stream!r}, not in {stream!r}")
    if isinstance(start, Message):
        return "message", (start.offset, start.id, start.broker or "")
    if isinstance(start, Position):
        return "position", (start.broker, start.offset)
    if isinstance(start, datetime):
        return "time", moment("start", start)
    if isinstance(start, int) and not isinstance(start, bool):
        if start < 0:
            raise ValueError(f"start: an offset must be 0 or more, but is {start}")
        return "offset", start
    return "ago", int(seconds("start", start) * _BILLION)


def info_of(answer: Any) -> ChannelInfo:
    """Decode the broker's description of a channel."""
    try:
        return msgspec.convert(answer, ChannelInfo)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"the broker's answer does not describe a channel: {error}") from error
