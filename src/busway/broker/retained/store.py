"""The retained messages of a broker: their order, their owners, their limits and their lifetimes.

This is a machine without clock, socket or disk; `retained.driver` drives it. It has one message per key, in the order
of the last put. A post belongs to the session of its publisher and is removed with it, after a grace period if the
connection was lost. A pin belongs to the name of its sender and stays until it is removed.
"""

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

import msgspec

from busway.authority.grants import NUMBERS
from busway.broker.flags import FIELDS, PIN, POST

if TYPE_CHECKING:
    from busway._core import Grants

Key: TypeAlias = tuple[int | str, str, bytes]
"""The owner (of a post the session, of a pin the sender's name), the topic and the normalised fields of a message."""

Version: TypeAlias = tuple[int, int, int]
"""Time, session and number of a message. Of two messages with one key the higher version wins."""

_HEAD: Final = struct.Struct("<qQ")
_LENGTH: Final = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder(order="sorted")


class Matcher(Protocol):
    """A compiled pattern with rules, such as `_core.Selection`."""

    @property
    def literal(self) -> str | None:
        """The only topic that can match, if the pattern has no wildcards."""

    def covers(self, topic: str) -> bool: ...
    def matches(self, topic: str, fields: bytes, payload: bytes, sender: str, session: int, time: int) -> bool: ...


Compile: TypeAlias = Callable[..., Matcher]
"""Compiles a pattern and rules, with grants and a verb if there are users, or raises the error with which the broker refuses them."""


Spared: TypeAlias = Callable[[Key], bool]
"""Whether a post stays although the session of its client has ended."""


def _nothing(_key: Key) -> bool:
    return False


def normal(fields: bytes) -> bytes:
    """Encode fields so that equal fields give equal bytes, in any order of their names. No fields give no bytes."""
    values = msgspec.msgpack.decode(fields) if fields else {}
    return _encoder.encode(_normal(values)) if values else b""


def _normal(value: Any) -> Any:
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value + 0.0  # -0.0 becomes 0.0
    if isinstance(value, dict):
        return {name: _normal(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_normal(one) for one in value]
    return value


def body_of(time: int, number: int, fields: bytes, payload: bytes) -> bytes:
    """The body of a message in its wire format."""
    return b"".join((_HEAD.pack(time, number), _LENGTH.pack(len(fields)) + fields if fields else b"", payload))


@dataclass(slots=True, eq=False)
class RetainedMessage:
    """One retained message: its sender, and its body as received. `flags` are POST or PIN, and FIELDS.

    Receivers also get the server's fields. They are not part of the key, so that the key is the same under a server
    with other fields.
    """

    removed: ClassVar = False
    """It is an entry of a replicated map, and not a removal."""

    client: int
    session: int
    name: str
    flags: int
    topic: str
    body: bytes
    served: tuple[str, ...] = ()
    """Groups of which a member, on any node, got the message when it was published."""
    order: int = 0
    remote: bool = False
    """Whether a client of another node has sent the message."""
    since: int = 0
    """The time of the version, if later than the message's own, because the clock of its sender is behind."""
    key: Key = field(init=False)
    added: dict[str, Any] = field(init=False, default_factory=dict)
    """The fields of the server that received the message from its client."""
    shown: bytes = field(init=False)
    """The body with the server's fields."""
    shown_fields: bytes = field(init=False)
    """The fields with the server's fields."""

    def __post_init__(self) -> None:
        owner = self.name if self.flags & PIN else self.session
        self.key = owner, self.topic, normal(self.fields)
        self.shown, self.shown_fields = self.body, self.fields

    def dress(self, fields: dict[str, Any]) -> None:
        """Add the server's fields, which replace fields of the same name."""
        self.added = fields
        if fields:
            own = msgspec.msgpack.decode(self.fields) if self.fields else {}
            self.shown_fields = msgspec.msgpack.encode(own | fields)
            self.shown = body_of(self.time, self.number, self.shown_fields, self.payload)

    @property
    def shown_flags(self) -> int:
        return self.flags | (FIELDS if self.shown_fields else 0)

    @property
    def time(self) -> int:
        return int(_HEAD.unpack_from(self.body)[0])

    @property
    def number(self) -> int:
        return int(_HEAD.unpack_from(self.body)[1])

    @property
    def version(self) -> Version:
        return max(self.time, self.since), self.session, self.number

    def follow(self, before: Version) -> None:
        """Make the version of this message later than `before`, independent of its sender's clock."""
        if self.version <= before:
            self.since = before[0] + 1

    @property
    def fields(self) -> bytes:
        return self.body[_HEAD.size + _LENGTH.size : self._fields_end] if self.flags & FIELDS else b""

    @property
    def payload(self) -> bytes:
        return self.body[self._fields_end :]

    @property
    def size(self) -> int:
        return len(self.topic) + len(self.body)

    @property
    def _fields_end(self) -> int:
        start = _HEAD.size
        if self.flags & FIELDS:
            start += _LENGTH.size + int(_LENGTH.unpack_from(self.body, start)[0])
        return start


@dataclass(slots=True)
class _Usage:
    count: int = 0
    bytes: int = 0


@dataclass(slots=True, eq=False)
class _Choice:
    """The selection of a subscription. Each topic is matched once, and its messages only if there are rules."""

    selection: Matcher
    rules: bool
    without: int

    def takes(self, message: RetainedMessage) -> bool:
        """Whether a message whose topic matches is selected."""
        if self.without and message.session == self.without:
            return False
        return not self.rules or self.selection.matches(
            message.topic, message.shown_fields, message.payload, message.name, message.session, message.time
        )


class RetainedStore:
    """The retained messages, with the limits and grace periods of their owners."""

    def __init__(self, *, count: int, size: int, grace: float, compile: Compile) -> None:  # noqa: A002
        self._count = count
        self._size = size
        self._grace = grace
        self._compile = compile
        self._order = 0
        self._kept: dict[Key, RetainedMessage] = {}
        self._topics: dict[str, dict[Key, RetainedMessage]] = {}
        self._wild: set[str] = set()
        self._posts: dict[int, dict[Key, RetainedMessage]] = {}
        self._usage: dict[int | str, _Usage] = {}
        self._lost: dict[int, float] = {}
        self.posts = 0
        self.bytes = 0
        self.withdrawn = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[RetainedMessage]:
        return iter(self._kept.values())

    def get(self, key: Key) -> RetainedMessage | None:
        return self._kept.get(key)

    # Put and remove.

    def is_late(self, message: RetainedMessage) -> bool:
        """Whether the client has put a later message under this key at another node already."""
        old = self._kept.get(message.key)
        return old is not None and old.remote and old.session == message.session and old.number > message.number

    def same(self, message: RetainedMessage) -> bool:
        """Whether exactly this message is retained already; the client sends it again if the answer was lost."""
        old = self._kept.get(message.key)
        return old is not None and (old.session, old.number) == (message.session, message.number)

    def refusal(self, message: RetainedMessage) -> str:
        """Why this message exceeds the limits of its owner; empty if it doesn't."""
        usage = self._usage.get(message.key[0]) or _Usage()
        old = self._kept.get(message.key)
        whose = "under the name " + repr(message.name) if message.flags & PIN else "for one client"
        if usage.count + (old is None) > self._count:
            return f"{self._count} retained messages {whose} are the limit (setting kept); remove some first"
        if usage.bytes - (old.size if old else 0) + message.size > self._size:
            return (
                f"{self._size} bytes of retained messages {whose} are the limit (setting kept_bytes); remove some first"
            )
        return ""

    def put(self, message: RetainedMessage) -> None:
        """Retain a message in place of the one with its key, at the end of the order. refusal() checks the limits."""
        self._remove(message.key)
        self._order += 1
        message.order = self._order
        key, topic = message.key, message.topic
        self._kept[key] = message
        self._topics.setdefault(topic, {})[key] = message
        if "*" in topic:
            self._wild.add(topic)
        if message.flags & POST:
            self._posts.setdefault(message.session, {})[key] = message
            self.posts += 1
        usage = self._usage.setdefault(key[0], _Usage())
        usage.count += 1
        usage.bytes += message.size
        self.bytes += message.size

    def take(self, key: Key) -> RetainedMessage | None:
        """Remove the message with this key, if there is one, and count it as withdrawn."""
        if old := self._remove(key):
            self.withdrawn += 1
        return old

    def _remove(self, key: Key) -> RetainedMessage | None:
        old = self._kept.pop(key, None)
        if old is None:
            return None
        of_topic = self._topics[old.topic]
        del of_topic[key]
        if not of_topic:
            del self._topics[old.topic]
            self._wild.discard(old.topic)
        if old.flags & POST:
            posts = self._posts[old.session]
            del posts[key]
            self.posts -= 1
            if not posts:
                del self._posts[old.session]
        usage = self._usage[key[0]]
        usage.count -= 1
        usage.bytes -= old.size
        if not usage.count:
            del self._usage[key[0]]
        self.bytes -= old.size
        return old

    # Lifetimes of posts.

    def lost(self, session: int, now: float, spared: Spared = _nothing) -> list[RetainedMessage]:
        """Start the grace period of a lost session. Without one, its posts are removed and returned."""
        if session not in self._posts:
            return []
        if self._grace <= 0:
            return self.left(session, spared)
        # Removed first: the sessions are ordered by the time of their loss, so that expire() need not check them all.
        self._lost.pop(session, None)
        self._lost[session] = now + self._grace
        return []

    def returned(self, session: int) -> None:
        self._lost.pop(session, None)

    def left(self, session: int, spared: Spared = _nothing) -> list[RetainedMessage]:
        """Remove the posts of a client that has closed its connection, except the spared ones."""
        self._lost.pop(session, None)
        gone = [message for message in self._posts.get(session, {}).values() if not spared(message.key)]
        for message in gone:
            self.take(message.key)
        return gone

    def expire(self, now: float, spared: Spared = _nothing) -> list[RetainedMessage]:
        """Remove the posts of sessions whose grace period is over."""
        over = []
        for session, end in self._lost.items():
            if end > now:
                break
            over.append(session)
        return sorted((message for session in over for message in self.left(session, spared)), key=_order)

    def deadline(self) -> float | None:
        """The time at which expire() has to be called next."""
        return next(iter(self._lost.values()), None)

    # Subscriptions.

    def select(
        self,
        pattern: str,
        rules: bytes = b"",
        *,
        without: int = 0,
        after: int = 0,
        grants: "Grants | None" = None,
    ) -> list[RetainedMessage]:
        """The retained messages for a new subscription, in order.

        Messages of the session `without` are left out, those with an order up to `after`, and those with topics that
        `grants` do not allow. Raises for a bad pattern or rule.
        """
        choice = self._choice(pattern, rules, without, grants)
        literal, covers = choice.selection.literal, choice.selection.covers
        if literal is None:
            topics = [topic for topic in self._topics if covers(topic)]
        else:
            known = literal in self._topics and (grants is None or covers(literal))
            topics = [literal] if known else []
            topics += [topic for topic in self._wild if covers(topic)]
        found = [
            message
            for topic in topics
            for message in self._topics[topic].values()
            if message.order > after and choice.takes(message)
        ]
        found.sort(key=_order)
        return found

    def _choice(self, pattern: str, rules: bytes, without: int, grants: "Grants | None") -> _Choice:
        guard = () if grants is None else (grants, NUMBERS["subscribe"])
        return _Choice(self._compile(pattern, rules, *guard), bool(rules), without)


def _order(message: RetainedMessage) -> int:
    return message.order
