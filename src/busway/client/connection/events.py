"""What happens to a client beside its messages: connected, lost, resumed, missed, ... as an event stream.

Each listener has a bounded queue of its own. A listener that doesn't keep up loses the oldest events and is told how
many by `dropped`.
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

_KEPT: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened; what doesn't apply to its kind is left empty.

    `late`: `count` messages of the channel `topic` were acknowledged, given back or extended too late: they were done already or
    had been redelivered. `overdue`: `count` messages of the channel `topic` are worked on for longer than its `max_processing`, so
    that their leases are not extended any more. `missed`: `count` messages were dropped for the subscription `topic`. `gap`: `count` stored messages that it asked for
    are gone for good. `rejected`: the broker refused `topic` with
    `error`. `servers`: the broker has told who is there now, see Bus.servers. `apart`: this client's server has a link
    again that it had lost to another one, so that `count` subscriptions may have missed what was published there meanwhile. `doubtful`: `count` messages that are to be stored were sent
    again at another server, and the one before could not be asked whether it has stored them; its mirror, if there is one, has not. `error`: a handler raised, or `count` buffered messages grew too old. `resumed`: after `downtime` seconds
    and `attempts` attempts; `unsent` is how many bytes at most had been encoded and not been given to the system when the
    connection was lost, and `count` how many subscriptions without `since` are back, which have missed what was published meanwhile.
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
    """Async iterator over the events from the moment it was made until the bus is closed."""

    def __init__(self) -> None:
        self._queue: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self.dropped = 0

    def put(self, event: Event) -> None:
        if len(self._queue) >= _KEPT:
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
            await asyncio.shield(self._waiter)  # one listener's cancellation is not the others'
        return self._queue.popleft()


class Announcer:
    """Hands every event to all listeners that are still held by somebody."""

    def __init__(self) -> None:
        self._listeners: WeakSet[EventStream] = WeakSet()
        self._over = False

    def listen(self) -> EventStream:
        stream = EventStream()
        if self._over:
            stream.end()
        self._listeners.add(stream)
        return stream

    def tell(self, event: Event) -> None:
        for listener in list(self._listeners):
            listener.put(event)

    def end(self) -> None:
        self._over = True
        for listener in list(self._listeners):
            listener.end()
