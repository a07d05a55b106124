"""Settings and figures of streams and channels; clients and brokers exchange these values."""

import re
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias, get_args

import msgspec

from busway.backoff import Delays
from busway.common.durations import seconds
from busway.topic import check_topic

STORES: Final = ("memory", "disk", "db")
"""Stores that every broker has; `db` is a SQLite file in the data folder. The operator may add databases by name."""
Store: TypeAlias = str
"""One of STORES, or the name of one of the broker's databases."""
Safety: TypeAlias = Literal["memory", "written", "synced", "mirrored"]
"""The guarantee that a stream gives for a message when its publish returns."""
Level: TypeAlias = Literal["memory", "written", "synced", "mirrored", "replicated"]
"""The actual safety level of a stored message. In a memory stream it is `memory`, whatever safety was configured."""
LEVELS: Final[tuple[Level | None, ...]] = (None, "memory", "written", "synced", "mirrored", "replicated")
"""The levels by their numbers on the wire; None: unknown."""

NO_URL: Final = (
    "url: a client can't name a database by its URL. The operator of the broker gives the database a name "
    "(busway serve --store NAME=URL), and clients use that name (store=NAME)"
)
"""The error for a client that names a database by its URL."""

DEFAULT: Final = "default"
"""The stream of durable messages whose topic matches no other stream."""
DEFAULT_AGE: Final = 7 * 86400.0
"""The maximum age of messages in the stream `default`, in seconds. Other streams have no limit unless one is given."""
DEAD: Final = "dead"
"""The stream of dead letters. The broker creates it for the first dead letter."""
DEAD_TOPICS: Final = "dead/**"
"""The topics of the stream of dead letters."""

LONGEST_NOTE: Final = 1 << 20
_MOST: Final = 2**63 - 1
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def is_name(text: str) -> bool:
    """True if the text is a valid name of a stream or a channel."""
    return _NAME.fullmatch(text) is not None


def check_name(noun: str, name: Any) -> str:
    """Return the name of a stream or a channel. Raises ValueError if it is not valid."""
    if not isinstance(name, str) or not is_name(name):
        raise ValueError(
            f"{name!r} is not a valid name of a {noun}: use 1 to 64 letters, digits, '_', '-' or '.', "
            "and begin with a letter, a digit or '_'"
        )
    return name


class StreamConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a stream. Times are seconds; None means no limit."""

    name: str
    topics: tuple[str, ...] = ()
    store: Store = "disk"
    safety: Safety = "written"
    max_age: float | None = None
    max_bytes: int | None = None
    max_count: int | None = None
    once: float = 900.0
    """Seconds for which the broker remembers the messages of a publisher, to drop duplicates."""
    retain_until: str | None = None
    """The name of a channel: the limits above remove only messages that this channel has completed."""
    note: str = ""
    """Free text for users; the bus only stores it."""
    former: tuple[str, ...] = ()
    """Topics of the stream before an update. It may still contain their messages."""

    @classmethod
    def make(cls, name: Any, **given: Any) -> Self:
        """Create a checked value. Raises ValueError or TypeError with the name of the wrong setting."""
        check_name("stream", name)
        if given.pop("url", None) is not None:
            raise ValueError(NO_URL)
        for key in given:
            if key not in SETTINGS:
                raise ValueError(f"a stream has no setting {key!r}; the settings are {', '.join(SETTINGS)}")
        for key in ("max_age", "once"):
            if given.get(key) is not None:
                given[key] = seconds(key, given[key])
        if "once" in given and given["once"] is None:
            raise ValueError("once must be a length of time, but is None")
        for key in ("max_bytes", "max_count"):
            if (value := given.get(key)) is not None and (
                isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST
            ):
                raise ValueError(f"{key} must be a whole number from 1 to {_MOST}, or None, but is {value!r}")
        if "store" in given and not (isinstance(given["store"], str) and is_name(given["store"])):
            raise ValueError(
                f"store must be one of {', '.join(STORES)}, or the name of one of the broker's databases, "
                f"but is {given['store']!r}"
            )
        if "safety" in given and given["safety"] not in get_args(Safety):
            raise ValueError(f"safety must be one of {', '.join(get_args(Safety))}, but is {given['safety']!r}")
        if given.get("safety") == "mirrored" and given.get("store", "disk") != "disk":
            raise ValueError("safety 'mirrored' needs store 'disk'; choose another safety, or store='disk'")
        if given.get("retain_until") is not None:
            check_name("channel", given["retain_until"])
        note = given.get("note", "")
        if not isinstance(note, str) or len(note) > LONGEST_NOTE:
            raise ValueError(f"note must be a text of at most {LONGEST_NOTE} characters")
        topics = given.get("topics", ())
        if isinstance(topics, str) or not isinstance(topics, Iterable):
            raise TypeError(f"topics must be a list of patterns such as ['orders/**'], but is {topics!r}")
        given["topics"] = tuple(dict.fromkeys(check_topic(topic) for topic in topics))
        if name == DEFAULT and given["topics"]:
            raise ValueError(
                "the stream 'default' can't have topics: it stores messages whose topic matches no other stream"
            )
        if name != DEFAULT and not given["topics"]:
            raise ValueError(f"stream {name!r} needs topics: a list of patterns such as ['orders/**']")
        return cls(name=name, **given)

    @property
    def in_database(self) -> bool:
        """True if a database stores the messages: the SQLite file in the data folder, or a named database."""
        return self.store not in {"memory", "disk"}

    def differences(self, other: "StreamConfig") -> str:
        """Describe the settings in which another stream differs, as text."""
        pairs = ((key, getattr(self, key), getattr(other, key)) for key in SETTINGS)
        return ", ".join(f"{key} is {mine!r:.60}, not {theirs!r:.60}" for key, mine, theirs in pairs if mine != theirs)

    def changed(self, **changes: Any) -> "StreamConfig":
        """Return a copy with other settings, checked as by make()."""
        given = {key: getattr(self, key) for key in SETTINGS}
        config = StreamConfig.make(self.name, **given | changes)
        former = (topic for topic in (*self.former, *self.topics) if topic not in config.topics)
        return msgspec.structs.replace(config, former=tuple(dict.fromkeys(former)))


SETTINGS: Final = tuple(name for name in StreamConfig.__struct_fields__ if name not in {"name", "former"})
"""The settings of a stream that a user may set, besides its name."""


class StreamPart(msgspec.Struct, frozen=True):
    """The part of a stream on one node of a cluster, with the figures of a StreamInfo.

    If the node is unreachable, the figures are those of its mirror.
    """

    broker: str
    """The guid of the node; empty if only its address is known."""
    node: str
    """The name of the node."""
    error: str = ""
    """Why the figures are unknown."""
    first: int | None = None
    next: int | None = None
    end: int | None = None
    bytes: int | None = None
    index_bytes: int | None = None
    buckets: int | None = None
    damage: int | None = None
    waiting: int | None = None
    held: int | None = None
    held_bytes: int | None = None
    topic_count: int | None = None
    mirrored: bool | None = None

    @property
    def count(self) -> int:
        return (self.next or 0) - (self.first or 0)


class StreamInfo(StreamConfig, frozen=True, forbid_unknown_fields=False, kw_only=True):
    """The settings and current figures of a stream."""

    broker: str
    """The guid of the broker that answered."""
    first: int = 0
    """The first stored offset."""
    next: int = 0
    """The offset after the last readable message."""
    end: int = 0
    """The offset after the last stored message. Messages from `next` on do not have the configured safety yet."""
    bytes: int = 0
    """Bytes of its messages. On disk it has `index_bytes` more."""
    index_bytes: int = 0
    """Bytes of the index files: positions, topics and publishers."""
    buckets: int = 0
    damage: int = 0
    """The number of places where data is lost or corrupt."""
    waiting: int = 0
    """Messages with a later delivery time."""
    level: Level | None = None
    """The safety level of a message at this broker when its publish returns; None: the broker is an earlier version."""
    dropped: int = 0
    """Delayed messages that the stream's limits removed before their delivery time, since the broker started."""
    held: int = 0
    """Messages beyond the limits that stay stored, since the channel `retain_until` has not completed them."""
    held_bytes: int = 0
    held_since: float | None = None
    """When the broker found the first held message, in seconds since 1970; None: there are none."""
    stuck: str | None = None
    """With the safety `memory`: how many acknowledged messages can't be written, and why; None: no problem."""
    mirrored: bool | None = None
    """With the safety `mirrored`: True if a publish waits for a mirror, False if no mirror is available now."""
    topic_count: int = 0
    """The number of topics that the stream has ever stored."""
    channels: tuple[dict[str, Any], ...] = ()
    unreached: tuple[str, ...] = ()
    """Nodes of the cluster that did not answer, if the parts were requested."""
    parts: tuple[StreamPart, ...] = ()
    """The part on each node of the cluster, if requested. All other figures are those of the node that answered."""

    @property
    def count(self) -> int:
        """Stored messages, including damaged ones. A delayed message counts twice after its delivery."""
        return self.next - self.first

    @property
    def total(self) -> int:
        """The count over all known parts."""
        return sum(part.count for part in self.parts) if self.parts else self.count

    @property
    def total_bytes(self) -> int:
        return sum(part.bytes or 0 for part in self.parts) if self.parts else self.bytes


class StoredTopic(NamedTuple):
    """A topic in a stream: its first and last sequence, and its number of messages."""

    topic: str
    first: int
    last: int
    messages: int


class ChannelPart(msgspec.Struct, frozen=True):
    """A channel in the part of its stream on one node of a cluster, with the figures of a ChannelInfo."""

    broker: str
    """The guid of the node; empty if only its address is known."""
    node: str
    """The name of the node."""
    error: str = ""
    """Why the figures are unknown."""
    floor: int | None = None
    cursor: int | None = None
    lag: int | None = None
    in_flight: int | None = None
    waiting: int | None = None
    dying: int | None = None
    consumers: int | None = None
    redelivered: int | None = None
    dead: int | None = None
    late: int | None = None
    refused: int | None = None
    lost: int | None = None


class ChannelInfo(msgspec.Struct, frozen=True):
    """The settings, progress and current figures of a channel."""

    name: str
    stream: str
    lease: float
    max_deliveries: int
    dead_letter: str
    topic: str
    where: str
    """The rules in their wire form, as base64."""
    exclusive: bool
    delete_on_leave: bool
    paused: bool
    floor: int
    """All messages before this offset are completed."""
    cursor: int
    """No message from this offset on was delivered yet."""
    lag: int
    """Messages that are not completed. Messages that its rules exclude count until the cursor has passed them."""
    in_flight: int
    waiting: int
    """Messages to redeliver, now or after a delay, and messages that wait for another one with the same key."""
    dying: int
    """Messages that are being moved to the dead-letter topic."""
    consumers: int
    redelivered: int
    """Redeliveries since the broker started."""
    dead: int
    """Messages moved to the dead-letter topic since the broker started."""
    late: int
    """Messages acknowledged too late since the broker started."""
    refused: int
    """Messages that a consumer acknowledged while they were in flight at another one, since the broker started."""
    lost: int
    """Messages that the stream removed before the channel completed them, since the channel was created."""
    backoff: Delays = ()
    """Seconds before a message is redelivered after its first failure, its second and so on; the last delay repeats."""
    order_by: str = ""
    """`topic` or a field: messages with the same value are delivered one after the other. Empty: no such order."""
    unreached: tuple[str, ...] = ()
    """Nodes of the cluster that did not answer. The figures do not include their parts."""
    parts: tuple[ChannelPart, ...] = ()
    """The part on each node, if one channel was requested. Floor and cursor are those of the node that answered."""
