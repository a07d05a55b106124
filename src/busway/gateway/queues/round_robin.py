"""Who of the subscribers of a channel gets the next message: each in turn, if it has credit and its filter takes it.

A machine, without a socket or a clock.
"""

from typing import Any, Final, Protocol

from busway.gateway.http.fast_publish import begin
from busway.gateway.queues.filters import Takes

BATCH: Final = 512
"""What a subscriber without a window may be given at once."""


class Sink(Protocol):
    """Where the messages of a subscriber go."""

    full: bool
    """It takes nothing for now."""


class Subscriber:
    """One subscriber of a channel."""

    __slots__ = ("begin", "channel", "credit", "filter", "form", "mq", "sink", "takes", "tap")

    def __init__(
        self, sink: Any, form: int, mq: str, channel: str, credit: int | None, text: str | None, takes: Takes | None
    ) -> None:
        self.sink = sink
        self.form = form
        self.mq = mq
        """The queue and the channel, as it calls them."""
        self.channel = channel
        self.credit = credit
        """How many more it may be given; None: any number."""
        self.filter = text
        self.takes = takes
        self.tap: Any = None
        self.begin = begin(mq, channel)

    @property
    def room(self) -> int:
        """How many it may be given now."""
        if self.sink.full:
            return 0
        return BATCH if self.credit is None else self.credit


class RoundRobin:
    """The subscribers of one channel, in turn."""

    __slots__ = ("_next", "filtered", "members", "simple")

    def __init__(self) -> None:
        self.members: list[Subscriber] = []
        self.filtered = False
        """Whether the tag of a message has to be looked at."""
        self.simple = True
        """Whether nobody has credit or a filter."""
        self._next = 0

    def add(self, one: Subscriber) -> None:
        self.members.append(one)
        self.changed()

    def remove(self, one: Subscriber) -> None:
        if one not in self.members:
            return
        place = self.members.index(one)
        self.members.pop(place)
        if place < self._next:
            self._next -= 1
        self.changed()

    def changed(self) -> None:
        """A filter or a credit may be another one."""
        self.filtered = any(one.takes is not None for one in self.members)
        self.simple = not any(one.takes is not None or one.credit is not None for one in self.members)

    def room(self, most: int) -> int:
        """How many messages may be handed out now, to all of them."""
        found = 0
        for one in self.members:
            found += one.room
            if found >= most:
                return most
        return found

    def choose(self, tag: object) -> Subscriber | None:
        """Who gets a message with this tag; its credit counts down. None: nobody can take it now."""
        members, count = self.members, len(self.members)
        for step in range(count):
            place = self._next + step
            if place >= count:
                place -= count
            one = members[place]
            if one.credit == 0 or one.sink.full or (one.takes is not None and not one.takes(tag)):
                continue
            self._next = place + 1 if place + 1 < count else 0
            if one.credit is not None:
                one.credit -= 1
            return one
        return None

    def deal(self, count: int) -> list[Subscriber] | None:
        """Who gets each of so many messages, if none of them has credit or a filter and one takes something. None: choose() each."""
        if not self.simple:
            return None
        members = self.members[self._next :] + self.members[: self._next]
        ready = [one for one in members if not one.sink.full]
        if not ready:
            return None
        whole, rest = divmod(count, len(ready))
        if rest or whole:
            last = ready[rest - 1]
            self._next = (self.members.index(last) + 1) % len(self.members)
        return ready * whole + ready[:rest]

    def wanted(self, tag: object) -> bool:
        """Whether somebody's filter takes it, who may have no credit now."""
        return any(one.takes is None or one.takes(tag) for one in self.members)
