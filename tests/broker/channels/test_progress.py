"""Channel progress: what survives a crash, and how much it costs. The machine alone."""

from itertools import pairwise

import msgspec
from hypothesis import given, strategies as st

from busway.broker.channels.state.actions import Deliver, Read
from busway.broker.channels.state.channel import Channel
from busway.broker.channels.state.dispatch import STRIDE
from busway.broker.channels.state.progress import ChannelConfig, Created, Delivered, Done, rebuild
from busway.common.intervals import Intervals
from tests.support.channel_bench import ANNA, Bench, given_to


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
            channel.acks.ack(ANNA, [(end - 5, 5)], now)
        assert channel.floor == end
        held, consumers = channel.in_flight, channel.consumers
        assert len(held) == 0
        assert max(len(held._alarms), len(held._redeliveries), len(consumers._order)) < 1000

    def test_of_who_is_next_too(self) -> None:
        bench = Bench()
        for window in range(1, 5000):
            bench.join(window=window)
        assert len(bench.channel.consumers._order) < 100


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 3)), max_size=25), st.integers(0, 40))
def test_runs_are_a_map(puts, below: int) -> None:
    runs, model = Intervals(), {}
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
