"""The history of a run: what programs of a world sent and received. Programs record it; the checker evaluates it."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

LEASE: Final = 20.0
"""Seconds that a consumer of the channel has for a message."""

Key = tuple[str, int]
"""A message: its publisher, and its number among the messages of that publisher."""


class Delivery(NamedTuple):
    """A delivery of a message to a consumer of the channel."""

    when: float
    consumer: str
    key: Key
    since: float
    """The latest time at which the consumer's connection was opened."""


@dataclass(slots=True)
class RetainedState:
    """The retained message of a program: the last confirmed number, and the last one that it tried to send."""

    confirmed: int = -1
    tried: int = -1
    absent: set[int] = field(default_factory=set)
    """The numbers of withdrawals."""


@dataclass(slots=True)
class History:
    """The history of all programs of a world."""

    sent: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Durable messages that programs tried to publish, by publisher."""
    stored: dict[Key, tuple[str, int]] = field(default_factory=dict)
    """Acknowledged durable messages: the guid of the broker, and the offset."""
    read: dict[str, list[Key]] = field(default_factory=lambda: defaultdict(list))
    """Stored messages in the order in which each subscriber received them."""
    delivered: list[Delivery] = field(default_factory=list)
    done: dict[Key, tuple[float, str]] = field(default_factory=dict)
    """Confirmed acknowledgements: the time, and the consumer."""
    live: dict[str, list[Key]] = field(default_factory=lambda: defaultdict(list))
    history: dict[str, list[tuple[str, int, Key]]] = field(default_factory=lambda: defaultdict(list))
    """Stored messages of all nodes as each subscriber received them, with the guid of the node and the offset."""
    scoped: dict[Key, str] = field(default_factory=dict)
    """Live messages with a scope."""
    followed: dict[str, list[Key]] = field(default_factory=lambda: defaultdict(list))
    """Durable messages as subscribers without `since` received them."""
    shared: list[tuple[str, Key]] = field(default_factory=list)
    """Messages to the group, with the member that received each."""
    taken: list[tuple[str, Key]] = field(default_factory=list)
    """Pushes, with the program that received each."""
    pushed: set[Key] = field(default_factory=set)
    """Pushes that were accepted."""
    posts: dict[str, RetainedState] = field(default_factory=lambda: defaultdict(RetainedState))
    pins: dict[str, RetainedState] = field(default_factory=lambda: defaultdict(RetainedState))
    known: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """Retained messages as each watching subscriber knows them, by topic: the last one received and not withdrawn."""
    doubtful: set[str] = field(default_factory=set)
    """Programs that got the event `doubtful`: another node may have stored a message that they resend."""
    replies: int = 0
    resumed: int = 0
    problems: list[str] = field(default_factory=list)

    def messages(self) -> int:
        """Return the number of received messages."""
        seen = sum(len(keys) for kind in (self.read, self.live, self.followed) for keys in kind.values())
        seen += sum(map(len, self.history.values()))
        return seen + len(self.delivered) + len(self.shared) + len(self.taken) + self.replies


def payload(key: Key) -> str:
    return f"{key[0]}:{key[1]}"


def key_of(text: str) -> Key:
    name, _, number = text.rpartition(":")
    return name, int(number)
