"""Lists and redrives the dead letters of a channel, which it finds in the streams that store the dead-letter topic.

ChannelVerbs and Channel call it. It reads and redrives some hundred letters at a time. The broker recognises each
letter by its offset and epoch, and redrives it once. So a redrive may be interrupted and repeated.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from datetime import datetime, timedelta
from heapq import merge
from typing import Final, TypeAlias, TypedDict

import msgspec

from busway._core import check_pattern, matches
from busway.client.channels.positions import info_of
from busway.client.connection.core import Core
from busway.client.connection.sender import Sender
from busway.client.streams.reader import ask
from busway.client.streams.stream import Stream, read_streams
from busway.common.checks import check_count, check_type
from busway.common.durations import seconds
from busway.dead_letters import DeadLetter, Redrive
from busway.errors import OutOfRange, StoreFailed
from busway.streams import DEFAULT, ChannelInfo, StreamInfo, check_name

Since: TypeAlias = str | timedelta | datetime
Progress: TypeAlias = Callable[[Redrive], object]

LAST: Final = 100
"""Letters that are listed by default."""
_BATCH: Final = 500
"""Letters of one request to the broker."""
_STORING: Final = 1.0
"""Seconds to wait for letters that the broker is still storing."""
_POLL: Final = 0.02
_OPEN, _REDRIVEN, _REDRIVEN_BEFORE, _GONE = range(4)


class SelectionOptions(TypedDict, total=False):
    """The keyword arguments that select dead letters."""

    topic: str
    reason: str | None
    since: Since | None


class ListOptions(SelectionOptions, total=False):
    """The keyword arguments of dead_letters()."""

    last: int | None
    redriven: bool


class RedriveOptions(SelectionOptions, total=False):
    """The keyword arguments of redrive_channel()."""

    progress: Progress | None


class Selection:
    """Selects dead letters by topic, reason and time."""

    def __init__(self, topic: str, reason: str | None, since: Since | None) -> None:
        check_type("topic", topic, str, "a topic or a pattern")
        self._topic = None if topic == "**" else check_pattern(topic)
        if reason is not None:
            check_type("reason", reason, str, "a text")
        self._reason = reason and reason.casefold()
        if since is not None:
            check_type("since", since, (str, timedelta, datetime), "a time or a length of time back")
        if isinstance(since, str):
            seconds("since", since)  # a length of time back
        self.since = since
        self.everything = self._topic is None and not reason and since is None

    def has(self, letter: DeadLetter) -> bool:
        """Whether a letter is selected by topic and reason. The time is checked when the stream is read."""
        if self._topic is not None and not matches(letter.topic, self._topic):
            return False
        texts = (letter.reason, letter.error)
        return not self._reason or any(self._reason in text.casefold() for text in texts)


class DeadLetters:
    """Lists and redrives the dead letters of channels, for one client."""

    def __init__(self, core: Core, sender: Sender) -> None:
        self._core = core
        self._sender = sender

    async def listed(
        self,
        stream: str,
        channel: str,
        *,
        last: int | None = LAST,
        topic: str = "**",
        reason: str | None = None,
        since: Since | None = None,
        redriven: bool = False,
    ) -> list[DeadLetter]:
        """The last dead letters of a channel, as Bus.dead_letters() returns them."""
        if last is not None:
            check_count("last", last)
        selection = Selection(topic, reason, since)
        parts: dict[str, deque[DeadLetter]] = {}
        async for batch in self._batches(await self._stored(stream, channel), selection):
            states = await self._states("dead", batch)
            for letter, state in zip(batch, states, strict=True):
                if state in {_REDRIVEN, _REDRIVEN_BEFORE} and not redriven:
                    continue
                shown = msgspec.structs.replace(
                    letter, redriven=state in {_REDRIVEN, _REDRIVEN_BEFORE}, gone=state == _GONE
                )
                parts.setdefault(letter.part, deque(maxlen=last)).append(shown)
        found = list(merge(*parts.values(), key=_failure_time))
        return found if last is None else found[-last:]

    async def redrive(
        self,
        stream: str,
        channel: str,
        letters: DeadLetter | str | Iterable[DeadLetter | str] | None,
        *,
        topic: str = "**",
        reason: str | None = None,
        since: Since | None = None,
        progress: Progress | None = None,
    ) -> Redrive:
        """Redrive dead letters of a channel, as Bus.redrive_channel() does."""
        selection = Selection(topic, reason, since)
        if letters is not None:
            check_type("letters", letters, (DeadLetter, str, Iterable), "dead letters or their ids")
        given = [letters] if isinstance(letters, DeadLetter | str) else None if letters is None else list(letters)
        _check_given(stream, channel, given or ())
        info = await self._stored(stream, channel)
        result = Redrive(unreached=info.unreached)
        if given is None:
            if selection.everything:
                result.left = info.dying
            async with aclosing(self._batches(info, selection)) as batches:
                async for batch in batches:
                    await self._send(batch, result, progress)
            return result
        wanted = await self._resolve(info, given)
        for at in range(0, len(wanted), _BATCH):
            batch = [letter for letter in wanted[at : at + _BATCH] if selection.has(letter)]
            for part in {letter.part: None for letter in batch}:
                await self._send([letter for letter in batch if letter.part == part], result, progress)
        return result

    async def _resolve(self, info: ChannelInfo, given: list[DeadLetter | str]) -> list[DeadLetter]:
        """The given letters, and the letters whose ids begin with the given texts."""
        found: dict[str, dict[str, DeadLetter]] = {prefix: {} for prefix in given if isinstance(prefix, str)}
        if found:
            async for batch in self._batches(info, Selection("**", None, None)):
                for letter in batch:
                    for prefix, same in found.items():
                        if letter.id.startswith(prefix):
                            same[letter.id] = letter
        for prefix, same in found.items():
            if len(same) != 1 or not prefix:
                what = "no dead letter" if not same else f"{len(same)} dead letters"
                raise OutOfRange(
                    f"the channel {info.stream}/{info.name} has {what} with an id that begins with {prefix!r}"
                )
        return [item if isinstance(item, DeadLetter) else next(iter(found[item].values())) for item in given]

    async def _send(self, batch: list[DeadLetter], result: Redrive, progress: Progress | None) -> None:
        for state in await self._states("redrive", batch):
            result.redriven += state == _REDRIVEN
            result.before += state == _REDRIVEN_BEFORE
            result.gone += state == _GONE
            result.left += state == _OPEN
        if progress is not None:
            progress(msgspec.structs.replace(result))

    async def _states(self, verb: str, batch: list[DeadLetter]) -> list[int]:
        """The states of letters of one part, from its broker. They are open if their node can't be reached."""
        first = batch[0]
        question = {
            "stream": first.stream,
            "channel": first.channel,
            "broker": first.part,
            "letters": [(letter.offset, letter.epoch, letter.time_ns) for letter in batch],
        }
        try:
            answer = (await ask(self._sender, f"$bus/channel/{verb}", question)).json()
        except (OutOfRange, StoreFailed):
            if first.part == self._core.broker:
                raise
            return [_OPEN] * len(batch)
        states: list[int] = answer["states"]
        return states

    async def _batches(self, info: ChannelInfo, selection: Selection) -> AsyncGenerator[list[DeadLetter], None]:
        """The selected letters of a channel in the order in which they were stored. Each batch is of one part."""
        stream, channel = info.stream, info.name
        topic = info.dead_letter.replace("{stream}", stream).replace("{channel}", channel)
        for part in await self._streams(topic) if topic else ():
            waiting: dict[str, list[DeadLetter]] = {}
            async with aclosing(part.read(selection.since, topic=topic)) as read:
                async for messages in read:
                    for message in messages:
                        letter = DeadLetter.of(message, part.broker)
                        if (letter.stream, letter.channel) != (stream, channel) or not selection.has(letter):
                            continue
                        batch = waiting.setdefault(letter.part, [])
                        batch.append(letter)
                        if len(batch) == _BATCH:
                            yield waiting.pop(letter.part)
            for batch in waiting.values():
                yield batch

    async def _stored(self, stream: str, channel: str) -> ChannelInfo:
        """The channel, as soon as it has stored the letters of all messages that were rejected by now; within bounds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _STORING
        while (info := await self._info(stream, channel)).dying and loop.time() < until:  # noqa: ASYNC110, the broker reports no event
            await asyncio.sleep(_POLL)
        return info

    async def _info(self, stream: str, channel: str) -> ChannelInfo:
        named = {"stream": check_name("stream", stream), "channel": check_name("channel", channel)}
        return info_of((await ask(self._sender, "$bus/channel/list", named)).json()["channels"][0])

    async def _streams(self, topic: str) -> list[Stream]:
        """The parts of all streams that may hold letters of this topic. Earlier brokers stored them in `default`."""
        listed = read_streams(await ask(self._sender, "$bus/stream/list", {"parts": True}))
        found: list[Stream] = []
        for info in listed:
            if info.name != DEFAULT and not any(matches(topic, pattern) for pattern in (*info.topics, *info.former)):
                continue
            guids = [part.broker for part in info.parts if part.broker and not part.error]
            found += [Stream(self._core, self._sender, _part_of(info, guid), guid) for guid in guids]
        return found


def _check_given(stream: str, channel: str, given: Iterable[DeadLetter | str]) -> None:
    for item in given:
        check_type("letters", item, (DeadLetter, str), "a dead letter or the id of one")
        if isinstance(item, DeadLetter) and (item.stream, item.channel) != (stream, channel):
            raise ValueError(
                f"letters: {item.id} is of the channel {item.stream}/{item.channel}, not {stream}/{channel}"
            )


def _failure_time(letter: DeadLetter) -> float:
    return letter.died.timestamp() if letter.died is not None else 0.0


def _part_of(info: StreamInfo, guid: str) -> StreamInfo:
    return msgspec.structs.replace(info, broker=guid)
