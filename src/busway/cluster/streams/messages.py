"""Messages between nodes about stored messages, and the checks of a received one.

The modules of this package and of `channels` use them.
"""

from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from busway.cluster.node import Stranger
from busway.streams import is_name

T = TypeVar("T", bound="Message")

_Guid: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
MOST_NUMBERS: Final = 1024
"""Publish numbers in one Place."""
MOST_GUIDS: Final = 64
MOST_BYTES: Final = 1 << 20
"""Bytes of records in one Fetched."""
MOST_PARTS: Final = 65_536
_Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class Message(msgspec.Struct, array_like=True, frozen=True):
    """Base class of the messages."""

    def pack(self) -> bytes:
        return _encoder.encode(self)


class Part(Message, frozen=True):
    """A stream that a node can serve: its own part, or the replica of another node's part."""

    guid: _Guid
    """The node that owns this part."""
    name: _Name
    topics: tuple[str, ...] = ()
    former: tuple[str, ...] = ()
    there: bool = True
    """False: the node can't serve it any more."""


class Parts(Message, frozen=True):
    """Streams that a node can serve. `whole`: the complete list."""

    parts: Annotated[tuple[Part, ...], msgspec.Meta(max_length=MOST_PARTS)]
    whole: bool = False


class Fetch(Message, frozen=True):
    """Ask for the matching records of a part from `offset` on."""

    guid: _Guid
    name: _Name
    offset: _Offset
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)]
    pattern: str
    rules: bytes


class Fetched(Message, frozen=True):
    """The answer to Fetch. Records from `gone` to before `first` are lost."""

    gone: _Offset
    first: _Offset
    next: _Offset
    end: bool
    """The part has no more records for now."""
    records: bytes
    error: str = ""
    """Why the part can't be read now."""


class Locate(Message, frozen=True):
    """Ask for the offset of a start position in a part."""

    guid: _Guid
    name: _Name
    kind: str
    value: int


class Located(Message, frozen=True):
    """The answer to Locate."""

    offset: _Offset
    error: str = ""


class Place(Message, frozen=True):
    """Ask for the positions of publishes of a client's session that these nodes have stored.

    A run is the number of its first publish, and how many follow.
    """

    session: Annotated[int, msgspec.Meta(ge=1)]
    guids: Annotated[tuple[_Guid, ...], msgspec.Meta(max_length=MOST_GUIDS)]
    runs: Annotated[tuple[tuple[_Natural, _Natural], ...], msgspec.Meta(max_length=MOST_NUMBERS)]


class Run(Message, frozen=True):
    """Stored messages with consecutive numbers, offsets and sequences."""

    guid: _Guid
    stream: _Name
    number: _Natural
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_NUMBERS)]
    offset: _Offset
    sequence: _Natural


class Placed(Message, frozen=True):
    """The answer to Place: the stored publishes, and the nodes that the answer covers."""

    guids: tuple[_Guid, ...]
    runs: Annotated[tuple[Run, ...], msgspec.Meta(max_length=MOST_NUMBERS)] = ()


_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final[dict[type, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Parts, Fetch, Fetched, Locate, Located, Place, Placed)
}


def read(kind: type[T], packed: bytes) -> T:
    """Decode and check a message. Raises Stranger."""
    try:
        message: T = _decoders[kind].decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Stranger(f"{kind.__name__.lower()}: {error}") from error
    if isinstance(message, Place) and sum(count for _, count in message.runs) > MOST_NUMBERS:
        raise Stranger(f"place: more than {MOST_NUMBERS} numbers")
    for part in message.parts if isinstance(message, Parts) else ():
        if not is_name(part.name):
            raise Stranger(f"{part.name!r} is not a valid stream name")
    return message
