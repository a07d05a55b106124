"""What a stream needs of the place its records are kept in: the interface `Store`, and the values that cross it.

The broker gives each record its offset and its sequence; a store keeps them, finds them and lets the oldest go. Whatever
can't be done raises `StoreFailed` with a sentence that says why, and leaves the store as it was. Times are UTC, in
nanoseconds since 1970. One test suite (`tests/stores`) runs over every store.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

Safety: TypeAlias = Literal["memory", "written", "synced"]
"""What an acknowledged record survives: nothing, the end of the broker's process, the end of the machine."""
SAFETIES: Final[tuple[Safety, ...]] = ("memory", "written", "synced")

HEAD: Final = 80
"""Bytes a record has besides its topic, sender, fields and payload, so that sizes mean the same in every store."""


class Record(NamedTuple):
    """A stored message."""

    offset: int
    sequence: int
    """0: it waits to be due, and is no message of its topic yet."""
    stored: int
    time: int
    session: int
    number: int
    expires: int
    """0: never."""
    due: int
    """0: at once. With a sequence: it has waited, and is stored once more since it was due."""
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
    """What is there of a topic: sequences `first` to `last`."""

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
    """A message that waits to be due."""

    due: int
    offset: int
    session: int
    number: int


class Trimmed(NamedTuple):
    """The first offset that is left, how many records went, and how many stay only because they are held."""

    first: int
    removed: int
    held: int = 0
    held_bytes: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Usage:
    bytes: int
    count: int


class Damage(NamedTuple):
    """Offsets from `start` up to but not including `end` that were acknowledged and are not there any more."""

    start: int
    end: int
    what: str


class ChannelEntry(NamedTuple):
    """A piece of a channel's state, opaque here. A value of None removes the key."""

    channel: str
    key: str
    value: bytes | None


class Store(Protocol):
    """The records of one stream and the state of its channels. Methods that wait may be called at the same time."""

    @property
    def name(self) -> str:
        """The stream's."""

    @property
    def first(self) -> int:
        """Offset of the oldest record; where there is none, `next`."""

    @property
    def next(self) -> int:
        """Offset that the next record gets. It never goes back."""

    @property
    def stored(self) -> int:
        """Time at which the newest record was stored, also when that is removed; 0: none was."""

    @property
    def damage(self) -> Sequence[Damage]:
        """What was found to be lost since the store was opened."""

    async def open(self) -> None:
        """Make it or take it up again. `DataFailed`: it can't be used, or another server uses it."""

    async def close(self) -> None:
        """Finish what was begun and let go. A second time does nothing."""

    async def append(self, records: Sequence[Record]) -> None:
        """Keep them, all or none; returns once they are as safe as the stream promises.

        Offsets go on from `next` (an empty store takes any that is not below), sequences grow within their topic but for
        those that wait. One that has waited ends the waiting of the first with its session and number. Records that are there already are not stored twice; others with their offsets are refused. If the waiter is cancelled the
        append goes on.
        """

    async def read(self, from_: int, most_bytes: int) -> list[Record]:
        """Records from this offset on, or from the first that is left, as many as fit; one if none does; none at the end."""

    async def find_time(self, stored: int) -> int:
        """Offset of the first record stored at or after this time; `next` if there is none."""

    async def find(self, topic: str, sequence: int) -> int | None:
        """Offset of this record, if it is there."""

    async def topics(self) -> list[TopicUsage]:
        """Topics that have records."""

    async def sequences(self) -> dict[str, int]:
        """The last sequence of each topic there ever was."""

    async def publishers(self, since: int) -> list[Published]:
        """Who published what since this time, in order of offsets.

        Session 0 can't send again and is left out, and so is what has waited: its first record counts.
        """

    async def waiting(self) -> list[Parked]:
        """Records that wait, the next that is due first."""

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

        A store may keep some more, as disks do, which remove whole buckets.
        """

    async def usage(self) -> Usage: ...

    async def load_channels(self) -> list[ChannelEntry]:
        """All that was saved, sorted by channel and key."""

    async def save_channels(self, entries: Sequence[ChannelEntry]) -> None:
        """Put these in the place of what their keys had, all or none, as safe as records are."""

    async def purge(self) -> Trimmed:
        """Remove every record. Offsets, sequences and channels go on."""

    async def remove(self) -> None:
        """Remove the stream with all it has, for good, and close."""
