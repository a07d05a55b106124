"""Commits of a lake: one commit for each round, and the snapshot that results from all commits. Values; no I/O.

The lake folder reads and writes them. Only files that the snapshot names are part of the lake.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from busway.spark.ranges import Place

VERSION: Final = 1
_SUM: Final = "checksum"
T = TypeVar("T", bound=msgspec.Struct)
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class LakeError(RuntimeError):
    """A lake can't be read, is locked by another process, or is inconsistent."""


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Parquet file of `data`. Times are microseconds since 1970."""

    path: str
    stream: str
    date: str
    rows: Count
    bytes: Count
    offsets: tuple[int, int]
    """The first and the last."""
    stored: tuple[int, int]


class Covered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Archived offsets of a stream, from `begin` to `end`, exclusive. The lake has all their available messages."""

    broker: str
    stream: str
    begin: Count
    end: Count
    lost: Count = 0
    """How many, from `begin` on, were gone before they were archived."""
    damaged: bool = False
    """Some more may be missing, which the stream could not read."""
    last: str = ""
    """The id of the message before `end`, to know the stream again; empty: there was none."""
    jumped: Count = 0
    """Offsets, from `begin` on and before those that are lost, that the stream passed over as it began anew."""

    @property
    def start(self) -> int:
        """Where what is archived begins."""
        return self.begin + self.jumped + self.lost

    @property
    def place(self) -> Place:
        return self.broker, self.stream


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The changes of one round."""

    version: int = VERSION
    number: Annotated[int, msgspec.Meta(ge=1)]
    time: float
    kind: Literal["archive", "compact", "clean"]
    topics: tuple[str, ...] = ()
    """Patterns of what was archived."""
    ranges: tuple[Covered, ...] = ()
    added: tuple[File, ...] = ()
    removed: tuple[str, ...] = ()
    """Files whose rows are in other files now. They stay for a while, for their readers."""
    deleted: tuple[str, ...] = ()
    """Removed ones that are gone from the disk, too."""


class Whole(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sum of all commits up to a number, so that a reader need not read each of them."""

    version: int = VERSION
    number: Count
    topics: tuple[str, ...]
    ranges: tuple[Covered, ...]
    files: tuple[File, ...]
    leaving: dict[str, float]


@dataclass(slots=True)
class Snapshot:
    """The state of a lake after a commit."""

    number: int = 0
    topics: tuple[str, ...] = ()
    covered: dict[Place, Covered] = field(default_factory=dict)
    """By broker and stream, everything up to now as one."""
    files: dict[str, File] = field(default_factory=dict)
    leaving: dict[str, float] = field(default_factory=dict)
    """Files that were removed and still lie there, and when that was."""

    def end(self, place: Place) -> int | None:
        """The offset at which the archive continues; None: it has no message of this stream."""
        found = self.covered.get(place)
        return None if found is None else found.end

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    def apply(self, commit: Commit) -> None:
        """Apply the next commit. Raises LakeError if it does not continue this state."""
        if commit.number != self.number + 1:
            raise LakeError(
                f"commit {self.number + 1} of the lake is missing: after {self.number} comes {commit.number}"
            )
        for one in commit.ranges:
            before = self.covered.get(one.place)
            if before is None:
                self.covered[one.place] = one
                continue
            if one.begin != before.end:
                raise LakeError(
                    f"commit {commit.number} of the lake continues at offset {one.begin} of the stream {one.stream!r}, "
                    f"but the archive ends at {before.end}"
                )
            lost, damaged = before.lost + one.lost, before.damaged or one.damaged
            jumped = before.jumped + one.jumped
            self.covered[one.place] = Covered(*one.place, before.begin, one.end, lost, damaged, one.last, jumped)
        for path in commit.removed:
            if self.files.pop(path, None) is None:
                raise LakeError(f"commit {commit.number} of the lake removes {path}, which is not part of it")
            self.leaving[path] = commit.time
        for path in commit.deleted:
            self.leaving.pop(path, None)
        for file in commit.added:
            if file.path in self.files:
                raise LakeError(f"commit {commit.number} of the lake adds {file.path} a second time")
            self.files[file.path] = file
        self.topics = commit.topics or self.topics
        self.number = commit.number

    def whole(self) -> Whole:
        return Whole(
            number=self.number,
            topics=self.topics,
            ranges=tuple(self.covered.values()),
            files=tuple(self.files.values()),
            leaving=dict(self.leaving),
        )

    @classmethod
    def of(cls, whole: Whole) -> "Snapshot":
        covered = {one.place: one for one in whole.ranges}
        return cls(whole.number, whole.topics, covered, {file.path: file for file in whole.files}, dict(whole.leaving))


def groups(files: Iterable[File]) -> dict[tuple[str, str], list[File]]:
    """By stream and date, in the order of their names."""
    out: dict[tuple[str, str], list[File]] = {}
    for file in sorted(files, key=lambda one: one.path):
        out.setdefault((file.stream, file.date), []).append(file)
    return out


def encode(value: Commit | Whole) -> bytes:
    """As JSON for people, with a checksum of it."""
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return msgspec.json.format(msgspec.json.encode(plain | {_SUM: _sum(plain)}), indent=1) + b"\n"


def decode(content: bytes, kind: type[T], name: str) -> T:
    """A commit, or a whole. Raises LakeError with the name of the file."""
    try:
        return msgspec.convert(_checked(content, name), kind)
    except msgspec.ValidationError as error:
        raise _damaged(name, str(error)) from error


def _checked(content: bytes, name: str) -> Mapping[str, Any]:
    try:
        plain = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise _damaged(name, str(error)) from error
    if plain.get("version") != VERSION:
        raise LakeError(f"{name} is of version {plain.get('version')!r} of a lake; this Busway knows {VERSION}")
    if plain.pop(_SUM, None) != _sum(plain):
        raise _damaged(name, "the checksum is not that of the rest")
    return plain


def _sum(plain: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(msgspec.json.encode(plain, order='sorted')):08x}"


def _damaged(name: str, why: str) -> LakeError:
    return LakeError(
        f"{name} is damaged ({why}): the content of the lake is not known without it. Restore it from a copy"
    )
