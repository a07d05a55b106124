"""Ranges of offsets: what there is to read, how much of it at a time, and how it is shared among tasks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

Place: TypeAlias = tuple[str, str]
"""Broker and stream."""


@dataclass(frozen=True, slots=True)
class Available:
    """What a stream holds: offsets from `first` to before `next`. `bytes` is about what they take."""

    broker: str
    stream: str
    first: int
    next: int
    bytes: int = 0

    @property
    def place(self) -> Place:
        return self.broker, self.stream

    @property
    def each(self) -> float:
        """Bytes of a record, on average."""
        return self.bytes / max(self.next - self.first, 1)


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets from `begin` to before `end` of a stream."""

    broker: str
    stream: str
    begin: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.begin, 0)


def split(ranges: Iterable[Range], parts: int, most: int = 0) -> list[Range]:
    """The same offsets in at least so many ranges of about the same length, none longer than `most` if that is given."""
    there = [one for one in ranges if len(one)]
    total = sum(map(len, there))
    out: list[Range] = []
    for one in there:
        pieces = min(-(-len(one) * parts // total), len(one))
        if most:
            pieces = max(pieces, -(-len(one) // most))
        edges = [one.begin + len(one) * piece // pieces for piece in range(pieces + 1)]
        out += [replace(one, begin=edges[piece], end=edges[piece + 1]) for piece in range(pieces)]
    return out


def admit(start: Mapping[Place, int], latest: Mapping[Place, int], most: int) -> dict[Place, int]:
    """How far to read with at most so many records, each stream in proportion to what it has; all have a start."""
    waiting = {place: max(end - start[place], 0) for place, end in latest.items()}
    total = sum(waiting.values())
    if total <= most:
        return {place: max(end, start[place]) for place, end in latest.items()}
    shares = {place: count * most // total for place, count in waiting.items()}
    # What rounding left over goes to the first ones that have more: so a limit of one moves on, too.
    left = most - sum(shares.values())
    for place in sorted(waiting):
        more = min(left, waiting[place] - shares[place])
        shares[place] += more
        left -= more
    return {place: start[place] + share for place, share in shares.items()}


def to_json(offsets: Mapping[Place, int]) -> dict[str, Any]:
    """As Spark keeps them in a checkpoint: by broker and stream."""
    out: dict[str, dict[str, int]] = {}
    for (broker, stream), offset in sorted(offsets.items()):
        out.setdefault(broker, {})[stream] = offset
    return out


def from_json(offsets: Mapping[str, Any]) -> dict[Place, int]:
    return {(broker, stream): offset for broker, inner in offsets.items() for stream, offset in inner.items()}
