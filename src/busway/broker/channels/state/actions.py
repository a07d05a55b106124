"""The actions of a channel's machine, which its driver carries out, and the errors by which it refuses."""

from typing import NamedTuple, TypeAlias

from busway.broker.channels.state.consumers import Who
from busway.broker.channels.state.progress import Entry, Span
from busway.errors import Code, OutOfRange, Rejected


class ChannelBusy(Rejected):
    """An exclusive channel has a consumer already."""

    default = Code.CHANNEL_TAKEN


class NotIdle(Rejected):
    """A setting can't change while messages are in flight."""

    default = Code.INVALID_SETTING


class SeekFailed(OutOfRange):
    """The stream has no such offset."""

    default = Code.OUT_OF_RANGE


class Read(NamedTuple):
    """Search for messages that the channel selects, from this offset on; answered by found(). There is one at a time.

    `want` messages can be delivered at once. The driver may find more, and fewer only at the end of the safe messages.
    """

    from_: int
    want: int
    ticket: int


class Deliver(NamedTuple):
    """Deliver these messages for the n-th time, with n in `deliveries`."""

    consumer: Who
    spans: list[Span]
    deliveries: int


class TakeDone(NamedTuple):
    """A take has ended with so many messages. The driver subtracts those that it had to skip()."""

    consumer: Who
    number: int
    got: int


class AckResult(NamedTuple):
    """The result of an ack(), nack(), reject() or extend(): messages that were in flight (`good`), `late` or `refused`.

    A refused message is in flight at another consumer.
    """

    consumer: Who
    good: int
    late: int
    refused: int
    left: tuple[Span, ...] = ()
    """The messages that were late or refused."""


class MoveToDeadLetters(NamedTuple):
    """Move these messages to the dead-letter topic, then call dead_done(), or dead_failed() if that fails."""

    span: Span
    deliveries: int


class ReportLost(NamedTuple):
    """The stream has dropped these messages before they were acknowledged. Consumer None: they were not in flight."""

    consumer: Who | None
    spans: list[Span]
    before: bool = False
    """Whether they were dropped while the channel had no consumer. Then only their number is known."""


class Rewound(NamedTuple):
    """The stream lost its end in a crash, so the channel was moved from `was` back to the end of the stream."""

    was: int
    offset: int


class Write(NamedTuple):
    """Write this entry to the journal."""

    entry: Entry


class Delete(NamedTuple):
    """Remove the channel, because its last consumer has left."""

    channel: str


Action: TypeAlias = Read | Deliver | TakeDone | AckResult | MoveToDeadLetters | ReportLost | Rewound | Write | Delete
