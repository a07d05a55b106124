"""The dead letters of a channel: finds them in the streams that store them, and has brokers send them back.

Letters are read and sent back a few hundred at a time, each with its offset and epoch, by which the broker knows what it has
sent back. So a redrive may be interrupted anywhere and repeated.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from datetime import datetime, timedelta
from heapq import merge
from typing import Final, TypeAlias

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
"""Letters that are listed unless the caller says otherwise."""
_BATCH: Final = 500
_OPEN, _REDRIVEN, _BEFORE, _GONE = range(4)


class Chosen:
    """Which letters are meant."""

    def __init__(self, topic: str, reason: str | None, since: Since | None) -> None:
        self._topic = None if topic == "**" else check_pattern(topic)
        if reason is not None:
            check_type("reason", reason, str, "a text")
        self._reason = reason and reason.casefold()
        if isinstance(since, str):
            seconds("since", since)  # a length of time back
        self.since = since

    def has(self, letter: DeadLetter) -> bool:
        if self._topic is not None and not matches(letter.topic, self._topic):
            return False
        texts = (letter.reason, letter.error)
        return not self._reason or any(self._reason in text.casefold() for text in texts)


class DeadLetters:
    """What a bus does with dead letters."""

    def __init__(self, core: Core, sender: Sender) -> None:
        self._core = core
        self._sender = sender

    async def listed(
        self,
        stream: str,
        channel: str,
        *,
        last: int | None,
        topic: str,
        reason: str | None,
        since: Since | None,
        redriven: bool,
    ) -> list[DeadLetter]:
        if last is not None:
            check_count("last", last)
        chosen = Chosen(topic, reason, since)
        parts: dict[str, deque[DeadLetter]] = {}
        async for batch in self._batches(stream, channel, chosen):
            states = await self._states("dead", batch)
            for letter, state in zip(batch, states, strict=True):
                if state in {_REDRIVEN, _BEFORE} and not redriven:
                    continue
                shown = msgspec.structs.replace(letter, redriven=state in {_REDRIVEN, _BEFORE}, gone=state == _GONE)
                parts.setdefault(letter.part, deque(maxlen=last)).append(shown)
        found = list(merge(*parts.values(), key=_died))
        return found if last is None else found[-last:]

    async def redrive(
        self,
        stream: str,
        channel: str,
        letters: DeadLetter | str | Iterable[DeadLetter | str] | None,
        *,
        topic: str,
        reason: str | None,
        since: Since | None,
        progress: Progress | None,
    ) -> Redrive:
        chosen = Chosen(topic, reason, since)
        given = [letters] if isinstance(letters, DeadLetter | str) else None if letters is None else list(letters)
        _check_given(stream, channel, given or ())
        result = Redrive(unreached=(await self._info(stream, channel)).unreached)
        if given is None:
            async with aclosing(self._batches(stream, channel, chosen)) as batches:
                async for batch in batches:
                    await self._send(batch, result, progress)
            return result
        wanted = await self._meant(stream, channel, given)
        for at in range(0, len(wanted), _BATCH):
            some = [one for one in wanted[at : at + _BATCH] if chosen.has(one)]
            for part in {one.part: None for one in some}:
                await self._send([one for one in some if one.part == part], result, progress)
        return result

    async def _meant(self, stream: str, channel: str, given: list[DeadLetter | str]) -> list[DeadLetter]:
        """The letters themselves, and those whose ids begin so."""
        found: dict[str, dict[str, DeadLetter]] = {one: {} for one in given if isinstance(one, str)}
        if found:
            async for batch in self._batches(stream, channel, Chosen("**", None, None)):
                for letter in batch:
                    for prefix, same in found.items():
                        if letter.id.startswith(prefix):
                            same[letter.id] = letter
        for prefix, same in found.items():
            if len(same) != 1 or not prefix:
                what = "no dead letter" if not same else f"{len(same)} dead letters"
                raise OutOfRange(f"the channel {stream}/{channel} has {what} with an id that begins with {prefix!r}")
        return [one if isinstance(one, DeadLetter) else next(iter(found[one].values())) for one in given]

    async def _send(self, batch: list[DeadLetter], result: Redrive, progress: Progress | None) -> None:
        for state in await self._states("redrive", batch):
            result.redriven += state == _REDRIVEN
            result.before += state == _BEFORE
            result.gone += state == _GONE
            result.left += state == _OPEN
        if progress is not None:
            progress(msgspec.structs.replace(result))

    async def _states(self, verb: str, batch: list[DeadLetter]) -> list[int]:
        """What the broker says of letters of one part. A node that is not reached leaves them as they are."""
        first = batch[0]
        question = {
            "stream": first.stream,
            "channel": first.channel,
            "broker": first.part,
            "letters": [(one.offset, one.epoch, one.time_ns) for one in batch],
        }
        try:
            answer = (await ask(self._sender, f"$bus/channel/{verb}", question)).json()
        except (OutOfRange, StoreFailed):
            if first.part == self._core.broker:
                raise
            return [_OPEN] * len(batch)
        states: list[int] = answer["states"]
        return states

    async def _batches(self, stream: str, channel: str, chosen: Chosen) -> AsyncGenerator[list[DeadLetter], None]:
        """All letters of a channel that are chosen, each batch of one part, in the order in which they were stored."""
        info = await self._info(stream, channel)
        topic = info.dead_letter.replace("{stream}", stream).replace("{channel}", channel)
        for one in await self._streams(topic) if topic else ():
            waiting: dict[str, list[DeadLetter]] = {}
            async with aclosing(one.read(chosen.since, topic=topic)) as read:
                async for messages in read:
                    for message in messages:
                        letter = DeadLetter.of(message, one.broker)
                        if (letter.stream, letter.channel) != (stream, channel) or not chosen.has(letter):
                            continue
                        some = waiting.setdefault(letter.part, [])
                        some.append(letter)
                        if len(some) == _BATCH:
                            yield waiting.pop(letter.part)
            for some in waiting.values():
                yield some

    async def _info(self, stream: str, channel: str) -> ChannelInfo:
        named = {"stream": check_name("stream", stream), "channel": check_name("channel", channel)}
        return info_of((await ask(self._sender, "$bus/channel/list", named)).json()["channels"][0])

    async def _streams(self, topic: str) -> list[Stream]:
        """The parts of all streams that may hold letters of this topic. Earlier brokers stored them in `default`."""
        listed = read_streams(await ask(self._sender, "$bus/stream/list", {"parts": True}))
        found: list[Stream] = []
        for info in listed:
            if info.name != DEFAULT and not any(matches(topic, one) for one in (*info.topics, *info.former)):
                continue
            guids = [part.broker for part in info.parts if part.broker and not part.error]
            found += [Stream(self._core, self._sender, _part_of(info, guid), guid) for guid in guids]
        return found


def _check_given(stream: str, channel: str, given: Iterable[DeadLetter | str]) -> None:
    for one in given:
        check_type("letters", one, (DeadLetter, str), "a dead letter or the id of one")
        if isinstance(one, DeadLetter) and (one.stream, one.channel) != (stream, channel):
            raise ValueError(f"letters: {one.id} is a letter of the channel {one.stream}/{one.channel}")


def _died(letter: DeadLetter) -> float:
    return letter.died.timestamp() if letter.died is not None else 0.0


def _part_of(info: StreamInfo, guid: str) -> StreamInfo:
    return msgspec.structs.replace(info, broker=guid)
