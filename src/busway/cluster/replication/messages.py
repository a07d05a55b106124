"""What a node and its mirror say to each other. Values only: what comes from another node is checked here.

The mirror asks, and tells what it has of each stream. The node offers each stream with a number, which stands for it until it is offered
again: what bears an older number is of no interest any more.
"""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from busway.broker.channels.state.progress import Entry, Stamp
from busway.cluster.node import Stranger
from busway.streams import SETTINGS, StreamConfig, check_name

MOST_STREAMS: Final = 100_000
PORTION: Final = 256 << 10
"""Bytes that are sent at once."""
MOST_HOLES: Final = 1000
"""A copy with more is made anew."""

Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]
_Mark: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=16)]
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]


class Have(msgspec.Struct, frozen=True, array_like=True):
    """What one side has of a stream: from the first offset to before the next, without the holes; and what its last record is."""

    first: Offset
    next: Offset
    mark: _Mark = b""
    holes: Annotated[tuple[tuple[Offset, Offset], ...], msgspec.Meta(max_length=MOST_HOLES)] = ()


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The mirror wants copies: of all streams, or once more of these. None: it has nothing of it."""

    have: Annotated[dict[_Name, Have | None], msgspec.Meta(max_length=MOST_STREAMS)]
    all: bool
    noted: Annotated[dict[_Name, Stamp], msgspec.Meta(max_length=MOST_STREAMS)] = {}
    """How far it has heard what their channels noted."""


class Offer(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A stream that is copied from now on.

    `how`: "on": the copy goes on where it is; "anew": it is none of this stream; "check": it has more than the stream, and the mirror has
    to see whether they agree up to the stream's end.
    """

    number: Number
    config: StreamConfig
    have: Have
    how: Literal["on", "anew", "check"]


class Part(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Records up to before `end`, as they are; nothing before `first` is needed any more."""

    number: Number
    first: Offset
    end: Offset
    ahead: Offset
    """How far the stream goes."""
    block: bytes


class Noted(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """What the channels of a stream noted; `all`: all that counts, and there are no other channels."""

    number: Number
    all: bool
    entries: tuple[Entry, ...]
    serial: Number = 0
    """The mirror says when it has written this."""
    more: bool = False
    """This is not all of it."""
    stamp: Stamp | None = None
    """How far the node's journal goes with this, if that was all of it."""


class Got(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The mirror has written everything before this offset."""

    number: Number
    next: Offset


class Trouble(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The mirror can't copy a stream, and asks again later."""

    number: Number
    text: _Text


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """There is no such stream any more. `removed`: since somebody wanted that; otherwise nobody knows why."""

    name: _Name
    removed: bool


class Checked(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The mirror has seen whether its copy, which is longer, agrees with the stream: if not, it begins anew with the first offset."""

    number: Number
    agrees: bool


class Want(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The node has lost its end: it wants back what its mirror has from this offset on."""

    number: Number
    offset: Offset


class Tail(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Some of that; without records: that was all."""

    number: Number
    block: bytes


class Changed(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A stream has other settings."""

    number: Number
    config: StreamConfig


class Heard(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The mirror has written what the channels of a stream noted, up to this one."""

    number: Number
    serial: Number


class Back(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """What the channels of a stream are after the mirror has handed out for its node: all of it."""

    name: _Name
    entries: tuple[Entry, ...]
    made: tuple[_Name, ...] = ()
    """Those that are new."""
    gone: tuple[_Name, ...] = ()
    more: bool = False
    """This is not all of it."""
    last: bool = False
    """And that was all of all streams."""
    turn: Number = 0
    """When the mirror began, by its clock, in microseconds: it may be told twice, and is taken in once. 0: an earlier version."""


class Took(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The node has written what came back of all its channels."""


class Recall(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The node has lost what the channels of a stream noted, or the last of it: it wants back what its mirror knows."""

    number: Number


class Recalled(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """That is it."""

    number: Number
    entries: tuple[Entry, ...]
    more: bool = False
    """This is not all of it."""


Word: TypeAlias = (
    Ask
    | Offer
    | Part
    | Noted
    | Got
    | Trouble
    | Gone
    | Checked
    | Want
    | Tail
    | Changed
    | Heard
    | Back
    | Took
    | Recall
    | Recalled
)
ToMirror: TypeAlias = Offer | Part | Noted | Gone | Want | Changed | Recall
_decoder: Final[msgspec.msgpack.Decoder[Word]] = msgspec.msgpack.Decoder(Word)
_encoder: Final = msgspec.msgpack.Encoder()


def pack(word: Word) -> bytes:
    return _encoder.encode(word)


def read(packed: bytes) -> Word:
    """What a node says. Raises Stranger."""
    try:
        word = _decoder.decode(packed)
        if isinstance(word, Offer | Changed):  # its name becomes that of a folder
            config = word.config
            StreamConfig.make(config.name, **{key: getattr(config, key) for key in SETTINGS})
        elif isinstance(word, Gone | Back):
            check_name("stream", word.name)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise Stranger(f"nothing that a mirror or its node says: {error}") from error
    return word
