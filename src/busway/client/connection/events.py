"""Events of a client beside its messages (connected, lost, resumed, missed, ...) and the streams that listeners read.

The other modules of the client emit events; Bus.events() returns a stream of them. Each listener has its own bounded
queue. A slow listener loses the oldest events, and its counter `dropped` tells how many.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias
from weakref import WeakSet

EventKind: TypeAlias = Literal[
    "connected",
    "lost",
    "resumed",
    "closed",
    "missed",
    "gap",
    "rejected",
    "servers",
    "apart",
    "doubtful",
    "error",
    "late",
    "overdue",
]

_MAX_QUEUED: Final = 1024
"""Most events in the queue of one listener."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. Attributes that do not apply to its kind are empty.

    - `apart`: the server regained a link to another node; `count` subscriptions may have missed messages from there.
    - `doubtful`: `count` durable messages were sent again to another server. The previous server could not be asked
      whether it has stored them; its mirror, if there is one, has not.
    - `error`: a handler raised, or `count` buffered messages expired.
    - `gap`: the stream no longer has `count` messages that the subscription, channel or read `topic` asked for.
    - `late`: `count` messages of the channel `topic` were acknowledged, given back or extended too late; they were
      already acknowledged or redelivered.
    - `lost`: the connection was lost; at most `unsent` encoded bytes had not been passed to the operating system.
    - `missed`: `count` messages were dropped for the subscription `topic`.
    - `overdue`: `count` messages of the channel `topic` are in work for longer than its `max_processing`, so their
      leases are no longer extended.
    - `rejected`: the broker refused `topic` with `error`.
    - `resumed`: connected again after `downtime` seconds and `attempts` attempts, with `unsent` as for `lost`; `count`
      subscriptions without `since` missed the messages of that time.
    - `servers`: the broker sent a new list of servers, see Bus.servers.
    """

    kind: EventKind
    url: str = ""
    topic: str = ""
    error: BaseException | None = None
    count: int = 0
    downtime: float = 0.0
    attempts: int = 0
    unsent: int = 0


class EventStream:
    """Async iterator over the events from its creation until the bus is closed."""

    def __init__(self) -> None:
        self._queue: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self.dropped = 0

    def put(self, event: Event) -> None:
        if len(self._queue) >= _MAX_QUEUED:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(event)
        self._wake()

    def end(self) -> None:
        self._over = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._queue:
            if self._over:
                raise StopAsyncIteration
            if self._waiter is None or self._waiter.done():
                self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)  # a cancelled task must not cancel the others that wait here
        return self._queue.popleft()


class EventDispatcher:
    """Delivers every event to all listeners that the program still refers to."""

    def __init__(self) -> None:
        self._listeners: WeakSet[EventStream] = WeakSet()
        self._over = False

    def listen(self) -> EventStream:
        stream = EventStream()
        if self._over:
            stream.end()
        self._listeners.add(stream)
        return stream

    def emit(self, event: Event) -> None:
        for listener in list(self._listeners):
            listener.put(event)

    def end(self) -> None:
        self._over = True
        for listener in list(self._listeners):
            listener.end()
