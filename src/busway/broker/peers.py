"""What a broker asks of a stream that another node of its cluster has."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

Portion: TypeAlias = tuple[int, int, int, bytes, bool]
"""From which offset to which nothing is left, the one to read on from, the records, and whether there are no more for now."""


class Placements(NamedTuple):
    """Where messages of a client are stored, as far as it is known."""

    known: set[str]
    """The nodes of which anything is known,"""
    sure: set[str]
    """and those of them that have told it themselves. A copy may lack what its node has stored last."""
    runs: list[tuple[str, str, int, int, int, int]]
    """Guid, stream, number, count, offset and sequence of messages that follow each other."""


class Reader(Protocol):
    """Reads what one subscription asks for, from wherever it can be had."""

    def read(self, offset: int, most: int, again: Callable[[], object]) -> Portion | None:
        """From this offset on. None: it is being fetched, and `again` is called when it is here."""


class Far(Protocol):
    """A stream of another node."""

    number: int
    guid: str
    name: str

    def takes(self, pattern: str) -> bool:
        """Whether it may hold messages that match this pattern."""

    def locate(self, kind: str, value: int, found: Callable[[int], object]) -> None:
        """Have `found` called with the offset that is meant, as soon as somebody can be asked: `offset`, `time` (ns) or `new`."""

    def reader(self, pattern: str, rules: bytes) -> Reader:
        """For a subscription that asks for this."""
