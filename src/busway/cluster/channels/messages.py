"""Messages and calls between nodes about the consumers of channels. Their types check a received one.

A consumer that a client has at one node has a remote consumer at each other node that has the stream.
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from busway.cluster.links.calls import Call
from busway.cluster.protocol import CONSUME, CONSUMER

_Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Code: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
Spans: TypeAlias = list[tuple[_Offset, Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]]]


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """A frame of a remote consumer, in the form of a client's frame."""

    kind: Annotated[int, msgspec.Meta(ge=0x30, le=0x34)]
    """CHANNEL, UNCHANNEL, TAKE, ACK or NACK."""
    consumer: _Number
    rest: bytes


class Result(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a frame, in the form of a client's RESULT."""

    code: _Code
    value: _Offset
    text: str
    in_flight: _Offset
    """Messages of the remote consumer that are not acknowledged."""


class Given(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Messages for a remote consumer."""

    consumer: _Number
    deliveries: _Offset
    spans: Spans
    records: bytes


class More(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """There are messages for a remote consumer that has none to take."""

    consumer: _Number
    in_flight: _Offset


class Missing(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The stream has dropped these offsets."""

    consumer: _Number
    begin: _Offset
    end: _Offset


class Ended(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """The channel of a remote consumer has ended."""

    consumer: _Number
    code: _Code
    text: str


News: TypeAlias = Given | More | Missing | Ended

FRAME: Final = Call[Frame, Result](CONSUME, "frame of a remote consumer", Frame, Result)
NEWS: Final = Call[News, None](CONSUMER, "message for a remote consumer", News)
