"""Requests on shared services: which providers are asked and called, and the requester's answer. The machine alone.

The classes with lines of the seed "Server BUS", phase 2, name the line that each test shows.
"""

import pytest

from busway.broker.services.actions import Answer, Call
from busway.broker.services.providers import FAILURES
from busway.errors import Code
from tests.support.asking_bench import ME, TOPIC, Bench, answer, asked, called, error


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
            "undeliverable": lambda: bench.act(bench.asking.undeliverable(bench.calls[2], bench.now, gone=False)),
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
