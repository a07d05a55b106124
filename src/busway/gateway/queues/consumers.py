"""Consumers of the JSON door: one consumer of the bus per channel, shared by all clients that subscribe to it.

A consumer takes as many messages as its subscribers have credit for, and delivers each to the next subscriber whose
filter matches. It holds a message that no subscriber accepts, without acknowledging it, so that another consumer can
get it later. `http/commands.py` subscribes clients and takes messages here. A driver.
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
from busway.gateway.json.statuses import FORBIDDEN, Refused, status_of
from busway.gateway.queues.names import DELETE_ON_EXIT, EXCLUSIVE, channel_name
from busway.gateway.queues.queues import Queue
from busway.gateway.queues.round_robin import RoundRobin, Subscriber

log = logging.getLogger("busway.gateway")

_MOST: Final = 1024
"""Most messages per take."""
_BYTES: Final = 4 << 20
"""Most bytes per take, estimated."""
_TURNS: Final = 3
"""Turns of the loop before the next take from a channel that was empty, if no other channel is queued."""
_SAMPLE: Final = 8
"""Messages of a batch whose size is measured, about."""
_IDLE: Final = 5.0
"""Seconds that a channel stays open for the next `take`."""


class Pacer:
    """Delays the next take from channels that were empty: releases one channel per turn of the loop.

    In an idle loop the delay is negligible. In a busy loop it lets batches grow, and a few large batches cost less
    than many small ones. It also keeps many channels from delaying the answers to publishers.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def next(self) -> "asyncio.Future[None]":
        """A future that is done when the channel may take again."""
        if not self._waiting:
            self._wait(_TURNS)
        future = self._loop.create_future()
        self._waiting.append(future)
        return future

    def _wait(self, turns: int) -> None:
        if turns:
            self._loop.call_soon(self._wait, turns - 1)
        else:
            self._release()

    def _release(self) -> None:
        waiting = self._waiting
        while waiting:
            future = waiting.popleft()
            if not future.done():
                future.set_result(None)
                break
        if waiting:
            self._loop.call_soon(self._release)


class QueueConsumer:
    """The consumer of one channel, with its subscribers."""

    def __init__(
        self, bus: Bus, queue: Queue, name: str, aside: int, pacer: Pacer, on_close: Callable[["QueueConsumer"], None]
    ) -> None:
        self.queue = queue
        self.name = name
        self.subscribers = RoundRobin()
        self.users = 0
        """Running calls of take() and open()."""
        self.used = 0.0
        """Loop time of the last use."""
        self._aside = aside
        self._pacer = pacer
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._channel: Channel = bus.channel(queue.stream, name, window=0, create=False, max_processing=None)
        self._held: deque[tuple[Message, Any]] = deque()
        self._size = _BYTES // 32
        """Estimated size of a message."""
        self._pump: asyncio.Task[None] | None = None
        self._warned = False
        self.stopped = False
        self.opened = asyncio.ensure_future(self._channel.start())

    @property
    def ended(self) -> bool:
        """Whether its queue or its channel was removed, or the bus is closed."""
        return self.stopped or (self.opened.done() and self._channel.closed)

    @property
    def transient(self) -> bool:
        """Whether it closes as soon as it is unused: it holds messages, or its channel is exclusive or temporary."""
        return bool(self._held) or bool(self.queue.channel_mask(self.name) & (DELETE_ON_EXIT | EXCLUSIVE))

    # Subscribers.

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a subscriber, and deliver the held messages that its filter matches."""
        subscriber.consumer = self
        self.subscribers.add(subscriber)
        self.dispatch()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        self.subscribers.remove(subscriber)
        self.used = self._loop.time()
        if self._pump is not None and not self.subscribers.room(1):
            self._pump.cancel()  # no message is lost: the next take returns those that have arrived
            self._pump = None

    def dispatch(self) -> None:
        """Deliver and take again after a subscriber has got credit, room or another filter."""
        if self._held and self.subscribers.members:
            self._deliver([])
        if self._pump is None and not self.stopped and self.subscribers.room(1) and len(self._held) < self._aside:
            self._pump = self._loop.create_task(self._run(), name=f"busway consumer {self.queue.stream}/{self.name}")

    # Takes.

    async def take(self, most: int, timeout: float) -> list[Message]:
        """Take and acknowledge at most `most` messages; an empty list if none arrives within `timeout` seconds."""
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
            self.dispatch()

    # The take loop.

    def _at_once(self) -> int:
        return max(1, min(_MOST, _BYTES // self._size))

    def _measure(self, batch: list[Message]) -> None:
        if batch:
            sample = batch[:: max(len(batch) // _SAMPLE, 1)]  # measuring all takes as long as delivering them
            mean = sum(len(message.payload) for message in sample) // len(sample) + 256
            self._size = max(mean, (self._size + mean) // 2)

    async def _run(self) -> None:
        """Take and deliver while a subscriber has room."""
        try:
            while room := self.subscribers.room(self._at_once()):
                if len(self._held) >= self._aside:
                    self._warn()
                    return
                batch = await self._channel.take(room)
                self._measure(batch)
                self._deliver(batch)
                if len(batch) < room:
                    await self._pacer.next()
        except Closed:
            self._end(None)
        except BusError as error:
            self._end(error)
        finally:
            if self._pump is asyncio.current_task():
                self._pump = None

    def _deliver(self, batch: list[Message]) -> None:
        """Deliver the held messages and then the batch; hold the messages that no subscriber accepts now."""
        subscribers = self.subscribers
        if self._held:
            waiting, self._held = self._held, deque()
            done = [message for message, tag in waiting if self._deliver_one(message, tag)]
        else:
            done = []
        if not self._held and not done and (dealt := subscribers.deal(len(batch))) is not None:
            for subscriber, message in zip(dealt, batch, strict=True):
                subscriber.sink.deliver(subscriber, message)
            done = batch
        elif subscribers.filtered:
            done += [message for message in batch if self._deliver_one(message, message.fields.get("tag"))]
        else:
            choose = subscribers.choose
            for message in batch:
                if (chosen := choose(None)) is None:
                    self._held.append((message, None))
                else:
                    chosen.sink.deliver(chosen, message)
                    done.append(message)
        if done and not self._channel.closed:
            self._channel.ack(done)

    def _deliver_one(self, message: Message, tag: Any) -> bool:
        """Deliver one message. False: no subscriber accepts it, so it is held."""
        if self.subscribers.filtered and tag is None:
            tag = message.fields.get("tag")
        subscriber = self.subscribers.choose(tag)
        if subscriber is None:
            self._held.append((message, tag))
            return False
        subscriber.sink.deliver(subscriber, message)
        return True

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "%d messages of the channel %s/%s are held: no filter of its subscribers matches them",
                len(self._held),
                self.queue.stream,
                self.name,
            )

    def _end(self, error: BusError | None) -> None:
        """The channel was removed, or the bus is closed."""
        self.stopped = True
        status, text = status_of(error) if error is not None else (503, "the broker stops")
        for subscriber in list(self.subscribers.members):
            subscriber.sink.ended(subscriber, status, text)
        self._on_close(self)

    async def close(self) -> None:
        """Stop taking and leave the channel, which redelivers the held messages to other consumers."""
        self.stopped = True
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])
        self.opened.cancel()
        if self._channel.live:
            await self._channel.close()


class QueueConsumers:
    """The consumers of all channels, by stream and channel."""

    def __init__(self, bus: Bus, aside: int) -> None:
        self._bus = bus
        self._aside = aside
        self._pacer = Pacer()
        self._all: dict[tuple[str, str], QueueConsumer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._all)

    async def open(self, queue: Queue, shown: str) -> QueueConsumer:
        """The consumer of a channel, opened if necessary. Raises ValueError or a BusError."""
        key = queue.stream, channel_name(shown)
        consumer = self._all.get(key)
        if consumer is None or consumer.ended:  # the channel may have been created again
            consumer = self._all[key] = QueueConsumer(self._bus, queue, key[1], self._aside, self._pacer, self._forget)
        consumer.queue = queue
        consumer.users += 1
        try:
            await asyncio.shield(consumer.opened)
        except BaseException:
            if consumer.opened.done():
                self._forget(consumer)
            raise
        finally:
            consumer.users -= 1
        return consumer

    def check(self, consumer: QueueConsumer, sink: Any) -> None:
        """Refuse a second subscriber of an exclusive channel or queue."""
        queue, members = consumer.queue, consumer.subscribers.members
        if queue.channel_mask(consumer.name) & EXCLUSIVE and any(member.sink is not sink for member in members):
            raise Refused(FORBIDDEN, f"Channel({consumer.name}) is exclusive, and has a subscriber")
        if queue.mask & EXCLUSIVE and any(member.sink is not sink for member in self.subscribers(queue.stream)):
            raise Refused(FORBIDDEN, f"MQ({queue.topic}) is exclusive, and has a subscriber")

    def subscribers(self, stream: str) -> list[Subscriber]:
        """The subscribers of all channels of a queue."""
        consumers = [consumer for (name, _), consumer in self._all.items() if name == stream]
        return [subscriber for consumer in consumers for subscriber in consumer.subscribers.members]

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        consumer: QueueConsumer = subscriber.consumer
        consumer.unsubscribe(subscriber)
        if not consumer.subscribers.members and consumer.transient and not consumer.users:
            self._close(consumer)

    def released(self, consumer: QueueConsumer) -> None:
        """A take has ended: close the consumer if it must not stay open unused."""
        if not consumer.subscribers.members and consumer.transient and not consumer.users:
            self._close(consumer)

    def sweep(self, now: float) -> None:
        """Close the consumers that have been unused for some seconds."""
        for consumer in list(self._all.values()):
            if (
                not consumer.subscribers.members
                and not consumer.users
                and consumer.used < now - _IDLE
                and consumer.opened.done()
            ):
                self._close(consumer)

    def _close(self, consumer: QueueConsumer) -> None:
        self._forget(consumer)
        task = asyncio.get_running_loop().create_task(consumer.close(), name="busway close consumer")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _forget(self, consumer: QueueConsumer) -> None:
        key = consumer.queue.stream, consumer.name
        if self._all.get(key) is consumer:
            del self._all[key]

    async def close_unused(self, stream: str) -> None:
        """Close the unused consumers of a queue at once."""
        for consumer in [consumer for (name, _), consumer in self._all.items() if name == stream]:
            if not consumer.subscribers.members and not consumer.users:
                self._close(consumer)
        if self._closing:
            await asyncio.wait(list(self._closing))

    async def close(self) -> None:
        """Close all consumers."""
        for consumer in list(self._all.values()):
            self._close(consumer)
        if self._closing:
            await asyncio.wait(self._closing)
