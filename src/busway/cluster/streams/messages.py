"""What nodes say to each other about stored messages: values, checked where they come in."""

from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from busway.cluster.node import Stranger
from busway.streams import is_name

T = TypeVar("T", bound="Message")

_Guid: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
MOST_NUMBERS: Final = 1024
"""That one may ask about at once."""
MOST_GUIDS: Final = 64
MOST_BYTES: Final = 1 << 20
"""That one may ask for at once."""
MOST_PARTS: Final = 65_536
_Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class Message(msgspec.Struct, array_like=True, frozen=True):
    """One thing that is said."""

    def pack(self) -> bytes:
        return _encoder.encode(self)


class Part(Message, frozen=True):
    """A stream that a node can be asked for: its own, or a copy of another node's."""

    guid: _Guid
    """Of the node that stores what its clients publish in it."""
    name: _Name
    topics: tuple[str, ...] = ()
    former: tuple[str, ...] = ()
    there: bool = True
    """False: it is no longer."""


class Parts(Message, frozen=True):
    """What a node has; whole: and nothing else."""

    parts: Annotated[tuple[Part, ...], msgspec.Meta(max_length=MOST_PARTS)]
    whole: bool = False


class Fetch(Message, frozen=True):
    """Give me of a part what lies from this offset on and is asked for."""

    guid: _Guid
    name: _Name
    offset: _Offset
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)]
    pattern: str
    rules: bytes


class Fetched(Message, frozen=True):
    """The answer. From `gone` to `first` nothing is left."""

    gone: _Offset
    first: _Offset
    next: _Offset
    end: bool
    """It has no more for now."""
    records: bytes
    error: str = ""
    """It can't be read now."""


class Locate(Message, frozen=True):
    """Where in a part is that?"""

    guid: _Guid
    name: _Name
    kind: str
    value: int


class Located(Message, frozen=True):
    offset: _Offset
    error: str = ""


class Place(Message, frozen=True):
    """Where are the messages of a client's session that these nodes have stored, of these numbers: each run is the first, and how many?"""

    session: Annotated[int, msgspec.Meta(ge=1)]
    guids: Annotated[tuple[_Guid, ...], msgspec.Meta(max_length=MOST_GUIDS)]
    runs: Annotated[tuple[tuple[_Natural, _Natural], ...], msgspec.Meta(max_length=MOST_NUMBERS)]


class Run(Message, frozen=True):
    """Messages with numbers, offsets and sequences that follow each other."""

    guid: _Guid
    stream: _Name
    number: _Natural
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_NUMBERS)]
    offset: _Offset
    sequence: _Natural


class Placed(Message, frozen=True):
    """Those that are stored, and for which of the nodes this one could tell."""

    guids: tuple[_Guid, ...]
    runs: Annotated[tuple[Run, ...], msgspec.Meta(max_length=MOST_NUMBERS)] = ()


_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final[dict[type, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Parts, Fetch, Fetched, Locate, Located, Place, Placed)
}


def read(kind: type[T], packed: bytes) -> T:
    """What was said. Raises Stranger."""
    try:
        said: T = _decoders[kind].decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Stranger(f"{kind.__name__.lower()}: {error}") from error
    if isinstance(said, Place) and sum(count for _, count in said.runs) > MOST_NUMBERS:
        raise Stranger(f"place: more than {MOST_NUMBERS} numbers")
    for part in said.parts if isinstance(said, Parts) else ():
        if not is_name(part.name):
            raise Stranger(f"{part.name!r} is no name of a stream")
    return said
