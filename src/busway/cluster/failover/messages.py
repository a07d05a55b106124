"""The message by which nodes agree on which one delivers from whose channels, and its check; `ownership` uses it."""

from typing import Annotated, Final, TypeAlias

import msgspec

from busway.cluster.node import MOST_NODES, Stranger

_Guid: TypeAlias = Annotated[str, msgspec.Meta(min_length=32, max_length=32)]
_Guids: TypeAlias = Annotated[tuple[_Guid, ...], msgspec.Meta(max_length=MOST_NODES)]
_Pairs: TypeAlias = Annotated[tuple[tuple[_Guid, _Guid], ...], msgspec.Meta(max_length=MOST_NODES)]


class OwnershipClaim(msgspec.Struct, frozen=True, array_like=True):
    """A node's claims and votes. New fields are appended, so that nodes of earlier versions can read the rest."""

    hands: _Guids = ()
    """Whose channels it hands out of."""
    ready: _Guids = ()
    """Whose it could."""
    wants: _Pairs = ()
    """Nodes that it misses, and the mirror that it wants for each."""
    stops: bool = False
    """It hands out no more, since it stops: it does not count any more."""
    anew: bool = False
    """It had stopped before it was started, so that others may not count it."""
    counts: _Guids = ()
    """Who counts for it; said where somebody has a mirror."""
    stood: _Pairs = ()
    """Nodes that it misses, and the mirror that was the last to hand out for each, as far as it has seen; that node was not here since."""
    takeover: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Its own time for that; 0: it doesn't say."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(OwnershipClaim)


def pack(said: OwnershipClaim) -> bytes:
    return _encode(said)


def read(packed: bytes) -> OwnershipClaim:
    """What a node says. Raises Stranger."""
    try:
        return _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Stranger(f"invalid ownership claim: {error}") from error
