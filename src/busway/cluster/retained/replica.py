"""The rules for retained messages in a cluster: posts belong to the node of their client, pins to all nodes.

`driver` calls this module for each local change and each message of another node. Pins are a replicated map. Posts of a
lost node are removed after the grace period, like those of a lost client. Without input or output.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from busway.broker.flags import FIELDS, PIN, POST
from busway.broker.retained.store import Key, RetainedMessage, Version
from busway.cluster.links.calls import Call
from busway.cluster.protocol import KEPT
from busway.cluster.replicated_map import ReplicatedMap

MOST: Final = 1_048_576
"""Posts accepted from one node."""
REMOVED: Final = 65_536
"""Removed pins that are remembered at most. Their time is that of a client's clock, so it does not count."""
_HEAD: Final = 16
"""Bytes of the shortest body."""


class Put(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A message is retained."""

    session: int
    name: str
    flags: int
    topic: str
    body: bytes
    served: tuple[str, ...] = ()
    """Groups of which a member has received the message."""
    added: dict[str, Any] = {}
    """The address fields of the server that received the message."""
    since: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        if len(self.body) < _HEAD or self.flags & ~(POST | PIN | FIELDS) or not 0 < self.session < 1 << 64:
            raise ValueError("invalid retained message")
        if bool(self.flags & POST) == bool(self.flags & PIN):
            raise ValueError("a retained message must be either a post or a pin")

    def kept(self, client: int) -> RetainedMessage:
        """The retained message, with this number for its sender. Raises ValueError and others if it is invalid."""
        kept = RetainedMessage(
            client, self.session, self.name, self.flags, self.topic, self.body, self.served, since=self.since
        )
        kept.dress(self.added)
        return kept


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A message is not retained any more. For a pin `version` is that of its removal."""

    owner: int | str
    topic: str
    fields: bytes
    version: Version

    removed = True

    @property
    def key(self) -> Key:
        return self.owner, self.topic, self.fields


class All(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The node has sent all its retained messages."""


class Sum(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The checksum of all pins of the node. A node with another checksum sends all its pins.

    Pins can differ after a lost node reached some nodes only. The checksum that follows as an answer covers pins that
    the answering node lacks.
    """

    pins: int
    answer: bool = False


Word: TypeAlias = Put | Drop | All | Sum
WORDS: Final = Call[list[Word], None](KEPT, "list of retained messages", list[Word])


def put(kept: RetainedMessage) -> Put:
    """The message that announces a retained message to other nodes."""
    return Put(kept.session, kept.name, kept.flags, kept.topic, kept.body, kept.served, kept.added, kept.since)


def word_of(entry: RetainedMessage | Drop) -> Word:
    """The message that announces a pin or its removal."""
    return entry if isinstance(entry, Drop) else put(entry)


class RetainedReplica:
    """The pins of the cluster, and the nodes of each post."""

    def __init__(self, grace: float, forgot: Callable[[Key], object] = lambda _: None) -> None:
        self.pins = ReplicatedMap[Key, RetainedMessage | Drop](REMOVED, forgot=forgot)
        self._grace = grace
        self._own: dict[Key, None] = {}
        """Posts of clients of this node."""
        self._origins: dict[Key, dict[str, None]] = {}
        """The nodes that have a post. A client that moves to another node has its posts at both for a while."""
        self._of: dict[str, dict[Key, None]] = {}
        self._seen: dict[str, set[Key]] = {}
        """By node that is sending its full list: the keys of posts received so far."""
        self._lost: dict[str, float] = {}

    # Changes at this node.

    def added(self, message: RetainedMessage) -> None:
        """A client of this node has posted or pinned this message."""
        if message.flags & POST:
            self._own[message.key] = None
        else:
            self.pins.put(message)

    def disown(self, key: Key) -> bool:
        """A client of this node has removed its post, or is gone. Returns whether another node has the post."""
        self._own.pop(key, None)
        return key in self._origins

    def removed(self, message: RetainedMessage, since: Version) -> Drop:
        """A message is not retained at this node any more, as of this version. Returns the message to other nodes."""
        drop = Drop(*message.key, since)
        if message.flags & POST:
            self.disown(message.key)
        else:
            self.pins.put(drop)
        return drop

    def removed_since(self, key: Key) -> Version | None:
        """The version at which a pin was removed; None: it was not."""
        known = self.pins.get(key)
        return known.version if isinstance(known, Drop) else None

    # What this node has.

    def mine(self, kept: Iterable[RetainedMessage]) -> Iterator[Word]:
        """The full list for a new link: posts of this node's clients, all pins, and removed pins."""
        yield from [put(message) for message in kept if message.key in self._own]
        yield from self.all_pins()
        yield All()

    def all_pins(self) -> Iterator[Word]:
        """All pins, and removed pins."""
        yield from map(word_of, list(self.pins))

    # Messages of other nodes.

    def link_opened(self, guid: str) -> None:
        """A link to a node is open. The node sends its full list."""
        self._lost.pop(guid, None)
        self._seen[guid] = set()

    def received_post(self, guid: str, key: Key) -> bool:
        """A node has a post. Returns whether to accept it."""
        posts = self._of.setdefault(guid, {})
        if len(posts) >= MOST:
            return False
        if (seen := self._seen.get(guid)) is not None:
            seen.add(key)
        self._origins.setdefault(key, {})[guid] = posts[key] = None
        return True

    def received_all(self, guid: str) -> list[Key]:
        """A node has sent its full list. Returns the posts that are to be removed here."""
        seen = self._seen.pop(guid, set())
        return [key for key in list(self._of.get(guid, {})) if key not in seen and self.lost(guid, key)]

    def link_closed(self, guid: str, now: float) -> None:
        """The link to a node has ended."""
        self._seen.pop(guid, None)
        self._lost[guid] = now + self._grace

    def expire(self, now: float) -> list[Key]:
        """Returns the posts of nodes that were lost longer ago than the grace period."""
        expired = [guid for guid, end in self._lost.items() if end <= now]
        for guid in expired:
            del self._lost[guid]
        return [key for guid in expired for key in list(self._of.get(guid, {})) if self.lost(guid, key)]

    def deadline(self) -> float | None:
        return min(self._lost.values(), default=None)

    def lost(self, guid: str, key: Key) -> bool:
        """A node does not have a post any more. Returns whether no node has it."""
        nodes = self._origins.get(key, {})
        if guid not in nodes:
            return False
        del nodes[guid], self._of[guid][key]
        if nodes:
            return False
        del self._origins[key]
        return key not in self._own
