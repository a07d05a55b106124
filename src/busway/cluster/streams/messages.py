"""Messages and calls between nodes about stored messages. Their types check a received one."""

from typing import Annotated, Final, TypeAlias

import msgspec

from busway.cluster.links.calls import Call
from busway.cluster.protocol import FETCH, LOCATE, PARTS, PLACE
from busway.streams import is_name

_Guid: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
MOST_NUMBERS: Final = 1024
"""Publish numbers in one Place."""
MOST_GUIDS: Final = 64
MOST_BYTES: Final = 1 << 20
"""Bytes of records in one Fetched."""
MOST_PARTS: Final = 65_536


class Part(msgspec.Struct, array_like=True, frozen=True):
    """A stream that a node can serve: its own part, or the replica of another node's part."""

    guid: _Guid
    """The node that owns this part."""
    name: _Name
    topics: tuple[str, ...] = ()
    former: tuple[str, ...] = ()
    there: bool = True
    """False: the node can't serve it any more."""

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(f"{self.name!r} is not a valid stream name")


class Parts(msgspec.Struct, array_like=True, frozen=True):
    """Streams that a node can serve. `whole`: the complete list."""

    parts: Annotated[tuple[Part, ...], msgspec.Meta(max_length=MOST_PARTS)]
    whole: bool = False


class Fetch(msgspec.Struct, array_like=True, frozen=True):
    """Ask for the matching records of a part from `offset` on."""

    guid: _Guid
    name: _Name
    offset: _Offset
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)]
    pattern: str
    rules: bytes


class Fetched(msgspec.Struct, array_like=True, frozen=True):
    """The answer to Fetch. Records from `gone` to before `first` are lost."""

    gone: _Offset
    first: _Offset
    next: _Offset
    end: bool
    """The part has no more records for now."""
    records: bytes

    def __post_init__(self) -> None:
        if not self.gone <= self.first <= max(self.next, self.first):
            raise ValueError("offsets in the wrong order")


class Locate(msgspec.Struct, array_like=True, frozen=True):
    """Ask for the offset of a start position in a part."""

    guid: _Guid
    name: _Name
    kind: str
    value: int


class Located(msgspec.Struct, array_like=True, frozen=True):
    """The answer to Locate."""

    offset: _Offset


class Place(msgspec.Struct, array_like=True, frozen=True):
    """Ask for the positions of publishes of a client's session that these nodes have stored.

    A run is the number of its first publish, and how many follow.
    """

    session: Annotated[int, msgspec.Meta(ge=1)]
    guids: Annotated[tuple[_Guid, ...], msgspec.Meta(max_length=MOST_GUIDS)]
    runs: Annotated[tuple[tuple[_Natural, _Natural], ...], msgspec.Meta(max_length=MOST_NUMBERS)]

    def __post_init__(self) -> None:
        if sum(count for _, count in self.runs) > MOST_NUMBERS:
            raise ValueError(f"more than {MOST_NUMBERS} numbers")


class Run(msgspec.Struct, array_like=True, frozen=True):
    """Stored messages with consecutive numbers, offsets and sequences."""

    guid: _Guid
    stream: _Name
    number: _Natural
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_NUMBERS)]
    offset: _Offset
    sequence: _Natural


class Placed(msgspec.Struct, array_like=True, frozen=True):
    """The answer to Place: the stored publishes, and the nodes that the answer covers."""

    guids: tuple[_Guid, ...]
    runs: Annotated[tuple[Run, ...], msgspec.Meta(max_length=MOST_NUMBERS)] = ()


ANNOUNCE: Final = Call[Parts, None](PARTS, "list of streams", Parts)
READ: Final = Call[Fetch, Fetched](FETCH, "read of a stream", Fetch, Fetched, ordered=True)
FIND: Final = Call[Locate, Located](LOCATE, "position in a stream", Locate, Located)
LOOK_UP: Final = Call[Place, Placed](PLACE, "lookup of publishes", Place, Placed)
