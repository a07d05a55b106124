"""What a channel wants done: the answers of the machine in `channels`, and why it refuses."""

from typing import NamedTuple, TypeAlias

from busway.broker.channels.state.consumers import Who
from busway.broker.channels.state.progress import Entry, Span
from busway.errors import Code, OutOfRange, Rejected


class ChannelBusy(Rejected):
    """An exclusive channel has its consumer."""

    default = Code.CHANNEL_TAKEN


class NotIdle(Rejected):
    """A setting that can't change while messages are in flight."""

    default = Code.INVALID_SETTING


class SeekFailed(OutOfRange):
    """The stream has no such offset."""

    default = Code.OUT_OF_RANGE


class Read(NamedTuple):
    """Look for messages that the channel chooses, from this offset on; answered by found(). There is one at a time.

    `want` is how many can be handed out at once: more may be found, fewer only at the end of what is safe.
    """

    from_: int
    want: int
    ticket: int


class Deliver(NamedTuple):
    """Hand these out; it is their delivery of this number."""

    consumer: Who
    spans: list[Span]
    deliveries: int


class TakeDone(NamedTuple):
    """A take has ended with so many messages. What the driver had to skip() of them it takes off itself."""

    consumer: Who
    number: int
    got: int


class AckResult(NamedTuple):
    """What became of an ack(), nack(), release() or extend(): good, too late, or in flight with somebody else and so refused."""

    consumer: Who
    good: int
    late: int
    refused: int
    left: tuple[Span, ...] = ()
    """Those that were not good."""


class Bury(NamedTuple):
    """Put these into the dead-letter topic, then call dead_done(); dead_failed() if that is not possible now."""

    span: Span
    deliveries: int


class ReportLost(NamedTuple):
    """The stream has dropped these before they were acknowledged. Consumer None: nobody had them."""

    consumer: Who | None
    spans: list[Span]
    before: bool = False
    """They were dropped while the channel had no consumer. Only their number counts."""


class Rewound(NamedTuple):
    """The stream ends before the place where the channel stood: it lost its end in a crash, the channel goes on where it ends."""

    was: int
    offset: int


class Write(NamedTuple):
    """Put this into the journal."""

    entry: Entry


class Delete(NamedTuple):
    """The last consumer has left: the channel is to be removed."""

    channel: str


Action: TypeAlias = Read | Deliver | TakeDone | AckResult | Bury | ReportLost | Rewound | Write | Delete
