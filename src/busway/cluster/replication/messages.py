"""Messages between a primary and its mirror, and the checks of a received one; both replication drivers use them.

The primary is the node whose streams are mirrored. The mirror asks for streams and reports the records that it has.
The primary offers each stream under a number, which identifies the stream until the next offer. Both sides ignore
messages with an older number.
"""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from busway.broker.channels.state.progress import Entry, Stamp
from busway.cluster.node import Stranger
from busway.streams import SETTINGS, StreamConfig, check_name

MOST_STREAMS: Final = 100_000
PORTION: Final = 256 << 10
"""Bytes of records in one message."""
MOST_HOLES: Final = 1000
"""Holes in a replica above which it is copied from the start again."""

Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]
_Mark: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=16)]
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]


class Have(msgspec.Struct, frozen=True, array_like=True):
    """The records that one side has of a stream: offsets from `first` to before `next`, except the holes.

    `mark` is the hash of the last record.
    """

    first: Offset
    next: Offset
    mark: _Mark = b""
    holes: Annotated[tuple[tuple[Offset, Offset], ...], msgspec.Meta(max_length=MOST_HOLES)] = ()


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The mirror asks for all streams, or again for those in `have`. None: the mirror has no replica of the stream."""

    have: Annotated[dict[_Name, Have | None], msgspec.Meta(max_length=MOST_STREAMS)]
    all: bool
    noted: Annotated[dict[_Name, Stamp], msgspec.Meta(max_length=MOST_STREAMS)] = {}
    """The last position in each channel journal that the mirror has, by stream."""


class Offer(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The primary starts to send a stream.

    `how`: "on": the replica continues at its end. "anew": the replica does not match and is copied from the start.
    "check": the replica is longer than the stream, and the mirror checks whether both agree up to the stream's end.
    """

    number: Number
    config: StreamConfig
    have: Have
    how: Literal["on", "anew", "check"]


class Part(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A block of records that ends before `end`. The mirror drops its records before `first`."""

    number: Number
    first: Offset
    end: Offset
    ahead: Offset
    """The end of the stream at the primary."""
    block: bytes


class Noted(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Journal entries of the channels of a stream. `all`: a full snapshot, and there are no other channels."""

    number: Number
    all: bool
    entries: tuple[Entry, ...]
    serial: Number = 0
    """The mirror confirms this number with Heard when it has written the entries."""
    more: bool = False
    """Another message with the rest follows."""
    stamp: Stamp | None = None
    """The position in the primary's journal after these entries; None if more follow."""


class Got(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The mirror has written all records before the offset `next`."""

    number: Number
    next: Offset


class Trouble(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The mirror can't copy a stream now. It asks for the stream again later."""

    number: Number
    text: _Text


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The primary does not have this stream. `removed`: it was removed on request; otherwise the reason is unknown."""

    name: _Name
    removed: bool


class Checked(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The result of a check: whether the longer replica agrees with the stream.

    If not, the mirror starts again at the first offset.
    """

    number: Number
    agrees: bool


class Want(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The primary has lost records and asks for those that its mirror has, beginning with `offset`."""

    number: Number
    offset: Offset


class Tail(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Records that the primary asked for with Want. An empty block: the mirror has no more."""

    number: Number
    block: bytes


class Changed(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The settings of a stream were changed."""

    number: Number
    config: StreamConfig


class Heard(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The mirror has written the journal entries of a stream up to the message with this serial."""

    number: Number
    serial: Number


class Recall(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The primary has lost entries of a channel journal and asks for those that the mirror has."""

    number: Number


class Recalled(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Journal entries that the primary asked for with Recall."""

    number: Number
    entries: tuple[Entry, ...]
    more: bool = False
    """Another message with the rest follows."""


Word: TypeAlias = (
    Ask | Offer | Part | Noted | Got | Trouble | Gone | Checked | Want | Tail | Changed | Heard | Recall | Recalled
)
ToMirror: TypeAlias = Offer | Part | Noted | Gone | Want | Changed | Recall
_decoder: Final[msgspec.msgpack.Decoder[Word]] = msgspec.msgpack.Decoder(Word)
_encoder: Final = msgspec.msgpack.Encoder()


def pack(word: Word) -> bytes:
    return _encoder.encode(word)


def read(packed: bytes) -> Word:
    """Decode and check a message of another node. Raises Stranger."""
    try:
        word = _decoder.decode(packed)
        if isinstance(word, Offer | Changed):  # its name becomes a folder name
            config = word.config
            StreamConfig.make(config.name, **{key: getattr(config, key) for key in SETTINGS})
        elif isinstance(word, Gone):
            check_name("stream", word.name)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise Stranger(f"invalid replication message: {error}") from error
    return word
