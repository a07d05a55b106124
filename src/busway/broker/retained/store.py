"""The kept messages of a broker: which there are, in which order, whose they are and how long they live.

A machine: no clock, no socket, no disk. `keeping` drives it. There is one message per key, and the order is that in which
the keys were put last. A post belongs to its publisher's session and goes with it, after a time of grace if the connection
was lost; a pin belongs to its sender's name and stays until it is taken back.
"""

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from busway.broker.flags import FIELDS, PIN, POST

Key: TypeAlias = tuple[int | str, str, bytes]
"""Whose it is (a post: the session, a pin: the sender's name), its topic and its fields in normal form."""

Version: TypeAlias = tuple[int, int, int]
"""Time, session and number of a message: of two with one key the higher one counts."""

_HEAD: Final = struct.Struct("<qQ")
_LENGTH: Final = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder(order="sorted")


class Matcher(Protocol):
    """A pattern and rules, compiled; `_core.Selection` is one."""

    @property
    def literal(self) -> str | None:
        """The one topic that it can mean, if it has no wildcards."""

    def covers(self, topic: str) -> bool: ...
    def matches(self, topic: str, fields: bytes, payload: bytes, sender: str, session: int, time: int) -> bool: ...


Compile: TypeAlias = Callable[[str, bytes], Matcher]
"""Makes a matcher of a pattern and rules, or raises as the broker would refuse them."""


Spared: TypeAlias = Callable[[Key], bool]
"""Says of the posts of a client that is gone which ones stay."""


def _nothing(_key: Key) -> bool:
    return False


def normal(fields: bytes) -> bytes:
    """The same bytes for equal fields, whatever the order of their names; no bytes for no fields."""
    values = msgspec.msgpack.decode(fields) if fields else {}
    return _encoder.encode(_normal(values)) if values else b""


def _normal(value: Any) -> Any:
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value + 0.0  # there is one zero
    if isinstance(value, dict):
        return {name: _normal(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_normal(one) for one in value]
    return value


def body_of(time: int, number: int, fields: bytes, payload: bytes) -> bytes:
    """The body of a message as it is on the wire."""
    return b"".join((_HEAD.pack(time, number), _LENGTH.pack(len(fields)) + fields if fields else b"", payload))


@dataclass(slots=True, eq=False)
class RetainedMessage:
    """One kept message: who sent it, and its body as it came. `flags` are POST or PIN, and FIELDS.

    What others see of it has the server's fields too; they are not part of its key, so that it stays the same message under
    a server with others.
    """

    client: int
    session: int
    name: str
    flags: int
    topic: str
    body: bytes
    served: tuple[str, ...] = ()
    """Groups of which a member has got it when it was kept, wherever that is."""
    order: int = 0
    far: bool = False
    """A client of another node has sent it."""
    since: int = 0
    """The time by which it counts, if that is not its own: its sender's clock is behind that of who kept what it replaces."""
    key: Key = field(init=False)
    added: dict[str, Any] = field(init=False, default_factory=dict)
    """The fields of the server where it was sent."""
    shown: bytes = field(init=False)
    """Its body with the server's fields."""
    shown_fields: bytes = field(init=False)

    def __post_init__(self) -> None:
        owner = self.name if self.flags & PIN else self.session
        self.key = owner, self.topic, normal(self.fields)
        self.shown, self.shown_fields = self.body, self.fields

    def dress(self, fields: dict[str, Any]) -> None:
        """Add the server's fields, which win."""
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
        """Count as later than this, whatever the clock of its sender says."""
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
    """What a subscription asks for: the topic is compared once for all messages on it, the rest only if there are rules."""

    selection: Matcher
    rules: bool
    without: int

    def takes(self, kept: RetainedMessage) -> bool:
        """The topic fits already."""
        if self.without and kept.session == self.without:
            return False
        return not self.rules or self.selection.matches(
            kept.topic, kept.shown_fields, kept.payload, kept.name, kept.session, kept.time
        )


class RetainedStore:
    """What is kept, with its limits per client, its times of grace and those who watch it go."""

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

    # What comes and is taken back.

    def is_late(self, message: RetainedMessage) -> bool:
        """Whether its client is elsewhere by now, and has kept something later there: this was under way for long."""
        old = self._kept.get(message.key)
        return old is not None and old.far and old.session == message.session and old.number > message.number

    def same(self, message: RetainedMessage) -> bool:
        """Whether exactly this one is kept: it came again because its answer was lost."""
        old = self._kept.get(message.key)
        return old is not None and (old.session, old.number) == (message.session, message.number)

    def refusal(self, message: RetainedMessage) -> str:
        """Why this one would be too much for its client; empty if it isn't."""
        usage = self._usage.get(message.key[0]) or _Usage()
        old = self._kept.get(message.key)
        whose = "under the name " + repr(message.name) if message.flags & PIN else "for one client"
        if usage.count + (old is None) > self._count:
            return f"{self._count} kept messages {whose} are the limit here (setting kept); take some back first"
        if usage.bytes - (old.size if old else 0) + message.size > self._size:
            return f"{self._size} bytes of kept messages {whose} are the limit here (setting kept_bytes)"
        return ""

    def put(self, message: RetainedMessage) -> None:
        """Keep it, in place of the one with its key, at the end of the order. Limits are a matter of refusal()."""
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
        """Withdraw the one with this key, if there is one."""
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

    # How long posts live.

    def lost(self, session: int, now: float, spared: Spared = _nothing) -> list[RetainedMessage]:
        """The connection of a session is gone; what that ends at once, which is all if there is no grace."""
        if session not in self._posts:
            return []
        if self._grace <= 0:
            return self.left(session, spared)
        # Taken out first: those who were lost last stand last, so that expire() need not look at them all.
        self._lost.pop(session, None)
        self._lost[session] = now + self._grace
        return []

    def returned(self, session: int) -> None:
        self._lost.pop(session, None)

    def left(self, session: int, spared: Spared = _nothing) -> list[RetainedMessage]:
        """The client said that it goes: its posts are withdrawn, but for some."""
        self._lost.pop(session, None)
        gone = [one for one in self._posts.get(session, {}).values() if not spared(one.key)]
        for one in gone:
            self.take(one.key)
        return gone

    def expire(self, now: float, spared: Spared = _nothing) -> list[RetainedMessage]:
        """Withdraw the posts of those whose grace is over."""
        over = []
        for session, end in self._lost.items():
            if end > now:
                break
            over.append(session)
        return sorted((kept for session in over for kept in self.left(session, spared)), key=_order)

    def deadline(self) -> float | None:
        """When expire() has something to do."""
        return next(iter(self._lost.values()), None)

    # Who gets what is kept.

    def select(self, pattern: str, rules: bytes = b"", *, without: int = 0, after: int = 0) -> list[RetainedMessage]:
        """The kept messages of a new subscription, in order, those of the session `without` left out; `after` an order only.

        Raises for a bad pattern or rule.
        """
        choice = self._choice(pattern, rules, without)
        literal, covers = choice.selection.literal, choice.selection.covers
        if literal is None:
            topics = [topic for topic in self._topics if covers(topic)]
        else:
            topics = [literal] if literal in self._topics else []
            topics += [topic for topic in self._wild if covers(topic)]
        found = [
            kept
            for topic in topics
            for kept in self._topics[topic].values()
            if kept.order > after and choice.takes(kept)
        ]
        found.sort(key=_order)
        return found

    def _choice(self, pattern: str, rules: bytes, without: int) -> _Choice:
        return _Choice(self._compile(pattern, rules), bool(rules), without)


def _order(kept: RetainedMessage) -> int:
    return kept.order
