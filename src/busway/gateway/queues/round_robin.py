"""Round robin over the subscribers of a channel: chooses the one that gets the next message.

`consumers.py` asks it for each message. It passes over subscribers without credit and those whose filter does not
match. A machine, without a socket or a clock.
"""

from typing import Any, Final, Protocol

from busway.gateway.queues.filters import TagPredicate

BATCH: Final = 512
"""Messages that a subscriber without a window may be given at once."""


class Sink(Protocol):
    """The session that gets the messages of a subscriber."""

    full: bool
    """The session accepts no more messages for now."""


class Subscriber:
    """One subscriber of a channel: its session, its credit and its filter."""

    __slots__ = ("channel", "consumer", "credit", "filter", "form", "mq", "prefix", "sink", "takes")

    def __init__(
        self,
        sink: Any,
        form: int,
        mq: str,
        channel: str,
        credit: int | None,
        text: str | None,
        takes: TagPredicate | None,
        *,
        prefix: bytes = b"",
    ) -> None:
        self.sink = sink
        self.form = form
        self.mq = mq
        """Name of the queue as the client wrote it."""
        self.channel = channel
        """Name of the channel as the client wrote it."""
        self.credit = credit
        """Messages that the subscriber may still be given; None: any number."""
        self.filter = text
        self.takes = takes
        self.consumer: Any = None
        """The QueueConsumer that the subscriber belongs to."""
        self.prefix = prefix
        """Beginning of the JSON of each of its messages."""

    @property
    def room(self) -> int:
        """Messages that the subscriber may be given now."""
        if self.sink.full:
            return 0
        return BATCH if self.credit is None else self.credit


class RoundRobin:
    """The subscribers of one channel, in the order in which they get messages."""

    __slots__ = ("_next", "filtered", "members", "simple")

    def __init__(self) -> None:
        self.members: list[Subscriber] = []
        self.filtered = False
        """Whether a subscriber has a filter, so that messages need their tag."""
        self.simple = True
        """Whether no subscriber has credit or a filter."""
        self._next = 0

    def add(self, subscriber: Subscriber) -> None:
        """Append a subscriber."""
        self.members.append(subscriber)
        self.changed()

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber; does nothing if it is not a member."""
        if subscriber not in self.members:
            return
        index = self.members.index(subscriber)
        self.members.pop(index)
        if index < self._next:
            self._next -= 1
        self.changed()

    def changed(self) -> None:
        """The filter or the credit of a subscriber may have changed."""
        self.filtered = any(member.takes is not None for member in self.members)
        self.simple = not any(member.takes is not None or member.credit is not None for member in self.members)

    def room(self, most: int) -> int:
        """Messages that all subscribers together may be given now, at most `most`."""
        found = 0
        for member in self.members:
            found += member.room
            if found >= most:
                return most
        return found

    def choose(self, tag: object) -> Subscriber | None:
        """The subscriber for a message with this tag, whose credit counts down. None: no subscriber accepts it now."""
        members, count = self.members, len(self.members)
        for step in range(count):
            index = self._next + step
            if index >= count:
                index -= count
            member = members[index]
            if member.credit == 0 or member.sink.full or (member.takes is not None and not member.takes(tag)):
                continue
            self._next = index + 1 if index + 1 < count else 0
            if member.credit is not None:
                member.credit -= 1
            return member
        return None

    def deal(self, count: int) -> list[Subscriber] | None:
        """A subscriber for each of `count` messages. None: choose() must decide for each message.

        That is so if a subscriber has credit or a filter, or if the sessions of all subscribers are full.
        """
        if not self.simple:
            return None
        members = self.members[self._next :] + self.members[: self._next]
        ready = [member for member in members if not member.sink.full]
        if not ready:
            return None
        whole, rest = divmod(count, len(ready))
        if rest or whole:
            last = ready[rest - 1]
            self._next = (self.members.index(last) + 1) % len(self.members)
        return ready * whole + ready[:rest]

    def matches(self, tag: object) -> bool:
        """Whether the filter of a subscriber matches the tag; the subscriber may have no credit now."""
        return any(member.takes is None or member.takes(tag) for member in self.members)
