"""The channel machine: messages whose dead letters are sent back."""

import pytest

from busway.broker.channels.state.actions import Action, Deliver, MoveToDeadLetters
from busway.broker.channels.state.progress import Redriven, rebuild
from busway.errors import LimitExceeded
from tests.support.channel_bench import ANNA, BOB, Bench


def redrive(bench: Bench, *offsets: int, epoch: int | None = None) -> list[Action]:
    made = bench.channel.epoch if epoch is None else epoch
    return bench.act(bench.channel.redrive([(offset, made) for offset in offsets], bench.now))


def done(end: int) -> Bench:
    """A channel that has done everything."""
    bench = Bench(end)
    bench.join(window=end)
    bench.ack((0, end))
    return bench


class TestRedrive:
    def test_one_record_says_that_they_are_not_done_and_were_sent_back(self) -> None:
        bench = done(10)
        before, epoch = len(bench.entries), bench.channel.epoch
        redrive(bench, 3, 7)
        assert bench.entries[before:] == [Redriven("c", epoch + 1, ((3, 1), (7, 1)))]

    def test_also_after_a_crash_and_from_a_snapshot(self) -> None:
        bench = done(10)
        epoch = bench.channel.epoch
        redrive(bench, 3, 7)
        bench.ack((3, 1))
        bench.entries = list(rebuild(bench.entries)["c"].entries())
        bench.crash()
        assert bench.join() == [Deliver(ANNA, [(7, 1)], 1)]
        assert redrive(bench, 3, 7, epoch=epoch) == []
        bench.ack((7, 1))
        assert bench.channel.floor == 10

    def test_before_the_cursor_is_back_where_it_was(self) -> None:
        bench = done(10)
        redrive(bench, 2)
        bench.crash()
        assert redrive(bench, 5) == []
        assert bench.join() == [Deliver(ANNA, [(2, 1), (5, 1)], 1)]

    def test_what_is_not_done_comes_anyway(self) -> None:
        bench = Bench(4)
        bench.join(window=2)
        assert redrive(bench, 1, 3) == []
        assert bench.ack((0, 2))[1:] == [Deliver(ANNA, [(2, 2)], 1)]

    def test_what_is_dying_is_left_for_later(self) -> None:
        bench = Bench(2, max_deliveries=1)
        bench.join(window=2)
        epoch = bench.channel.epoch
        assert bench.nack((0, 1))[-1] == MoveToDeadLetters((0, 1), 1)
        assert redrive(bench, 0) == []
        assert not bench.channel.was_redriven(0, epoch)
        bench.act(bench.channel.acks.dead_done(0, bench.now))
        assert redrive(bench, 0) == [Deliver(ANNA, [(0, 1)], 1)]

    def test_a_late_acknowledgement_of_an_earlier_delivery_does_not_count(self) -> None:
        bench = Bench(3)
        bench.join(window=3)
        bench.ack((0, 3))
        bench.leave(ANNA)
        redrive(bench, 1)
        bench.join(BOB, window=0)
        bench.ack((1, 1), who=BOB)
        assert bench.figure("lag") == 1

    def test_there_is_a_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("busway.broker.channels.state.reposition.REDRIVEN", 2)
        bench = done(10)
        with pytest.raises(LimitExceeded):
            redrive(bench, 1, 3, 5)
        assert redrive(bench, 1, 2) == [Deliver(ANNA, [(1, 2)], 1)]

    def test_what_the_stream_has_removed_stays_away(self) -> None:
        bench = done(10)
        bench.act(bench.channel.trimmed(5, bench.now))
        assert redrive(bench, 3, 6) == [Deliver(ANNA, [(6, 1)], 1)]


class TestWithAMirror:
    def test_what_a_mirror_had_not_heard_of_is_not_undone(self) -> None:
        bench = done(10)
        before = rebuild(bench.entries)["c"]
        bench.leave(ANNA)
        redrive(bench, 3)
        bench.channel.suspend()
        bench.act(bench.channel.absorb(before, bench.now))
        bench.channel.unsuspend(bench.now)
        assert bench.join() == [Deliver(ANNA, [(3, 1)], 1)]

    def test_what_was_sent_back_there_comes_here(self) -> None:
        bench = done(10)
        there = rebuild(bench.entries)["c"]
        epoch = there.epoch
        there.redrive(epoch + 1, [(3, 1)])
        there.sent_back(epoch + 1, [(3, 1)])
        bench.leave(ANNA)
        bench.channel.suspend()
        bench.act(bench.channel.absorb(there, bench.now))
        bench.act(bench.channel.unsuspend(bench.now))
        assert bench.join() == [Deliver(ANNA, [(3, 1)], 1)]
        assert bench.channel.was_redriven(3, epoch)
        bench.crash()
        assert bench.channel.was_redriven(3, epoch)

    def test_its_count_of_lost_messages_is_kept(self) -> None:
        bench = Bench(10)
        there = rebuild(bench.entries)["c"]
        there.lost, there.told = 4, 1
        bench.channel.suspend()
        bench.act(bench.channel.absorb(there, bench.now))
        assert bench.figure("lost") == 4
        bench.crash()
        assert bench.figure("lost") == 4
