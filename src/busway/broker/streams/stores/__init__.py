"""The interface `Store` between a stream and the database that stores its records, and the values that cross it.

The broker assigns offsets and sequences; a store stores, finds and removes records. A failed operation raises
`StoreFailed` with the reason, and changes nothing. Times are UTC, in nanoseconds since 1970. One test suite
(`tests/broker/streams/stores`) runs over every store.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

Safety: TypeAlias = Literal["memory", "written", "synced"]
"""An acknowledged record survives nothing, a crash of the broker's process, or a crash of the machine."""
SAFETIES: Final[tuple[Safety, ...]] = ("memory", "written", "synced")

HEAD: Final = 80
"""The size of a record besides its topic, sender, fields and payload, so that sizes are equal in every store."""


class Record(NamedTuple):
    """A stored message."""

    offset: int
    sequence: int
    """0: the message is delayed, and not in its topic yet."""
    stored: int
    time: int
    session: int
    number: int
    expires: int
    """0: never."""
    due: int
    """0: at once. With a sequence: the message was delayed, and is stored a second time because it was due."""
    topic: str
    sender: str
    fields: bytes | None
    payload: bytes

    @property
    def size(self) -> int:
        texts = len(self.topic.encode()) + len(self.sender.encode())
        return HEAD + texts + len(self.fields or b"") + len(self.payload)


@dataclass(frozen=True, slots=True, order=True)
class TopicUsage:
    """The records of a topic: their number, and their sequences from `first` to `last`."""

    topic: str
    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True, order=True)
class Published:
    """A run of a publisher's messages whose numbers, offsets and sequences grow together."""

    session: int
    number: int
    offset: int
    sequence: int
    count: int


class Parked(NamedTuple):
    """A delayed message."""

    due: int
    offset: int
    session: int
    number: int


class Trimmed(NamedTuple):
    """The first offset after a trim, how many records were removed, and how many stay only because of `hold`."""

    first: int
    removed: int
    held: int = 0
    held_bytes: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Usage:
    """The size of a stream."""

    bytes: int
    count: int


class Damage(NamedTuple):
    """Offsets from `start` up to but not including `end` that were acknowledged and are lost."""

    start: int
    end: int
    what: str


class ChannelEntry(NamedTuple):
    """A piece of a channel's state, opaque here. A value of None removes the key."""

    channel: str
    key: str
    value: bytes | None


class Store(Protocol):
    """The records of one stream and the state of its channels. Calls of async methods may overlap."""

    @property
    def name(self) -> str:
        """The name of the stream."""

    @property
    def first(self) -> int:
        """The offset of the oldest record; `next` if there is none."""

    @property
    def next(self) -> int:
        """The offset of the next record. It never decreases."""

    @property
    def stored(self) -> int:
        """The time at which the newest record was stored, also if that was removed; 0: none was."""

    @property
    def damage(self) -> Sequence[Damage]:
        """The losses that were found since the store was opened."""

    async def open(self) -> None:
        """Create or open the stream. Raises DataFailed if it can't be used, or if another server uses it."""

    async def close(self) -> None:
        """Finish running operations and close. A second call does nothing."""

    async def append(self, records: Sequence[Record]) -> None:
        """Store all records or none. Returns once they are as safe as the stream promises.

        Offsets continue from `next`; an empty store accepts any higher ones. Sequences grow within their topic, except
        those of delayed messages. The second record of a delayed message ends the delay of the first one with its
        session and number. Records that are stored already are skipped; others with their offsets are refused. The
        append continues if its caller is cancelled.
        """

    async def read(self, from_: int, most_bytes: int) -> list[Record]:
        """As many records as fit, at least one, from this offset or the first one on. Empty at the end."""

    async def find_time(self, stored: int) -> int:
        """The offset of the first record stored at or after this time; `next` if there is none."""

    async def find(self, topic: str, sequence: int) -> int | None:
        """The offset of the record with this topic and sequence, if it exists."""

    async def topics(self) -> list[TopicUsage]:
        """The topics that have records."""

    async def sequences(self) -> dict[str, int]:
        """The last sequence of each topic, also of topics whose records were removed."""

    async def publishers(self, since: int) -> list[Published]:
        """The publishers of all records since this time, in order of offsets.

        Session 0 is left out, because it can't resend. The second records of delayed messages are left out, too.
        """

    async def waiting(self) -> list[Parked]:
        """The delayed messages, in the order of their times."""

    async def trim(
        self,
        now: int,
        *,
        max_age: int | None = None,
        max_bytes: int | None = None,
        max_count: int | None = None,
        hold: int | None = None,
    ) -> Trimmed:
        """Remove the oldest records that are beyond any of these limits, but none at or above the offset `hold`.

        A store may leave some more, like a log on disk, which removes whole buckets.
        """

    async def usage(self) -> Usage: ...

    async def load_channels(self) -> list[ChannelEntry]:
        """All saved entries, sorted by channel and key."""

    async def save_channels(self, entries: Sequence[ChannelEntry]) -> None:
        """Replace the values of these keys, all or none, as safely as records are stored."""

    async def purge(self) -> Trimmed:
        """Remove every record. Offsets, sequences and channels continue."""

    async def remove(self) -> None:
        """Remove the stream with its records and channels, and close."""
