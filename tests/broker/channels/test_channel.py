"""The channel machine: which consumer gets which message, and the result of each delivery."""

from busway.broker.channels.state.actions import AckResult, Deliver, TakeDone
from tests.support.channel_bench import ANNA, BOB, CARL, Bench, given_to


class TestWindow:
    def test_nothing_is_read_that_nobody_can_get(self) -> None:
        bench = Bench(100)
        assert bench.reads == []
        bench.join(window=10)
        bench.append(50)
        assert [read[:2] for read in bench.reads] == [(0, 10)]

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


class TestAcknowledging:
    def test_twice_in_one_breath(self) -> None:
        bench = Bench(20)
        bench.join()
        assert bench.ack((4, 2), (0, 5), (4, 2))[0] == AckResult(ANNA, 6, 3, 0)
        assert bench.nack((6, 4), (7, 1), (5, 3))[0] == AckResult(ANNA, 4, 4, 0)
        assert bench.extend((6, 4), (7, 1), (5, 3)) == [AckResult(ANNA, 7, 1, 0)]
        assert bench.figure("in_flight") == 10

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
