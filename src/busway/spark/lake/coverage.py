"""Coverage of a lake: the offsets of each stream that the archive has. Values; no I/O.

Each commit of the archive has the coverage of all streams as metadata. The commits of other programs have none, so a
reader takes the newest one and compares it with the rows that the table has.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from busway.spark.ranges import Place

log = logging.getLogger("busway.spark")

VERSION: Final = 1
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class LakeError(RuntimeError):
    """A lake can't be read or written, or is inconsistent. The text says what to do."""


class File(NamedTuple):
    """A Parquet file of the table."""

    path: str
    """Relative to the lake."""
    stream: str
    date: date
    rows: int
    bytes: int
    offsets: tuple[int, int] | None
    """The first and the last offset, if the file has statistics."""

    def may_have(self, begin: int, end: int) -> bool:
        """Return False if the file has no message from one offset to before another."""
        return self.offsets is None or (self.offsets[1] >= begin and self.offsets[0] < end)


class Covered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Archived offsets of a stream, from `begin` to `end`, exclusive. The lake has all their available messages."""

    broker: str
    stream: str
    begin: Count
    end: Count
    lost: Count = 0
    """Number of messages that were removed before they could be archived."""
    damaged: bool = False
    """True if the stream could not read some messages."""
    last: str = ""
    """The id of the message before `end`, by which the stream is recognized. Empty: unknown."""
    jumped: Count = 0
    """Number of offsets that the stream skipped when it began anew."""

    @property
    def start(self) -> int:
        """The first offset that was read."""
        return self.begin + self.jumped + self.lost

    @property
    def place(self) -> Place:
        return self.broker, self.stream

    def extended(self, by: "Covered") -> "Covered":
        """Return the coverage with a range behind its end. Raises LakeError if the range does not begin there."""
        if by.begin != self.end:
            raise LakeError(
                f"the archive of the stream {self.stream!r} ends at offset {self.end}, so it can't go on at {by.begin}"
            )
        return msgspec.structs.replace(
            by,
            begin=self.begin,
            lost=self.lost + by.lost,
            damaged=self.damaged or by.damaged,
            jumped=self.jumped + by.jumped,
        )


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The metadata of a commit."""

    version: int = VERSION
    id: str
    """Identifies the commit, so that its writer recognizes it."""
    topics: tuple[str, ...]
    """The patterns of the archived topics."""
    ranges: tuple[Covered, ...]
    """The offsets of this commit."""
    covered: tuple[Covered, ...]
    """The offsets of all commits, by broker and stream."""
    rows: dict[str, int]
    """The number of rows of each stream after the commit."""
    typed: dict[str, tuple[str, ...]] = {}
    """The typed columns in which a stream has values."""
    vacuumed: float = 0.0
    """The time of the last VACUUM by Busway."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a lake at a version of its table. A lake without a commit has the version -1."""

    version: int = -1
    id: str = ""
    """Identifies the newest commit of the archive."""
    topics: tuple[str, ...] = ()
    covered: Mapping[Place, Covered] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    typed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vacuumed: float = 0.0
    types: str = ""
    """The declarations of the typed columns."""
    changed: tuple[str, ...] = ()
    """Differences between the table and its metadata: other programs have added or removed rows."""

    def end(self, place: Place) -> int | None:
        """Return the offset at which the archive of a stream continues. None: it has no message of this stream."""
        found = self.covered.get(place)
        return None if found is None else found.end

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows that the table has, by stream."""
        rows: dict[str, int] = {}
        for file in self.files:
            rows[file.stream] = rows.get(file.stream, 0) + file.rows
        return rows

    @property
    def total(self) -> int:
        return sum(file.rows for file in self.files)

    def check_unchanged(self, *, fail: bool) -> None:
        """Raise LakeError, or log, if other programs have added rows to the table or removed some."""
        if self.changed and fail:
            raise LakeError(f"{'; '.join(self.changed)}, or read the rest with the option failOnDataLoss false")
        for text in self.changed:
            log.warning("%s", text)

    def state(
        self,
        id_: str,
        topics: Sequence[str],
        ranges: Sequence[Covered],
        rows: Mapping[str, int],
        typed: Mapping[str, Sequence[str]],
        vacuumed: float | None = None,
    ) -> State:
        """Return the metadata of a commit on top of this snapshot that adds these ranges and rows."""
        covered, before_rows = dict(self.covered), self.rows
        for part in ranges:
            before = covered.get(part.place)
            covered[part.place] = part if before is None else before.extended(part)
        return State(
            id=id_,
            topics=tuple(topics),
            ranges=tuple(ranges),
            covered=tuple(covered.values()),
            rows={stream: before_rows.get(stream, 0) + rows.get(stream, 0) for stream in {**before_rows, **rows}},
            typed={
                stream: tuple(sorted({*self.typed.get(stream, ()), *typed.get(stream, ())}))
                for stream in {**self.typed, **typed}
            },
            vacuumed=self.vacuumed if vacuumed is None else vacuumed,
        )


def differences(lake: str, expected: Mapping[str, int], actual: Mapping[str, int], by: Sequence[str]) -> list[str]:
    """Describe how the rows of the streams differ from the number that the archive wrote. `by` names the commits."""
    found = []
    for stream in sorted({*expected, *actual}):
        lacking = expected.get(stream, 0) - actual.get(stream, 0)
        if lacking:
            what = f"lacks {lacking} messages" if lacking > 0 else f"has {-lacking} rows too many"
            found.append(
                f"the lake {lake} {what} of the stream {stream!r}: it was changed by {', '.join(by) or 'another program'}. Restore the "
                "version before"
            )
    return found


def decode(found: Any, name: str) -> State:
    """Parse the metadata of a commit. Raises LakeError."""
    if isinstance(found, dict) and found.get("version") != VERSION:
        raise LakeError(f"{name} is of version {found.get('version')!r} of a lake; this Busway knows {VERSION}")
    try:
        return msgspec.convert(found, State)
    except msgspec.ValidationError as error:
        raise LakeError(f"{name} has damaged metadata of the archive ({error}): restore it from a copy") from error
