"""A map that every node of a cluster has. Nodes change it without asking each other; the later version of a key counts.

The pins and the definitions of a cluster are such maps. An entry is a value or a removal, with a version: the time of
the change, and what tells apart changes at one time. Removals are remembered for a while, so that a node that was away
does not restore what was removed. Without input or output.
"""

from collections.abc import Callable, Hashable, Iterator
from hashlib import blake2b
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)

_encode: Final = msgspec.msgpack.Encoder().encode


class Entry(Protocol):
    """One version of a key."""

    @property
    def key(self) -> Any: ...
    @property
    def version(self) -> tuple[Any, ...]:
        """The time in nanoseconds since 1970, and more."""

    @property
    def removed(self) -> bool:
        """Whether the key was removed. Of two entries with one version the removal counts."""


E = TypeVar("E", bound=Entry)


def _order(entry: Entry) -> tuple[Any, ...]:
    return entry.version, entry.removed


class ReplicatedMap(Generic[K, E]):
    """The entries that one node knows."""

    def __init__(
        self, most_removed: int, remembered: int | None = None, forgot: Callable[[K], object] = lambda _: None
    ) -> None:
        """Remember `most_removed` removals, for `remembered` nanoseconds; `forgot` gets the key of any other one."""
        self._most_removed = most_removed
        self._remembered = remembered
        self._forgot = forgot
        self._known: dict[K, E] = {}
        self._removed: dict[K, None] = {}
        """Removed keys, in the order in which this node has heard of it."""
        self.digest = 0
        """A checksum of all values. Nodes with one digest have the same values."""

    def __iter__(self) -> Iterator[E]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    @property
    def values(self) -> int:
        """The number of keys that are not removed."""
        return len(self._known) - len(self._removed)

    def get(self, key: K) -> E | None:
        """The known entry of a key: a value, or a removal."""
        return self._known.get(key)

    def later(self, entry: E) -> E | None:
        """The known entry of this key, if it is later than this one."""
        known = self._known.get(entry.key)
        return known if known is not None and _order(known) > _order(entry) else None

    def newer(self, entry: E) -> bool:
        """Whether an entry is later than the known one of its key."""
        known = self._known.get(entry.key)
        return known is None or _order(known) < _order(entry)

    def put(self, entry: E, clock: int = 0) -> bool:
        """Store an entry, if it is later than the known one. Returns whether it is."""
        if not self.newer(entry):
            return False
        key: K = entry.key
        if (old := self._known.get(key)) is not None and not old.removed:
            self.digest ^= _digest(old)
        self._removed.pop(key, None)
        self._known[key] = entry
        if entry.removed:
            self._removed[key] = None
            self.tidy(clock)
        else:
            self.digest ^= _digest(entry)
        return True

    def tidy(self, clock: int) -> None:
        """Forget removals that are too old or too many."""
        while self._removed:
            key = next(iter(self._removed))
            young = self._remembered is None or self._known[key].version[0] >= clock - self._remembered
            if young and len(self._removed) <= self._most_removed:
                return
            del self._removed[key], self._known[key]
            self._forgot(key)


def _digest(entry: Entry) -> int:
    return int.from_bytes(blake2b(_encode((entry.key, entry.version)), digest_size=7).digest())
