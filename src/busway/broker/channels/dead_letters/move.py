"""Dead letters: stores messages that no consumer of a channel could deal with under the channel's dead-letter topic.

A dead letter has the payload, sender, time and fields of its message. Fields that begin with `dead_` record its origin
and why the deliveries failed. Each is stored once, also if the broker is killed before the channel's journal has
recorded that.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import msgspec

from busway._core import Block
from busway.broker.channels.dead_letters.stream import DeadStream
from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.state.actions import MoveToDeadLetters
from busway.broker.streams.stream import BILLION
from busway.broker.streams.table import StreamTable
from busway.common import environment
from busway.errors import BusError, Code
from busway.streams import StreamConfig

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.broker")

_RETRY: Final = 1.0
_TIMES: Final = 3
"""The most times that one message becomes a dead letter. It ends loops between dead letters."""

FIELDS: Final = frozenset(
    f"dead_{name}"
    for name in (
        *("times", "stream", "channel", "offset", "topic", "deliveries", "reason", "error", "traceback"),
        *("consumer", "host", "first", "last", "time", "broker", "node", "part", "epoch"),
    )
)
"""The fields that a dead letter has beside those of its message."""


class DeadLetters:
    """Stores the dead letters of all channels of a broker."""

    def __init__(
        self,
        runtime: "Runtime",
        streams: StreamTable,
        create_stream: Callable[[StreamConfig], Awaitable[object]],
    ) -> None:
        self._runtime = runtime
        self._stream = DeadStream(runtime, streams, create_stream)
        self._tickets = count(1)
        self._under_way: dict[int, tuple[ChannelDriver, int]] = {}
        """By ticket: the channel of a letter that is being stored, and the offset of its message."""
        self._failing: WeakSet[ChannelDriver] = WeakSet()
        """Channels whose dead letters can't be stored at the moment."""

    def stop(self) -> None:
        self._stream.stop()

    def move(self, driver: ChannelDriver, block: Block, dead: MoveToDeadLetters) -> None:
        """Store dead letters for these messages. The machine gets the result, and retries after a failure."""
        (start, many), deliveries = dead
        name, stream = driver.name, driver.stream.config.name
        if not driver.dead_topic:
            log.warning(
                "channel %r of stream %r drops %d messages from offset %d on, because it has no dead-letter topic",
                *(name, stream, many, start),
            )
            driver.do(driver.machine.acks.dead_done(start, driver.now, many))
            return
        if (delay := self._stream.missing_for(driver.dead_topic)) is not None:
            driver.machine.acks.dead_failed(start, delay, driver.now, many)
            driver.do(())
            return
        for offset in range(start, start + many):
            row = block.get(offset)
            if row is None:
                driver.do(driver.machine.skip([(offset, 1)], driver.now))
                continue
            _, _, _, topic, payload, packed, sender, _, _, when, _, _ = row
            found: dict[str, Any] = msgspec.msgpack.decode(packed) if packed else {}
            times = found.get("dead_times", 0)
            fields = {name: value for name, value in found.items() if name not in FIELDS}
            times = times + 1 if isinstance(times, int) else 1
            if times > _TIMES:
                log.warning(
                    "channel %r of stream %r drops the message at offset %d, which was a dead letter %d times before",
                    *(name, stream, offset, times - 1),
                )
                driver.do(driver.machine.acks.dead_done(offset, driver.now))
                continue
            fields |= self._recorded(driver, offset) | {
                "dead_times": times,
                "dead_stream": stream,
                "dead_channel": name,
                "dead_offset": offset,
                "dead_topic": topic,
                "dead_deliveries": deliveries,
                "dead_part": driver.stream.copied or self._runtime.guid,
                "dead_epoch": driver.machine.epoch,
            }
            ticket = next(self._tickets)
            session = self._session(driver, offset)
            self._under_way[ticket] = driver, offset
            try:
                self._runtime.engine.store(
                    ticket, driver.dead_topic, sender, when, session, msgspec.msgpack.encode(fields), payload
                )
            except BusError as error:
                self.stored(ticket, error.code, error.reason)
        log.info("channel %r of stream %r moves %d messages to %r", name, stream, many, driver.dead_topic)

    def _recorded(self, driver: ChannelDriver, offset: int) -> dict[str, Any]:
        """Why and when the deliveries failed, as fields."""
        failure, first, last = driver.machine.deliveries(offset)
        now, wall = driver.now, environment.time_ns()
        times = {"dead_first": first, "dead_last": last}
        found = {f"dead_{name}": value for name, value in msgspec.structs.asdict(failure).items() if value}
        found |= {name: wall - int((now - when) * BILLION) for name, when in times.items() if when}
        return found | {"dead_time": wall, "dead_broker": self._runtime.guid, "dead_node": self._runtime.name}

    def stored(self, ticket: int, code: int, text: str) -> None:
        """Pass the result of storing a dead letter to its channel."""
        driver, offset = self._under_way.pop(ticket)
        if driver.over:
            return
        if code == Code.OK:
            if driver in self._failing:
                self._failing.discard(driver)
                log.warning("channel %r: messages are moved again to %r", driver.name, driver.dead_topic)
            driver.do(driver.machine.acks.dead_done(offset, driver.now))
        else:
            if driver not in self._failing:
                self._failing.add(driver)
                log.warning(
                    "channel %r: messages can't be moved to %r, and stay with the channel until that works: %s",
                    *(driver.name, driver.dead_topic, text),
                )
            driver.machine.acks.dead_failed(offset, _RETRY, driver.now)
            driver.do(())

    def _session(self, driver: ChannelDriver, offset: int) -> int:
        """A publisher session for one dead letter, so that the stream recognises one that it has stored already."""
        text = f"{self._runtime.guid} {driver.stream.config.name} {driver.name} {driver.machine.epoch} {offset}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) | 1
