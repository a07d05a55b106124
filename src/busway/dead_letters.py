"""Values for dead letters: the message, its origin and the reason; clients return them from the dead-letter verbs."""

from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from busway.message import Message
from busway.positions import Position

_PREFIX = "dead_"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a channel moved to the dead-letter topic. Unknown values are empty, 0 or None."""

    id: str
    """The id of the dead letter. redrive() takes it, or a prefix of it that is unique."""
    stream: str
    channel: str
    topic: str
    """The topic of the original message, as are payload, fields, sender and time."""
    payload: bytes
    fields: dict[str, Any]
    sender: str = ""
    time: datetime | None = None
    time_ns: int = 0
    """The time of the message in nanoseconds since 1970."""
    offset: int
    """The offset of the message in its stream."""
    died: datetime | None = None
    """When the channel moved it to the dead-letter topic."""
    deliveries: int = 0
    first: datetime | None = None
    """When it was delivered first since the broker started."""
    last: datetime | None = None
    """When it was delivered last."""
    reason: str = ""
    error: str = ""
    """The type of the exception that the handler raised."""
    traceback: str = ""
    """The last lines of the traceback of that exception."""
    consumer: str = ""
    host: str = ""
    node: str = ""
    """The name of the broker."""
    part: str = ""
    """The guid of the broker whose part of the stream holds the message."""
    epoch: int = 0
    """A number with which the channel recognises letters that were redriven."""
    redriven: bool = False
    """True if the letter was sent back to its channel."""
    gone: bool = False
    """True if the letter can't be redriven, since the stream has removed its message or the message has expired."""

    @property
    def position(self) -> Position | None:
        """The position of the message; None if it is unknown."""
        return Position(self.part, self.stream, self.offset) if self.part and self.stream else None

    @classmethod
    def of(cls, message: Message, part: str) -> Self:
        """Create it from a stored letter. `part` is the guid of the broker that stores it."""
        fields = dict(message.fields)
        known = {name.removeprefix(_PREFIX): fields.pop(name) for name in list(fields) if name.startswith(_PREFIX)}
        return cls(
            id=message.id,
            stream=_text(known, "stream"),
            channel=_text(known, "channel"),
            topic=_text(known, "topic"),
            payload=message.payload,
            fields=fields,
            sender=message.sender or "",
            time=message.time,
            time_ns=message.time_ns,
            offset=_number(known, "offset"),
            died=_moment(known, "time"),
            deliveries=_number(known, "deliveries"),
            first=_moment(known, "first"),
            last=_moment(known, "last"),
            reason=_text(known, "reason"),
            error=_text(known, "error"),
            traceback=_text(known, "traceback"),
            consumer=_text(known, "consumer"),
            host=_text(known, "host"),
            node=_text(known, "node"),
            part=_text(known, "part") or _text(known, "broker") or part,
            epoch=_number(known, "epoch"),
        )


class Redrive(msgspec.Struct, kw_only=True):
    """The result of a redrive: how many dead letters went back to their channel, and how many did not."""

    redriven: int = 0
    """Letters that were sent back."""
    before: int = 0
    """Letters that had been sent back before."""
    gone: int = 0
    """Letters that can't be sent back, since their messages were removed from the stream or have expired."""
    left: int = 0
    """Letters that could not be sent back now, since their node is unreachable or still stores them."""

    unreached: tuple[str, ...] = ()
    """Nodes of the cluster that did not answer."""

    @property
    def done(self) -> int:
        """The number of letters that were processed."""
        return self.redriven + self.before + self.gone + self.left


def _text(known: dict[str, Any], name: str) -> str:
    value = known.get(name)
    return value if isinstance(value, str) else ""


def _number(known: dict[str, Any], name: str) -> int:
    value = known.get(name)
    return value if isinstance(value, int) and value >= 0 else 0


def _moment(known: dict[str, Any], name: str) -> datetime | None:
    if not (time := _number(known, name)):
        return None
    try:
        return datetime.fromtimestamp(time / 1e9, UTC)
    except (ValueError, OverflowError, OSError):
        return None
