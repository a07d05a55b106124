"""What streams and channels a cluster has: of two that differ the later one counts, on every node.

A machine: nobody is asked before something is made, changed or removed, and whoever was away takes over what it missed.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec

from busway.cluster.node import Stranger

MOST: Final = 100_000
"""Definitions of one cluster, those of what was removed included."""
_AHEAD: Final = 2**62
"""No clock says that: who comes with it would have the last word for ever."""


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """A stream (`orders`) or a channel of one (`orders/billing`), as somebody made or changed it."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=129)]
    stamp: Annotated[int, msgspec.Meta(ge=0, le=_AHEAD)]
    """When; nanoseconds since 1970."""
    guid: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """Where; it decides if that was at the same time."""
    spec: dict[str, Any] | None
    """Its settings; None: it was removed."""

    @property
    def age(self) -> tuple[int, str]:
        return self.stamp, self.guid


class Definitions:
    """What one node knows of all."""

    def __init__(self, guid: str, known: Iterable[Definition] = ()) -> None:
        self._guid = guid
        self._known = {one.key: one for one in known}

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._known.values())

    def get(self, key: str) -> Definition | None:
        return self._known.get(key)

    def found(self, key: str, spec: dict[str, Any]) -> Definition:
        """One that is here and was never told: anybody's word counts more."""
        return self._known.get(key) or Definition(key, 0, self._guid, spec)

    def make(self, key: str, spec: dict[str, Any] | None, clock: int) -> Definition:
        """Somebody has made, changed or removed it here; later than whatever is known of it, whatever the clocks say."""
        before = self._known.get(key)
        stamp = clock if before is None else max(clock, before.stamp + 1)
        self._known[key] = one = Definition(key, stamp, self._guid, spec)
        return one

    def newer(self, one: Definition) -> bool:
        """Whether somebody else's word is later than what is known here."""
        before = self._known.get(one.key)
        return before is None or before.age < one.age

    def take(self, one: Definition) -> None:
        """Somebody else's word counts."""
        if one.key not in self._known and len(self._known) >= MOST:
            raise Stranger(f"more than {MOST} streams and channels")
        self._known[one.key] = one


_decoder: Final = msgspec.msgpack.Decoder(Annotated[list[Definition], msgspec.Meta(max_length=MOST)])
_encoder: Final = msgspec.msgpack.Encoder()


def pack(definitions: Iterable[Definition]) -> bytes:
    return _encoder.encode(list(definitions))


def read(packed: bytes) -> list[Definition]:
    """Raises Stranger."""
    try:
        found: list[Definition] = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Stranger(f"not a list of streams and channels: {error}") from error
    return found
