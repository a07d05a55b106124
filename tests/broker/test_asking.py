"""Requests on shared services: who is asked, who gets the request, what the requester hears. The machine alone.

The classes with lines of the seed "Server BUS", phase 2, name the line that each test shows.
"""

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from busway.broker.asking import Asking
from busway.broker.attempts import Action, Answer, Ask, Call
from busway.broker.flags import END, ERROR, FIELDS, PARTIAL
from busway.broker.providers import ASIDE, FAILURES
from busway.errors import Code

ME = 100
"""The requester's connection; providers are 1, 2, 3, ..."""
TOPIC = "sum"


class Bench:
    """The machine, a clock that is moved by hand, and everything that it wanted done."""

    def __init__(self, plain: int = 0, asking: int = 0, *, each: float = 2.0) -> None:
        self.asking = Asking(each=each, size=10_000)
        self.now = 0.0
        self.done: list[Action] = []
        self.calls: dict[int, int] = {}  # the call number that a connection was given last
        for conn in range(1, plain + asking + 1):
            self.join(conn, asks=conn > plain)

    def join(self, conn: int, *, asks: bool = False, service: int = 0) -> None:
        self.asking.providers.join(conn, service or conn * 10, TOPIC, f"p{conn}", asks=asks)

    def act(self, actions: list[Action]) -> list[Action]:
        self.done += actions
        for one in actions:
            if not isinstance(one, Answer):
                self.calls[one.conn] = one.call
        return actions

    def request(self, number: int = 1, conn: int = ME, **options) -> list[Action]:
        return self.act(self.asking.request(conn, number, TOPIC, b"frame", self.now, **options))

    def says(self, conn: int, willing: bool) -> list[Action]:
        return self.act(self.asking.accepted(conn, self.calls[conn], self.now, willing=willing))

    def replies(self, conn: int, payload: bytes = b"", flags: int = 0, code: int = 0, fields=None) -> list[Action]:
        packed = msgspec.msgpack.encode(fields) if fields else b""
        return self.act(self.asking.answered(conn, self.calls[conn], flags, code, packed, payload, self.now))

    def fails(self, conn: int, text: bytes = b"oops", code: int = Code.HANDLER_ERROR) -> list[Action]:
        return self.replies(conn, text, ERROR, code)

    def dies(self, conn: int) -> list[Action]:
        return self.act(self.asking.gone(conn, self.now))

    def later(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.act(self.asking.expire(self.now))

    def idle(self) -> bool:
        asking = self.asking
        live = [alarm for alarm in asking._alarms if not alarm[2].over]
        return not (asking._requests or asking._attempts or asking._bytes or live or asking.pending)


def asked(actions: list[Action]) -> list[int]:
    assert all(isinstance(one, Ask) for one in actions)
    return [one.conn for one in actions]


def called(actions: list[Action]) -> int:
    (one,) = actions
    assert isinstance(one, Call)
    assert one[1:] == (one.conn * 10, one.call, ME, TOPIC, b"frame")
    return one.conn


def answer(actions: list[Action]) -> Answer:
    (one,) = actions
    assert isinstance(one, Answer)
    return one


def named(actions: list[Action]) -> list[tuple[str, int, str, bool]]:
    """Who is said to have failed: name, code, text, whether more follows."""
    assert all(isinstance(one, Answer) and one.flags & ~PARTIAL == ERROR | FIELDS for one in actions)
    return [
        (msgspec.msgpack.decode(one.fields)[".id"], one.code, one.payload.decode(), bool(one.flags & PARTIAL))
        for one in actions
    ]


def error(actions: list[Action]) -> tuple[int, str]:
    one = answer(actions)
    assert one.flags == ERROR
    return one.code, one.payload.decode()


class TestSingleReply:
    def test_an_event_arrives_and_the_broker_asks_the_providers(self) -> None:
        """«x Um evento chega ao broker · x O broker pergunta aos providers especificos se estão interessados - ASK»"""
        bench = Bench(asking=3)
        bench.asking.providers.join(9, 90, "another/topic", "p9", asks=True)
        assert asked(bench.request()) == [1, 2, 3]
        assert len({one.call for one in bench.done}) == 3

    def test_the_first_to_answer_true_gets_the_request(self) -> None:
        """«x Os providers respondem "true" ou "false" · x O primeiro cliente a responder "true" ... REQUEST»"""
        bench = Bench(asking=3)
        bench.request()
        ask = bench.calls[2]
        assert called(bench.says(2, True)) == 2
        assert bench.calls[2] == ask, "the call has the number of the ask"
        assert answer(bench.replies(2, b"42")) == Answer(ME, 1, 0, 0, b"", b"42")
        assert bench.idle()

    def test_false_is_dropped(self) -> None:
        """«x Às respostas "false" não é dado seguimento»"""
        bench = Bench(asking=3)
        bench.request()
        assert bench.says(1, False) == []
        assert bench.says(1, True) == [], "who has said no has said no"
        assert bench.says(2, False) == []
        assert called(bench.says(3, True)) == 3
        assert [one.conn for one in bench.done if isinstance(one, Call)] == [3]

    def test_nobody_is_willing(self) -> None:
        bench = Bench(asking=2)
        bench.request()
        bench.says(1, False)
        code, text = error(bench.says(2, False))
        assert code == Code.NO_RESPONDERS
        assert "2 asked" in text
        assert bench.idle()

    @pytest.mark.parametrize("how", ["timeout", "error", "death", "refusal", "undeliverable"])
    def test_without_a_reply_the_next_client_is_used(self, how: str) -> None:
        """«x Se não houver resposta do cliente (timeout ou outro), usa-se o cliente seguinte»"""
        bench = Bench(asking=3)
        bench.request()
        called(bench.says(2, True))
        assert bench.says(3, True) == [], "one at a time"
        assert bench.says(1, True) == []
        after = {
            "timeout": lambda: bench.later(2.0),
            "error": lambda: bench.fails(2),
            "death": lambda: bench.dies(2),
            "refusal": lambda: bench.fails(2, code=Code.REFUSED),
            "undeliverable": lambda: bench.act(bench.asking.undeliverable(bench.calls[2], bench.now)),
        }[how]()
        assert called(after) == 3, "the one that said true after it"
        assert answer(bench.replies(3, b"yes")).payload == b"yes"
        assert bench.idle()

    def test_later_trues_are_ignored_after_success(self) -> None:
        """«x Após uma resposta com sucesso, as respostas "true" dos restantes clientes serão ignoradas»"""
        bench = Bench(asking=3)
        bench.request()
        bench.says(1, True)
        bench.says(2, True)
        answer(bench.replies(1))
        assert bench.says(2, True) == []
        assert bench.says(3, True) == []
        assert bench.asking.late == 0
        assert bench.idle()

    def test_one_that_dies_before_it_says_is_not_waited_for(self) -> None:
        bench = Bench(asking=2)
        bench.request()
        assert bench.says(1, False) == []
        assert error(bench.dies(2))[0] == Code.NO_RESPONDERS

    def test_an_ask_that_never_answers_counts_as_unwilling_and_as_a_failure(self) -> None:
        bench = Bench(asking=1)
        for number in range(FAILURES):
            assert asked(bench.request(number)) == [1]
            assert bench.later(1.9) == []
            assert error(bench.later(0.1))[0] == Code.NO_RESPONDERS
        code, text = error(bench.request(9))
        assert code == Code.NO_RESPONDERS
        assert "1 set aside" in text

    def test_the_last_error_is_told_when_nobody_is_left(self) -> None:
        bench = Bench(asking=2)
        bench.request()
        bench.says(1, True)
        bench.says(2, True)
        bench.fails(1, b"first")
        assert error(bench.fails(2, b"second", 77)) == (77, "second")
        assert bench.idle()

    def test_one_who_answers_too_late_is_counted_and_dropped(self) -> None:
        bench = Bench(plain=2)
        first = called(bench.request())
        second = called(bench.later(2.0))
        assert {first, second} == {1, 2}
        assert bench.replies(first, b"late") == []
        assert bench.asking.late == 1
        assert answer(bench.replies(second, b"in time")).payload == b"in time"
        assert bench.replies(second, b"again") == []
        assert bench.asking.late == 2

    def test_nobody_answers_for_somebody_else(self) -> None:
        bench = Bench(asking=2)
        bench.request()
        bench.calls[7] = bench.calls[1]
        assert bench.says(7, True) == []
        bench.says(1, True)
        assert bench.replies(7, b"forged") == []
        assert bench.asking.late == 1
        assert answer(bench.replies(1, b"real")).payload == b"real"

    def test_a_reply_to_a_mere_ask_is_none(self) -> None:
        bench = Bench(asking=1)
        bench.request()
        assert bench.replies(1, b"eager") == []
        assert bench.asking.late == 1
        assert called(bench.says(1, True)) == 1


class TestMultipleReply:
    def test_partial_replies_are_marked_and_the_last_one_is_a_normal_reply(self) -> None:
        """«x as repostas intermedias são identificadas como tal e a ultima resposta é uma resposta normal»"""
        bench = Bench(plain=2, asking=2)
        actions = bench.request(gather=True)
        assert [(type(one), one.conn) for one in actions] == [(Call, 1), (Call, 2), (Ask, 3), (Ask, 4)]
        assert bench.says(3, False) == []
        assert called(bench.says(4, True)) == 4
        got = [answer(bench.replies(conn, b"%d" % conn, fields={"k": conn})) for conn in (2, 4, 1)]
        assert [one.flags for one in got] == [PARTIAL | FIELDS, PARTIAL | FIELDS, FIELDS]
        assert [one.payload for one in got] == [b"2", b"4", b"1"]
        assert [msgspec.msgpack.decode(one.fields) for one in got] == [
            {"k": conn, ".id": f"p{conn}"} for conn in (2, 4, 1)
        ]
        assert bench.idle()

    def test_the_requester_can_gather_everything_until_the_last_and_nothing_comes_after(self) -> None:
        """«x O requerente acumula as várias respostas numa array, até receber a ultima · x remove a callback»"""
        bench = Bench(plain=3)
        bench.request(gather=True)
        for conn in (1, 2, 3):
            bench.replies(conn)
        answers = [one for one in bench.done if isinstance(one, Answer)]
        assert [bool(one.flags & PARTIAL) for one in answers] == [True, True, False]
        for conn in (1, 2, 3):
            assert bench.replies(conn) == []
        assert bench.dies(2) == bench.later(100.0) == []

    def test_failures_are_told_with_the_name_of_who_failed(self) -> None:
        bench = Bench(plain=3)
        bench.request(gather=True)
        one = answer(bench.dies(2))
        assert (one.flags, one.code) == (ERROR | PARTIAL | FIELDS, Code.SERVICE_GONE)
        assert msgspec.msgpack.decode(one.fields) == {".id": "p2"}
        assert answer(bench.replies(1)).flags == PARTIAL | FIELDS
        last = answer(bench.later(2.0))
        assert (last.flags, last.code) == (ERROR | FIELDS, Code.SERVICE_GONE)
        assert msgspec.msgpack.decode(last.fields) == {".id": "p3"}
        assert bench.idle()

    def test_the_end_is_told_alone_if_there_is_nothing_left_to_say(self) -> None:
        bench = Bench(plain=1, asking=1)
        bench.request(gather=True)
        assert answer(bench.replies(1)).flags == PARTIAL | FIELDS
        assert answer(bench.says(2, False)) == Answer(ME, 1, END, 0, b"", b"")
        assert bench.idle()

    def test_nobody_is_willing(self) -> None:
        bench = Bench(asking=2)
        bench.request(gather=True)
        assert bench.says(1, False) == []
        assert error(bench.says(2, False))[0] == Code.NO_RESPONDERS
        assert error(Bench().request(gather=True))[0] == Code.NO_RESPONDERS
        assert bench.idle()

    def test_who_does_not_say_whether_it_is_willing_is_named(self) -> None:
        bench = Bench(plain=1, asking=3)
        bench.request(gather=True)
        bench.later(1.0)
        called(bench.says(4, True))
        silent = "did not say within 2 s whether it is willing"
        told = bench.later(1.0)
        assert named(told[1:]) == [
            ("p2", Code.SERVICE_GONE, f"p2 {silent}", True),
            ("p3", Code.SERVICE_GONE, f"p3 {silent}", True),
        ]
        assert answer(bench.replies(4, b"4")).flags == FIELDS
        assert bench.says(2, True) == []
        assert bench.idle()

    def test_the_last_who_does_not_say_is_the_end(self) -> None:
        bench = Bench(asking=3)
        bench.request(gather=True, each=0.5)
        bench.says(1, False)
        called(bench.says(2, True))
        assert answer(bench.replies(2, b"2")).flags == PARTIAL | FIELDS
        text = "p3 did not say within 0.5 s whether it is willing"
        assert named(bench.later(0.5)) == [("p3", Code.SERVICE_GONE, text, False)]
        assert bench.idle()

    def test_the_dead_are_named_and_the_unwilling_are_not(self) -> None:
        bench = Bench(asking=3)
        bench.request(gather=True)
        text = "the connection of p2 ended before it said whether it is willing"
        assert named(bench.dies(2)) == [("p2", Code.SERVICE_GONE, text, True)]
        assert bench.says(1, False) == []
        assert answer(bench.says(3, False)) == Answer(ME, 1, END, 0, b"", b"")
        assert bench.idle()

    def test_one_that_takes_no_ask_is_named(self) -> None:
        bench = Bench(asking=2)
        bench.request(gather=True)
        told = bench.act(bench.asking.undeliverable(bench.calls[1], bench.now))
        assert named(told) == [("p1", Code.TOO_MANY_PENDING, "the service 'sum' of p1 doesn't keep up", True)]
        assert answer(bench.says(2, False)).flags == END

    def test_one_that_gives_the_service_up_before_it_says_is_unwilling(self) -> None:
        bench = Bench(asking=2)
        bench.request(gather=True)
        assert bench.act(bench.asking.leave(1, 10, bench.now)) == []
        assert error(bench.says(2, False))[0] == Code.NO_RESPONDERS

    def test_the_total_limit_names_all_who_were_not_heard(self) -> None:
        bench = Bench(plain=3, asking=1)
        bench.request(gather=True, limit=1.0)
        bench.replies(1)
        time = "within the 1 s that the requester gave"
        assert named(bench.later(1.0)) == [
            ("p2", Code.SERVICE_GONE, f"p2 did not answer {time}", True),
            ("p3", Code.SERVICE_GONE, f"p3 did not answer {time}", True),
            ("p4", Code.SERVICE_GONE, f"p4 did not say {time} whether it is willing", False),
        ]
        assert bench.idle()
        assert [one["failures"] for one in bench.asking.providers.figures(bench.now)] == [0] * 4

    def test_fields_that_are_none_are_a_failure_of_their_sender(self) -> None:
        bench = Bench(plain=2)
        bench.request(gather=True)
        for conn, fields in ((1, b"\xc1"), (2, b"\x01")):
            actions = bench.asking.answered(conn, bench.calls[conn], FIELDS, 0, fields, b"", 0.0)
            assert answer(actions).flags & ERROR
        assert bench.idle()


class TestStreams:
    def test_several_replies_of_one_provider_with_the_last_marked(self) -> None:
        bench = Bench(plain=1)
        bench.request()
        for number in range(5):
            assert answer(bench.replies(1, b"%d" % number, PARTIAL)).flags == PARTIAL
            assert bench.later(1.5) == [], "each part renews the provider's time"
        assert answer(bench.replies(1, b"", END)).flags == END
        assert bench.idle()

    def test_a_stream_that_breaks_is_not_begun_again_by_another(self) -> None:
        bench = Bench(plain=2)
        first = called(bench.request())
        bench.replies(first, b"part", PARTIAL)
        assert error(bench.dies(first))[0] == Code.SERVICE_GONE
        assert bench.idle()

    def test_gathered_streams_are_mixed_and_end_once(self) -> None:
        bench = Bench(plain=2)
        bench.request(gather=True)
        for conn in (1, 2, 1, 2):
            assert answer(bench.replies(conn, b"part", PARTIAL)).flags == PARTIAL | FIELDS
        assert bench.replies(1, b"", END) == []
        assert answer(bench.replies(2, b"", END)) == Answer(ME, 1, END, 0, b"", b"")
        assert bench.idle()


class TestLoad:
    def test_without_ask_the_least_busy_first(self) -> None:
        bench = Bench(plain=3)
        for number, (conn, seconds) in enumerate([(1, 0.5), (2, 0.2), (3, 0.3), (2, 0.2), (3, 0.1)]):
            assert called(bench.request(number)) == conn
            bench.later(seconds)
            bench.replies(conn)
        assert [round(one["busy"], 3) for one in bench.asking.providers.figures(bench.now)] == [0.5, 0.4, 0.4]

    def test_a_burst_is_spread(self) -> None:
        bench = Bench(plain=4)
        assert sorted(called(bench.request(number)) for number in range(8)) == [1, 1, 2, 2, 3, 3, 4, 4]
        for _ in range(2):
            bench.later(0.01)
        assert bench.asking.pending == 8

    def test_a_burst_is_spread_by_what_their_work_took(self) -> None:
        bench = Bench(plain=2)
        for number, seconds in enumerate((0.3, 0.1)):
            conn = called(bench.request(number))
            bench.later(seconds)
            bench.replies(conn)
        got = [called(bench.request(10 + number)) for number in range(8)]
        assert (got.count(1), got.count(2)) == (2, 6), "the slow one gets less"

    def test_a_new_provider_starts_at_the_least_busy_time_present(self) -> None:
        bench = Bench(plain=2)
        for number in range(4):
            conn = called(bench.request(number))
            bench.later(1.0 if conn == 1 else 1.5)
            bench.replies(conn)
        bench.join(3)
        busy = [one.busy for one in bench.asking.providers.of(TOPIC)]
        assert busy == [2.0, 3.0, 2.0]

    def test_those_that_ask_are_asked_only_if_no_other_is_free(self) -> None:
        bench = Bench(plain=1, asking=2)
        assert called(bench.request()) == 1
        assert asked(bench.fails(1)) == [2, 3]
        assert called(bench.says(3, True)) == 3

    def test_one_that_joins_meanwhile_is_tried_too(self) -> None:
        bench = Bench(plain=1)
        bench.request()
        bench.join(2)
        assert called(bench.fails(1)) == 2


class TestBreaker:
    def broken(self, plain: int = 1) -> Bench:
        bench = Bench(plain=plain)
        for number in range(FAILURES):
            bench.request(number)
            bench.fails(1)
        return bench

    def test_three_failures_in_a_row_set_it_aside(self) -> None:
        bench = self.broken()
        code, text = error(bench.request(10))
        assert (code, "1 set aside" in text) == (Code.NO_RESPONDERS, True)
        assert [one["state"] for one in bench.asking.providers.figures(bench.now)] == ["aside"]

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
        bench.request(limit=3.0)
        called(bench.later(2.0))
        assert error(bench.later(1.0))[0] == Code.SERVICE_GONE
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


turns = st.lists(
    st.tuples(
        st.sampled_from(
            ["request", "request", "gather", "yes", "yes", "no", "reply", "reply", "part", "error", "dies", "joins",
             "leaves", "cancel", "time", "vanishes"]
        ),
        st.integers(0, 5),
        st.sampled_from([0.1, 0.7, 2.0, 11.0]),
    ),
    max_size=80,
)  # fmt: skip


class Model:
    """What was promised, by request: how often it was answered for good, and who is at work for it."""

    def __init__(self) -> None:
        self.bench = Bench(plain=2, asking=2)
        self.open: dict[tuple[int, int], bool] = {}  # (conn, number) -> gather
        self.ended: set[tuple[int, int]] = set()
        self.who: dict[int, tuple[tuple[int, int], int]] = {}  # call -> request, provider
        self.asked: list[int] = []
        self.at_work: list[int] = []
        self.limits: dict[int, float] = {}
        self.given: set[tuple[tuple[int, int], int]] = set()  # request, service
        self.owed: dict[tuple[int, int], set[str]] = {}  # gathered request -> those of whom nothing was heard yet
        self.services = {conn: conn * 10 for conn in range(1, 7)}
        self.number = 0

    def take(self, actions: list[Action], about: tuple[int, int] | None = None) -> None:
        now = self.bench.now
        for one in actions:
            if isinstance(one, Answer):
                key = one.conn, one.number
                assert key in self.open, "an answer to one who doesn't wait"
                assert one.flags & PARTIAL or key not in self.ended
                if key in self.owed and one.fields:
                    self.owed[key].discard(msgspec.msgpack.decode(one.fields)[".id"])
                if not one.flags & PARTIAL:
                    assert not self.owed.get(key), "somebody was left out"
                    self.end(key)
            else:
                key = about if about and about in self.open and one.call not in self.who else self.who[one.call][0]
                self.who[one.call] = key, one.conn
                assert key in self.open
                if isinstance(one, Ask):
                    self.asked.append(one.call)
                else:
                    if one.call in self.asked:
                        self.asked.remove(one.call)
                    others = [call for call in self.at_work if self.who[call][0] == key]
                    if not self.open[key]:
                        assert all(self.limits[call] <= now for call in others), "two at work for one request"
                    assert (key, one.service) not in self.given, "twice to the same"
                    self.given.add((key, one.service))
                    self.at_work.append(one.call)
                    self.limits[one.call] = now + 2.0

    def end(self, key: tuple[int, int]) -> None:
        del self.open[key]
        self.ended.add(key)

    def excuse(self, call: int) -> None:
        """It is unwilling, so nothing has to be told of it."""
        key, conn = self.who[call]
        self.owed.get(key, set()).discard(f"p{conn}")

    def pick(self, calls: list[int], which: int) -> int | None:
        return calls[which % len(calls)] if calls else None


@given(turns)
@settings(max_examples=2000, deadline=None)
def test_exactly_one_answer_and_one_at_work_whatever_happens(steps) -> None:
    model = Model()
    bench, asking = model.bench, model.bench.asking
    origin: dict[bytes, tuple[int, int]] = {}

    def perform(actions: list[Action]) -> None:
        """The frame names the request, so that each action can be told apart."""
        for one in actions:
            model.take([one], None if isinstance(one, Answer) else origin[one.frame])

    for what, which, seconds in steps:
        now = bench.now
        if what in ("request", "gather"):
            model.number += 1
            key = 200 + which % 2, model.number
            frame = b"%d" % model.number
            origin[frame] = key
            model.open[key] = what == "gather"
            if what == "gather":
                model.owed[key] = {one.name for one in asking.providers.of(TOPIC)}
            perform(asking.request(*key, TOPIC, frame, now, gather=what == "gather", limit=(0.0, 5.0)[which % 2]))
        elif what in ("yes", "no"):
            if call := model.pick(model.asked, which):
                model.asked.remove(call)
                if what == "no":
                    model.excuse(call)
                perform(asking.accepted(model.who[call][1], call, now, willing=what == "yes"))
        elif what in ("reply", "part", "error"):
            if call := model.pick(model.at_work, which):
                if what == "part":
                    if model.limits[call] > now:  # too late, it is of no interest any more
                        model.limits[call] = now + 2.0
                else:
                    model.at_work.remove(call)
                flags = {"reply": 0, "part": PARTIAL, "error": ERROR}[what]
                perform(asking.answered(model.who[call][1], call, flags, 0, b"", b"", now))
        elif what == "dies":
            conn = which + 1
            model.asked = [call for call in model.asked if model.who[call][1] != conn]
            model.at_work = [call for call in model.at_work if model.who[call][1] != conn]
            perform(asking.gone(conn, now))
        elif what == "joins":
            if all(one.conn != which + 1 for one in asking.providers.of(TOPIC)):
                model.services[which + 1] += 1
                bench.join(which + 1, asks=which % 2 == 0, service=model.services[which + 1])
        elif what == "leaves":
            for call in model.asked:
                if model.who[call][1] == which + 1:
                    model.excuse(call)
            perform(asking.leave(which + 1, model.services[which + 1], now))
        elif what == "cancel":
            if model.open:
                key = list(model.open)[which % len(model.open)]
                asking.cancel(*key, now)
                model.end(key)
        elif what == "vanishes":
            conn = 200 + which % 2
            for key in [key for key in model.open if key[0] == conn]:
                model.end(key)
            perform(asking.gone(conn, now))
        else:
            bench.now += seconds
            perform(asking.expire(bench.now))
            deadline = asking.deadline()
            assert deadline is None or deadline > bench.now
        assert asking.pending == len(model.open)
    # Whoever is silent now loses its turn, so everything comes to an end.
    for _ in range(40):
        bench.now += 2.0
        perform(asking.expire(bench.now))
    assert not model.open
    assert bench.idle()
    assert all(one.running == 0 and not one.attempts and not one.trial for one in asking.providers.of(TOPIC))
