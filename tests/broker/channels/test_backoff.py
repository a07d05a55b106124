"""Channels: how long a message waits that failed. The machine alone."""

import pytest

from busway.backoff import Backoff
from busway.broker.channels.state.actions import Deliver, MoveToDeadLetters
from busway.broker.channels.state.progress import ChannelConfig, Configured
from tests.support.channel_bench import ANNA, BOB, Bench, given_to

DELAYS = (1.0, 5.0, 30.0)


def waits(bench: Bench) -> float:
    """Seconds until something is due."""
    assert bench.channel.deadline() is not None
    return bench.channel.deadline() - bench.now


def test_each_failure_waits_longer_and_the_last_delay_repeats() -> None:
    bench = Bench(1, backoff=DELAYS, max_deliveries=0, lease=0)
    bench.join()
    waited = []
    for _ in range(5):
        bench.nack((0, 1), delay=None)
        waited.append(waits(bench))
        assert bench.later(waited[-1] - 0.1) == []
        assert given_to(bench.later(0.1)) == {ANNA: [0]}
    assert waited == [1.0, 5.0, 30.0, 30.0, 30.0]


def test_others_pass_it() -> None:
    bench = Bench(3, backoff=DELAYS)
    bench.join(window=1)
    assert given_to(bench.nack((0, 1), delay=None)) == {ANNA: [1]}
    bench.later(1.0)
    assert given_to(bench.ack((1, 1))) == {ANNA: [0]}


def test_a_lease_that_ends_is_a_failure() -> None:
    bench = Bench(1, backoff=DELAYS, lease=10.0)
    bench.join()
    assert bench.later(10.0) == []
    assert given_to(bench.later(1.0)) == {ANNA: [0]}


def test_the_last_delivery_dies_at_once() -> None:
    bench = Bench(1, backoff=DELAYS, max_deliveries=1)
    bench.join()
    assert bench.nack((0, 1), delay=None)[1:] == [MoveToDeadLetters((0, 1), 1)]


def test_the_first_lost_consumer_costs_no_time_others_do() -> None:
    """A worker is killed for many reasons; a message that kills one worker after the other is slowed down."""
    bench = Bench(1, backoff=DELAYS, max_deliveries=0)
    bench.join(ANNA)
    bench.join(BOB)
    assert given_to(bench.leave(ANNA, lost=True)) == {BOB: [0]}
    bench.leave(BOB, lost=True)
    assert waits(bench) == 1.0
    bench.join(ANNA)
    assert given_to(bench.later(1.0)) == {ANNA: [0]}
    bench.leave(ANNA, lost=True)
    assert waits(bench) == 5.0


def test_a_consumer_that_leaves_in_good_order_costs_no_time() -> None:
    bench = Bench(1, backoff=DELAYS, max_deliveries=0)
    for _ in range(4):
        assert given_to(bench.join()) == {ANNA: [0]}
        assert bench.leave() == []
        assert bench.channel.deadline() is None


def test_a_change_holds_for_the_next_failure() -> None:
    bench = Bench(2, backoff=DELAYS)
    bench.join(window=2)
    bench.nack((0, 1), delay=None)
    bench.act(bench.channel.configure(ChannelConfig(backoff=()), bench.now))
    assert given_to(bench.nack((1, 1), delay=None)) == {ANNA: [1]}
    assert waits(bench) == 1.0
    assert bench.entries[-2] == Configured("c", ChannelConfig(backoff=()))


def test_messages_that_failed_together_come_together() -> None:
    bench = Bench(1000, backoff=Backoff(1.0, jitter=0.5))
    bench.join(window=1000)
    bench.nack((0, 1000), delay=None)
    assert (bench.figure("ranges"), bench.figure("waiting")) == (1, 1000)
    assert bench.later(1.5) == [Deliver(ANNA, [(0, 1000)], 2)]


def test_jitter_parts_those_that_failed_one_by_one() -> None:
    bench = Bench(50, backoff=Backoff(10.0, jitter=0.5))
    bench.join(window=50)
    for offset in range(50):
        bench.nack((offset, 1), delay=None)
    assert bench.later(4.9) == []
    first = given_to(bench.later(5.1))[ANNA]
    assert 10 < len(first) < 40
    assert len(given_to(bench.later(5.0))[ANNA]) == 50 - len(first)


def test_a_restarted_broker_does_not_make_anybody_wait() -> None:
    bench = Bench(1, backoff=DELAYS)
    bench.join()
    bench.nack((0, 1), delay=None)
    bench.crash()
    assert given_to(bench.join()) == {ANNA: [0]}


def test_a_thousand_poison_messages_wait_without_being_in_the_way() -> None:
    """The good ones behind them pass; what is kept is bounded; in the end each is a dead letter, once."""
    bench = Bench(2000, backoff=DELAYS, max_deliveries=3, chosen=lambda offset: True)
    bench.join(window=10)
    dead, done = [], []
    given = list(range(10))
    for _ in range(200_000):
        actions = []
        if given:
            offset = given.pop(0)
            if offset < 1000:
                actions = bench.nack((offset, 1), delay=None)
            else:
                actions = bench.ack((offset, 1))
                done.append(offset)
        elif bench.channel.deadline() is not None:
            actions = bench.later(waits(bench))
        else:
            break
        for one in actions:
            if isinstance(one, MoveToDeadLetters):
                dead += range(one.span[0], sum(one.span))
                bench.act(bench.channel.acks.dead_done(*one.span[:1], bench.now, count=one.span[1]))
        given += given_to(actions).get(ANNA, [])
        assert bench.figure("ranges") <= 1011
    assert (sorted(dead), sorted(done)) == (list(range(1000)), list(range(1000, 2000)))
    assert (bench.figure("lag"), bench.figure("dead")) == (0, 1000)


@pytest.mark.parametrize("wrong", [(-1.0,), (float("nan"),), (float("inf"),), (1e10,), (1.0,) * 65])
def test_delays_that_make_no_sense(wrong: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="backoff"):
        ChannelConfig(backoff=wrong)
