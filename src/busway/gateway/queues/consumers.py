"""The channels that clients of the JSON door consume: one consumer of the bus for each, whatever number of clients share it.

It takes as many messages as they have credit for, and hands each to the next whose filter takes it. One that nobody takes
now is held here, not acknowledged, so it stays: for whoever comes, here or elsewhere. A driver.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from busway._core import Message
from busway.client.bus import Bus
from busway.client.channels.channel import Channel
from busway.errors import BusError, Closed, Timeout
from busway.gateway.json.statuses import FORBIDDEN, Refused, told
from busway.gateway.queues.names import DELETE_ON_EXIT, EXCLUSIVE, channel_name
from busway.gateway.queues.queues import Queue
from busway.gateway.queues.round_robin import RoundRobin, Subscriber

log = logging.getLogger("busway.gateway")

_MOST: Final = 1024
_BYTES: Final = 4 << 20
"""What is taken at once."""
_REST: Final = 3
"""Turns of the loop before a channel that was empty is taken from again, if no other waits for that."""
_SAMPLE: Final = 8
"""Messages of a batch whose size is looked at, about."""
_IDLE: Final = 5.0
"""Seconds that a channel stays open for the next `take`."""


class Beat:
    """Lets channels that were empty a moment ago be taken from again: one in each turn of the loop.

    In a loop that has little to do that is at once. In one that has much to do more has come by then, and few large batches cost less
    than many small ones; and however many channels there are, they don't hold up the answers to those who publish.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def next(self) -> "asyncio.Future[None]":
        """Done when it is its turn."""
        if not self._waiting:
            self._rest(_REST)
        future = self._loop.create_future()
        self._waiting.append(future)
        return future

    def _rest(self, turns: int) -> None:
        if turns:
            self._loop.call_soon(self._rest, turns - 1)
        else:
            self._turn()

    def _turn(self) -> None:
        waiting = self._waiting
        while waiting:
            future = waiting.popleft()
            if not future.done():
                future.set_result(None)
                break
        if waiting:
            self._loop.call_soon(self._turn)


class QueueConsumer:
    """A channel that is consumed here."""

    def __init__(
        self, bus: Bus, queue: Queue, name: str, aside: int, beat: Beat, gone: Callable[["QueueConsumer"], None]
    ) -> None:
        self.queue = queue
        self.name = name
        self.ring = RoundRobin()
        self.users = 0
        """Who takes from it at the moment, besides its subscribers."""
        self.used = 0.0
        """When it was last."""
        self._aside = aside
        self._beat = beat
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._channel: Channel = bus.channel(queue.stream, name, window=0, create=False, max_processing=None)
        self._held: deque[tuple[Message, Any]] = deque()
        self._size = _BYTES // 32
        """Of a message, as far as is known."""
        self._pump: asyncio.Task[None] | None = None
        self._told = False
        self.over = False
        self.opened = asyncio.ensure_future(self._channel.start())

    @property
    def ended(self) -> bool:
        """Whether its queue or its channel was removed, or the bus is closed: nothing can be taken from it any more."""
        return self.over or (self.opened.done() and self._channel.closed)

    @property
    def passing(self) -> bool:
        """Whether it must not stay open for nobody: what it holds is for others."""
        return bool(self._held) or bool(self.queue.channel_mask(self.name) & (DELETE_ON_EXIT | EXCLUSIVE))

    # Subscribers.

    def subscribe(self, one: Subscriber) -> None:
        """One more; what is held and it takes it gets at once."""
        one.tap = self
        self.ring.add(one)
        self.look()

    def unsubscribe(self, one: Subscriber) -> None:
        self.ring.remove(one)
        self.used = self._loop.time()
        if self._pump is not None and not self.ring.room(1):
            self._pump.cancel()  # nothing is lost: what has come by then is taken next
            self._pump = None

    def look(self) -> None:
        """Somebody has credit or room again, or another filter."""
        if self._held and self.ring.members:
            self._hand([])
        if self._pump is None and not self.over and self.ring.room(1) and len(self._held) < self._aside:
            self._pump = self._loop.create_task(self._run(), name=f"busway tap {self.queue.stream}/{self.name}")

    # Takers.

    async def take(self, most: int, timeout: float) -> list[Message]:
        """At most so many, and none if there are none within so many seconds."""
        self.users += 1
        try:
            if self._held:
                got = [self._held.popleft()[0] for _ in range(min(most, len(self._held)))]
            else:
                try:
                    got = await self._channel.take(min(most, self._at_once()), timeout)
                except Timeout:
                    return []
                self._measure(got)
            self._channel.ack(got)
            return got
        finally:
            self.users -= 1
            self.used = self._loop.time()
            self.look()

    # Inside.

    def _at_once(self) -> int:
        return max(1, min(_MOST, _BYTES // self._size))

    def _measure(self, batch: list[Message]) -> None:
        if batch:
            some = batch[:: max(len(batch) // _SAMPLE, 1)]  # to look at all takes as long as to hand them out
            mean = sum(len(one.payload) for one in some) // len(some) + 256
            self._size = max(mean, (self._size + mean) // 2)

    async def _run(self) -> None:
        """Take as long as somebody has room."""
        try:
            while room := self.ring.room(self._at_once()):
                if len(self._held) >= self._aside:
                    self._tell()
                    return
                batch = await self._channel.take(room)
                self._measure(batch)
                self._hand(batch)
                if len(batch) < room:
                    await self._beat.next()
        except Closed:
            self._end(None)
        except BusError as error:
            self._end(error)
        finally:
            if self._pump is asyncio.current_task():
                self._pump = None

    def _hand(self, batch: list[Message]) -> None:
        """Hand out what is held and what has come, in this order; hold what nobody takes now."""
        ring = self.ring
        if self._held:
            waiting, self._held = self._held, deque()
            done = [message for message, tag in waiting if not self._give(message, tag)]
        else:
            done = []
        if not self._held and not done and (dealt := ring.deal(len(batch))) is not None:
            for next_, message in zip(dealt, batch, strict=True):
                next_.sink.deliver(next_, message)
            done = batch
        elif ring.filtered:
            done += [message for message in batch if not self._give(message, message.fields.get("tag"))]
        else:
            choose = ring.choose
            for message in batch:
                if (one := choose(None)) is None:
                    self._held.append((message, None))
                else:
                    one.sink.deliver(one, message)
                    done.append(message)
        if done and not self._channel.closed:
            self._channel.ack(done)

    def _give(self, message: Message, tag: Any) -> bool:
        """Hand out one; True: it is held instead."""
        if self.ring.filtered and tag is None:
            tag = message.fields.get("tag")
        one = self.ring.choose(tag)
        if one is None:
            self._held.append((message, tag))
            return True
        one.sink.deliver(one, message)
        return False

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "%d messages of the channel %s/%s are held: no filter of its subscribers takes them",
                len(self._held),
                self.queue.stream,
                self.name,
            )

    def _end(self, error: BusError | None) -> None:
        """The channel is gone, or the bus is."""
        self.over = True
        status, text = told(error) if error is not None else (503, "the broker stops")
        for one in list(self.ring.members):
            one.sink.ended(one, status, text)
        self._gone(self)

    async def close(self) -> None:
        """Take no more; what is held is for others."""
        self.over = True
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])
        self.opened.cancel()
        if self._channel.live:
            await self._channel.close()


class QueueConsumers:
    """All of them, by stream and channel."""

    def __init__(self, bus: Bus, aside: int) -> None:
        self._bus = bus
        self._aside = aside
        self._beat = Beat()
        self._all: dict[tuple[str, str], QueueConsumer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._all)

    async def open(self, queue: Queue, shown: str) -> QueueConsumer:
        """The tap of a channel. Raises Refused or what the bus says."""
        key = queue.stream, channel_name(shown)
        tap = self._all.get(key)
        if tap is None or tap.ended:  # one that was removed may have been created again
            tap = self._all[key] = QueueConsumer(self._bus, queue, key[1], self._aside, self._beat, self._forget)
        tap.queue = queue
        tap.users += 1
        try:
            await asyncio.shield(tap.opened)
        except BaseException:
            if tap.opened.done():
                self._forget(tap)
            raise
        finally:
            tap.users -= 1
        return tap

    def check(self, tap: QueueConsumer, sink: Any) -> None:
        """Refuse a second one where there is to be one only."""
        others = [one for one in tap.ring.members if one.sink is not sink]
        if others and tap.queue.channel_mask(tap.name) & EXCLUSIVE:
            raise Refused(FORBIDDEN, f"Channel({tap.name}) is exclusive, and has a subscriber")
        if tap.queue.mask & EXCLUSIVE and any(one.sink is not sink for one in self.subscribers(tap.queue.stream)):
            raise Refused(FORBIDDEN, f"MQ({tap.queue.topic}) is exclusive, and has a subscriber")

    def subscribers(self, stream: str) -> list[Subscriber]:
        """Those of all channels of a queue."""
        return [one for (name, _), tap in self._all.items() if name == stream for one in tap.ring.members]

    def leave(self, one: Subscriber) -> None:
        """A subscriber is gone."""
        tap: QueueConsumer = one.tap
        tap.unsubscribe(one)
        if not tap.ring.members and tap.passing and not tap.users:
            self._close(tap)

    def released(self, tap: QueueConsumer) -> None:
        """Somebody has taken from it."""
        if not tap.ring.members and tap.passing and not tap.users:
            self._close(tap)

    def sweep(self, now: float) -> None:
        """Close those that nobody uses any more."""
        for tap in list(self._all.values()):
            if not tap.ring.members and not tap.users and tap.used < now - _IDLE and tap.opened.done():
                self._close(tap)

    def _close(self, tap: QueueConsumer) -> None:
        self._forget(tap)
        task = asyncio.get_running_loop().create_task(tap.close(), name="busway close tap")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _forget(self, tap: QueueConsumer) -> None:
        key = tap.queue.stream, tap.name
        if self._all.get(key) is tap:
            del self._all[key]

    async def drained(self, stream: str) -> None:
        """Close those of a queue that nobody uses, at once."""
        for tap in [tap for (name, _), tap in self._all.items() if name == stream]:
            if not tap.ring.members and not tap.users:
                self._close(tap)
        if self._closing:
            await asyncio.wait(list(self._closing))

    async def close(self) -> None:
        for tap in list(self._all.values()):
            self._close(tap)
        if self._closing:
            await asyncio.wait(self._closing)
