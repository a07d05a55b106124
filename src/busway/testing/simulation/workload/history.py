"""What the programs of a world did and saw: values only. What of it is wrong is told by `checks`."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

LEASE: Final = 20.0
"""Seconds that a consumer of the channel has for a message."""

Key = tuple[str, int]
"""Who published it, and as the how manyeth."""


class Handed(NamedTuple):
    """A message that a consumer of the channel got."""

    when: float
    consumer: str
    key: Key
    since: float
    """When the connection was made over which it came, at the latest."""


@dataclass(slots=True)
class Said:
    """What a program has posted or pinned: what was confirmed last, and what it tried to say last."""

    confirmed: int = -1
    tried: int = -1
    absent: set[int] = field(default_factory=set)
    """The times when it took back what was there."""


@dataclass(slots=True)
class History:
    """One for all programs of a world."""

    sent: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Durable messages that were begun to be published, by publisher."""
    stored: dict[Key, tuple[str, int]] = field(default_factory=dict)
    """Of those the acknowledged ones: the guid of the broker, and the offset."""
    read: dict[str, list[Key]] = field(default_factory=lambda: defaultdict(list))
    """Stored messages as each subscriber got them."""
    handed: list[Handed] = field(default_factory=list)
    done: dict[Key, tuple[float, str]] = field(default_factory=dict)
    """Messages whose acknowledgement was confirmed: when, and by whom."""
    live: dict[str, list[Key]] = field(default_factory=lambda: defaultdict(list))
    history: dict[str, list[tuple[str, int, Key]]] = field(default_factory=lambda: defaultdict(list))
    """Stored messages of all nodes as each subscriber got them, with the guids of the nodes and their offsets."""
    scoped: dict[Key, str] = field(default_factory=dict)
    """Live messages that are for some only."""
    followed: dict[str, list[Key]] = field(default_factory=lambda: defaultdict(list))
    """Durable messages as subscribers got them that asked for none of before."""
    shared: list[tuple[str, Key]] = field(default_factory=list)
    """By members of the group."""
    taken: list[tuple[str, Key]] = field(default_factory=list)
    """Pushes, by who took them."""
    pushed: set[Key] = field(default_factory=set)
    """Pushes that were accepted."""
    posts: dict[str, Said] = field(default_factory=lambda: defaultdict(Said))
    pins: dict[str, Said] = field(default_factory=lambda: defaultdict(Said))
    known: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """What each subscriber of posts and pins believes to be kept, by topic: the last it got, unless it was told of its end."""
    doubtful: set[str] = field(default_factory=set)
    """Programs that were told that another node may have stored what they publish again."""
    replies: int = 0
    resumed: int = 0
    problems: list[str] = field(default_factory=list)

    def messages(self) -> int:
        """About how much went on."""
        seen = sum(len(keys) for kind in (self.read, self.live, self.followed) for keys in kind.values())
        seen += sum(map(len, self.history.values()))
        return seen + len(self.handed) + len(self.shared) + len(self.taken) + self.replies


def payload(key: Key) -> str:
    return f"{key[0]}:{key[1]}"


def key_of(text: str) -> Key:
    name, _, number = text.rpartition(":")
    return name, int(number)
