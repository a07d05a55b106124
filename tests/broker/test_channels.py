"""Channels: who gets which message, how often, until when, and what of that survives a crash. The machine alone."""

import functools
import operator
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, strategies as st

from busway.broker.channel_actions import (
    Action,
    Answer,
    ChannelBusy,
    Dead,
    Delete,
    Deliver,
    Gone,
    Note,
    Read,
    Rewound,
    SeekFailed,
    TakeDone,
)
from busway.broker.channels import STRIDE, Channel
from busway.broker.progress import (
    ChannelConfig,
    Configured,
    Created,
    Deleted,
    Delivered,
    Done,
    Entry,
    Sought,
    rebuild,
)
from busway.broker.runs import Runs
from busway.errors import Rejected

ANNA, BOB, CARL = (1, 1), (2, 1), (3, 1)


class Bench:
    """A channel on a stream in which every message fits, unless `chosen` says which ones do."""

    def __init__(self, end: int = 0, *, first: int = 0, chosen=None, ranges: int = 65_536, **options) -> None:
        self.end, self.first, self.now = end, first, 1000.0
        self.chosen = chosen or (lambda offset: True)
        self.ranges = ranges
        self.reads: list[Read] = []
        self.spared: tuple[tuple[int, int], ...] = ()
        self.entries: list[Entry] = [Created("c", 1, first, ChannelConfig(**options))]
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
            if isinstance(one, Note):
                self.entries.append(one.entry)
            elif isinstance(one, Read):
                self.reads.append(one)
                todo += self.look(one)
            elif isinstance(one, Answer):
                self.spared = one.left
                left.append(one._replace(left=()))
            else:
                left.append(one)
        return left

    def look(self, read: Read) -> list[Action]:
        spans, at = Runs(), read.from_
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

    def leave(self, who=ANNA) -> list[Action]:
        return self.act(self.channel.leave(who, self.now))

    def ack(self, *spans, who=ANNA) -> list[Action]:
        return self.act(self.channel.ack(who, spans, self.now))

    def nack(self, *spans, who=ANNA, delay: float = 0.0, counted: bool = True) -> list[Action]:
        return self.act(self.channel.nack(who, spans, delay, self.now, counted=counted))

    def extend(self, *spans, who=ANNA) -> list[Action]:
        return self.act(self.channel.extend(who, spans, self.now))

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


class TestWindow:
    def test_it_gets_as_many_as_its_window_and_more_as_it_acknowledges(self) -> None:
        bench = Bench(100)
        assert bench.join(window=10) == [Deliver(ANNA, [(0, 10)], 1)]
        assert bench.ack((0, 4)) == [Answer(ANNA, 4, 0, 0), Deliver(ANNA, [(10, 4)], 1)]
        assert (bench.figure("floor"), bench.figure("in_flight"), bench.figure("lag")) == (4, 10, 96)

    def test_nothing_is_read_that_nobody_can_get(self) -> None:
        bench = Bench(100)
        assert bench.reads == []
        bench.join(window=10)
        bench.append(50)
        assert [read[:2] for read in bench.reads] == [(0, 10)]

    def test_window_zero_gets_only_what_it_takes(self) -> None:
        bench = Bench(100)
        assert bench.join(window=0) == []
        assert bench.take(3) == [Deliver(ANNA, [(0, 3)], 1), TakeDone(ANNA, 1, 3)]

    def test_another_window(self) -> None:
        bench = Bench(100)
        bench.join(window=2)
        assert bench.join(window=5) == [Deliver(ANNA, [(2, 3)], 1)]
        bench.join(window=1)
        assert given_to(bench.ack((0, 4))) == {}
        assert given_to(bench.ack((4, 1))) == {ANNA: [5]}

    def test_more_comes_when_it_is_there(self) -> None:
        bench = Bench()
        assert bench.join() == []
        assert bench.append(3) == [Deliver(ANNA, [(0, 3)], 1)]
        assert bench.append(1) == [Deliver(ANNA, [(3, 1)], 1)]

    def test_one_whose_connection_is_full_gets_nothing_more(self) -> None:
        bench = Bench(5)
        bench.join(window=3)
        bench.channel.stop(ANNA)
        assert given_to(bench.nack((0, 3), counted=False)) == {}
        assert bench.act(bench.channel.go_on(ANNA, bench.now)) == [Deliver(ANNA, [(0, 3)], 1)]

    def test_more_may_be_found_than_was_wanted(self) -> None:
        bench = Bench()
        bench.join(window=2)
        (read,) = bench.channel.appended(1000, bench.now)
        assert bench.channel.found(read.ticket, [(0, 900)], 1000, bench.now) == [Deliver(ANNA, [(0, 2)], 1)]
        assert given_to(bench.channel.ack(ANNA, [(0, 2)], bench.now)) == {ANNA: [2, 3]}
        assert bench.figure("cursor") == 4


class TestShare:
    def test_equals_get_equal_parts(self) -> None:
        bench = Bench()
        for who in (ANNA, BOB, CARL):
            bench.join(who, window=20)
        got = given_to(bench.append(30))
        assert {who: len(one) for who, one in got.items()} == {ANNA: 10, BOB: 10, CARL: 10}
        assert sorted(functools.reduce(operator.iadd, got.values(), [])) == list(range(30))

    def test_in_one_piece_each(self) -> None:
        bench = Bench()
        bench.join(ANNA, window=50)
        bench.join(BOB, window=50)
        assert bench.append(100) == [Deliver(ANNA, [(0, 50)], 1), Deliver(BOB, [(50, 50)], 1)]

    def test_the_one_with_less_in_flight_comes_first(self) -> None:
        bench = Bench(8)
        bench.join(ANNA, window=10)  # has 8 of 10
        bench.join(BOB, window=10)
        assert given_to(bench.append(4)) == {BOB: [8, 9, 10, 11]}

    def test_by_the_size_of_their_windows(self) -> None:
        bench = Bench(40)
        bench.join(ANNA, window=100)  # has 40 of 100
        bench.join(BOB, window=10)
        got = given_to(bench.append(4))
        assert got == {BOB: [40, 41, 42, 43]}
        assert {who: len(one) for who, one in given_to(bench.append(22)).items()} == {ANNA: 20, BOB: 2}

    def test_one_by_one_in_turn(self) -> None:
        bench = Bench()
        for who in (ANNA, BOB, CARL):
            bench.join(who, window=5)
        turns = [next(iter(given_to(bench.append(1)))) for _ in range(6)]
        assert turns == [ANNA, BOB, CARL, ANNA, BOB, CARL]

    def test_takers_and_windows_share(self) -> None:
        bench = Bench()
        bench.join(ANNA, window=0)
        bench.join(BOB, window=10)
        bench.take(10, 60.0)
        got = given_to(bench.append(10))
        assert {who: len(one) for who, one in got.items()} == {ANNA: 5, BOB: 5}


class TestAcknowledging:
    def test_out_of_order_the_floor_waits(self) -> None:
        bench = Bench(10)
        bench.join()
        bench.ack((3, 2), (7, 1))
        assert bench.figure("floor") == 0
        bench.ack((0, 3))
        assert bench.figure("floor") == 5
        bench.ack((5, 5))
        assert (bench.figure("floor"), bench.figure("lag")) == (10, 0)

    def test_twice_is_too_late_and_harmless(self) -> None:
        bench = Bench(10)
        bench.join()
        bench.ack((0, 5))
        assert bench.ack((3, 4)) == [Answer(ANNA, 2, 2, 0)]
        assert bench.spared == ((3, 2),)
        assert bench.figure("late") == 2

    def test_twice_in_one_breath(self) -> None:
        bench = Bench(20)
        bench.join()
        assert bench.ack((4, 2), (0, 5), (4, 2))[0] == Answer(ANNA, 6, 3, 0)
        assert bench.nack((6, 4), (7, 1), (5, 3))[0] == Answer(ANNA, 4, 4, 0)
        assert bench.extend((6, 4), (7, 1), (5, 3)) == [Answer(ANNA, 7, 1, 0)]
        assert bench.figure("in_flight") == 10

    def test_what_never_was_handed_out(self) -> None:
        bench = Bench(100)
        bench.join(window=10)
        assert bench.ack((50, 2**40)) == [Answer(ANNA, 0, 2**40, 0)]
        assert bench.ack((0, 1), who=CARL)[0] == Answer(CARL, 0, 0, 1), "who is no consumer has nothing to say"
        assert given_to(bench.ack((0, 10))) == {ANNA: list(range(10, 20))}

    def test_from_the_one_who_had_it_before_while_another_has_it(self) -> None:
        bench = Bench(1, lease=5.0)
        bench.join(ANNA)
        bench.join(BOB)
        bench.channel.stop(ANNA)
        assert bench.later(5.0) == [Deliver(BOB, [(0, 1)], 2)]
        assert bench.ack((0, 1), who=ANNA) == [Answer(ANNA, 0, 0, 1)]
        assert bench.figure("refused") == 1
        assert bench.ack((0, 1), who=BOB) == [Answer(BOB, 1, 0, 0)]

    def test_from_the_one_who_had_it_before_while_nobody_has_it(self) -> None:
        bench = Bench(3, lease=5.0)
        bench.join(ANNA, window=3)
        bench.channel.stop(ANNA)
        bench.later(5.0)
        assert bench.figure("waiting") == 3
        assert bench.ack((0, 2)) == [Answer(ANNA, 2, 0, 0)]
        assert bench.act(bench.channel.go_on(ANNA, bench.now)) == [Deliver(ANNA, [(2, 1)], 2)]

    def test_many_small_ones_at_once(self) -> None:
        bench = Bench(1000, chosen=lambda n: n % 2 == 0)
        bench.join(window=500)
        assert bench.ack((0, 1000)) == [Answer(ANNA, 500, 500, 0)]
        assert (bench.figure("floor"), bench.figure("ranges")) == (1000, 0)


class TestAgain:
    def test_given_back_it_comes_at_once(self) -> None:
        bench = Bench(20)
        bench.join(window=5)
        assert bench.nack((1, 2)) == [Answer(ANNA, 2, 0, 0), Deliver(ANNA, [(1, 2)], 2)]
        assert bench.figure("redelivered") == 2

    def test_or_after_a_delay(self) -> None:
        bench = Bench(2)
        bench.join()
        bench.nack((0, 1), delay=3.0)
        assert bench.channel.deadline() == bench.now + 3.0
        assert bench.later(2.9) == []
        assert bench.later(0.2) == [Deliver(ANNA, [(0, 1)], 2)]

    def test_before_what_is_new_and_in_order(self) -> None:
        bench = Bench(100)
        bench.join(ANNA, window=10)
        bench.join(BOB, window=4)
        bench.ack((2, 1))
        assert bench.leave(ANNA) == [], "Bob has enough"
        assert given_to(bench.ack((10, 4), who=BOB)) == {BOB: [0, 1, 3, 4]}
        assert given_to(bench.ack((0, 5), who=BOB)) == {BOB: [5, 6, 7, 8]}
        assert given_to(bench.ack((5, 4), who=BOB)) == {BOB: [9, 14, 15, 16]}

    def test_the_lease_ends(self) -> None:
        bench = Bench(4, lease=5.0)
        bench.join(ANNA, window=4)
        bench.later(3.0)
        bench.ack((1, 1))
        assert bench.channel.deadline() == bench.now + 2.0
        assert bench.later(2.0) == [Deliver(ANNA, [(0, 1), (2, 2)], 2)]

    def test_who_is_still_at_work_says_so(self) -> None:
        bench = Bench(4, lease=5.0)
        bench.join(ANNA, window=4)
        bench.later(4.0)
        assert bench.extend((1, 2)) == [Answer(ANNA, 2, 0, 0)]
        assert bench.extend((0, 1), who=BOB) == [Answer(BOB, 0, 1, 0)]
        assert given_to(bench.later(4.0)) == {ANNA: [0, 3]}
        assert given_to(bench.later(1.0)) == {ANNA: [1, 2]}

    def test_without_a_lease_it_has_as_long_as_it_lives(self) -> None:
        bench = Bench(4, lease=0)
        bench.join()
        assert bench.channel.deadline() is None
        assert bench.later(1e9) == []
        bench.join(BOB)
        assert given_to(bench.leave(ANNA)) == {BOB: [0, 1, 2, 3]}

    def test_what_was_not_looked_at_is_not_counted(self) -> None:
        bench = Bench(3, max_deliveries=2)
        bench.join(window=3)
        for _ in range(5):
            assert given_to(bench.nack((0, 3), counted=False)) == {ANNA: [0, 1, 2]}
        assert bench.nack((0, 3)) == [Answer(ANNA, 3, 0, 0), Deliver(ANNA, [(0, 3)], 2)]
        bench.nack((1, 1), counted=False)
        assert [one.span for one in bench.nack((0, 3)) if isinstance(one, Dead)] == [(0, 1), (1, 1), (2, 1)]

    def test_two_who_had_it_different_times(self) -> None:
        bench = Bench(4)
        bench.join(window=4)
        bench.nack((2, 1))
        assert bench.nack((0, 4)) == [
            Answer(ANNA, 4, 0, 0),
            Deliver(ANNA, [(0, 2)], 2),
            Deliver(ANNA, [(2, 1)], 3),
            Deliver(ANNA, [(3, 1)], 2),
        ]


class TestDead:
    def test_after_so_many_deliveries(self) -> None:
        bench = Bench(2, max_deliveries=3)
        bench.join()
        bench.nack((0, 1))
        bench.nack((0, 1))
        assert bench.nack((0, 1)) == [Answer(ANNA, 1, 0, 0), Dead((0, 1), 3)]
        assert (bench.figure("dying"), bench.figure("floor")) == (1, 0)
        assert bench.ack((0, 1)) == [Answer(ANNA, 0, 1, 0)]
        bench.act(bench.channel.dead_done(0, bench.now))
        assert (bench.figure("dead"), bench.figure("dying"), bench.figure("floor")) == (1, 0, 1)

    def test_leases_and_consumers_that_end_count_too(self) -> None:
        bench = Bench(1, max_deliveries=2, lease=5.0)
        bench.join(ANNA)
        bench.join(BOB)
        assert given_to(bench.leave(ANNA)) == {BOB: [0]}
        assert bench.later(5.0) == [Dead((0, 1), 2)]

    def test_while_it_cannot_be_stored_it_is_tried_again(self) -> None:
        bench = Bench(3, max_deliveries=1)
        bench.join()
        assert bench.nack((0, 3))[1:] == [Dead((0, 3), 1)]
        bench.act(bench.channel.dead_done(1, bench.now))
        bench.channel.dead_failed(2, 5.0, bench.now)
        bench.channel.dead_failed(0, 5.0, bench.now)
        assert bench.channel.deadline() == bench.now + 5.0
        assert sorted(bench.later(5.0)) == [Dead((0, 1), 1), Dead((2, 1), 1)]
        bench.act(bench.channel.dead_done(0, bench.now, count=3))
        assert bench.figure("floor") == 3

    def test_it_is_done_only_once_it_is_stored_there(self) -> None:
        bench = Bench(1, max_deliveries=1)
        bench.join()
        bench.nack((0, 1))
        assert bench.crash() == []
        assert bench.join() == [Dead((0, 1), 1)]
        bench.act(bench.channel.dead_done(0, bench.now))
        bench.crash()
        assert bench.join() == []
        assert bench.figure("floor") == 1

    def test_without_a_limit_it_comes_for_ever(self) -> None:
        bench = Bench(1, max_deliveries=0)
        bench.join()
        for times in range(2, 50):
            assert bench.nack((0, 1))[1] == Deliver(ANNA, [(0, 1)], times)

    def test_a_message_that_kills_the_broker_dies_in_the_end(self) -> None:
        """It crashes after each second delivery."""
        bench = Bench(1, max_deliveries=5)
        deliveries = []
        for _ in range(20):
            actions = bench.join()
            if any(isinstance(one, Dead) for one in actions):
                break
            actions += bench.nack((0, 1))
            deliveries += [one.deliveries for one in actions if isinstance(one, Deliver)]
            bench.crash()
        else:
            pytest.fail("it never dies")
        assert deliveries[-1] == 5
        assert len(deliveries) <= 6


class TestTake:
    def test_what_is_there_at_once(self) -> None:
        bench = Bench(3)
        bench.join(window=0)
        assert bench.take(10) == [Deliver(ANNA, [(0, 3)], 1), TakeDone(ANNA, 1, 3)]
        assert bench.take(10, number=2) == [TakeDone(ANNA, 2, 0)]

    def test_and_the_rest_as_it_comes(self) -> None:
        bench = Bench(2)
        bench.join(window=0)
        assert bench.take(5, 10.0) == [Deliver(ANNA, [(0, 2)], 1)]
        assert bench.append(2) == [Deliver(ANNA, [(2, 2)], 1)]
        assert bench.append(2) == [Deliver(ANNA, [(4, 1)], 1), TakeDone(ANNA, 1, 5)]
        assert bench.channel.deadline() == bench.now + 30.0, "the lease"

    def test_or_only_until_there_is_something(self) -> None:
        bench = Bench()
        bench.join(window=0)
        assert bench.take(5, 10.0, whole=False) == []
        assert bench.append(2) == [Deliver(ANNA, [(0, 2)], 1), TakeDone(ANNA, 1, 2)]
        assert bench.append(2) == []
        assert bench.take(1, 10.0, whole=False, number=2) == [Deliver(ANNA, [(2, 1)], 1), TakeDone(ANNA, 2, 1)]

    def test_until_the_time_is_over(self) -> None:
        bench = Bench(2)
        bench.join(window=0)
        bench.take(5, 10.0)
        assert bench.later(10.0) == [TakeDone(ANNA, 1, 2)]
        assert bench.append(3) == []

    def test_several_in_order(self) -> None:
        bench = Bench()
        bench.join(window=0)
        bench.take(2, 10.0)
        bench.take(2, 10.0, number=2)
        assert bench.append(3) == [Deliver(ANNA, [(0, 3)], 1), TakeDone(ANNA, 1, 2)]
        assert bench.append(3) == [Deliver(ANNA, [(3, 1)], 1), TakeDone(ANNA, 2, 2)]

    def test_it_waits_for_the_look_that_is_under_way(self) -> None:
        bench = Bench(5)
        bench.join(window=0)
        (read,) = bench.channel.take(ANNA, 1, 3, 0.0, bench.now)
        assert bench.channel.found(read.ticket, [(0, 2)], 5, bench.now) == [
            Deliver(ANNA, [(0, 2)], 1),
            TakeDone(ANNA, 1, 2),
        ]

    def test_cancelled(self) -> None:
        bench = Bench(1)
        bench.join(window=0)
        bench.take(3, 10.0)
        assert bench.channel.cancel_take(ANNA, 1, bench.now) == [TakeDone(ANNA, 1, 1)]
        assert bench.channel.cancel_take(ANNA, 1, bench.now) == []
        assert bench.append(1) == []
        assert bench.figure("in_flight") == 1, "what it got it has"

    def test_who_leaves_waits_no_longer(self) -> None:
        bench = Bench()
        bench.join(window=0)
        bench.take(3, 10.0)
        assert bench.leave() == []
        assert bench.channel.deadline() is None
        assert bench.append(1) == []

    def test_what_it_took_comes_again_too(self) -> None:
        bench = Bench(3, lease=5.0)
        bench.join(window=0)
        bench.take(2)
        assert bench.later(5.0) == []
        assert bench.take(9, number=2) == [
            Deliver(ANNA, [(0, 2)], 2),
            Deliver(ANNA, [(2, 1)], 1),
            TakeDone(ANNA, 2, 3),
        ]

    def test_of_nothing_and_of_nobody(self) -> None:
        bench = Bench(3)
        assert bench.take(3) == [TakeDone(ANNA, 1, 0)]
        bench.join(window=0)
        assert bench.take(0) == [TakeDone(ANNA, 1, 0)]


class TestPlace:
    def test_seek_back_and_forward(self) -> None:
        bench = Bench(20)
        bench.join(window=5)
        bench.ack((0, 5))
        assert bench.act(bench.channel.seek(2, bench.now)) == [Deliver(ANNA, [(2, 5)], 1)]
        assert bench.entries[-1] == Sought("c", 2, 2)
        assert bench.act(bench.channel.seek(15, bench.now)) == [Deliver(ANNA, [(15, 5)], 1)]
        assert bench.figure("in_flight") == 5
        bench.crash()
        assert given_to(bench.join()) == {ANNA: list(range(15, 20))}

    def test_out_of_range_is_refused_and_nothing_has_happened(self) -> None:
        bench = Bench(20, first=5)
        bench.join(window=3)
        for offset in (4, 21):
            with pytest.raises(SeekFailed, match=f"offset {offset} is not in the stream, which has 5 to 20"):
                bench.channel.seek(offset, bench.now)
        assert bench.figure("in_flight") == 3
        bench.channel.seek(20, bench.now)
        assert issubclass(SeekFailed, Rejected)

    def test_a_look_that_was_under_way_is_forgotten(self) -> None:
        bench = Bench(20)
        (old,) = bench.channel.join(ANNA, 5, bench.now)
        _, new = bench.channel.seek(10, bench.now)
        assert bench.channel.found(old.ticket, [(0, 5)], 5, bench.now) == []
        assert given_to(bench.channel.found(new.ticket, [(10, 5)], 15, bench.now)) == {ANNA: [10, 11, 12, 13, 14]}

    def test_a_take_survives_a_seek(self) -> None:
        bench = Bench(5)
        bench.join(window=0)
        bench.take(9, 10.0)
        assert bench.act(bench.channel.seek(4, bench.now)) == [Deliver(ANNA, [(4, 1)], 1)]
        assert bench.later(10.0) == [TakeDone(ANNA, 1, 6)]

    def test_paused(self) -> None:
        bench = Bench(5)
        bench.join(window=2)
        bench.act(bench.channel.pause())
        assert bench.entries[-1] == Configured("c", ChannelConfig(paused=True))
        assert bench.ack((0, 2)) == [Answer(ANNA, 2, 0, 0)]
        assert bench.take(1) == [TakeDone(ANNA, 1, 0)]
        bench.crash()
        assert bench.join(window=2) == [], "it stays so"
        assert bench.act(bench.channel.resume(bench.now)) == [Deliver(ANNA, [(2, 2)], 1)]

    def test_exclusive(self) -> None:
        bench = Bench(5, exclusive=True)
        bench.join(ANNA, window=1)
        with pytest.raises(ChannelBusy, match="'c' is exclusive"):
            bench.join(BOB)
        bench.join(ANNA, window=2)
        bench.leave(ANNA)
        assert given_to(bench.join(BOB, window=2)) == {BOB: [0, 1]}

    def test_deleted_when_the_last_leaves(self) -> None:
        bench = Bench(5, delete_on_leave=True)
        bench.join(ANNA, window=2)
        bench.join(BOB, window=2)
        assert given_to(bench.leave(ANNA)) == {}
        assert bench.leave(BOB) == [Delete("c")]
        assert bench.entries[-1] == Deleted("c")
        assert rebuild(bench.entries) == {}
        assert bench.leave(CARL) == []

    def test_another_choice_holds_for_what_was_not_handed_out(self) -> None:
        bench = Bench()
        bench.join(window=2)
        (read,) = bench.channel.appended(100, bench.now)
        bench.channel.found(read.ticket, [(0, 50)], 50, bench.now)
        config = ChannelConfig(topic="a/*")
        note, *rest = bench.channel.configure(config, bench.now)
        assert (note, rest) == (Note(Configured("c", config)), [])
        (_, _, new) = bench.channel.ack(ANNA, [(0, 2)], bench.now)
        assert isinstance(new, Read)
        assert new.from_ == 2
        assert bench.channel.configure(config, bench.now) == []

    @pytest.mark.parametrize("wrong", [{"lease": -1.0}, {"lease": float("nan")}, {"max_deliveries": -1}])
    def test_settings_that_make_no_sense(self, wrong) -> None:
        with pytest.raises(ValueError, match="give"):
            ChannelConfig(**wrong)


class TestStream:
    def test_only_what_it_chooses(self) -> None:
        bench = Bench(100, chosen=lambda n: n % 10 == 0)
        assert given_to(bench.join(window=3)) == {ANNA: [0, 10, 20]}
        assert given_to(bench.ack((0, 1), (10, 1))) == {ANNA: [30, 40]}
        assert bench.figure("floor") == 20

    def test_dropped_by_the_stream(self) -> None:
        bench = Bench(100)
        bench.join(window=4)
        bench.nack((0, 1), delay=50.0)  # 4 comes in its place
        bench.ack((2, 1))
        assert bench.act(bench.channel.trimmed(3, bench.now)) == [
            Gone(ANNA, [(1, 1)]),
            Gone(None, [(0, 1)]),
            Deliver(ANNA, [(6, 1)], 1),
        ]
        assert (bench.figure("lost"), bench.figure("floor")) == (2, 3)
        assert bench.ack((1, 1)) == [Answer(ANNA, 0, 1, 0)]
        assert bench.act(bench.channel.trimmed(50, bench.now))[-1] == Deliver(ANNA, [(50, 4)], 1)
        assert bench.figure("lost") == 2 + 47
        assert bench.act(bench.channel.trimmed(50, bench.now)) == []

    def test_dropped_while_the_broker_was_down(self) -> None:
        bench = Bench(100)
        bench.join(window=20)
        bench.ack((0, 5), (8, 2))
        bench.first = 12
        assert bench.crash() == [Gone(None, [(5, 3), (10, 2)])]
        assert given_to(bench.join(window=2)) == {ANNA: [12, 13]}

    def test_the_stream_lost_its_end(self) -> None:
        """What gets the offsets of what was lost is new, whatever the journal knows of them."""
        bench = Bench(20)
        bench.join(window=20)
        bench.nack((17, 1))
        bench.ack((0, 12), (15, 1), (18, 1))
        bench.end = 14
        assert bench.crash() == [Rewound(19, 14)]
        assert given_to(bench.join(window=20)) == {ANNA: [12, 13]}
        assert bench.append(6) == [Deliver(ANNA, [(14, 6)], 1)]
        bench.ack((12, 8))
        bench.crash()
        assert bench.join() == []
        assert bench.figure("floor") == 20

    def test_the_stream_lost_what_was_only_handed_out(self) -> None:
        bench = Bench(20)
        bench.join(window=20)
        bench.nack((17, 1))
        bench.end = 14
        assert bench.crash() == [Rewound(18, 14)]
        bench.append(6)
        assert bench.join(window=20) == [Deliver(ANNA, [(0, 20)], 1)]

    def test_what_cannot_be_read_counts_as_done(self) -> None:
        bench = Bench(10)
        bench.join(window=4)
        assert bench.act(bench.channel.skip([(1, 2)], bench.now)) == [Deliver(ANNA, [(4, 2)], 1)]
        bench.ack((0, 1))
        assert bench.figure("floor") == 3

    def test_a_look_that_gets_no_further_is_not_repeated_until_there_is_more(self) -> None:
        bench = Bench()
        bench.join(window=4)
        (read,) = bench.channel.appended(10, bench.now)
        assert bench.channel.found(read.ticket, [], 0, bench.now) == []
        assert bench.channel.expire(bench.now) == []
        (read,) = bench.channel.appended(11, bench.now)
        assert read.from_ == 0

    def test_too_many_pieces_stop_it_until_some_are_done(self) -> None:
        bench = Bench(1000, ranges=10)
        bench.join(window=200)
        bench.ack(*((n, 1) for n in range(1, 40, 2)))
        assert bench.figure("full")
        assert bench.append(100) == []
        assert given_to(bench.nack((0, 1))) == {ANNA: [0]}, "what comes again comes"
        assert given_to(bench.ack((0, 40)))[ANNA][0] == 200
        assert not bench.figure("full")


class TestJournal:
    """What is noted, and what it takes to come back."""

    def test_in_order_a_note_is_a_floor(self) -> None:
        bench = Bench(1000)
        bench.join(window=100)
        for n in range(0, 1000, 100):
            bench.ack((n, 100))
        assert bench.entries[1:] == [Done("c", 1, n) for n in range(100, 1100, 100)]

    def test_what_lies_between_and_was_not_chosen_makes_no_pieces(self) -> None:
        bench = Bench(1000, chosen=lambda n: n % 2 == 0)
        bench.join(window=100)
        bench.ack(*((n, 1) for n in range(50, 100, 2)))
        assert bench.entries[-1] == Done("c", 1, 0, ((49, 51),))
        state = rebuild(bench.entries)["c"]
        assert list(state.done) == [(49, 100, 1)]

    def test_nothing_that_was_acknowledged_comes_again_and_all_else_does(self) -> None:
        bench = Bench(30)
        bench.join(window=30)
        bench.ack((0, 3), (5, 1), (9, 4), (20, 1))
        bench.crash()
        left = [n for n in range(30) if n not in {0, 1, 2, 5, 9, 10, 11, 12, 20}]
        assert given_to(bench.join(window=30)) == {ANNA: left}

    def test_another_choice_after_a_crash_repeats_nothing(self) -> None:
        bench = Bench(30)
        bench.join(window=30)
        bench.ack((5, 20))
        bench.crash()
        (read,) = bench.channel.join(ANNA, 2, bench.now)
        bench.channel.found(read.ticket, [(0, 30)], 30, bench.now)
        bench.act(bench.channel.configure(ChannelConfig(topic="a/*"), bench.now))
        assert given_to(bench.join(window=30)) == {ANNA: [2, 3, 4, 25, 26, 27, 28, 29]}

    def test_what_was_given_back_uncounted_is_so_after_a_crash(self) -> None:
        bench = Bench(1)
        bench.join()
        bench.nack((0, 1))
        bench.nack((0, 1))
        bench.leave()
        bench.join()
        bench.channel.stop(ANNA)
        bench.nack((0, 1), counted=False)
        bench.crash()
        assert bench.join() == [Deliver(ANNA, [(0, 1)], 4)]

    def test_a_long_way_over_what_is_done_is_not_read_again(self) -> None:
        bench = Bench(1000)
        bench.join(window=1000)
        bench.ack((1, 998))
        bench.crash()
        bench.reads.clear()
        assert given_to(bench.join(window=1)) == {ANNA: [0]}
        assert given_to(bench.ack((0, 1))) == {ANNA: [999]}
        assert [read.from_ for read in bench.reads] == [0, 999]

    def test_the_way_over_what_does_not_fit_is_noted_now_and_then(self) -> None:
        bench = Bench(chosen=lambda n: False)
        bench.join()
        bench.append(STRIDE - 1)
        assert len(bench.entries) == 1
        bench.append(1)
        assert bench.entries[1:] == [Done("c", 1, STRIDE)]

    def test_only_second_deliveries_are_noted(self) -> None:
        bench = Bench(10)
        bench.join(window=5)
        assert len(bench.entries) == 1
        bench.nack((1, 2))
        assert bench.entries[1:] == [Delivered("c", 1, 2, ((1, 2),))]
        bench.crash()
        assert bench.join(window=5) == [
            Deliver(ANNA, [(0, 1)], 1),
            Deliver(ANNA, [(1, 2)], 3),
            Deliver(ANNA, [(3, 2)], 1),
        ]

    def test_other_settings_survive(self) -> None:
        bench = Bench(10)
        config = msgspec.structs.replace(bench.channel.config, lease=2.0, max_deliveries=9)
        bench.act(bench.channel.configure(config, bench.now))
        bench.crash()
        assert bench.channel.config == config

    def test_a_channel_does_not_touch_the_state_it_began_from(self) -> None:
        state = rebuild([Created("c", 1, 0, ChannelConfig()), Done("c", 1, 0, ((5, 1),))])["c"]
        channel = Channel(state)
        channel.open(0, 3, 0.0)
        assert (state.epoch, list(state.done)) == (1, [(5, 6, 1)])


class TestSize:
    def test_memory_is_that_of_what_is_held(self) -> None:
        """A hundred thousand small takes leave nothing behind."""
        bench = Bench()
        bench.join(window=0)
        channel, end, now = bench.channel, 0, bench.now
        for number in range(20_000):
            end, now = end + 5, now + 0.01
            for action in [*channel.appended(end, now), *channel.take(ANNA, number, 5, 1.0, now)]:
                if isinstance(action, Read):
                    channel.found(action.ticket, [(action.from_, 5)], end, now)
            channel.ack(ANNA, [(end - 5, 5)], now)
        assert channel.floor == end
        held, consumers = channel._held, channel._consumers
        assert len(held) == 0
        assert max(len(held._alarms), len(held._again), len(consumers._order)) < 1000

    def test_of_who_is_next_too(self) -> None:
        bench = Bench()
        for window in range(1, 5000):
            bench.join(window=window)
        assert len(bench.channel._consumers._order) < 100


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 3)), max_size=25), st.integers(0, 40))
def test_runs_are_a_map(puts, below: int) -> None:
    runs, model = Runs(), {}
    for start, count, value in puts:
        runs.put(start, start + count, value)
        model |= dict.fromkeys(range(start, start + count), value)
    runs.forget(below)
    model = {n: value for n, value in model.items() if value and n >= below}
    assert {n: value for start, end, value in runs for n in range(start, end)} == model
    found = list(runs)
    assert all(start < end for start, end, _ in found)
    assert all(one[1] < two[0] or (one[1] == two[0] and one[2] != two[2]) for one, two in pairwise(found))
    pieces = list(runs.pieces(3, 50))
    assert [n for start, end, _ in pieces for n in range(start, end)] == list(range(3, 50))
    assert {n: value for start, end, value in pieces for n in range(start, end) if value} == {
        n: value for n, value in model.items() if n >= 3
    }
    assert runs.beyond(7) == next(n for n in range(7, 100) if n not in model)
