"""Comparison of a stream with its replica: the records that each log has, and whether they agree.

The functions only read the logs. The primary, the replica and the scrub use them.
"""

from hashlib import blake2b
from typing import Final, Literal, Protocol

from busway.cluster.replication.messages import MOST_HOLES, Have

_FLAGS: Final = 79
_FIELDS: Final = 1
"""The only flag that a record keeps. The log sets the other flags again at each write, so the hash ignores them."""


class Records(Protocol):
    """The part of a `_core.Log` that replication uses."""

    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def damage(self) -> list[tuple[str, int, int, int | None, str]]: ...
    def read_written(self, offset: int, most: int) -> tuple[int, int, bytes]: ...
    def copy(self, block: bytes) -> bool: ...
    def mend(self, block: bytes) -> int: ...
    def mended(self) -> None: ...
    def trim_to(self, first: int) -> tuple[int, int, int]: ...


def mark(block: bytes) -> bytes:
    """The hash of the first record of a block."""
    size = int.from_bytes(block[:4], "little") + 4
    record = bytearray(block[8:size])
    record[_FLAGS - 8] &= _FIELDS
    return blake2b(record, digest_size=16).digest()


def mark_at(log: Records, offset: int) -> bytes:
    """The hash of the record at this offset; empty if the log does not have it."""
    first, _, block = log.read_written(offset, 1) if offset >= 0 else (0, 0, b"")
    return mark(block) if block and first == offset else b""


def has_any(log: Records, begin: int, end: int) -> bool:
    """Whether the log has a record from `begin` to before `end`."""
    first, _, block = log.read_written(begin, 1)
    return bool(block) and first < end


def have(log: Records) -> Have:
    """The records that a log has. With too many holes it is reported as empty, so that the replica is copied again."""
    first, written = min(log.first, log.written), log.written
    holes = {(begin, end) for _, _, begin, end, _ in log.damage if end is not None and end > begin and end > first}
    if len(holes) > MOST_HOLES:
        return Have(written, written)
    return Have(first, written, mark_at(log, written - 1), tuple(sorted(holes)))


def ends_in_hole(copy: Have, mine: Have) -> bool:
    """Whether the stream has lost the record at the replica's end, so that the two can't be compared there."""
    return any(begin < copy.next <= end for begin, end in mine.holes)


def judge(here: Records, mine: Have, copy: Have) -> Literal["on", "anew", "check"]:
    """How a replica continues: the field `how` of Offer. Records that the stream has dropped need not agree."""
    if copy.next > here.written:
        return "check"
    known = copy.next > max(here.first, copy.first) and not ends_in_hole(copy, mine)
    if known and mark_at(here, copy.next - 1) != copy.mark:
        return "anew"
    gaps = [(begin, min(end, copy.next)) for begin, end in (*copy.holes, (here.first, copy.first))]
    if any(has_any(here, max(begin, here.first), end) for begin, end in gaps if end > max(begin, here.first)):
        return "anew"
    return "on"


def agrees(copy: Records, origin: Have) -> bool:
    """Whether a replica that is longer than its stream agrees with it up to the stream's end."""
    if origin.next <= max(origin.first, copy.first):
        return True  # the two have no record in common
    return mark_at(copy, origin.next - 1) == origin.mark
