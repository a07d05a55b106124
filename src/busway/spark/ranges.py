"""Ranges of offsets: values and functions that limit them and split them among tasks. Called by the source; no I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

Place: TypeAlias = tuple[str, str]
"""The guid of a broker, and the name of a stream."""


@dataclass(frozen=True, slots=True)
class Available:
    """The offsets that a stream has: from `first` to `next`, exclusive. `bytes` is their approximate size."""

    broker: str
    stream: str
    first: int
    next: int
    bytes: int = 0

    @property
    def place(self) -> Place:
        """The broker and the stream."""
        return self.broker, self.stream

    @property
    def each(self) -> float:
        """The average size of a record in bytes."""
        return self.bytes / max(self.next - self.first, 1)


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of a stream from `begin` to `end`, exclusive."""

    broker: str
    stream: str
    begin: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.begin, 0)


def split(ranges: Iterable[Range], parts: int, most: int = 0) -> list[Range]:
    """Split ranges into at least `parts` ranges of similar length. With `most` none is longer than that."""
    filled = [part for part in ranges if len(part)]
    total = sum(map(len, filled))
    out: list[Range] = []
    for part in filled:
        pieces = min(-(-len(part) * parts // total), len(part))
        if most:
            pieces = max(pieces, -(-len(part) // most))
        edges = [part.begin + len(part) * piece // pieces for piece in range(pieces + 1)]
        out += [replace(part, begin=edges[piece], end=edges[piece + 1]) for piece in range(pieces)]
    return out


def admit(start: Mapping[Place, int], latest: Mapping[Place, int], most: int) -> dict[Place, int]:
    """Return the end of a read of at most `most` records. Each stream gets a share in proportion to its backlog."""
    waiting = {place: max(end - start[place], 0) for place, end in latest.items()}
    total = sum(waiting.values())
    if total <= most:
        return {place: max(end, start[place]) for place, end in latest.items()}
    shares = {place: count * most // total for place, count in waiting.items()}
    # The remainder of rounding goes to the first streams with a larger backlog, so that a limit of 1 makes progress.
    left = most - sum(shares.values())
    for place in sorted(waiting):
        more = min(left, waiting[place] - shares[place])
        shares[place] += more
        left -= more
    return {place: start[place] + share for place, share in shares.items()}


def to_json(offsets: Mapping[Place, int]) -> dict[str, Any]:
    """Convert offsets to the JSON of a checkpoint: by broker and stream."""
    out: dict[str, dict[str, int]] = {}
    for (broker, stream), offset in sorted(offsets.items()):
        out.setdefault(broker, {})[stream] = offset
    return out


def from_json(offsets: Mapping[str, Any]) -> dict[Place, int]:
    """Convert the JSON of a checkpoint to offsets."""
    return {(broker, stream): offset for broker, inner in offsets.items() for stream, offset in inner.items()}
