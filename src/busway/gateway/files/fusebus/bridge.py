"""Bridge between the file `fusebus` and the bus: publishes written messages, and receives those of its channels.

`bus_file.py` and `channels_file.py` call it; it uses the ordinary client of the bus. A channel is a subscription
without echo. A message has its serial number and the number of its client in the fields `serno` and `client`. A
driver.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from errno import EINVAL, EIO, ENOSPC
from functools import partial
from types import CoroutineType
from typing import Any, Final

from busway.client.bus import Bus
from busway.client.subscriptions.subscription import Subscription
from busway.errors import BusError, LimitExceeded, Rejected
from busway.gateway.files.config import Mount
from busway.gateway.files.fusebus.exchange import NATIVE, Client, Exchange
from busway.message import Message

log = logging.getLogger("busway.gateway")

_OVERHEAD: Final = 64
"""Bytes that a queued message needs besides its payload."""
_GATHER: Final = 0.001
"""Seconds for which messages of fast writers are gathered into one batch."""
_FAST: Final = 10
"""Messages within that time above which a writer counts as fast. Fewer messages are published at once, one by one."""
_KINDS: Final = frozenset({"publish", "post", "pin"})
"""Kinds of messages that all subscribers get; a push or a request has one receiver."""


class Bridge:
    """The connection of one mount's `fusebus` to the bus."""

    def __init__(self, bus: Bus, exchange: Exchange, settings: Mount) -> None:
        self._bus = bus
        self._exchange = exchange
        self._settings = settings
        self._subscriptions: dict[str, asyncio.Task[Subscription]] = {}
        self._registering: Counter[str] = Counter()
        """Number of registrations in progress, by name of the new channel."""
        self._early: dict[str, deque[Message]] = {}
        """Messages received for channels whose registration is in progress."""
        self._early_bytes = 0
        self._closing: dict[str, asyncio.Task[None]] = {}
        """Subscriptions that are closing, by channel."""
        self._queue: deque[tuple[str, bytes, dict[str, int], Coroutine[Any, Any, None] | None]] = deque()
        """Queued messages: topic, payload, fields, and the publish if it has begun and waits for the bus."""
        self._bytes = 0
        self._clock = asyncio.get_running_loop().time
        self._window_start = 0.0
        self._window_count = 0
        """Messages since the beginning of the window."""
        self._fast = False
        self._queued = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._writers: list[asyncio.Future[None]] = []
        self.on_messages: Callable[[Collection[Client]], None] = lambda _clients: None
        """Called with the waiting clients that have got a message of the bus."""
        self.too_long = 0
        """Messages of the bus that were too long for the file."""
        self.unpublished = 0
        """Written messages that could not be published."""

    def start(self) -> None:
        """Start the task that publishes queued messages."""
        self._sender = asyncio.get_running_loop().create_task(self._send(), name="busway mount sends")

    async def close(self) -> None:
        """Publish the queued messages, and end."""
        if self._sender is not None:
            with suppress(OSError):  # without a connection the queued messages are lost
                await self.room(empty=True)
            self._sender.cancel()
            await asyncio.wait([self._sender])
            for *_, publishing in self._queue:
                if publishing is not None:
                    publishing.close()
        for task in self._subscriptions.values():
            task.cancel()

    def check(self) -> bool:
        """Whether the queue has room for a message. Raises OSError without a connection to the bus."""
        if self._bus.state != "connected":
            raise OSError(EIO, "not connected to the bus")
        return self._bytes <= self._settings.unsent

    # To the bus.

    @property
    def full(self) -> bool:
        """Whether the queue is full."""
        return self._bytes > self._settings.unsent

    async def room(self, *, empty: bool = False) -> None:
        """Wait until the queue has room, or is `empty`. Raises OSError without a connection to the bus."""
        while self.full or (empty and self._queue):
            self.check()
            future = asyncio.get_running_loop().create_future()
            self._writers.append(future)
            await future

    def publish(self, topic: str, payload: bytes, serno: int, client: int) -> None:
        """Publish in order: now, or in one batch with the messages of the next millisecond."""
        fields = {"serno": serno, "client": client}
        now = self._clock()
        if (elapsed := now - self._window_start) >= _GATHER:
            self._fast = self._window_count > _FAST and elapsed < 3 * _GATHER
            self._window_start, self._window_count = now, 0
        self._window_count += 1
        publishing = None
        if not self._fast and not self._queue:
            publishing = self._publish_now(topic, payload, fields)
            if publishing is None:
                return
        self._queue.append((topic, payload, fields, publishing))
        self._bytes += len(payload) + _OVERHEAD
        self._queued.set()

    def _publish_now(self, topic: str, payload: bytes, fields: dict[str, int]) -> Coroutine[Any, Any, None] | None:
        """Publish; returns a coroutine if the publish must wait, else None."""
        try:
            publishing = self._bus.publish(topic, payload, fields=fields)
        except BusError as error:
            self._failed(topic, error)
            return None
        return publishing if isinstance(publishing, CoroutineType) else None  # any other awaitable is done already

    def _failed(self, topic: str, error: BusError) -> None:
        self.unpublished += 1
        log.warning("can't publish a message on %r: %s", topic, error)

    async def _send(self) -> None:
        queue, queued = self._queue, self._queued
        while True:
            await queued.wait()
            if self._fast:
                await asyncio.sleep(_GATHER)
            queued.clear()
            while queue:
                topic, payload, fields, publishing = queue[0]
                if publishing is None:
                    publishing = self._publish_now(topic, payload, fields)
                if publishing is not None:
                    try:
                        await publishing
                    except BusError as error:
                        self._failed(topic, error)
                queue.popleft()
                self._bytes -= len(payload) + _OVERHEAD
                if self._writers and not self.full:
                    self._wake_writers()
            if self._writers:
                self._wake_writers()

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for future in writers:
            if not future.done():
                future.set_result(None)

    # From the bus.

    async def follow(self, names: Sequence[str]) -> None:
        """Subscribe to channels that are about to be registered. The caller must call registered() or unfollow() next.

        Raises OSError if the bus refuses a subscription.
        """
        self._registering.update(names)
        tasks = []
        for name in names:
            task = self._subscriptions.get(name)
            if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
                task = self._subscriptions[name] = asyncio.get_running_loop().create_task(
                    self._subscribe(name), name=f"busway channel {name}"
                )
            tasks.append(task)
        await asyncio.wait(tasks)
        for task in tasks:
            if (error := task.exception()) is not None:
                raise _os_error(error) from error

    def registered(self, names: Sequence[str]) -> None:
        """These names are registered channels now: deliver the messages received before."""
        for name in names:
            self._registering.pop(name, None)
            for message in self._forget(name):
                self._received(message)

    def unfollow(self, names: Sequence[str]) -> None:
        """The registration of these names has failed: unsubscribe, unless another registration is in progress."""
        for name in names:
            if name in self._registering:
                self._registering[name] -= 1
                if not self._registering[name]:
                    del self._registering[name]
                    self._forget(name)
                    # The subscription may not have started yet: it is closed as soon as it has.
                    self._subscriptions[name].add_done_callback(partial(self._unfollow, name))

    def _unfollow(self, name: str, task: "asyncio.Task[Subscription]") -> None:
        if name in self._registering or self._exchange.registry.number(name) is not None:
            return  # another registration has begun since
        if self._subscriptions.get(name) is not task:
            return
        del self._subscriptions[name]
        if not task.cancelled() and task.exception() is None:
            closing = asyncio.get_running_loop().create_task(task.result().close())
            self._closing[name] = closing
            closing.add_done_callback(lambda _: self._closing.pop(name))

    def _forget(self, name: str) -> Collection[Message]:
        early = self._early.pop(name, None)
        if early is None:
            return ()
        self._early_bytes -= sum(len(message.payload) for message in early)
        return early

    def _buffer(self, message: Message) -> None:
        """Buffer a message for a channel whose registration is in progress, within the limits of the file."""
        if message.topic not in self._registering:
            return
        early = self._early.setdefault(message.topic, deque())
        early.append(message)
        self._early_bytes += len(message.payload)
        while early and (len(early) > self._settings.messages or self._early_bytes > self._settings.bytes):
            self._early_bytes -= len(early.popleft().payload)

    async def _subscribe(self, name: str) -> Subscription:
        if (closing := self._closing.get(name)) is not None:
            await asyncio.wait([closing])  # two subscriptions would receive each message twice
        return await self._bus.subscribe("/" + name, echo=False, listen=True, handler=self._received).start()

    def _received(self, message: Message) -> None:
        if message.kind not in _KINDS:
            return
        channel = self._exchange.registry.number(message.topic)
        payload = message.payload
        if len(payload) > self._settings.max_message:
            self.too_long += 1
            log.warning(
                "a message of %d bytes on %r is dropped: it is too long for the file fusebus (setting max_message)",
                len(payload),
                message.topic,
            )
            return
        if channel is None:
            self._buffer(message)
            return
        _, clients = self._exchange.publish(channel, native(message), payload)
        if clients:
            self.on_messages(clients)


def native(message: Message) -> int:
    """The client number of a native publisher, made from its session so that all its messages have the same number."""
    return NATIVE | int(message.id[:16], 16)


def _os_error(error: BaseException) -> OSError:
    match error:
        case LimitExceeded():
            return OSError(ENOSPC, str(error))
        case Rejected():
            return OSError(EINVAL, str(error))
        case _:
            return OSError(EIO, str(error))
