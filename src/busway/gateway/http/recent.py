"""Cache of the JSON of recently published messages, so that `websocket.py` writes it once for all subscribers.

The cache is bounded: it has two generations and drops the older one when the younger one is full. On a miss
`websocket.py` makes the JSON from the stored message. A machine.
"""

from typing import Final, TypeAlias

_MOST: Final = 4096
_BYTES: Final = 1 << 20
"""Largest size of each generation."""

Place: TypeAlias = tuple[str | None, str | None, int | None]
"""Position of a message: broker, stream and offset. In a cluster several nodes have a stream of the same name."""


class RecentMessages:
    """The part of each message that is the same for all subscribers of the flat form without a window."""

    __slots__ = ("_bytes", "_new", "_old")

    def __init__(self) -> None:
        self._rotate({})

    def put(self, place: Place, tail: bytes) -> None:
        """Add the JSON of a message."""
        self._new[place] = tail
        self._bytes += len(tail)
        if self._bytes > _BYTES or len(self._new) > _MOST:
            self._rotate(self._new)

    def _rotate(self, old: dict[Place, bytes]) -> None:
        self._old = old
        self._new: dict[Place, bytes] = {}
        self._bytes = 0

    def find(self, place: Place) -> bytes | None:
        """The JSON of a message; None if the cache does not have it."""
        return self._new.get(place) or self._old.get(place)
