"""Requests on shared services: failing providers are set aside, and every way in which a request ends. The machine
alone.
"""

from busway.broker.flags import END, FIELDS
from busway.broker.services.actions import Answer, Call
from busway.broker.services.providers import ASIDE, FAILURES
from busway.broker.services.requests import GRACE
from busway.errors import Code
from tests.support.asking_bench import ME, TOPIC, Bench, answer, asked, called, error, named


class TestBreaker:
    def broken(self, plain: int = 1) -> Bench:
        bench = Bench(plain=plain)
        for number in range(FAILURES):
            bench.request(number)
            bench.fails(1)
        return bench

    def test_one_set_aside_is_named_when_all_are_gathered(self) -> None:
        bench = self.broken()
        aside = "p1", Code.SERVICE_GONE, "p1 is set aside after 3 failures"
        assert named(bench.request(9, gather=True)) == [(*aside, False)], "there is nobody else"
        bench.join(2)
        bench.join(3, asks=True)
        call, ask, told = bench.request(10, gather=True)
        assert (called([call]), asked([ask]), named([told])) == (2, [3], [(*aside, True)])
        bench.replies(2)
        assert answer(bench.says(3, False)).flags == END
        bench.later(ASIDE)
        assert [one.conn for one in bench.request(11, gather=True)] == [1, 2, 3]
        call, ask, told = bench.request(12, gather=True)
        assert (called([call]), asked([ask]), named([told])) == (2, [3], [(*aside, True)]), "one trial at a time"

    def test_the_figures(self) -> None:
        """As the pages say: three failures in a row, ten seconds aside, then one trial."""
        bench = Bench(plain=1)
        for number in range(3):
            assert called(bench.request(number)) == 1, "fewer than three are forgiven"
            bench.fails(1)
        assert error(bench.request(3))[0] == Code.NO_RESPONDERS
        bench.later(9.999)
        assert error(bench.request(4))[0] == Code.NO_RESPONDERS
        bench.later(0.001)
        for number in (5, 7):
            assert called(bench.request(number)) == 1
            assert error(bench.request(number + 1))[0] == Code.NO_RESPONDERS, "one trial"
            bench.fails(1)
            bench.later(9.99)
            assert error(bench.request(9))[0] == Code.NO_RESPONDERS, "another ten seconds after a trial that failed"
            bench.later(0.02)
        assert (FAILURES, ASIDE) == (3, 10.0)

    def test_a_success_in_between_begins_the_count_anew(self) -> None:
        bench = Bench(plain=1)
        for number in range(10):
            assert called(bench.request(number)) == 1
            if number % 3 == 2:
                bench.replies(1)
            else:
                bench.fails(1)

    def test_a_refusal_is_no_failure(self) -> None:
        bench = Bench(plain=1)
        for number in range(10):
            assert called(bench.request(number)) == 1
            assert error(bench.fails(1, b"not me", Code.REFUSED)) == (Code.REFUSED, "not me")

    def test_after_ten_seconds_one_trial(self) -> None:
        bench = self.broken()
        bench.later(ASIDE - 0.1)
        error(bench.request(10))
        bench.later(0.1)
        assert called(bench.request(11)) == 1
        assert [one["state"] for one in bench.asking.providers.figures(bench.now)] == ["trial"]
        error(bench.request(12))
        bench.fails(1)
        error(bench.request(13))
        bench.later(ASIDE)
        called(bench.request(14))
        bench.replies(1)
        assert called(bench.request(15)) == called(bench.request(16)) == 1

    def test_a_trial_that_is_cancelled_leaves_the_next_one_to_another_request(self) -> None:
        bench = self.broken()
        bench.later(ASIDE)
        bench.request(10)
        bench.asking.cancel(ME, 10, bench.now)
        assert called(bench.request(11)) == 1

    def test_the_others_do_the_work_meanwhile(self) -> None:
        bench = Bench(plain=2)
        for number in range(FAILURES):
            assert called(bench.request(number)) == 1, "one that fails at once is never busy"
            assert called(bench.fails(1)) == 2
            bench.later(0.1)
            bench.replies(2)
        assert called(bench.request(10)) == 2
        bench.later(0.1)
        bench.replies(2)
        bench.later(ASIDE)
        assert called(bench.request(11)) == 1


class TestEnds:
    def test_cancelling_stops_everything(self) -> None:
        bench = Bench(asking=2)
        bench.request()
        bench.says(1, True)
        bench.asking.cancel(ME, 1, bench.now)
        bench.asking.cancel(ME, 1, bench.now)
        assert bench.idle()
        assert bench.says(2, True) == bench.replies(1) == bench.later(100.0) == []
        assert bench.asking.late == 1
        assert bench.asking.deadline() is None

    def test_the_death_of_the_requester_stops_everything(self) -> None:
        bench = Bench(plain=2)
        bench.request(1)
        bench.request(2, gather=True)
        assert bench.dies(ME) == []
        assert bench.idle()

    def test_one_that_serves_itself_and_dies(self) -> None:
        bench = Bench(plain=1)
        bench.request(conn=1)
        assert bench.dies(1) == []
        assert bench.idle()
        assert error(bench.request())[0] == Code.NO_RESPONDERS

    def test_who_gives_a_service_up_finishes_what_it_has(self) -> None:
        bench = Bench(plain=1, asking=1)
        bench.request(1)
        bench.request(2, gather=True)
        assert bench.act(bench.asking.leave(2, 20, bench.now)) == []
        assert bench.act(bench.asking.leave(1, 10, bench.now)) == []
        assert bench.asking.leave(1, 10, bench.now) == []
        assert answer(bench.replies(1, b"done")).flags == FIELDS
        assert error(bench.request(3))[0] == Code.NO_RESPONDERS
        first = next(one for one in bench.done if isinstance(one, Call))
        assert answer(bench.asking.answered(1, first.call, 0, 0, b"", b"done", 0.0)).payload == b"done"
        assert bench.idle()
        assert not bench.asking.providers._conns

    def test_one_that_left_and_dies_at_work_is_still_given_to_the_next(self) -> None:
        bench = Bench(plain=2)
        first = called(bench.request())
        bench.asking.leave(first, first * 10, bench.now)
        assert called(bench.dies(first)) == 3 - first

    def test_the_total_limit(self) -> None:
        bench = Bench(plain=3)
        bench.request(limit=2.5)
        called(bench.later(2.0))
        assert bench.later(0.5) == [], "the requester has a clock of its own"
        code, text = error(bench.later(GRACE))
        assert (code, "did not answer within 2 s" in text) == (Code.SERVICE_GONE, True), "what went wrong first"
        assert bench.idle()
        bench = Bench(plain=1)
        bench.request(limit=0.5)
        assert "the 0.5 s that the requester gave" in error(bench.later(0.5 + GRACE))[1]

    def test_an_answer_at_the_last_moment(self) -> None:
        """It is given, and the requester decides whether that is too late."""
        bench = Bench(plain=1)
        bench.request(limit=1.0)
        bench.later(1.0)
        assert isinstance(bench.replies(1)[0], Answer)
        assert bench.idle()

    def test_the_requesters_own_limit_for_each(self) -> None:
        bench = Bench(plain=2)
        bench.request(each=0.5)
        assert bench.asking.deadline() == 0.5
        called(bench.later(0.5))
        code, text = error(bench.later(0.5))
        assert (code, "within 0.5 s" in text) == (Code.SERVICE_GONE, True)

    def test_more_bytes_in_flight_than_allowed(self) -> None:
        bench = Bench(plain=1)
        big = b"x" * 6000
        assert isinstance(bench.asking.request(ME, 1, TOPIC, big, 0.0)[0], Call)
        assert error(bench.asking.request(ME, 2, TOPIC, big, 0.0))[0] == Code.TOO_MANY_PENDING
        assert isinstance(bench.asking.request(ME + 1, 2, TOPIC, big, 0.0)[0], Call), (
            "the limit is one of each connection"
        )

    def test_long_limits_do_not_pile_up(self) -> None:
        bench = Bench(plain=1)
        for number in range(10_000):
            bench.request(number, limit=3600.0)
            bench.replies(1)
        assert len(bench.asking._alarms) < 200
