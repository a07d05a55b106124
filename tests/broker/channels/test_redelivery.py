"""Redelivery: which messages, when, and how often before they become dead letters. The machine alone."""

import pytest

from busway.broker.channels.state.actions import AckResult, Deliver, MoveToDeadLetters
from busway.broker.channels.state.progress import ChannelConfig
from tests.support.channel_bench import ANNA, BOB, Bench, given_to


class TestAgain:
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
        assert bench.extend((1, 2)) == [AckResult(ANNA, 2, 0, 0)]
        assert bench.extend((0, 1), who=BOB) == [AckResult(BOB, 0, 1, 0)]
        assert given_to(bench.later(4.0)) == {ANNA: [0, 3]}
        assert given_to(bench.later(1.0)) == {ANNA: [1, 2]}

    def test_a_renewal_extends_all_that_a_consumer_has(self) -> None:
        bench = Bench(6, lease=5.0)
        bench.join(ANNA, window=3)
        bench.join(BOB, window=3)
        bench.later(4.0)
        assert bench.act(bench.channel.acks.renew(ANNA, bench.now)) == [AckResult(ANNA, 3, 0, 0)]
        assert given_to(bench.later(1.0)) == {BOB: [3, 4, 5]}
        assert bench.later(3.9) == [], "until a lease after the renewal"
        assert given_to(bench.later(0.1))[ANNA] == [0, 1, 2]

    def test_a_renewal_extends_what_comes_after_it_no_less(self) -> None:
        bench = Bench(1, lease=5.0)
        bench.join(ANNA, window=3)
        bench.act(bench.channel.acks.renew(ANNA, bench.now))
        bench.later(4.0)
        bench.append(1)
        assert given_to(bench.later(1.0)) == {ANNA: [0]}
        assert given_to(bench.later(4.0)) == {ANNA: [1]}, "its own lease is longer than the renewal"

    def test_a_lapsed_message_is_not_renewed(self) -> None:
        bench = Bench(3, lease=5.0)
        bench.join(ANNA, window=3)
        bench.later(4.0)
        bench.act(bench.channel.acks.renew(ANNA, bench.now))
        assert bench.act(bench.channel.acks.lapse(ANNA, [(1, 1), (7, 2)])) == [AckResult(ANNA, 1, 0, 0)]
        assert bench.spared == ((7, 2),)
        assert given_to(bench.later(1.0)) == {ANNA: [1]}
        bench.act(bench.channel.acks.renew(ANNA, bench.now))
        assert bench.later(4.9) == [], "it is renewed again once it was redelivered"

    def test_a_shorter_lease_holds_from_the_next_renewal_on(self) -> None:
        bench = Bench(4, lease=30.0)
        bench.join(ANNA, window=1)
        bench.join(BOB, window=1)
        bench.act(bench.channel.acks.renew(ANNA, bench.now))
        bench.act(bench.channel.configure(ChannelConfig(lease=2.0, backoff=()), bench.now))
        bench.ack((0, 1))
        bench.ack((1, 1), who=BOB)
        assert given_to(bench.later(5.0)) == {BOB: [3]}, (
            "Anna does not know yet that she has to hurry, Bob never renews"
        )
        bench.act(bench.channel.acks.renew(ANNA, bench.now))
        bench.ack((2, 1))
        assert bench.channel.deadline() == bench.now + 2.0

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
        assert bench.nack((0, 3)) == [AckResult(ANNA, 3, 0, 0), Deliver(ANNA, [(0, 3)], 2)]
        bench.nack((1, 1), counted=False)
        assert [one.span for one in bench.nack((0, 3)) if isinstance(one, MoveToDeadLetters)] == [
            (0, 1),
            (1, 1),
            (2, 1),
        ]

    def test_two_who_had_it_different_times(self) -> None:
        bench = Bench(4)
        bench.join(window=4)
        bench.nack((2, 1))
        assert bench.nack((0, 4)) == [
            AckResult(ANNA, 4, 0, 0),
            Deliver(ANNA, [(0, 2)], 2),
            Deliver(ANNA, [(2, 1)], 3),
            Deliver(ANNA, [(3, 1)], 2),
        ]


class TestDead:
    def test_leases_and_consumers_that_end_count_too(self) -> None:
        bench = Bench(1, max_deliveries=2, lease=5.0)
        bench.join(ANNA)
        bench.join(BOB)
        assert given_to(bench.leave(ANNA)) == {BOB: [0]}
        assert bench.later(5.0) == [MoveToDeadLetters((0, 1), 2)]

    def test_while_it_cannot_be_stored_it_is_tried_again(self) -> None:
        bench = Bench(3, max_deliveries=1)
        bench.join()
        assert bench.nack((0, 3))[1:] == [MoveToDeadLetters((0, 3), 1)]
        bench.act(bench.channel.acks.dead_done(1, bench.now))
        bench.channel.acks.dead_failed(2, 5.0, bench.now)
        bench.channel.acks.dead_failed(0, 5.0, bench.now)
        assert bench.channel.deadline() == bench.now + 5.0
        assert sorted(bench.later(5.0)) == [MoveToDeadLetters((0, 1), 1), MoveToDeadLetters((2, 1), 1)]
        bench.act(bench.channel.acks.dead_done(0, bench.now, count=3))
        assert bench.figure("floor") == 3

    def test_it_is_done_only_once_it_is_stored_there(self) -> None:
        bench = Bench(1, max_deliveries=1)
        bench.join()
        bench.nack((0, 1))
        assert bench.crash() == []
        assert bench.join() == [MoveToDeadLetters((0, 1), 1)]
        bench.act(bench.channel.acks.dead_done(0, bench.now))
        bench.crash()
        assert bench.join() == []
        assert bench.figure("floor") == 1

    def test_a_message_that_kills_the_broker_dies_in_the_end(self) -> None:
        """It crashes after each second delivery."""
        bench = Bench(1, max_deliveries=5)
        deliveries = []
        for _ in range(20):
            actions = bench.join()
            if any(isinstance(one, MoveToDeadLetters) for one in actions):
                break
            actions += bench.nack((0, 1))
            deliveries += [one.deliveries for one in actions if isinstance(one, Deliver)]
            bench.crash()
        else:
            pytest.fail("it never dies")
        assert deliveries[-1] == 5
        assert len(deliveries) <= 6
