"""What a stream is: its topics, where and how safely its messages are stored, and how long they stay. Values only."""

import re
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias, get_args

import msgspec

from busway.backoff import Delays
from busway.common.durations import seconds
from busway.topic import check_topic

STORES: Final = ("memory", "disk", "db")
"""Stores that every broker has; `db` is a SQLite file in the data folder. Others have names that the operator gives."""
Store: TypeAlias = str
"""One of STORES, or the name that the operator of the broker has given a database."""
Safety: TypeAlias = Literal["memory", "written", "synced", "mirrored"]
"""What a stream promises of a message when its publish returns."""
Level: TypeAlias = Literal["memory", "written", "synced", "mirrored", "replicated"]
"""How safe a stored message is: where the stream is in memory it is `memory`, whatever the stream was made with."""
LEVELS: Final[tuple[Level | None, ...]] = (None, "memory", "written", "synced", "mirrored", "replicated")
"""By their numbers on the wire; None: unknown."""

NO_URL: Final = (
    "url: a client can't name a database by its URL. The operator of the broker gives the database a name "
    "(busway serve --store NAME=URL), and clients use that name (store=NAME)"
)
"""The error for a client that names a database by its URL."""

DEFAULT: Final = "default"
"""The stream of durable messages whose topic no other stream takes."""
DEFAULT_AGE: Final = 7 * 86400.0
"""Seconds for which the stream `default` keeps messages. Any other stream keeps them without a limit, unless one is given."""
DEAD: Final = "dead"
"""The stream of dead letters, which the broker makes for the first of them."""
DEAD_TOPICS: Final = "dead/**"
"""The topics of that stream."""

LONGEST_NOTE: Final = 1 << 20
_MOST: Final = 2**63 - 1
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def is_name(text: str) -> bool:
    """Whether a stream or a channel may be called that."""
    return _NAME.fullmatch(text) is not None


def check_name(noun: str, name: Any) -> str:
    """The name of a stream or a channel."""
    if not isinstance(name, str) or not is_name(name):
        raise ValueError(
            f"{name!r} is no name of a {noun}: 1 to 64 letters, digits, '_', '-' or '.', no '-' or '.' first"
        )
    return name


class StreamConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a stream. Times are seconds; None is no limit."""

    name: str
    topics: tuple[str, ...] = ()
    store: Store = "disk"
    safety: Safety = "written"
    max_age: float | None = None
    max_bytes: int | None = None
    max_count: int | None = None
    once: float = 900.0
    """How long a publisher's messages are remembered, to know one that is sent again."""
    retain_until: str | None = None
    """A channel: nothing is removed for the limits above before the channel has done it."""
    note: str = ""
    """Text for those who use it; the bus only stores it."""
    former: tuple[str, ...] = ()
    """Topics it took before it was updated: messages of them may still be there."""

    @classmethod
    def make(cls, name: Any, **given: Any) -> Self:
        """Checked: raises ValueError or TypeError with the name of what is wrong."""
        check_name("stream", name)
        if given.pop("url", None) is not None:
            raise ValueError(NO_URL)
        for key in given:
            if key not in SETTINGS:
                raise ValueError(f"a stream has no setting {key!r}; there are {', '.join(SETTINGS)}")
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
            raise ValueError("the safety 'mirrored' is for a stream on disk; what others store is as safe as that is")
        if given.get("retain_until") is not None:
            check_name("channel", given["retain_until"])
        note = given.get("note", "")
        if not isinstance(note, str) or len(note) > LONGEST_NOTE:
            raise ValueError(f"note must be a text of at most {LONGEST_NOTE} characters")
        topics = given.get("topics", ())
        if isinstance(topics, str) or not isinstance(topics, Iterable):
            raise TypeError(f"topics must be a list of patterns such as ['orders/**'], but is {topics!r}")
        given["topics"] = tuple(dict.fromkeys(check_topic(one) for one in topics))
        if name == DEFAULT and given["topics"]:
            raise ValueError("the stream 'default' takes what no other stream does; it has no topics of its own")
        if name != DEFAULT and not given["topics"]:
            raise ValueError(f"stream {name!r} needs topics: a list of patterns such as ['orders/**']")
        return cls(name=name, **given)

    @property
    def in_database(self) -> bool:
        """Whether its messages are in a database: in a file of the data folder, or in one that has a name."""
        return self.store not in {"memory", "disk"}

    def differences(self, other: "StreamConfig") -> str:
        """The settings in which another stream differs, as text."""
        pairs = ((key, getattr(self, key), getattr(other, key)) for key in SETTINGS)
        return ", ".join(f"{key} is {mine!r:.60}, not {theirs!r:.60}" for key, mine, theirs in pairs if mine != theirs)

    def changed(self, **changes: Any) -> "StreamConfig":
        """With other settings, checked as by make()."""
        given = {key: getattr(self, key) for key in SETTINGS}
        made = StreamConfig.make(self.name, **given | changes)
        before = (one for one in (*self.former, *self.topics) if one not in made.topics)
        return msgspec.structs.replace(made, former=tuple(dict.fromkeys(before)))


SETTINGS: Final = tuple(name for name in StreamConfig.__struct_fields__ if name not in {"name", "former"})
"""What may be chosen of a stream beside its name."""


class StreamPart(msgspec.Struct, frozen=True):
    """The part of a stream that one node of a cluster has; figures as a StreamInfo has them. If the node is gone they are of a copy."""

    broker: str
    """The guid; empty if only an address is known."""
    node: str
    """The name."""
    error: str = ""
    """Why nothing is known of it."""
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
    """A stream as it is: its settings and figures."""

    broker: str
    """Guid of the broker that it belongs to."""
    first: int = 0
    """The first offset that is there."""
    next: int = 0
    """Behind the last offset that can be read."""
    end: int = 0
    """Behind the last offset that was given; from `next` on they are not yet as safe as promised."""
    bytes: int = 0
    """Of its messages; on disk there are `index_bytes` more."""
    index_bytes: int = 0
    """Of the files that find messages, and know topics and publishers."""
    buckets: int = 0
    damage: int = 0
    """Places that were found to be lost or changed."""
    waiting: int = 0
    """Messages that are to be delivered later."""
    level: Level | None = None
    """How safe a message is at this broker when its publish returns; None: the broker is of an earlier version."""
    dropped: int = 0
    """Those that were removed for the stream's limits before they were due, since the broker started."""
    held: int = 0
    """Messages beyond the limits that are still there, since the channel `retain_until` has not done them."""
    held_bytes: int = 0
    held_since: float | None = None
    """When the broker saw the first of them, in seconds since 1970; None: there are none."""
    stuck: str | None = None
    """With the safety `memory`: how many acknowledged messages can't be written, and why; None: all can."""
    mirrored: bool | None = None
    """With the safety `mirrored`: whether messages are acknowledged when a mirror has them, too; False: there is none to wait for now."""
    topic_count: int = 0
    """Topics that were ever stored."""
    channels: tuple[dict[str, Any], ...] = ()
    unreached: tuple[str, ...] = ()
    """Nodes of the cluster that could not be asked, if parts were asked for."""
    parts: tuple[StreamPart, ...] = ()
    """What each node of the cluster has of it, if that was asked for; all other figures are of the node that was asked."""

    @property
    def count(self) -> int:
        """Messages that are there, damaged ones included; one that was to be delivered later counts twice when it was."""
        return self.next - self.first

    @property
    def total(self) -> int:
        """The same over all parts that are known of."""
        return sum(part.count for part in self.parts) if self.parts else self.count

    @property
    def total_bytes(self) -> int:
        return sum(part.bytes or 0 for part in self.parts) if self.parts else self.bytes


class StoredTopic(NamedTuple):
    """What a stream holds of one topic: the first and the last sequence, and how many messages."""

    topic: str
    first: int
    last: int
    messages: int


class ChannelPart(msgspec.Struct, frozen=True):
    """A channel in the part of its stream that one node of a cluster has; figures as a ChannelInfo has them."""

    broker: str
    """The guid; empty if only an address is known."""
    node: str
    """The name."""
    error: str = ""
    """Why nothing is known of it."""
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
    """A channel: its settings, where it stands, and what is on its way."""

    name: str
    stream: str
    lease: float
    max_deliveries: int
    dead_letter: str
    topic: str
    where: str
    """Rules, as they are on the wire, in base64."""
    exclusive: bool
    delete_on_leave: bool
    paused: bool
    floor: int
    """Everything before this offset is done."""
    cursor: int
    """Nothing from this offset on was handed out."""
    lag: int
    """Messages that are not done; those that it doesn't choose count until it has come to them."""
    in_flight: int
    waiting: int
    """To be redelivered, now or after a delay, or to be delivered after another message with the same key."""
    dying: int
    """On their way to the dead-letter topic."""
    consumers: int
    redelivered: int
    """Since the broker started, as the three below."""
    dead: int
    late: int
    refused: int
    lost: int
    """Messages that the stream has removed before the channel had done them, since the channel was made."""
    backoff: Delays = ()
    """Seconds before a message is redelivered after its first failure, its second and so on; the last one repeats."""
    order_by: str = ""
    """`topic` or a field: messages that have the same are delivered one after the other. Empty: they are not."""
    unreached: tuple[str, ...] = ()
    """Nodes of the cluster that could not be asked: what their parts hold is not in these figures."""
    parts: tuple[ChannelPart, ...] = ()
    """What each node of the cluster has of it, if one channel was asked for; floor and cursor above are of the node that was asked."""
