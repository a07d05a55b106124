"""Stored messages for the console: pages of a stream in either direction, single messages, and the replay of a range.

A page is searched in windows of offsets, which grow while they are read quickly. A search that finds too little within
its time reports how far it came, and the console continues there.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec

from busway.client.bus import Bus
from busway.client.field_text import parse_rules
from busway.client.streams.stream import Stream
from busway.errors import OutOfRange
from busway.fields import Where
from busway.gateway.console.messages import LARGEST, message_object

_SECONDS: Final = 2.0
"""Time of one search."""
_QUICK: Final = 0.05
"""Seconds within which a window is read quickly."""
_FIRST, _LARGEST_WINDOW = 16, 1_000_000
_REPLAYED: Final = 100_000
"""Messages of one replay."""
_TELL: Final = 0.5
"""Seconds between two reports of progress."""

Offset = Annotated[int, msgspec.Meta(ge=0)]
Progress = Callable[[dict[str, Any]], Awaitable[None]]


class Page(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page of stored messages."""

    stream: str
    broker: str | None = None
    """The node whose part is read; None: the one of this broker."""
    offset: Offset | None = None
    """Where the page begins; the page before it ends there. None: the time, or else the end of the stream."""
    time: float | None = None
    """Milliseconds since 1970."""
    back: bool = True
    """Whether the page has the messages before its place."""
    count: Annotated[int, msgspec.Meta(ge=1, le=500)] = 100
    pattern: str = "**"
    where: tuple[str, ...] = ()
    text: str = ""
    """A text that the payload contains."""


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range of stored messages to publish again."""

    stream: str
    begin: Offset
    end: Offset
    broker: str | None = None
    pattern: str = "**"
    where: tuple[str, ...] = ()
    text: str = ""
    topic: str = ""
    """The topic to publish to; empty: the topic of each message."""
    durable: bool = False


def where_of(rules: tuple[str, ...], text: str) -> Where | None:
    """The rules about fields, and one about the payload."""
    if not text:
        return parse_rules(rules) if rules else None
    found = parse_rules(rules) if rules else {}
    if not isinstance(found, dict):
        reason = "a text and an expression about the whole message can't be combined: write msg.contains(...)"
        raise ValueError(reason)  # noqa: TRY004, the text of the rules is wrong
    return {**found, "msg": f"*{_literal(text)}*"}


def _literal(text: str) -> str:
    """A text for a glob pattern, in which each of its characters stands for itself."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


async def page(bus: Bus, question: Page) -> dict[str, Any]:
    """Rows in the order of their offsets, and where the pages before and after them begin."""
    stream = await bus.stream(question.stream, broker=question.broker)
    info = await stream.info()
    if question.offset is not None:
        place = min(max(question.offset, info.first), info.next)
    elif question.time is not None:
        place = await stream.locate(datetime.fromtimestamp(question.time / 1e3, UTC))
    else:
        place = info.next if question.back else info.first
    where = where_of(question.where, question.text)
    search = _back if question.back else _forward
    rows, begin, end = await search(stream, question, where, place, info.first, info.next)
    return {"rows": rows, "begin": begin, "end": end, "first": info.first, "next": info.next}


async def _back(
    stream: Stream, question: Page, where: Where | None, place: int, first: int, _: int
) -> tuple[list[dict[str, Any]], int, int]:
    """The last rows before a place, and the offsets of the range that they are from."""
    loop = asyncio.get_running_loop()
    deadline, window, begin = loop.time() + _SECONDS, _FIRST, place
    rows: list[dict[str, Any]] = []
    while begin > first and len(rows) < question.count and loop.time() < deadline:
        started, end = loop.time(), begin
        begin = max(end - window, first)
        found: deque[dict[str, Any]] = deque(maxlen=question.count - len(rows))
        async with aclosing(stream.read(begin, end, topic=question.pattern, where=where)) as batches:
            async for batch in batches:
                found.extend(message_object(message) for message in batch)
        rows = [*found, *rows]
        if loop.time() - started < _QUICK:
            window = min(window * 4, _LARGEST_WINDOW)
    if len(rows) >= question.count:
        begin = rows[0]["offset"]
    return rows, begin, place


async def _forward(
    stream: Stream, question: Page, where: Where | None, place: int, _: int, end: int
) -> tuple[list[dict[str, Any]], int, int]:
    """The first rows from a place on, and the offsets of the range that they are from."""
    loop = asyncio.get_running_loop()
    deadline, window, reached = loop.time() + _SECONDS, _FIRST, place
    rows: list[dict[str, Any]] = []
    while reached < end and len(rows) < question.count and loop.time() < deadline:
        started, begin = loop.time(), reached
        reached = min(begin + window, end)
        async with aclosing(stream.read(begin, reached, topic=question.pattern, where=where)) as batches:
            async for batch in batches:
                rows += [message_object(message) for message in batch[: question.count - len(rows)]]
                if len(rows) >= question.count:
                    reached = rows[-1]["offset"] + 1
                    break
        if loop.time() - started < _QUICK:
            window = min(window * 4, _LARGEST_WINDOW)
    return rows, place, reached


async def single(bus: Bus, stream_name: str, broker: str | None, offset: int) -> dict[str, Any]:
    """A stored message with its whole payload."""
    stream = await bus.stream(stream_name, broker=broker)
    async with aclosing(stream.read(offset, offset + 1)) as batches:
        async for batch in batches:
            return message_object(batch[0], LARGEST)
    raise OutOfRange(f"the stream {stream_name!r} has no message at offset {offset}: it was removed or has expired")


async def replay(bus: Bus, question: Replay, progress: Progress) -> dict[str, Any]:
    """Publish the messages of a range again, and return how many they were."""
    stream = await bus.stream(question.stream, broker=question.broker)
    loop = asyncio.get_running_loop()
    count, told = 0, loop.time()
    where = where_of(question.where, question.text)
    async with aclosing(stream.read(question.begin, question.end, topic=question.pattern, where=where)) as batches:
        async for batch in batches:
            for message in batch[: _REPLAYED - count]:
                topic = question.topic or message.topic
                await bus.publish(topic, message.payload, fields=message.fields, durable=question.durable)
                count += 1
                if loop.time() - told > _TELL:
                    told = loop.time()
                    await progress({"replayed": count})
            if count >= _REPLAYED:
                break
    return {"replayed": count, "limit": _REPLAYED, "complete": count < _REPLAYED}
