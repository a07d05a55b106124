"""Messages between a primary and its mirror, and the checks of a received one; both replication drivers use them.

The primary is the node whose streams are mirrored. A stream on disk has two logs: its messages, and the progress of its
channels. Each is copied for itself. The log of messages has the name of the stream; see progress_of() for the other.
The mirror asks for logs and reports the records that it has. The primary offers each log under a number, which
identifies it until the next offer. Both sides ignore messages with an older number.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from busway.broker.channels.state.progress import Delivered, Done, Entry, Redriven
from busway.cluster.node import Stranger
from busway.streams import SETTINGS, StreamConfig, check_name

MOST_LOGS: Final = 200_000
PORTION: Final = 256 << 10
"""Bytes of records in one message."""
MOST_HOLES: Final = 1000
"""Holes in a replica above which it is copied from the start again."""

_PROGRESS: Final = "/channels"

Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]
_LogName: TypeAlias = Annotated[str, msgspec.Meta(max_length=64 + len(_PROGRESS))]
_Mark: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=16)]
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]


def progress_of(stream: str) -> str:
    """The name of the log with the progress of a stream's channels."""
    return stream + _PROGRESS


def stream_of(log: str) -> str:
    """The stream to which a log belongs."""
    return log.removesuffix(_PROGRESS)


def called(log: str) -> str:
    """A log, for people."""
    stream = stream_of(log)
    return f"stream {stream!r}" if log == stream else f"the channels of stream {stream!r}"


class Have(msgspec.Struct, frozen=True, array_like=True):
    """The records that one side has of a log: offsets from `first` to before `next`, except the holes.

    `mark` is the hash of the last record.
    """

    first: Offset
    next: Offset
    mark: _Mark = b""
    holes: Annotated[tuple[tuple[Offset, Offset], ...], msgspec.Meta(max_length=MOST_HOLES)] = ()


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The mirror asks for all logs, or again for those in `have`. None: the mirror has no replica of the log."""

    have: Annotated[dict[_LogName, Have | None], msgspec.Meta(max_length=MOST_LOGS)]
    all: bool


class Offer(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The primary starts to send a log.

    `how`: "on": the replica continues at its end. "anew": the replica does not match and is copied from the start.
    "check": the replica is longer than the log, and the mirror checks whether both agree up to the log's end.
    """

    number: Number
    log: _LogName
    config: StreamConfig
    have: Have
    how: Literal["on", "anew", "check"]


class Part(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A block of records that ends before `end`. The mirror drops its records before `first`."""

    number: Number
    first: Offset
    end: Offset
    ahead: Offset
    """The end of the log at the primary."""
    block: bytes


class Got(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The mirror has written all records before the offset `next`."""

    number: Number
    next: Offset


class Trouble(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The mirror can't copy a log now. It asks for the log again later."""

    number: Number
    text: _Text


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The primary does not have this stream. `removed`: it was removed on request; otherwise the reason is unknown."""

    name: _Name
    removed: bool


class Checked(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The result of a check: whether the longer replica agrees with the log.

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


Word: TypeAlias = Ask | Offer | Part | Got | Trouble | Gone | Checked | Want | Tail | Changed
ToMirror: TypeAlias = Offer | Part | Gone | Want | Changed
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
    if isinstance(word, Offer) and stream_of(word.log) != word.config.name:
        raise Stranger(f"invalid replication message: stream {word.config.name!r} has no log {word.log!r}")
    return word


def split(entries: Sequence[Entry]) -> Iterator[tuple[Entry, ...]]:
    """Split entries into parts that fit into a frame. There is at least one part, which may be empty."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        more = 512 + 20 * (len(entry.spans) if isinstance(entry, Done | Delivered | Redriven) else 0)
        if part and size + more > PORTION:
            yield tuple(part)
            part, size = [], 0
        part.append(entry)
        size += more
    yield tuple(part)
