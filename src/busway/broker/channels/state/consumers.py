"""Who consumes a channel: how much each one may still be given, and who is next.

A machine for `channels`, without a clock. The one with the least in flight, measured by its window, comes first; among
equals the one who has waited longest.
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
    """A batch that a consumer asked for."""

    consumer: "Consumer"
    number: int
    left: int
    until: float
    """When it ends even if it is not complete; infinite for one that takes only what is there."""
    whole: bool = True
    """Whether it waits until it is complete, rather than for something."""
    got: int = 0
    over: bool = False
    alarm: float = inf


@dataclass(slots=True, eq=False)
class Consumer:
    """One consumer of a channel."""

    who: Who
    window: int
    name: str = ""
    """As its client calls itself."""
    in_flight: int = 0
    takes: deque[Take] = field(default_factory=deque)
    wanted: int = 0
    """What is left of its takes."""
    stopped: bool = False
    lease: float = 0.0
    """Seconds of the lease that its last renewal was answered with; 0: it has not renewed any."""
    until: float = 0.0
    """Until when its last renewal extends the leases of its messages."""
    room: int = 0
    """How many it may be given now."""
    ticket: int = 0
    """Its valid place in the order of who is next; 0: none."""


class Consumers:
    """The consumers of one channel. Whoever changes one of them calls rate() for it afterwards."""

    def __init__(self) -> None:
        self._all: dict[Who, Consumer] = {}
        self._order: list[tuple[float, int, Consumer]] = []
        self._tickets = 0
        self._hungry = 0
        self.room = 0
        """How many can be handed out now, to all of them."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._all.values())

    def get(self, who: Who) -> Consumer | None:
        return self._all.get(who)

    def join(self, who: Who, window: int, name: str = "") -> None:
        """One more, or another window for one that is there."""
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
        """Find out anew how much it may be given, and whose turn it is before and after."""
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
            self._order = [one for one in self._order if one[2].ticket == one[1]]
            heapq.heapify(self._order)

    def next(self, available: int) -> tuple[Consumer, int]:
        """Who gets something now and how many of these: its part by room, or as many as make it as busy as the second.

        There is somebody with room. The caller hands at least one out, or finds that fewer are available, and rates it.
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
