"""Between the file `fusebus` and the bus: what is written goes out, what others publish on its channels comes in. A driver.

It stands on the ordinary client. A channel is a subscription without echo; a message carries its serial number and its
client's number in the fields `serno` and `client`.
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
"""Bytes that a message takes beside its payload."""
_GATHER: Final = 0.001
"""Seconds for which what is written fast is gathered, to go out together."""
_FAST: Final = 10
"""Messages in such a time that are fast; fewer go out at once, each by itself."""
_KINDS: Final = frozenset({"publish", "post", "pin"})
"""What is for everybody; a push or a request is for one."""


class Bridge:
    """One mount's way to the bus."""

    def __init__(self, bus: Bus, exchange: Exchange, settings: Mount) -> None:
        self._bus = bus
        self._exchange = exchange
        self._settings = settings
        self._following: dict[str, asyncio.Task[Subscription]] = {}
        self._wanted: Counter[str] = Counter()
        """How many want to register a channel that is none yet."""
        self._early: dict[str, deque[Message]] = {}
        """What came for channels that are about to be registered."""
        self._early_bytes = 0
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Subscriptions that end, by channel."""
        self._waiting: deque[tuple[str, bytes, dict[str, int], Coroutine[Any, Any, None] | None]] = deque()
        """What goes out next: topic, payload and fields; and a publish that has begun, and waits for the bus."""
        self._bytes = 0
        self._clock = asyncio.get_running_loop().time
        self._since = 0.0
        self._count = 0
        """Messages since then."""
        self._fast = False
        self._more = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._writers: list[asyncio.Future[None]] = []
        self.came: Callable[[Collection[Client]], None] = lambda _clients: None
        """Called with those that wait for a message of the bus."""
        self.too_long = 0
        """Messages of the bus that were longer than the file may give."""
        self.unpublished = 0
        """Messages that were written and could not be published to the bus."""

    def start(self) -> None:
        self._sender = asyncio.get_running_loop().create_task(self._send(), name="busway mount sends")

    async def close(self) -> None:
        """Publish what waits, and end."""
        if self._sender is not None:
            with suppress(OSError):  # the bus is gone, and so is what waits for it
                await self.room(empty=True)
            self._sender.cancel()
            await asyncio.wait([self._sender])
            for *_, begun in self._waiting:
                if begun is not None:
                    begun.close()
        for task in self._following.values():
            task.cancel()

    def check(self) -> bool:
        """Whether there is room for a message. OSError: there is no bus at the moment."""
        if self._bus.state != "connected":
            raise OSError(EIO, "there is no connection to the bus")
        return self._bytes <= self._settings.unsent

    # To the bus.

    @property
    def full(self) -> bool:
        return self._bytes > self._settings.unsent

    async def room(self, *, empty: bool = False) -> None:
        """Return when there is some. OSError: the bus is gone."""
        while self.full or (empty and self._waiting):
            self.check()
            future = asyncio.get_running_loop().create_future()
            self._writers.append(future)
            await future

    def publish(self, topic: str, payload: bytes, serno: int, client: int) -> None:
        """Publish after all that was given before: now, or together with what is written within the next millisecond."""
        fields = {"serno": serno, "client": client}
        now = self._clock()
        if (passed := now - self._since) >= _GATHER:
            self._fast = self._count > _FAST and passed < 3 * _GATHER
            self._since, self._count = now, 0
        self._count += 1
        begun = None
        if not self._fast and not self._waiting:
            begun = self._begin(topic, payload, fields)
            if begun is None:
                return
        self._waiting.append((topic, payload, fields, begun))
        self._bytes += len(payload) + _OVERHEAD
        self._more.set()

    def _begin(self, topic: str, payload: bytes, fields: dict[str, int]) -> Coroutine[Any, Any, None] | None:
        """Publish, if that can be done at once; what is left to wait for."""
        try:
            coming = self._bus.publish(topic, payload, fields=fields)
        except BusError as error:
            self._failed(topic, error)
            return None
        return (
            coming if isinstance(coming, CoroutineType) else None
        )  # else it has gone out, and there is nothing to wait for

    def _failed(self, topic: str, error: BusError) -> None:
        self.unpublished += 1
        log.warning("a message on %r was not published: %s", topic, error)

    async def _send(self) -> None:
        waiting, more = self._waiting, self._more
        while True:
            await more.wait()
            if self._fast:
                await asyncio.sleep(_GATHER)
            more.clear()
            while waiting:
                topic, payload, fields, begun = waiting[0]
                if begun is None:
                    begun = self._begin(topic, payload, fields)
                if begun is not None:
                    try:
                        await begun
                    except BusError as error:
                        self._failed(topic, error)
                waiting.popleft()
                self._bytes -= len(payload) + _OVERHEAD
                if self._writers and not self.full:
                    self._let_write()
            if self._writers:
                self._let_write()

    def _let_write(self) -> None:
        writers, self._writers = self._writers, []
        for future in writers:
            if not future.done():
                future.set_result(None)

    # From the bus.

    async def follow(self, names: Sequence[str]) -> None:
        """Have what is published on these come in, until registered() or leave(), one of which is due. OSError: it can't be."""
        self._wanted.update(names)
        tasks = []
        for name in names:
            task = self._following.get(name)
            if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
                task = self._following[name] = asyncio.get_running_loop().create_task(
                    self._subscribe(name), name=f"busway channel {name}"
                )
            tasks.append(task)
        await asyncio.wait(tasks)
        for task in tasks:
            if (error := task.exception()) is not None:
                raise _told(error) from error

    def registered(self, names: Sequence[str]) -> None:
        """These are channels now."""
        for name in names:
            self._wanted.pop(name, None)
            for message in self._forget(name):
                self._came(message)

    def leave(self, names: Sequence[str]) -> None:
        """These were not registered after all; what nobody else is about to register comes in no longer."""
        for name in names:
            if name in self._wanted:
                self._wanted[name] -= 1
                if not self._wanted[name]:
                    del self._wanted[name]
                    self._forget(name)
                    # The broker may not have answered yet: it is told as soon as it has.
                    self._following[name].add_done_callback(partial(self._unwanted, name))

    def _unwanted(self, name: str, task: "asyncio.Task[Subscription]") -> None:
        if name in self._wanted or self._exchange.registry.number(name) is not None:
            return  # somebody has come back to it
        if self._following.get(name) is not task:
            return
        del self._following[name]
        if not task.cancelled() and task.exception() is None:
            leaving = asyncio.get_running_loop().create_task(task.result().close())
            self._leaving[name] = leaving
            leaving.add_done_callback(lambda _: self._leaving.pop(name))

    def _forget(self, name: str) -> Collection[Message]:
        early = self._early.pop(name, None)
        if early is None:
            return ()
        self._early_bytes -= sum(len(message.payload) for message in early)
        return early

    def _keep(self, message: Message) -> None:
        """It came for a channel that is about to be registered. As much is kept as the file would keep."""
        if message.topic not in self._wanted:
            return
        early = self._early.setdefault(message.topic, deque())
        early.append(message)
        self._early_bytes += len(message.payload)
        while early and (len(early) > self._settings.messages or self._early_bytes > self._settings.bytes):
            self._early_bytes -= len(early.popleft().payload)

    async def _subscribe(self, name: str) -> Subscription:
        if (leaving := self._leaving.get(name)) is not None:
            await asyncio.wait([leaving])  # else what comes would come twice
        return await self._bus.subscribe("/" + name, echo=False, listen=True, handler=self._came).start()

    def _came(self, message: Message) -> None:
        if message.kind not in _KINDS:
            return
        channel = self._exchange.registry.number(message.topic)
        payload = message.payload
        if len(payload) > self._settings.max_message:
            self.too_long += 1
            log.warning(
                "a message of %d bytes on %r is too long for the file fusebus (setting max_message)",
                len(payload),
                message.topic,
            )
            return
        if channel is None:
            self._keep(message)
            return
        _, waiting = self._exchange.publish(channel, native(message), payload)
        if waiting:
            self.came(waiting)


def native(message: Message) -> int:
    """The number of a publisher of the bus: made of its session, so that it is the same for all its messages."""
    return NATIVE | int(message.id[:16], 16)


def _told(error: BaseException) -> OSError:
    match error:
        case LimitExceeded():
            return OSError(ENOSPC, str(error))
        case Rejected():
            return OSError(EINVAL, str(error))
        case _:
            return OSError(EIO, str(error))
