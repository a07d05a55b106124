"""The consumers of a channel: how many messages each one can get, and which one is next.

This is a machine without a clock, used by `state.channel`. The consumer with the least messages in flight, relative to
its window, comes first; among equals the one that has waited longest.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

Who: TypeAlias = tuple[int, int]
"""A consumer: its connection, and the number that the connection has given the channel."""


@dataclass(slots=True, eq=False)
class Take:
    """A take: a batch of messages that a consumer requests."""

    consumer: "Consumer"
    number: int
    left: int
    until: float
    """The time at which the take ends even if it is not complete; infinite for one that does not wait."""
    whole: bool = True
    """Whether the take waits until it is complete, and not only until it has at least one message."""
    got: int = 0
    over: bool = False
    alarm: float = inf


@dataclass(slots=True, eq=False)
class Consumer:
    """One consumer of a channel."""

    who: Who
    window: int
    name: str = ""
    """The name of the consumer's client."""
    in_flight: int = 0
    takes: deque[Take] = field(default_factory=deque)
    wanted: int = 0
    """The number of messages that are missing in the consumer's takes."""
    stopped: bool = False
    lease: float = 0.0
    """The lease, in seconds, in the answer to the last renewal; 0: there was none."""
    until: float = 0.0
    """The time to which the last renewal extends the leases of the consumer's messages."""
    room: int = 0
    """The number of messages that the consumer can get now."""
    ticket: int = 0
    """The ticket of the consumer's valid entry in the order; 0: it has none."""


class Consumers:
    """The consumers of one channel. After each change of a consumer the caller has to call rate()."""

    def __init__(self) -> None:
        self._all: dict[Who, Consumer] = {}
        self._order: list[tuple[float, int, Consumer]] = []
        self._tickets = 0
        self._hungry = 0
        self.room = 0
        """The number of messages that all consumers together can get now."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._all.values())

    def get(self, who: Who) -> Consumer | None:
        return self._all.get(who)

    def join(self, who: Who, window: int, name: str = "") -> None:
        """Add a consumer, or change the window of an existing one."""
        consumer = self._all.get(who)
        if consumer is None:
            consumer = self._all[who] = Consumer(who, window, name)
        consumer.window = window
        self.rate(consumer)

    def leave(self, who: Who) -> Consumer | None:
        consumer = self._all.pop(who, None)
        if consumer is not None:
            consumer.stopped = True
            self.rate(consumer)
            for take in consumer.takes:
                take.over = True
        return consumer

    def rate(self, consumer: Consumer) -> None:
        """Update the room of a consumer, and its place in the order."""
        room = 0 if consumer.stopped else max(consumer.wanted, consumer.window - consumer.in_flight, 0)
        old = consumer.room
        if not room:
            consumer.ticket = 0
            if old:
                self.room -= old
                self._hungry -= 1
                consumer.room = 0
            return
        self.room += room - old
        self._hungry += not old
        consumer.room = room
        self._tickets += 1
        consumer.ticket = self._tickets
        load = consumer.in_flight / (consumer.in_flight + room)
        heapq.heappush(self._order, (load, self._tickets, consumer))
        if len(self._order) > 64 + 4 * len(self._all):
            self._order = [entry for entry in self._order if entry[2].ticket == entry[1]]
            heapq.heapify(self._order)

    def next(self, available: int) -> tuple[Consumer, int]:
        """The next consumer, and how many of the available messages it gets.

        That is its share by room, or as many as make it as busy as the second consumer. At least one consumer must have
        room. The caller delivers at least one message, or finds fewer available, and calls rate().
        """
        _, _, consumer = self._first()
        heapq.heappop(self._order)
        if self._hungry == 1:
            return consumer, min(consumer.room, available)
        load = self._first()[0]
        level = int(load * (consumer.in_flight + consumer.room)) - consumer.in_flight
        part = -(-available * consumer.room // self.room)
        return consumer, min(max(part, level), consumer.room, available)

    def _first(self) -> tuple[float, int, Consumer]:
        while self._order[0][1] != self._order[0][2].ticket:
            heapq.heappop(self._order)
        return self._order[0]
