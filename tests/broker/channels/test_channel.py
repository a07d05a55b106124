"""The channel machine: which consumer gets which message, and the result of each delivery."""

import functools
import operator

from busway.broker.channels.state.actions import AckResult, Deliver, TakeDone
from tests.support.channel_bench import ANNA, BOB, CARL, Bench, given_to


class TestWindow:
    def test_it_gets_as_many_as_its_window_and_more_as_it_acknowledges(self) -> None:
        bench = Bench(100)
        assert bench.join(window=10) == [Deliver(ANNA, [(0, 10)], 1)]
        assert bench.ack((0, 4)) == [AckResult(ANNA, 4, 0, 0), Deliver(ANNA, [(10, 4)], 1)]
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
        assert bench.act(bench.channel.unstop(ANNA, bench.now)) == [Deliver(ANNA, [(0, 3)], 1)]

    def test_more_may_be_found_than_was_wanted(self) -> None:
        bench = Bench()
        bench.join(window=2)
        (read,) = bench.channel.appended(1000, bench.now)
        assert bench.channel.found(read.ticket, [(0, 900)], 1000, bench.now) == [Deliver(ANNA, [(0, 2)], 1)]
        assert given_to(bench.channel.acks.ack(ANNA, [(0, 2)], bench.now)) == {ANNA: [2, 3]}
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
        assert bench.ack((3, 4)) == [AckResult(ANNA, 2, 2, 0)]
        assert bench.spared == ((3, 2),)
        assert bench.figure("late") == 2

    def test_twice_in_one_breath(self) -> None:
        bench = Bench(20)
        bench.join()
        assert bench.ack((4, 2), (0, 5), (4, 2))[0] == AckResult(ANNA, 6, 3, 0)
        assert bench.nack((6, 4), (7, 1), (5, 3))[0] == AckResult(ANNA, 4, 4, 0)
        assert bench.extend((6, 4), (7, 1), (5, 3)) == [AckResult(ANNA, 7, 1, 0)]
        assert bench.figure("in_flight") == 10

    def test_what_never_was_handed_out(self) -> None:
        bench = Bench(100)
        bench.join(window=10)
        assert bench.ack((50, 2**40)) == [AckResult(ANNA, 0, 2**40, 0)]
        assert bench.ack((0, 1), who=CARL)[0] == AckResult(CARL, 0, 0, 1), "who is no consumer has nothing to say"
        assert given_to(bench.ack((0, 10))) == {ANNA: list(range(10, 20))}

    def test_from_the_one_who_had_it_before_while_another_has_it(self) -> None:
        bench = Bench(1, lease=5.0)
        bench.join(ANNA)
        bench.join(BOB)
        bench.channel.stop(ANNA)
        assert bench.later(5.0) == [Deliver(BOB, [(0, 1)], 2)]
        assert bench.ack((0, 1), who=ANNA) == [AckResult(ANNA, 0, 0, 1)]
        assert bench.figure("refused") == 1
        assert bench.ack((0, 1), who=BOB) == [AckResult(BOB, 1, 0, 0)]

    def test_from_the_one_who_had_it_before_while_nobody_has_it(self) -> None:
        bench = Bench(3, lease=5.0)
        bench.join(ANNA, window=3)
        bench.channel.stop(ANNA)
        bench.later(5.0)
        assert bench.figure("waiting") == 3
        assert bench.ack((0, 2)) == [AckResult(ANNA, 2, 0, 0)]
        assert bench.act(bench.channel.unstop(ANNA, bench.now)) == [Deliver(ANNA, [(2, 1)], 2)]

    def test_many_small_ones_at_once(self) -> None:
        bench = Bench(1000, chosen=lambda n: n % 2 == 0)
        bench.join(window=500)
        assert bench.ack((0, 1000)) == [AckResult(ANNA, 500, 500, 0)]
        assert (bench.figure("floor"), bench.figure("ranges")) == (1000, 0)


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
