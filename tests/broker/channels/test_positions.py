"""The channel machine: start positions, seeks, and changes of the stream below a channel."""

import pytest

from busway.broker.channels.state.actions import (
    AckResult,
    ChannelBusy,
    Delete,
    Deliver,
    Read,
    ReportLost,
    Rewound,
    SeekFailed,
    TakeDone,
    Write,
)
from busway.broker.channels.state.progress import ChannelConfig, Configured, Deleted, Sought, rebuild
from busway.errors import Rejected
from tests.support.channel_bench import ANNA, BOB, CARL, Bench, given_to


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
        assert bench.entries[-1] == Configured("c", ChannelConfig(paused=True, backoff=()))
        assert bench.ack((0, 2)) == [AckResult(ANNA, 2, 0, 0)]
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

    def test_one_that_was_lost_may_come_back(self) -> None:
        bench = Bench(5, delete_on_leave=True)
        bench.join(ANNA, window=2)
        assert bench.act(bench.channel.leave(ANNA, bench.now, grace=10)) == []
        assert bench.channel.deadline() == bench.now + 10
        assert bench.act(bench.channel.expire(bench.now + 9)) == []
        assert given_to(bench.join(BOB, window=2)) == {BOB: [0, 1]}
        assert bench.act(bench.channel.expire(bench.now + 10)) == []
        bench.act(bench.channel.leave(BOB, bench.now + 20, grace=10))
        assert bench.act(bench.channel.expire(bench.now + 30)) == [Delete("c")]
        assert rebuild(bench.entries) == {}

    def test_nobody_comes_after_a_start(self) -> None:
        bench = Bench(5, delete_on_leave=True)
        bench.channel.alone(bench.now + 10)
        assert bench.act(bench.channel.expire(bench.now + 10)) == [Delete("c")]

    def test_one_that_stays_waits_for_nobody(self) -> None:
        bench = Bench(5)
        bench.channel.alone(bench.now + 10)
        assert bench.channel.deadline() is None
        bench.act(bench.channel.configure(ChannelConfig(delete_on_leave=True), bench.now))
        assert bench.channel.deadline() is None
        bench.channel.alone(bench.now + 10)
        bench.act(bench.channel.configure(ChannelConfig(), bench.now))
        assert bench.act(bench.channel.expire(bench.now + 10)) == []

    def test_another_choice_holds_for_what_was_not_handed_out(self) -> None:
        bench = Bench()
        bench.join(window=2)
        (read,) = bench.channel.appended(100, bench.now)
        bench.channel.found(read.ticket, [(0, 50)], 50, bench.now)
        config = ChannelConfig(topic="a/*")
        note, *rest = bench.channel.configure(config, bench.now)
        assert (note, rest) == (Write(Configured("c", config)), [])
        (_, _, new) = bench.channel.acks.ack(ANNA, [(0, 2)], bench.now)
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
            ReportLost(ANNA, [(1, 1)]),
            ReportLost(None, [(0, 1)]),
            Deliver(ANNA, [(6, 1)], 1),
        ]
        assert (bench.figure("lost"), bench.figure("floor")) == (2, 3)
        assert bench.ack((1, 1)) == [AckResult(ANNA, 0, 1, 0)]
        assert bench.act(bench.channel.trimmed(50, bench.now))[-1] == Deliver(ANNA, [(50, 4)], 1)
        assert bench.figure("lost") == 2 + 47
        assert bench.act(bench.channel.trimmed(50, bench.now)) == []

    def test_dropped_while_the_broker_was_down(self) -> None:
        bench = Bench(100)
        bench.join(window=20)
        bench.ack((0, 5), (8, 2))
        bench.first = 12
        assert bench.crash() == [ReportLost(None, [(5, 3), (10, 2)])]
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
