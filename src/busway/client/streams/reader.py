"""Reading what a stream holds, block by block: asks for the next block while the last one is used."""

import asyncio
import logging
import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import msgspec

from busway.client.connection.core import Core
from busway.client.connection.events import Event
from busway.client.connection.log_lines import GONE
from busway.client.connection.sender import REQUEST, Sender, limits
from busway.common import environment
from busway.common.durations import seconds
from busway.errors import RemoteProtocolError
from busway.fields import Compiled
from busway.positions import Position, Positions, moment
from busway.streams import StreamInfo

log = logging.getLogger("busway.client")

Place: TypeAlias = int | str | timedelta | datetime | Position | Positions
"""An offset, a position, a time, or a length of time back."""

PATIENCE: Final = 30.0
"""Seconds that the broker has for an answer about a stream."""
_HEAD: Final = struct.Struct("<QQ")
HEAD: Final = _HEAD.size
"""Bytes of an answer before its block."""
_MOST: Final = 1 << 18
"""Bytes of one block: less costs more answers, more than the processor's cache holds costs more for each record."""


async def ask(sender: Sender, topic: str, question: Mapping[str, Any]) -> Any:
    """The broker's answer to a question about a stream, as it came."""
    aux, each = limits(PATIENCE, None)
    payload = msgspec.json.encode(question)
    return await sender.ask(REQUEST, topic, payload, PATIENCE, aux=aux, each=each, fields=b"")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read: offsets from `begin` to before `end` of what matches."""

    info: StreamInfo
    begin: int
    end: int
    pattern: str
    rules: Compiled
    expired: bool = False
    """Expired ones, too."""
    elsewhere: bool = False
    """In the part of another node than the one that is asked."""

    @property
    def now(self) -> int:
        """By which expired messages are left out."""
        return 0 if self.expired else environment.time_ns()

    @property
    def place(self) -> tuple[str, str]:
        return self.info.broker, self.info.name


class ReadAhead:
    """The blocks of what is wanted."""

    def __init__(self, core: Core, sender: Sender, wanted: Wanted) -> None:
        self._core = core
        self._sender = sender
        self._wanted = wanted
        self.lost = 0

    async def read(self) -> AsyncGenerator[bytes, None]:
        """Blocks with something in them, each behind HEAD bytes. What is gone for good is skipped, counted and told as the event `gap`."""
        wanted = self._wanted
        if wanted.begin >= wanted.end:
            return
        at, asked = wanted.begin, self._ask(wanted.begin)
        try:
            while True:
                answer = (await asked).payload
                if len(answer) < HEAD:
                    raise RemoteProtocolError("the broker's answer is no block of a stream")
                first, following = _HEAD.unpack_from(answer)
                if first > at:
                    self._gap(first - at)
                more = at < following < wanted.end
                if more:
                    asked = self._ask(following)
                    await asyncio.sleep(0)  # so that it is on its way while these are used
                if len(answer) > HEAD:
                    yield answer
                if not more:
                    return
                at = following
        finally:
            asked.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([asked])
            if not asked.cancelled():
                asked.exception()  # nobody reads on, so nobody wants to know

    def _ask(self, offset: int) -> "asyncio.Task[Any]":
        wanted = self._wanted
        question = {
            "stream": wanted.info.name,
            "from": offset,
            "to": wanted.end,
            "most": _MOST,
            "pattern": wanted.pattern,
            "rules": wanted.rules.wire,
        }
        if wanted.expired:
            question["expired"] = True
        if wanted.elsewhere:
            question["broker"] = wanted.info.broker
        return self._core.loop.create_task(ask(self._sender, "$bus/read", question), name="busway read")

    def _gap(self, count: int) -> None:
        name, pattern = self._wanted.info.name, self._wanted.pattern
        self.lost += count
        self._core.log_lines.missed(name, count, GONE)
        self._core.events.emit(Event(kind="gap", topic=pattern, count=count))


async def offset_of(
    sender: Sender, info: StreamInfo, what: str, place: Place | None, default: int, *, elsewhere: bool = False
) -> int:
    """The offset that a place means in a stream; for a time that of the first message stored then or later."""
    match place:
        case None:
            return default
        case bool():
            raise TypeError(f"{what}: {place!r} is no place in a stream")
        case int():
            if place < 0:
                raise ValueError(f"{what} must be an offset of 0 or more, but is {place}")
            return place
        case Position():
            return _own(info, what, Positions({(place.broker, place.stream): place.offset}))
        case Positions():
            return _own(info, what, place)
        case str() if place == "all":
            return info.first
        case str() if ":+" in place:
            return _own(info, what, Positions.parse(place))
        case str() if ":" in place:
            return await offset_of(sender, info, what, Position.parse(place), default, elsewhere=elsewhere)
        case datetime():
            question: dict[str, Any] = {"time": moment(what, place)}
        case str() | timedelta():
            question = {"ago": int(seconds(what, place) * 1e9)}
        case _:
            raise TypeError(
                f"{what} must be an offset, a position, a time or a length of time (1h, a timedelta), not {place!r}"
            )
    where = {"broker": info.broker} if elsewhere else {}
    found = (await ask(sender, "$bus/stream/find", {"name": info.name, **question, **where})).json()
    offset: int = found["offset"]
    return offset


def _own(info: StreamInfo, what: str, positions: Positions) -> int:
    offset = positions.get((info.broker, info.name))
    if offset is None:
        raise ValueError(f"{what}: {positions} is no position in the stream {info.name!r} of this broker")
    return offset
