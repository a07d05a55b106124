"""A channel against a model that knows each offset: whatever happens, in any order, and with a crash anywhere between.

The model is a dict of offsets. It checks each delivery: nothing that is done, nothing that somebody has, nothing before its time,
nobody above his window, in order, counted rightly. After each step whoever has room has everything there is for him.
"""

from dataclasses import dataclass, field
from math import inf

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from busway.broker.channels.state.actions import (
    AckResult,
    Action,
    Deliver,
    MoveToDeadLetters,
    NotIdle,
    Read,
    ReportLost,
    Rewound,
    TakeDone,
    Write,
)
from busway.broker.channels.state.channel import Channel
from busway.broker.channels.state.progress import (
    ChannelConfig,
    Created,
    Delivered,
    Done,
    Entry,
    Redriven,
    Sought,
    rebuild,
)
from busway.common.intervals import Intervals
from tests.support.strength import examples

LEASE, WORST = 10.0, 3
NO_KEY = 4
CONSUMERS = [(1, 1), (2, 1), (2, 2), (3, 1)]


@dataclass
class Fate:
    phase: str = "new"  # new, flight, waiting, dying, done
    holder: tuple[int, int] | None = None
    until: float = 0.0
    deliveries: int = 0
    lapsed: bool = False


@dataclass
class Person:
    window: int
    until: float = 0.0
    stopped: bool = False
    takes: dict[int, tuple[int, int, float]] = field(default_factory=dict)  # number -> wanted, got, until


class Model:
    def __init__(self, ranges: int, backoff: tuple[float, ...] = (), order_by: str = "") -> None:
        self.now = 100.0
        self.ranges = ranges
        self.records: list[bool] = []
        """Whether the channel chooses it."""
        self.keys: dict[int, int | None] = {}
        self.redriven: set[int | None] = set()
        """Keys of which a message came back out of order."""
        self.first = 0
        self.fates: dict[int, Fate] = {}
        self.people: dict[tuple[int, int], Person] = {}
        self.read: Read | None = None
        self.patient = False
        self.highest = -1
        self.take_number = 0
        self.config = ChannelConfig(lease=LEASE, max_deliveries=WORST, backoff=backoff, order_by=order_by)
        self.notes: list[Entry] = [Created("c", 1, 0, self.config)]
        self.known: list[dict[int, bool]] = [{}]  # after each note: what is done
        self.sent_back = 0
        """Messages whose dead letters were sent back: they are held beyond the limit."""
        self.whole = 0, 0
        """The notes of the last rewind: from, to."""
        self.channel = Channel(rebuild(self.notes)["c"], ranges=ranges)
        self.perform(self.channel.open(0, 0, self.now))

    # What the machine wants.

    def perform(self, actions: list[Action]) -> list[AckResult]:
        answers = []
        if any(isinstance(action, Rewound) for action in actions):  # the driver writes these notes at once
            count = sum(isinstance(action, Write) for action in actions)
            self.whole = len(self.notes), len(self.notes) + count
        for action in actions:
            if isinstance(action, Deliver):
                self.delivered(action)
            elif isinstance(action, Read):
                assert self.read is None, "one at a time"
                assert action.want > 0
                self.read = action
            elif isinstance(action, Write):
                self.notes.append(action.entry)
                done = [n for n, fate in self.fates.items() if fate.phase == "done" and self.records[n]]
                self.known.append(dict.fromkeys(done, True))
            elif isinstance(action, MoveToDeadLetters):
                start, count = action.span
                for offset in range(start, start + count):
                    fate = self.fates[offset]
                    assert fate.phase in ("waiting", "dying", "new")
                    assert fate.deliveries == action.deliveries >= self.config.max_deliveries > 0
                    fate.phase, fate.until = "dying", inf
            elif isinstance(action, TakeDone):
                wanted, got, _until = self.people[action.consumer].takes.pop(action.number)
                assert got == action.got <= wanted
            elif isinstance(action, AckResult):
                answers.append(action)
            else:
                assert isinstance(action, ReportLost | Rewound)
        if self.read and not self.patient:
            answers += self.answer_read()
        return answers

    def answer_read(self, more: int = 0) -> list[AckResult]:
        if (read := self.read) is None:
            return []
        self.read = None
        spans, at = [], max(read.from_, self.first)
        while at < len(self.records) and len(spans) < read.want + more:
            if self.records[at]:
                spans.append((at, 1))
            at += 1
        keys = [self.keys[offset] for offset, _ in spans] if self.config.order_by else None
        return self.perform(self.channel.found(read.ticket, joined(spans), at, self.now, keys))

    def delivered(self, action: Deliver) -> None:
        person = self.people[action.consumer]
        assert not self.config.paused
        assert not person.stopped
        for start, count in action.spans:
            for offset in range(start, start + count):
                fate = self.fates[offset]
                assert self.records[offset], "a filter is no wish"
                assert offset >= self.first
                assert fate.phase in ("new", "waiting"), f"{offset} is {fate.phase}"
                if self.config.order_by:
                    assert not self.before(offset), "each message before it with the same key is done"
                    assert fate.until <= self.now, "before its delay was over"
                elif fate.phase == "waiting":
                    assert fate.until <= self.now, "before its delay was over"
                    assert offset == min(self.again()), "in order"
                else:
                    assert offset < min(self.again(), default=inf), "what comes again comes first"
                    assert offset > self.highest, "in order"
                    self.highest = offset
                assert action.deliveries == fate.deliveries + 1
                assert not 0 < self.config.max_deliveries <= fate.deliveries
                fate.phase, fate.holder, fate.deliveries = "flight", action.consumer, action.deliveries
                fate.until = self.now + self.config.lease
                for number, (wanted, got, until) in person.takes.items():
                    if got < wanted:
                        person.takes[number] = wanted, got + 1, until
                        break
                else:
                    assert self.in_flight(action.consumer) <= person.window

    def in_flight(self, who: tuple[int, int]) -> int:
        return sum(fate.phase == "flight" and fate.holder == who for fate in self.fates.values())

    def again(self) -> list[int]:
        return [n for n, one in self.fates.items() if one.phase == "waiting" and one.until <= self.now]

    def before(self, offset: int) -> bool:
        """Whether a message with the same key has to be done first."""
        if not self.config.order_by or (key := self.keys[offset]) is None:
            return False
        if key in self.redriven:
            return any(self.keys[n] == key and one.phase == "flight" for n, one in self.fates.items())
        others = range(self.first, offset)
        return any(self.keys[n] == key and self.records[n] and self.fates[n].phase != "done" for n in others)

    def back(self, offset: int, delay: float = 0.0) -> None:
        fate = self.fates[offset]
        fate.phase, fate.holder, fate.until, fate.lapsed = "waiting", None, self.now + delay, False

    def backoff(self, failures: int) -> float:
        delays = self.config.backoff
        assert isinstance(delays, tuple)
        return delays[min(failures, len(delays)) - 1] if delays and failures else 0.0

    def settle(self) -> None:
        """Whoever has room has everything that there is for him, and no take waits for what will not come."""
        assert self.read is None or self.patient
        figures = self.channel.figures()
        phases = [fate.phase for fate in self.fates.values()]
        assert figures["in_flight"] == phases.count("flight")
        assert figures["dying"] == phases.count("dying")
        assert self.channel.floor >= self.first
        for offset in range(self.first, min(self.channel.floor, len(self.records))):
            assert not self.records[offset] or self.fates[offset].phase == "done", "the floor is done"
        assert all(got < wanted for one in self.people.values() for wanted, got, _ in one.takes.values())
        assert all(until > self.now for one in self.people.values() for *_, until in one.takes.values()) or self.read
        assert not any(fate.phase == "flight" and fate.until <= self.now for fate in self.fates.values())
        deadline = self.channel.deadline()
        assert deadline is None or deadline > self.now
        if self.config.paused or self.read:
            return
        hungry = any(
            not one.stopped and (one.takes or one.window > self.in_flight(who)) for who, one in self.people.items()
        )
        if self.config.order_by and not self.redriven:
            assert figures["ranges"] <= self.ranges + self.sent_back, "what is held is bounded"
        if hungry:
            ready = [n for n in self.again() if self.keys[n] not in self.redriven and not self.before(n)]
            assert not ready, "they could be handed out"
        if hungry and not figures["full"]:
            new = [n for n, one in self.fates.items() if one.phase == "new" and self.records[n]]
            fresh = [n for n in new if self.keys[n] not in self.redriven and not self.before(n)]
            assert not fresh, f"{fresh} could be handed out"

    # What happens.

    def append(self, kinds: list[int]) -> None:
        for chosen in kinds:
            self.records.append(bool(chosen))
            self.fates[len(self.records) - 1] = Fate()
            self.keys[len(self.records) - 1] = None if chosen == NO_KEY else int(chosen)
        self.perform(self.channel.appended(len(self.records), self.now))

    def join(self, who: tuple[int, int], window: int) -> None:
        self.people.setdefault(who, Person(window)).window = window
        self.perform(self.channel.join(who, window, self.now))

    def leave(self, who: tuple[int, int], lost: bool = False) -> None:
        if self.people.pop(who, None):
            for offset, fate in self.fates.items():
                if fate.holder == who:
                    self.back(offset, self.backoff(fate.deliveries - 1) if lost else 0.0)
        self.perform(self.channel.leave(who, self.now, lost=lost))

    def expect(
        self, who: tuple[int, int], spans: list[tuple[int, int]], *, waiting: bool, once: bool = True
    ) -> tuple[list[int], AckResult]:
        """Which offsets it is about for this consumer, and what it has to be told. The second time may be too late."""
        asked = [offset for start, count in spans for offset in range(start, start + count)]
        good, refused = [], 0
        for offset in asked:
            fate = self.fates.get(offset, Fate())
            if once and offset in good:
                continue
            if fate.phase == "flight" and who in self.people:
                if fate.holder == who:
                    good.append(offset)
                else:
                    refused += 1
            elif fate.phase == "flight":
                refused += waiting  # who is not there has no right to give back
            elif waiting and fate.deliveries and (fate.phase == "waiting" or self.is_behind(offset)):
                good.append(offset)
        left = Intervals()
        if len(good) < len(asked):
            for offset in set(asked) - set(good):
                left.put(offset, offset + 1)
        spared = tuple((start, end - start) for start, end, _ in left)
        return good, AckResult(who, len(good), len(asked) - len(good) - refused, refused, spared)

    def is_behind(self, offset: int) -> bool:
        """Whether a message was read again, and waits for another one with its key: an earlier delivery may be acknowledged."""
        return self.fates[offset].phase == "new" and self.records[offset] and offset < self.channel.cursor

    def ack(self, who: tuple[int, int], spans: list[tuple[int, int]]) -> None:
        good, answer = self.expect(who, spans, waiting=True)
        for offset in good:
            self.fates[offset] = Fate("done")
        answers = self.perform(self.channel.acks.ack(who, spans, self.now))
        assert answers[0] == answer

    def nack(self, who: tuple[int, int], spans: list[tuple[int, int]], delay: float | None, *, counted: bool) -> None:
        good, answer = self.expect(who, spans, waiting=False)
        for offset in good:
            self.back(offset, self.backoff(self.fates[offset].deliveries) if delay is None else delay)
            self.fates[offset].deliveries -= not counted
        assert self.perform(self.channel.acks.nack(who, spans, delay, self.now, counted=counted))[0] == answer

    def extend(self, who: tuple[int, int], spans: list[tuple[int, int]]) -> None:
        good, answer = self.expect(who, spans, waiting=False, once=False)
        for offset in good:
            self.fates[offset].until = self.now + self.config.lease
        assert self.perform(self.channel.acks.extend(who, spans, self.now))[0] == answer

    def renew(self, who: tuple[int, int]) -> None:
        if person := self.people.get(who):
            person.until = self.now + self.config.lease
        assert self.perform(self.channel.acks.renew(who, self.now)) == [AckResult(who, self.in_flight(who), 0, 0)]

    def lapse(self, who: tuple[int, int], spans: list[tuple[int, int]]) -> None:
        good, answer = self.expect(who, spans, waiting=False, once=False)
        for offset in good:
            self.fates[offset].lapsed = True
        assert self.perform(self.channel.acks.lapse(who, spans)) == [answer._replace(late=0, refused=0)]

    def take(self, who: tuple[int, int], most: int, timeout: float) -> None:
        if who in self.people:
            self.take_number += 1
            self.people[who].takes[self.take_number] = most, 0, self.now + timeout
            self.perform(self.channel.take(who, self.take_number, most, timeout, self.now))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for offset, fate in self.fates.items():
            if fate.phase == "flight" and fate.until <= self.now:
                assert fate.holder is not None
                if (until := self.people[fate.holder].until) > self.now and not fate.lapsed:
                    fate.until = until
                else:
                    self.back(offset, self.backoff(fate.deliveries))
        self.perform(self.channel.expire(self.now))

    def bury(self, which: int, *, worked: bool) -> None:
        dying = [offset for offset, fate in self.fates.items() if fate.phase == "dying"]
        if dying:
            offset = dying[which % len(dying)]
            if worked:
                self.fates[offset] = Fate("done")
                self.perform(self.channel.acks.dead_done(offset, self.now))
            else:
                self.channel.acks.dead_failed(offset, 2.0, self.now)
                self.fates[offset].until = self.now + 2.0

    def seek(self, offset: int) -> None:
        offset = min(max(offset, self.first), len(self.records))
        self.place(offset)
        if self.read:
            stale, self.read = self.read, None
            self.perform(self.channel.seek(offset, self.now))
            assert self.channel.found(stale.ticket, [(stale.from_, 1)], stale.from_ + 1, self.now) == []
        else:
            self.perform(self.channel.seek(offset, self.now))

    def place(self, offset: int) -> None:
        self.redriven.clear()
        self.highest = offset - 1
        self.fates = {n: Fate("done" if n < offset else "new") for n in self.fates}

    def redrive(self, which: int, count: int) -> None:
        done = [n for n, one in self.fates.items() if one.phase == "done" and self.records[n] and n >= self.first]
        if not done:
            return
        again = done[which % len(done) :][:count]
        self.sent_back += len(again)
        cursor, epoch = self.channel.cursor, self.channel.epoch
        self.fates |= {n: Fate("waiting" if n < cursor else "new") for n in again}
        if self.config.order_by:
            self.redriven |= {self.keys[n] for n in again if n < cursor} - {None}
        if again[-1] >= cursor:
            self.read = None
        letters = [(n, epoch) for n in again]
        keys = {n: self.keys[n] for n in again} if self.config.order_by else None
        actions = self.channel.redrive(letters, self.now, keys)
        self.perform(actions)
        assert all(self.channel.was_redriven(*one) for one in letters)
        assert self.channel.redrive(letters, self.now) == [], "they are sent back once"

    def trim(self, first: int) -> None:
        first = min(max(first, self.first), len(self.records))
        self.first = first
        for offset in list(self.fates):
            if offset < first:
                self.fates[offset] = Fate("done")
        if self.read and self.read.from_ < first:
            self.read = None
        self.perform(self.channel.trimmed(first, self.now))

    def skip(self, spans: list[tuple[int, int]]) -> None:
        """Of what is below the cursor; that is where the driver finds that it can't read something."""
        cut = [
            (start, min(count, self.channel.cursor - start)) for start, count in spans if start < self.channel.cursor
        ]
        for start, count in cut:
            for offset in range(start, start + count):
                self.fates[offset] = Fate("done")
                self.records[offset] = False
        self.perform(self.channel.skip(cut, self.now))

    def order(self, by: str) -> None:
        """It changes only while nothing is in flight or dying; what waits is read again."""
        config = msgspec.structs.replace(self.config, order_by=by)
        busy = any(fate.phase in ("flight", "dying") for fate in self.fates.values())
        if by != self.config.order_by:
            if busy:
                with pytest.raises(NotIdle):
                    self.channel.configure(config, self.now)
                return
            self.read, self.highest, self.config = None, -1, config
            self.redriven.clear()
            for offset, fate in self.fates.items():
                if fate.phase == "waiting":
                    self.fates[offset] = Fate(deliveries=fate.deliveries)
        self.perform(self.channel.configure(config, self.now))

    def pause(self, paused: bool) -> None:
        actions = self.channel.pause() if paused else self.channel.resume(self.now)
        self.config = self.channel.config
        assert self.config.paused == paused
        self.perform(actions)

    def crash(self, lost_notes: int, lost_records: int) -> None:
        """Some notes were not written yet, and some records of the stream neither."""
        keep = max(1, len(self.notes) - lost_notes)
        if self.whole[0] < keep < self.whole[1]:
            keep = self.whole[0]
        self.notes, self.known = self.notes[:keep], self.known[:keep]
        end = max(self.first, len(self.records) - lost_records)
        self.records = self.records[:end]
        done = self.known[-1]
        counts = counted(self.notes)
        self.fates = {
            n: Fate("done") if done.get(n) or n < self.first else Fate(deliveries=counts.get(n, 0)) for n in range(end)
        }
        self.people.clear()
        self.redriven.clear()
        self.read, self.highest = None, -1
        state = rebuild(self.notes)["c"]
        assert state.config is not None
        self.config = state.config
        assert_same(state.done, {n for n in done if n >= max(state.floor, self.first)})
        self.channel = Channel(state, ranges=self.ranges)
        self.perform(self.channel.open(self.first, end, self.now))


def joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    runs = Intervals()
    for start, count in spans:
        runs.put(start, start + count)
    return [(start, end - start) for start, end, _ in runs]


def assert_same(runs: Intervals, offsets: set[int]) -> None:
    """Every one that is done is known; what is known beyond them was never to be handed out."""
    known = {n for start, end, _ in runs for n in range(start, end)}
    assert offsets <= known


def counted(notes: list[Entry]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for entry in notes:
        if isinstance(entry, Delivered):
            for start, count in entry.spans:
                counts |= dict.fromkeys(range(start, start + count), entry.deliveries)
        elif isinstance(entry, Sought | Created):
            counts.clear()
        elif isinstance(entry, Redriven):
            for start, count in entry.spans:
                counts = {n: times for n, times in counts.items() if not start <= n < start + count}
        elif isinstance(entry, Done):
            for start, count in entry.spans:
                counts = {n: times for n, times in counts.items() if not start <= n < start + count}
            counts = {n: times for n, times in counts.items() if n >= entry.floor}
    return counts


who = st.sampled_from(CONSUMERS)
near = st.lists(st.tuples(st.integers(-2, 12), st.integers(1, 8)), min_size=1, max_size=2)
"""Spans, counted from the floor."""
kinds = st.lists(st.sampled_from([1, 1, 2, 3, NO_KEY, 0]), min_size=1, max_size=12)
"""Keys; 0: the channel does not choose the message."""
delays = st.sampled_from([0.0, 0.0, 3.0, 20.0, None, None])
backoffs = st.sampled_from([(), (), (2.0,), (0.0, 5.0), (1.0, 5.0, 12.0)])
own = st.tuples(st.just("ack_own"), who, st.integers(0, 50), st.integers(1, 5))
append = st.tuples(st.just("append"), kinds)
later = st.tuples(st.just("time"), st.sampled_from([1.0, 4.0, 9.5]))
steps = st.lists(
    st.one_of(
        append,
        append,
        own,
        own,
        later,
        later,
        st.tuples(st.just("join"), who, st.integers(0, 6)),
        st.tuples(st.just("leave"), who, st.booleans()),
        st.tuples(st.just("ack"), who, near),
        st.tuples(st.just("nack_own"), who, st.integers(0, 50), st.integers(1, 5), delays, st.booleans()),
        st.tuples(st.just("nack"), who, near, delays, st.booleans()),
        st.tuples(st.just("extend"), who, near),
        st.tuples(st.just("extend_own"), who, st.integers(0, 50), st.integers(1, 5)),
        st.tuples(st.just("renew"), who),
        st.tuples(st.just("lapse_own"), who, st.integers(0, 50), st.integers(1, 5)),
        st.tuples(st.just("take"), who, st.integers(1, 8), st.sampled_from([0.0, 4.0, 30.0])),
        st.tuples(st.just("cancel"), who, st.integers(0, 3)),
        st.tuples(st.just("bury"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("seek"), st.integers(-10, 10)),
        st.tuples(st.just("redrive"), st.integers(0, 50), st.integers(1, 5)),
        st.tuples(st.just("trim"), st.integers(-2, 3)),
        st.tuples(st.just("skip"), near),
        st.tuples(st.just("pause"), st.sampled_from([True, False, False])),
        st.tuples(st.just("order"), st.sampled_from(["", "topic"])),
        st.tuples(st.just("stop"), who, st.sampled_from([True, False, False])),
        st.tuples(st.just("patient"), st.booleans()),
        st.tuples(st.just("found"), st.integers(0, 10)),
        st.tuples(st.just("crash"), st.integers(0, 6), st.sampled_from([0, 0, 0, 3])),
    ),
    min_size=15,
    max_size=60,
)


def run(model: Model, what: str, *said) -> None:
    floor = model.channel.floor
    if what in ("ack", "nack", "extend", "skip"):
        at = next(one for one in said if isinstance(one, list))
        about = [(max(0, floor + start), count) for start, count in at]  # in any order, and some twice
        if what == "nack":
            model.nack(said[0], about, said[2], counted=said[3])
        elif what == "skip":
            model.skip(about)
        else:
            getattr(model, what)(said[0], about)
    elif what.endswith("_own"):
        if own := [n for n, fate in model.fates.items() if fate.holder == said[0]]:
            at = said[1] % len(own)
            about = joined([(n, 1) for n in own[at : at + said[2]]])
            if what == "nack_own":
                model.nack(said[0], about, said[3], counted=said[4])
            else:
                getattr(model, what.removesuffix("_own"))(said[0], about)
    elif what == "bury":
        model.bury(said[0], worked=said[1])
    elif what in ("seek", "trim"):
        getattr(model, what)(floor + said[0])
    elif what == "time":
        model.pass_time(*said)
    elif what == "cancel":
        if (person := model.people.get(said[0])) and person.takes:
            number = list(person.takes)[said[1] % len(person.takes)]
            model.perform(model.channel.cancel_take(said[0], number, model.now))
            assert number not in person.takes
    elif what == "stop":
        if person := model.people.get(said[0]):
            person.stopped = said[1]
            if said[1]:
                model.channel.stop(said[0])
            else:
                model.perform(model.channel.unstop(said[0], model.now))
    elif what == "patient":
        model.patient = said[0]
        model.perform([])
    elif what == "found":
        model.answer_read(said[0])
    elif what == "crash":
        model.crash(*said)
        model.join(CONSUMERS[0], 3)
        model.join(CONSUMERS[1], 2)
    else:
        getattr(model, what)(*said)


@given(steps, st.sampled_from([65_536, 65_536, 4]), backoffs, st.sampled_from(["", "topic"]))
@example(
    script=[
        *[("append", [1])] * 6,
        ("ack_own", (1, 1), 0, 1),
        ("skip", [(0, 1)]),
        ("time", 9.5),
        ("pause", True),
        ("stop", (1, 1), True),
        ("time", 1.0),
        ("order", "topic"),
        ("pause", False),
        ("ack", (2, 1), [(0, 2)]),
    ],
    ranges=65_536,
    backoff=(),
    order_by="",
)
@settings(
    max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_nothing_is_lost_and_nothing_done_comes_again(
    script, ranges: int, backoff: tuple[float, ...], order_by: str
) -> None:
    model = Model(ranges, backoff, order_by)
    model.append([0, 0, 1, 0, 0, 0, 2, 0, 0, 0])
    model.join(CONSUMERS[0], 3)
    model.join(CONSUMERS[1], 2)
    for step in script:
        run(model, *step)
        model.settle()
    finish(model)


def finish(model: Model) -> None:
    """Everything that is left is handed out, acknowledged or buried: then the floor is at the end."""
    model.patient = False
    model.perform([])
    model.pause(False)
    for who, person in model.people.items():
        person.stopped = False
        model.perform(model.channel.unstop(who, model.now))
    model.join(CONSUMERS[0], 5)
    for _ in range(2 * len(model.records) + 5):
        model.pass_time(10.0)
        for who in list(model.people):
            if own := [(n, 1) for n, fate in model.fates.items() if fate.holder == who]:
                model.ack(who, joined(own))
        while any(fate.phase == "dying" for fate in model.fates.values()):
            model.bury(0, worked=True)
        model.settle()
    assert all(fate.phase == "done" for n, fate in model.fates.items() if model.records[n])
    assert model.channel.floor == len(model.records)
    assert model.channel.figures()["lag"] == 0
    state = rebuild(model.notes)["c"]
    assert all(done or n < state.floor for n, done in model.known[-1].items() if n >= state.floor) is True
