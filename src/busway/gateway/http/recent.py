"""Messages that came through the door a moment ago, as the JSON that subscribers get: made once for all who get them. A machine.

Bounded: two generations, of which the older one goes when the younger is full. What is not found here is made from the stored message.
"""

from typing import Final, TypeAlias

_MOST: Final = 4096
_BYTES: Final = 1 << 20
"""Of each generation."""

Place: TypeAlias = tuple[str | None, str | None, int | None]
"""Broker, stream and offset: in a cluster each node has a stream of that name."""


class Recent:
    """Ends of messages, which are the same for all subscribers of the flat form without a window."""

    __slots__ = ("_bytes", "_new", "_old")

    def __init__(self) -> None:
        self._turn({})

    def put(self, place: Place, tail: bytes) -> None:
        self._new[place] = tail
        self._bytes += len(tail)
        if self._bytes > _BYTES or len(self._new) > _MOST:
            self._turn(self._new)

    def _turn(self, old: dict[Place, bytes]) -> None:
        self._old = old
        self._new: dict[Place, bytes] = {}
        self._bytes = 0

    def find(self, place: Place) -> bytes | None:
        return self._new.get(place) or self._old.get(place)
