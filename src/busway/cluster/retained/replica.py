"""What is kept all over the cluster: posts live with the node of their client, pins are everybody's.

A machine: it knows which kept message came from which node, and says what follows from what nodes tell. Of two pins with one key the
later one counts, by the time of its sender (or what it follows, if that clock is ahead) and then by its id; a pin that was taken back leaves a mark for a while, so that a node that
was away does not bring it back. Posts of a node that is gone are withdrawn after a time of grace, as those of a client are.
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
"""Kept messages that one node may tell of."""


class Put(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Something is kept."""

    session: int
    name: str
    flags: int
    topic: str
    body: bytes
    served: tuple[str, ...] = ()
    """Groups of which a member has got it already."""
    added: dict[str, Any] = {}
    """The fields of the server where it was sent."""
    since: Annotated[int, msgspec.Meta(ge=0)] = 0

    def kept(self, client: int) -> RetainedMessage:
        """The message, of a sender with this number. Raises for what is none."""
        kept = RetainedMessage(
            client, self.session, self.name, self.flags, self.topic, self.body, self.served, since=self.since
        )
        kept.dress(self.added)
        return kept


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """It is kept no longer; a pin since this version."""

    owner: int | str
    topic: str
    fields: bytes
    version: Version

    @property
    def key(self) -> Key:
        return self.owner, self.topic, self.fields


class All(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """These were all that the node keeps."""


class Sum(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """All pins of the node in one number. Who has another one tells everything: a node that is gone may have told only some of the others of a pin.

    And its own number behind that, as an answer: it may lack some itself.
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
    """What a node says. Raises Stranger."""
    try:
        words = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Stranger(f"not a list of kept messages: {error}") from error
    for word in words:
        if isinstance(word, Put):
            if len(word.body) < _HEAD or word.flags & ~(POST | PIN | FIELDS) or not 0 < word.session < 1 << 64:
                raise Stranger("a kept message that is none")
            if bool(word.flags & POST) == bool(word.flags & PIN):
                raise Stranger("a kept message is either a post or a pin")
    return words


def version(kept: RetainedMessage) -> Version:
    return kept.version


def sum_of(kept: Iterable[RetainedMessage]) -> Sum:
    total = 0
    for one in kept:
        if one.flags & PIN:
            total ^= int.from_bytes(blake2b(_encoder.encode((*one.key, *version(one))), digest_size=7).digest())
    return Sum(total)


def put(kept: RetainedMessage) -> Put:
    return Put(kept.session, kept.name, kept.flags, kept.topic, kept.body, kept.served, kept.added, kept.since)


class RetainedReplica:
    """Where what is kept here came from, and what was taken back."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._ours: dict[Key, None] = {}
        """Posts of clients of this node."""
        self._origins: dict[Key, dict[str, None]] = {}
        """The nodes that have told of a post. A client that goes from one to another is at two for a while: none of them can know that."""
        self._of: dict[str, dict[Key, None]] = {}
        self._seen: dict[str, set[Key]] = {}
        """Of nodes that are telling everything: what they have told so far."""
        self._gone: dict[str, float] = {}
        self._marks: dict[Key, Version] = {}

    # What happens here.

    def own(self, key: Key) -> None:
        """A client of this node keeps it now."""
        self._ours[key] = None

    def disown(self, key: Key) -> bool:
        """No client of this node keeps it any more, for it has taken it back or is gone; whether one of another node does."""
        self._ours.pop(key, None)
        return key in self._origins

    def taken_back(self, key: Key, when: Version) -> None:
        """A pin was taken back here."""
        self._marks.pop(key, None)
        self._marks[key] = when
        while len(self._marks) > MARKS:
            del self._marks[next(iter(self._marks))]

    def mine(self, kept: Iterable[RetainedMessage]) -> Iterator[Word]:
        """What a node that has come is told: posts of clients of this one, and all pins, also those that were taken back."""
        for one in list(kept):
            if one.flags & PIN or one.key in self._ours:
                yield put(one)
        yield from self._taken_back()
        yield All()

    def pins(self, kept: Iterable[RetainedMessage]) -> Iterator[Word]:
        """Of that the pins."""
        yield from (put(one) for one in list(kept) if one.flags & PIN)
        yield from self._taken_back()

    def _taken_back(self) -> Iterator[Word]:
        for (owner, topic, fields), when in list(self._marks.items()):
            yield Drop(owner, topic, fields, when)

    # What other nodes tell.

    def come(self, guid: str) -> None:
        """There is a link to it: it tells everything anew."""
        self._gone.pop(guid, None)
        self._seen[guid] = set()

    def told_put(self, guid: str, new: RetainedMessage, old: RetainedMessage | None) -> Literal["keep", "mine", "no"]:
        """A node keeps something: keep it, too; or what is here counts, and the node should hear that; or nothing."""
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

    def told_drop(self, guid: str, word: Drop, old: RetainedMessage | None) -> bool:
        """A node keeps something no longer; whether that is the end of it here."""
        key = word.key
        if isinstance(word.owner, str):
            if self._marks.get(key, _NEVER) < word.version:
                self.taken_back(key, word.version)
            return old is not None and bool(old.flags & PIN) and version(old) <= word.version
        return self._forget(guid, key) and old is not None

    def told_all(self, guid: str) -> list[Key]:
        """A node has told everything; the posts that it had told before and has no more."""
        seen = self._seen.pop(guid, set())
        stale = [key for key in self._of.get(guid, {}) if key not in seen]
        return [key for key in stale if self._forget(guid, key)]

    def went(self, guid: str, now: float) -> None:
        """Its link is gone."""
        self._seen.pop(guid, None)
        self._gone[guid] = now + self._grace

    def expire(self, now: float) -> list[Key]:
        """The posts of nodes that are gone for longer than the time of grace."""
        over = [guid for guid, end in self._gone.items() if end <= now]
        for guid in over:
            del self._gone[guid]
        told = [(guid, key) for guid in over for key in self._of.get(guid, {})]
        return [key for guid, key in told if self._forget(guid, key)]

    def mark(self, key: Key) -> Version | None:
        """Since when a pin is taken back; None: it is not."""
        return self._marks.get(key)

    def new_mark(self, word: Drop, old: RetainedMessage | None) -> bool:
        """Whether a node tells something new of a pin that was taken back, and no later one is here."""
        later = old is not None and version(old) > word.version
        return not later and self._marks.get(word.key, _NEVER) < word.version

    def deadline(self) -> float | None:
        return min(self._gone.values(), default=None)

    def _forget(self, guid: str, key: Key) -> bool:
        """That node has this post no longer; whether nobody has it."""
        nodes = self._origins.get(key, {})
        if guid not in nodes:
            return False
        del nodes[guid], self._of[guid][key]
        if not self._of[guid]:
            del self._of[guid]
        if nodes:
            return False
        del self._origins[key]
        return key not in self._ours
