"""Gathered and partial replies of shared services: what the requester receives. The machine alone.

The classes with lines of the seed "Server BUS", phase 2, name the line that each test shows.
"""

import msgspec

from busway.broker.flags import END, ERROR, FIELDS, PARTIAL
from busway.broker.services.actions import Answer, Ask, Call
from busway.errors import Code
from tests.support.asking_bench import ME, Bench, answer, called, error, named


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
        told = bench.act(bench.asking.undeliverable(bench.calls[1], bench.now, gone=False))
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
