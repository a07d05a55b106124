"""A channel's machine on a bench: a stream that is only numbers, a clock that is moved by hand, notes that survive a crash."""

from busway.broker.channels.state.actions import AckResult, Action, Deliver, Read, Write
from busway.broker.channels.state.channel import Channel
from busway.broker.channels.state.progress import ChannelConfig, Created, Entry, rebuild
from busway.common.intervals import Intervals

ANNA, BOB, CARL = (1, 1), (2, 1), (3, 1)


class Bench:
    """A channel on a stream in which every message fits, unless `chosen` says which ones do. Without backoff unless given."""

    def __init__(self, end: int = 0, *, first: int = 0, chosen=None, ranges: int = 65_536, **options) -> None:
        self.end, self.first, self.now = end, first, 1000.0
        self.chosen = chosen or (lambda offset: True)
        self.ranges = ranges
        self.reads: list[Read] = []
        self.spared: tuple[tuple[int, int], ...] = ()
        self.entries: list[Entry] = [Created("c", 1, first, ChannelConfig(**{"backoff": ()} | options))]
        self.begin()

    def begin(self) -> list[Action]:
        self.channel = Channel(rebuild(self.entries)["c"], ranges=self.ranges)
        return self.act(self.channel.open(self.first, self.end, self.now))

    def crash(self) -> list[Action]:
        return self.begin()

    def act(self, actions: list[Action]) -> list[Action]:
        """What is left of the actions when the stream was read and the notes were taken."""
        left: list[Action] = []
        todo = list(actions)
        while todo:
            one = todo.pop(0)
            if isinstance(one, Write):
                self.entries.append(one.entry)
            elif isinstance(one, Read):
                self.reads.append(one)
                todo += self.look(one)
            elif isinstance(one, AckResult):
                self.spared = one.left
                left.append(one._replace(left=()))
            else:
                left.append(one)
        return left

    def look(self, read: Read) -> list[Action]:
        spans, at = Intervals(), read.from_
        count = 0
        while at < self.end and count < read.want:
            if self.chosen(at):
                count += 1
                spans.put(at, at + 1)
            at += 1
        return self.channel.found(read.ticket, [(s, e - s) for s, e, _ in spans], at, self.now)

    def append(self, count: int) -> list[Action]:
        self.end += count
        return self.act(self.channel.appended(self.end, self.now))

    def join(self, who=ANNA, window: int = 10) -> list[Action]:
        return self.act(self.channel.join(who, window, self.now))

    def leave(self, who=ANNA, *, lost: bool = False) -> list[Action]:
        return self.act(self.channel.leave(who, self.now, lost=lost))

    def ack(self, *spans, who=ANNA) -> list[Action]:
        return self.act(self.channel.acks.ack(who, spans, self.now))

    def nack(self, *spans, who=ANNA, delay: float | None = 0.0, counted: bool = True) -> list[Action]:
        return self.act(self.channel.acks.nack(who, spans, delay, self.now, counted=counted))

    def extend(self, *spans, who=ANNA) -> list[Action]:
        return self.act(self.channel.acks.extend(who, spans, self.now))

    def take(self, most: int, timeout: float = 0.0, who=ANNA, number: int = 1, *, whole: bool = True) -> list[Action]:
        return self.act(self.channel.take(who, number, most, timeout, self.now, whole=whole))

    def later(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.act(self.channel.expire(self.now))

    def figure(self, name: str):
        return self.channel.figures()[name]


def given_to(actions: list[Action]) -> dict[tuple[int, int], list[int]]:
    """By consumer, in order, what it was given."""
    got: dict[tuple[int, int], list[int]] = {}
    for one in actions:
        if isinstance(one, Deliver):
            got.setdefault(one.consumer, []).extend(
                n for start, count in one.spans for n in range(start, start + count)
            )
    return got
