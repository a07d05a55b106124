"""The rules for retained messages in a cluster: posts belong to the node of their client, pins to all nodes.

`driver` calls this module for each local change and each message of another node. Of two pins with one key the later
version wins. A removed pin leaves a mark for a while, so that a node that was away does not restore it. Posts of a lost
node are removed after the grace period, like those of a lost client. Without input or output.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from busway.broker.flags import FIELDS, PIN, POST
from busway.broker.retained.pin_entries import MARKS
from busway.broker.retained.store import Key, RetainedMessage, Version
from busway.cluster.node import Stranger

MOST: Final = 1_048_576
"""Retained messages accepted from one node."""


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
_decoder: Final = msgspec.msgpack.Decoder(list[Word])
_encoder: Final = msgspec.msgpack.Encoder()
_NEVER: Final = (0, 0, 0)
_HEAD: Final = 16
"""Bytes of the shortest body."""


def pack(words: Iterable[Word]) -> bytes:
    return _encoder.encode(list(words))


def read(packed: bytes) -> list[Word]:
    """Decode and check messages of another node. Raises Stranger."""
    try:
        words = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Stranger(f"not a list of retained messages: {error}") from error
    for word in words:
        if isinstance(word, Put):
            if len(word.body) < _HEAD or word.flags & ~(POST | PIN | FIELDS) or not 0 < word.session < 1 << 64:
                raise Stranger("invalid retained message")
            if bool(word.flags & POST) == bool(word.flags & PIN):
                raise Stranger("a retained message must be either a post or a pin")
    return words


def version(kept: RetainedMessage) -> Version:
    """The version of a retained message."""
    return kept.version


def sum_of(kept: Iterable[RetainedMessage]) -> Sum:
    """The checksum of the pins among these messages."""
    total = 0
    for message in kept:
        if message.flags & PIN:
            packed = _encoder.encode((*message.key, *version(message)))
            total ^= int.from_bytes(blake2b(packed, digest_size=7).digest())
    return Sum(total)


def put(kept: RetainedMessage) -> Put:
    """The message that announces a retained message to other nodes."""
    return Put(kept.session, kept.name, kept.flags, kept.topic, kept.body, kept.served, kept.added, kept.since)


class RetainedReplica:
    """The origin of each post at this node, and the marks of removed pins."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._own: dict[Key, None] = {}
        """Posts of clients of this node."""
        self._origins: dict[Key, dict[str, None]] = {}
        """The nodes that have a post. A client that moves to another node has its posts at both for a while."""
        self._of: dict[str, dict[Key, None]] = {}
        self._seen: dict[str, set[Key]] = {}
        """By node that is sending its full list: the keys received so far."""
        self._lost: dict[str, float] = {}
        self._marks: dict[Key, Version] = {}

    # Changes at this node.

    def own(self, key: Key) -> None:
        """A client of this node has posted this message."""
        self._own[key] = None

    def disown(self, key: Key) -> bool:
        """A client of this node has removed its post, or is gone. Returns whether another node has the post."""
        self._own.pop(key, None)
        return key in self._origins

    def taken_back(self, key: Key, when: Version) -> None:
        """A pin was removed at this node."""
        self._marks.pop(key, None)
        self._marks[key] = when
        while len(self._marks) > MARKS:
            del self._marks[next(iter(self._marks))]

    def mine(self, kept: Iterable[RetainedMessage]) -> Iterator[Word]:
        """The full list for a new link: posts of this node's clients, all pins, and marks of removed pins."""
        for message in list(kept):
            if message.flags & PIN or message.key in self._own:
                yield put(message)
        yield from self._removals()
        yield All()

    def pins(self, kept: Iterable[RetainedMessage]) -> Iterator[Word]:
        """All pins, and marks of removed pins."""
        yield from (put(message) for message in list(kept) if message.flags & PIN)
        yield from self._removals()

    def _removals(self) -> Iterator[Word]:
        for (owner, topic, fields), when in list(self._marks.items()):
            yield Drop(owner, topic, fields, when)

    # Messages of other nodes.

    def link_opened(self, guid: str) -> None:
        """A link to a node is open. The node sends its full list."""
        self._lost.pop(guid, None)
        self._seen[guid] = set()

    def received_put(
        self, guid: str, new: RetainedMessage, old: RetainedMessage | None
    ) -> Literal["keep", "mine", "no"]:
        """A node retains a message. "keep": retain it here. "mine": send this node's version back. "no": ignore it."""
        key = new.key
        if len(self._of.get(guid, ())) >= MOST:
            return "no"
        if (seen := self._seen.get(guid)) is not None:
            seen.add(key)
        if new.flags & PIN:
            mark = self._marks.get(key)
            if mark is not None and mark >= version(new):
                return "mine"
            if old is not None and version(old) >= version(new):
                return "no" if version(old) == version(new) else "mine"
            self._marks.pop(key, None)
            return "keep"
        self._origins.setdefault(key, {})[guid] = None
        self._of.setdefault(guid, {})[key] = None
        return "no" if old is not None and version(old) >= version(new) else "keep"

    def received_drop(self, guid: str, word: Drop, old: RetainedMessage | None) -> bool:
        """A node does not retain a message any more. Returns whether to remove it here."""
        key = word.key
        if isinstance(word.owner, str):
            if self._marks.get(key, _NEVER) < word.version:
                self.taken_back(key, word.version)
            return old is not None and bool(old.flags & PIN) and version(old) <= word.version
        return self._forget(guid, key) and old is not None

    def received_all(self, guid: str) -> list[Key]:
        """A node has sent its full list. Returns the posts that are to be removed here."""
        seen = self._seen.pop(guid, set())
        stale = [key for key in self._of.get(guid, {}) if key not in seen]
        return [key for key in stale if self._forget(guid, key)]

    def link_closed(self, guid: str, now: float) -> None:
        """The link to a node has ended."""
        self._seen.pop(guid, None)
        self._lost[guid] = now + self._grace

    def expire(self, now: float) -> list[Key]:
        """Returns the posts of nodes that were lost longer ago than the grace period."""
        expired = [guid for guid, end in self._lost.items() if end <= now]
        for guid in expired:
            del self._lost[guid]
        posts = [(guid, key) for guid in expired for key in self._of.get(guid, {})]
        return [key for guid, key in posts if self._forget(guid, key)]

    def mark(self, key: Key) -> Version | None:
        """The version at which a pin was removed; None: it was not."""
        return self._marks.get(key)

    def new_mark(self, word: Drop, old: RetainedMessage | None) -> bool:
        """Whether the removal of a pin is new, and no later pin is here."""
        later = old is not None and version(old) > word.version
        return not later and self._marks.get(word.key, _NEVER) < word.version

    def deadline(self) -> float | None:
        return min(self._lost.values(), default=None)

    def _forget(self, guid: str, key: Key) -> bool:
        """A node has lost a post. Returns whether no node has it any more."""
        nodes = self._origins.get(key, {})
        if guid not in nodes:
            return False
        del nodes[guid], self._of[guid][key]
        if not self._of[guid]:
            del self._of[guid]
        if nodes:
            return False
        del self._origins[key]
        return key not in self._own
