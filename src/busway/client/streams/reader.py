"""Reader of a stream's messages, block by block: requests the next block while the program uses the last one.

Stream.read() and Stream.arrow() use it. The module also resolves places in a stream to offsets.
"""

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
"""A place in a stream: an offset, a position, a time, or a duration back from now."""

PATIENCE: Final = 30.0
"""Seconds that the broker has to answer a request about a stream."""
_HEAD: Final = struct.Struct("<QQ")
HEAD: Final = _HEAD.size
"""Bytes of an answer before its block."""
_MOST: Final = 1 << 18
"""Most bytes of one block. Smaller blocks need more answers, and larger ones do not fit into the processor's cache."""


async def ask(sender: Sender, topic: str, question: Mapping[str, Any]) -> Any:
    """Send a request about a stream to the broker and return its reply."""
    aux, each = limits(PATIENCE, None)
    payload = msgspec.json.encode(question)
    return await sender.ask(REQUEST, topic, payload, PATIENCE, aux=aux, each=each, fields=b"")


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The messages that a program reads: those that match, at offsets from `begin` to before `end`."""

    info: StreamInfo
    begin: int
    end: int
    pattern: str
    rules: Compiled
    expired: bool = False
    """Include expired messages."""
    remote: bool = False
    """Read the part of another node than the one that this client is connected to."""

    @property
    def now(self) -> int:
        """The time by which messages count as expired, in nanoseconds since 1970; 0: none does."""
        return 0 if self.expired else environment.time_ns()

    @property
    def source(self) -> tuple[str, str]:
        """Broker and name of the stream."""
        return self.info.broker, self.info.name


class ReadAhead:
    """The blocks of one read. The next block is requested before the last one is used."""

    def __init__(self, core: Core, sender: Sender, request: ReadRequest) -> None:
        self._core = core
        self._sender = sender
        self._request = request
        self.lost = 0
        """Number of messages in the range that the stream no longer has."""

    async def read(self) -> AsyncGenerator[bytes, None]:
        """Non-empty blocks, each after HEAD bytes. Lost messages are counted and reported by the event `gap`."""
        request = self._request
        if request.begin >= request.end:
            return
        offset, pending = request.begin, self._ask(request.begin)
        try:
            while True:
                answer = (await pending).payload
                if len(answer) < HEAD:
                    raise RemoteProtocolError("the broker's answer to $bus/read is shorter than its header")
                first, following = _HEAD.unpack_from(answer)
                if first > offset:
                    self._gap(first - offset)
                more = offset < following < request.end
                if more:
                    pending = self._ask(following)
                    await asyncio.sleep(0)  # send the request before the program uses this block
                if len(answer) > HEAD:
                    yield answer
                if not more:
                    return
                offset = following
        finally:
            pending.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([pending])
            if not pending.cancelled():
                pending.exception()  # reading has ended: ignore the error

    def _ask(self, offset: int) -> "asyncio.Task[Any]":
        request = self._request
        question = {
            "stream": request.info.name,
            "from": offset,
            "to": request.end,
            "most": _MOST,
            "pattern": request.pattern,
            "rules": request.rules.wire,
        }
        if request.expired:
            question["expired"] = True
        if request.remote:
            question["broker"] = request.info.broker
        return self._core.loop.create_task(ask(self._sender, "$bus/read", question), name="busway read")

    def _gap(self, count: int) -> None:
        name, pattern = self._request.info.name, self._request.pattern
        self.lost += count
        self._core.log_lines.missed(name, count, GONE)
        self._core.events.emit(Event(kind="gap", topic=pattern, count=count))


async def offset_of(
    sender: Sender, info: StreamInfo, what: str, place: Place | None, default: int, *, remote: bool = False
) -> int:
    """The offset of a place in a stream; for a time that of the first message stored then or later.

    `what` is the name of the argument, for errors. `remote`: the part of the stream is that of another node.
    """
    match place:
        case None:
            return default
        case bool():
            raise TypeError(f"{what} must be an offset, a position, a time or a duration, not {place!r}")
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
            return await offset_of(sender, info, what, Position.parse(place), default, remote=remote)
        case datetime():
            question: dict[str, Any] = {"time": moment(what, place)}
        case str() | timedelta():
            question = {"ago": int(seconds(what, place) * 1e9)}
        case _:
            raise TypeError(
                f"{what} must be an offset, a position, a time or a duration (1h, a timedelta), not {place!r}"
            )
    where = {"broker": info.broker} if remote else {}
    found = (await ask(sender, "$bus/stream/find", {"name": info.name, **question, **where})).json()
    offset: int = found["offset"]
    return offset


def _own(info: StreamInfo, what: str, positions: Positions) -> int:
    """The offset of this stream among the positions."""
    offset = positions.get((info.broker, info.name))
    if offset is None:
        raise ValueError(f"{what}: {positions} is not a position in the stream {info.name!r} of this broker")
    return offset
