"""The progress of a channel: the entries of its journal, and the state that they add up to.

Values and one rule, apply(). Everything that must survive a crash is an entry; `state.channel` creates entries, and
`progress_log` stores them. Each entry repeats the floor and the epoch, which changes whenever a channel moves to another
position. So a damaged entry can cause a redelivery, but never a lost message.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Annotated, Final, TypeAlias

import msgspec

from busway.backoff import USUAL, Delays, check_delays
from busway.common.intervals import Intervals

Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Span: TypeAlias = tuple[Offset, Offset]
"""Consecutive offsets: the first one, and how many."""

LONGEST: Final = 1e10
"""The limit of `lease`, in seconds."""
MOST: Final = 2**31 - 1
"""The highest `max_deliveries`."""
_LONGEST_NAME: Final = 256
_PART: Final = 1000
"""The most spans in one entry of a snapshot, so that one damaged record costs little."""


class ChannelConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a channel."""

    lease: float = 30.0
    """Seconds until an unacknowledged message is redelivered; 0: only when its consumer leaves."""
    max_deliveries: int = 6
    """After so many deliveries without an acknowledgement a message is moved to the dead-letter topic; 0: never."""
    dead_letter: str = "dead/{stream}/{channel}"
    topic: str = "**"
    where: bytes = b""
    """Rules in their wire format."""
    exclusive: bool = False
    delete_on_leave: bool = False
    paused: bool = False
    backoff: Delays = USUAL
    """Seconds until a failed message is redelivered."""
    order_by: str = ""
    """`topic`, or the field whose value is the key: messages with the same key are delivered one after the other."""

    def __post_init__(self) -> None:
        if math.isnan(self.lease) or not 0 <= self.lease < LONGEST:
            raise ValueError(
                f"lease={self.lease!r}: give seconds, less than {LONGEST:.0f}, or 0 for a lease without end"
            )
        if not 0 <= self.max_deliveries <= MOST:
            raise ValueError(f"max_deliveries={self.max_deliveries!r}: give 1 to {MOST}, or 0 for no limit")
        check_delays(self.backoff)
        if self.order_by.startswith(".") or len(self.order_by) > _LONGEST_NAME:
            raise ValueError(
                f"order_by={self.order_by[:_LONGEST_NAME]!r}: give 'topic', the name of a field "
                f"(at most {_LONGEST_NAME} characters, not beginning with '.'), or '' for no order"
            )

    def same_choice(self, other: "ChannelConfig") -> bool:
        """Whether both choose the same messages."""
        return (self.topic, self.where) == (other.topic, other.where)


USUAL_SETTINGS: Final = {name: getattr(ChannelConfig(), name) for name in ChannelConfig.__struct_fields__}


class Created(msgspec.Struct, frozen=True, array_like=True, tag="new"):
    """A channel was created. The epoch is higher than that of an earlier channel with the same name."""

    channel: str
    epoch: Offset
    floor: Offset
    config: ChannelConfig | None
    """None if the entry that had it was damaged."""
    begin: Offset | None = None
    """The offset at which the channel began, or to which it was moved. None: the floor."""


class Configured(msgspec.Struct, frozen=True, array_like=True, tag="set"):
    """The settings of a channel were changed."""

    channel: str
    config: ChannelConfig


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """Everything below the floor is done, and these spans above it."""

    channel: str
    epoch: Offset
    floor: Offset
    spans: tuple[Span, ...] = ()


class Delivered(msgspec.Struct, frozen=True, array_like=True, tag="gave"):
    """The number of deliveries of these messages."""

    channel: str
    epoch: Offset
    deliveries: Offset
    spans: tuple[Span, ...]


class Sought(msgspec.Struct, frozen=True, array_like=True, tag="seek"):
    """The channel was moved to this offset: all messages below it are done, and none from it on."""

    channel: str
    epoch: Offset
    offset: Offset


class Redriven(msgspec.Struct, frozen=True, array_like=True, tag="back"):
    """Dead letters of these messages were sent back: the messages are open from this epoch on, and no others change.

    In a snapshot, whose epoch is at least this one, the entry only records that the letters were sent back.
    """

    channel: str
    epoch: Offset
    spans: tuple[Span, ...]


class Lost(msgspec.Struct, frozen=True, array_like=True, tag="lost"):
    """Everything below the floor is done, and the stream has removed some messages before they were acknowledged."""

    channel: str
    epoch: Offset
    floor: Offset
    lost: Offset
    """The number of lost messages since the channel was created."""
    told: Offset
    """The number of lost messages that were reported to consumers."""


class Deleted(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """The channel was removed."""

    channel: str


Entry: TypeAlias = Created | Configured | Done | Delivered | Sought | Redriven | Lost | Deleted


@dataclass(slots=True)
class ChannelState:
    """The progress of a channel as recorded in its journal."""

    channel: str
    config: ChannelConfig | None
    epoch: int
    floor: int
    done: Intervals = field(default_factory=Intervals)
    """The messages above the floor that are done."""
    deliveries: Intervals = field(default_factory=Intervals)
    """The recorded number of deliveries of messages that are not done."""
    begin: int = -1
    """The offset at which the channel began, or to which it was moved; -1 is replaced by the floor."""
    redriven: Intervals = field(default_factory=Intervals)
    """By message: the epoch that began when its dead letter was last sent back."""
    lost: int = 0
    """Messages that the stream has removed before they were acknowledged."""
    told: int = 0
    """The number of lost messages that were reported to consumers."""

    def __post_init__(self) -> None:
        if self.begin < 0:
            self.begin = self.floor

    def copy(self) -> "ChannelState":
        done, deliveries, redriven = self.done.copy(), self.deliveries.copy(), self.redriven.copy()
        position = self.epoch, self.floor, done, deliveries, self.begin, redriven
        return ChannelState(self.channel, self.config, *position, self.lost, self.told)

    def move(self, epoch: int, floor: int) -> None:
        """Move to an offset, and forget all progress."""
        self.epoch, self.floor, self.begin = epoch, floor, floor
        self.done.clear()
        self.deliveries.clear()

    def redrive(self, epoch: int, spans: Iterable[Span]) -> None:
        """Make these messages open and undelivered from this epoch on. No others change."""
        spans = list(spans)
        low = min((start for start, _ in spans), default=self.floor)
        if low < self.floor:
            self.done.put(low, self.floor)
            self.floor, self.begin = low, min(self.begin, low)
        self.epoch = epoch
        for start, count in spans:
            self.done.put(start, start + count, 0)
            self.deliveries.put(start, start + count, 0)
        self.raise_floor(self.done.beyond(self.floor))

    def sent_back(self, epoch: int, spans: Iterable[Span]) -> None:
        """Record that dead letters of these messages were sent back."""
        for start, count in spans:
            for at, end, before in list(self.redriven.pieces(start, start + count)):
                self.redriven.put(at, end, max(before, epoch))

    def raise_floor(self, floor: int) -> None:
        self.floor = max(self.floor, floor)
        self.done.forget(self.floor)
        self.deliveries.forget(self.floor)

    @property
    def last(self) -> int:
        """The offset behind all recorded progress."""
        return max(chain((self.floor,), (end for _, end, _ in chain(self.done, self.deliveries))))

    def cut(self, end: int) -> None:
        """Forget progress behind the end of the stream. Other messages get those offsets, so a new epoch begins."""
        if (last := self.last) <= end:
            return
        self.epoch += 1
        self.floor, self.begin = min(self.floor, end), min(self.begin, end)
        self.done.put(end, last, 0)
        self.deliveries.put(end, last, 0)

    def entries(self) -> Iterator[Entry]:
        """The fewest entries that result in this state."""
        yield Created(self.channel, self.epoch, self.floor, self.config, self.begin)
        spans = ((start, end - start) for start, end, _ in self.done)
        while part := tuple(islice(spans, _PART)):
            yield Done(self.channel, self.epoch, self.floor, part)
        for count, counted in _by_value(self.deliveries):
            yield Delivered(self.channel, self.epoch, count, counted)
        for epoch, sent in _by_value(self.redriven):
            yield Redriven(self.channel, epoch, sent)
        if self.lost:
            yield Lost(self.channel, self.epoch, self.floor, self.lost, self.told)


def _by_value(runs: Intervals) -> Iterator[tuple[int, tuple[Span, ...]]]:
    """The spans of each value, in parts for one entry each."""
    by_value: dict[int, list[Span]] = {}
    for start, end, value in runs:
        by_value.setdefault(value, []).append((start, end - start))
    for value, spans in by_value.items():
        for at in range(0, len(spans), _PART):
            yield value, tuple(spans[at : at + _PART])


States: TypeAlias = dict[str, ChannelState]


def apply(states: States, entry: Entry) -> None:
    """Update the states by one more entry. An entry of an earlier epoch changes nothing."""
    if isinstance(entry, Deleted):
        states.pop(entry.channel, None)
        return
    if isinstance(entry, Created):
        begin = entry.floor if entry.begin is None else min(entry.begin, entry.floor)
        states[entry.channel] = ChannelState(entry.channel, entry.config, entry.epoch, entry.floor, begin=begin)
        return
    state = states.get(entry.channel)
    if state is None:
        # The entry that created it was damaged. Its progress is restored without its settings.
        state = states[entry.channel] = ChannelState(entry.channel, None, 0, 0)
    if isinstance(entry, Configured):
        state.config = entry.config
    elif isinstance(entry, Sought):
        if entry.epoch > state.epoch:
            state.move(entry.epoch, entry.offset)
    elif isinstance(entry, Done):
        if entry.epoch > state.epoch:
            state.move(entry.epoch, entry.floor)  # the entry that recorded the move was damaged
        if entry.epoch == state.epoch:
            state.raise_floor(entry.floor)
            for start, count in entry.spans:
                state.done.put(max(start, state.floor), start + count)
                if state.deliveries:
                    state.deliveries.put(start, start + count, 0)
            state.raise_floor(state.done.beyond(state.floor))
    elif isinstance(entry, Lost):
        if entry.epoch > state.epoch:
            state.move(entry.epoch, entry.floor)
        if entry.epoch == state.epoch:
            state.raise_floor(entry.floor)
            state.raise_floor(state.done.beyond(state.floor))
        state.lost, state.told = max(state.lost, entry.lost), max(state.told, entry.told)
    elif isinstance(entry, Redriven):
        if entry.epoch > state.epoch:
            state.redrive(entry.epoch, entry.spans)
        state.sent_back(entry.epoch, entry.spans)
    elif entry.epoch == state.epoch:
        for start, count in entry.spans:
            for at, end, done in state.done.pieces(max(start, state.floor), start + count):
                if not done:
                    state.deliveries.put(at, end, entry.deliveries)


def rebuild(entries: Iterable[Entry]) -> States:
    states: States = {}
    for entry in entries:
        apply(states, entry)
    return states
