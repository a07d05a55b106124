"""A dead letter as a user sees it: the message, where it comes from and why it died. Values only."""

from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from busway.message import Message

_PREFIX = "dead_"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that no consumer of a channel could deal with. What is not known is empty, 0 or None."""

    id: str
    """Of the letter; redrive() takes it, or as much of its beginning as no other letter has."""
    stream: str
    channel: str
    topic: str
    """Of the message, as below: payload, fields, sender and time."""
    payload: bytes
    fields: dict[str, Any]
    sender: str = ""
    time: datetime | None = None
    time_ns: int = 0
    """The same in ns since 1970."""
    offset: int
    """Where the message is in its stream."""
    died: datetime | None = None
    """When it became a dead letter."""
    deliveries: int = 0
    first: datetime | None = None
    last: datetime | None = None
    """When it was delivered first, since the broker started, and last."""
    reason: str = ""
    error: str = ""
    """The type of the exception that the handler raised."""
    traceback: str = ""
    """Its last lines."""
    consumer: str = ""
    host: str = ""
    node: str = ""
    """The name of the broker."""
    part: str = ""
    """The guid of the broker in whose part of the stream the message is."""
    epoch: int = 0
    """What the channel uses to know whether the letter was sent back."""
    redriven: bool = False
    """It was sent back to its channel."""
    gone: bool = False
    """The stream has removed its message, or the message has expired: it can't be sent back."""

    @classmethod
    def of(cls, message: Message, part: str) -> Self:
        """From the stored letter, in the part of its stream that this broker has."""
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
    """What became of dead letters that were to be sent back to their channel."""

    redriven: int = 0
    """They were sent back."""
    before: int = 0
    """They had been sent back before."""
    gone: int = 0
    """They can't be sent back: the stream has removed their messages, or these have expired."""
    left: int = 0
    """They could not be sent back now, because their node was not reached or is still storing them."""

    unreached: tuple[str, ...] = ()
    """Nodes of the cluster that could not be asked for dead letters."""

    @property
    def done(self) -> int:
        """How many letters were looked at."""
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
