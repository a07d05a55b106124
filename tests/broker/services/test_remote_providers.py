"""Requests on shared services across nodes: which providers are tried, and which messages the nodes send. The machine
alone.
"""

import msgspec
import pytest

from busway.broker.flags import END, ERROR, FIELDS, PARTIAL
from busway.broker.services.actions import Answer, Ask, Call, CancelCall, Moved, Terms, Willing
from busway.broker.services.providers import ASIDE, FAILURES
from busway.broker.services.requests import GRACE, MARGIN
from busway.errors import Code
from tests.support.asking_bench import ME, TOPIC, Bench, answer, asked, called, error, named

LINK = 50
"""The connection of another node that asks."""


def bench(plain=0, asking=0, nodes=0, asking_nodes=0):
    """Providers 1, 2, ... here; nodes that have some are 11, 12, ..."""
    made = Bench(plain=plain, asking=asking)
    for conn in range(11, 11 + nodes + asking_nodes):
        made.join_far(conn, asks=conn >= 11 + nodes)
    return made


def called_far(actions):
    """The node that is called, and told how long each may take."""
    call, terms = actions
    assert terms == Terms(call.conn, call.call, 2.0)
    return called([call])


def asked_far(actions):
    asks, terms = actions[::2], actions[1::2]
    assert terms == [Terms(one.conn, one.call, 2.0) for one in asks]
    return asked(asks)


class TestOfOurClients:
    def test_clients_of_the_same_node_come_first_then_other_nodes(self):
        one = bench(plain=1, nodes=1)
        assert called(one.request()) == 1
        assert called_far(one.fails(1)) == 11
        assert answer(one.replies(11, b"yes")) == Answer(ME, 1, 0, 0, b"", b"yes")
        assert one.idle()
        assert one.offs() == []

    def test_other_nodes_are_asked_when_nobody_here_is_willing(self):
        one = bench(asking=2, asking_nodes=2)
        assert asked(one.request()) == [1, 2]
        assert one.says(1, False) == []
        assert asked_far(one.says(2, False)) == [11, 12]
        assert called_far(one.says(12, True)) == 12
        assert one.says(11, True) == []
        answer(one.replies(12))
        assert one.idle()
        assert [off.conn for off in one.offs()] == [11], "it need not wait for the call"

    def test_a_node_with_some_that_need_not_be_asked_is_called(self):
        one = bench(asking_nodes=1)
        one.join_far(11, asks=False, service=111)
        assert called_far([one.request()[0]._replace(service=110), one.done[-1]]) == 11
        one.replies(11)
        one.asking.leave(11, 111, one.now)
        assert asked_far(one.request(2)) == [11], "only those are left who want to be asked"
        one.says(11, False)
        one.asking.leave(11, 110, one.now)
        assert error(one.request(3))[0] == Code.NO_RESPONDERS

    @pytest.mark.parametrize("how", ["timeout", "error", "death", "undeliverable", "dying", "nobody"])
    def test_one_node_after_the_other(self, how):
        one = bench(nodes=2)
        assert called_far(one.request()) == 11
        after = {
            "timeout": lambda: one.later(2.0 + MARGIN),
            "error": lambda: one.fails(11),
            "death": lambda: one.dies(11),
            "undeliverable": lambda: one.act(one.asking.undeliverable(one.calls[11], one.now, gone=False)),
            "dying": lambda: one.act(one.asking.undeliverable(one.calls[11], one.now, gone=True)),
            "nobody": lambda: one.fails(11, code=Code.NO_RESPONDERS),
        }[how]()
        assert called_far(after) == 12
        assert answer(one.replies(12, b"yes")).payload == b"yes"
        assert one.idle()
        assert len(one.offs()) == (how == "timeout"), "who goes on is told that nobody waits"

    def test_links_that_end_together_are_told_as_gone_and_not_as_slow(self):
        one = bench(nodes=2)
        one.request()
        one.dies(11)
        code, text = error(one.act(one.asking.undeliverable(one.calls[12], one.now, gone=True)))
        assert (code, "ended before it had the request" in text) == (Code.SERVICE_GONE, True)
        assert one.idle()

    def test_a_node_that_goes_on_to_the_next_has_time_anew(self):
        one = bench(nodes=2)
        one.request()
        for _ in range(5):
            assert one.later(2.0) == []
            one.asking.moved(11, one.calls[11], one.now)
        one.asking.moved(12, one.calls[11], one.now + 100.0)
        assert called_far(one.later(2.0 + MARGIN)) == 12, "another node says nothing for it"

    def test_nobody_anywhere_is_willing(self):
        one = bench(asking_nodes=1, nodes=1)
        assert called_far(one.request()) == 11
        assert asked_far(one.fails(11, code=Code.NO_RESPONDERS)) == [12]
        assert error(one.says(12, False))[0] == Code.NO_RESPONDERS
        assert one.idle()

    def test_a_node_that_answers_is_never_set_aside_but_one_that_is_silent(self):
        one = bench(nodes=1)
        for number in range(2 * FAILURES):
            assert called_far(one.request(number)) == 11
            assert error(one.fails(11))[0] == Code.HANDLER_ERROR
        for number in range(FAILURES):
            assert called_far(one.request(number)) == 11
            assert error(one.later(2.0 + MARGIN))[0] == Code.SERVICE_GONE
        assert "1 set aside" in error(one.request(99))[1]
        one.later(ASIDE)
        assert called_far(one.request(100)) == 11

    def test_a_cancelled_request_is_called_off(self):
        one = bench(nodes=1)
        one.request()
        call = one.calls[11]
        one.asking.cancel(ME, 1, one.now)
        assert one.offs() == [CancelCall(11, call)]
        assert one.idle()

    def test_the_requesters_limit_calls_off(self):
        one = bench(nodes=1)
        one.request(limit=1.0)
        assert error(one.later(1.0 + GRACE))[0] == Code.SERVICE_GONE
        assert len(one.offs()) == 1

    @pytest.mark.parametrize(("scope", "who"), [("local", [1]), ("remote", [11]), ("global", [1, 11])])
    def test_a_scope_says_whose_services_are_tried(self, scope, who):
        one = bench(plain=1, nodes=1)
        one.request(scope=scope)
        for conn in who:
            assert one.done[-1 - (conn > 10)].conn == conn
            one.fails(conn)
        assert isinstance(one.done[-1], Answer)
        one.request(2, scope=scope, gather=True)
        assert [call.conn for call in one.done if isinstance(call, Call)] == who * 2

    def test_a_service_for_other_nodes_is_not_tried(self):
        one = Bench()
        one.join(1, scope="remote")
        assert error(one.request())[0] == Code.NO_RESPONDERS


class TestGathering:
    def test_everybody_everywhere(self):
        one = bench(plain=1, nodes=1, asking_nodes=1)
        got = one.request(gather=True)
        assert [action.conn for action in got if isinstance(action, Call)] == [1, 11, 12], "nodes ask their own clients"
        assert not any(isinstance(action, Ask) for action in got)
        answers = [
            answer(one.replies(1, b"1")),
            answer(one.replies(11, b"2", PARTIAL, fields={".id": "ann", "k": 1})),
            answer(one.replies(12, b"no", ERROR | PARTIAL, Code.HANDLER_ERROR, fields={".id": "bob"})),
            answer(one.replies(12, b"3", fields={".id": "cat"})),
            answer(one.replies(11, b"gone", ERROR, Code.SERVICE_GONE, fields={".id": "dan"})),
        ]
        assert [msgspec.msgpack.decode(one.fields)[".id"] for one in answers] == ["p1", "ann", "bob", "cat", "dan"]
        assert [one.flags & PARTIAL for one in answers] == [PARTIAL] * 4 + [0]
        assert [one.code for one in answers] == [0, 0, Code.HANDLER_ERROR, 0, Code.SERVICE_GONE]
        assert one.idle()
        assert one.offs() == []

    def test_the_end_of_a_node_is_none_of_the_request(self):
        one = bench(nodes=2)
        one.request(gather=True)
        one.replies(11, b"1", PARTIAL, fields={".id": "ann"})
        assert one.replies(11, b"", END) == []
        one.replies(12, b"2", PARTIAL, fields={".id": "bob"})
        assert answer(one.replies(12, b"", END)).flags == END
        assert one.idle()

    def test_a_node_where_nobody_is_willing_is_not_mentioned(self):
        one = bench(nodes=2)
        one.request(gather=True)
        assert one.fails(11, code=Code.NO_RESPONDERS) == []
        assert answer(one.replies(12, b"2", fields={".id": "bob"})).flags == FIELDS
        one.request(2, gather=True)
        one.fails(11, code=Code.NO_RESPONDERS)
        assert error(one.fails(12, code=Code.NO_RESPONDERS))[0] == Code.NO_RESPONDERS
        assert one.idle()

    @pytest.mark.parametrize("how", ["death", "timeout", "limit"])
    def test_a_node_that_is_lost_is_named(self, how):
        one = bench(plain=1, nodes=1)
        one.request(gather=True, limit=2.5 if how == "limit" else 0.0)
        one.replies(1)
        told = {
            "death": lambda: one.dies(11),
            "timeout": lambda: one.later(2.0 + MARGIN),
            "limit": lambda: one.later(2.5),
        }[how]()
        ((name, code, _, more),) = named(told)
        assert (name, code, more) == ("p11", Code.SERVICE_GONE, False)
        assert one.idle()
        assert len(one.offs()) == (how != "death")


class TestOfAnotherNode:
    def request(self, one, number=1, **more):
        return one.act(one.asking.request(LINK, number, TOPIC, b"frame", one.now, remote=True, **more))

    def ask(self, one, number=1):
        return one.act(one.asking.ask(LINK, number, TOPIC, b"frame", one.now))

    def test_it_goes_to_clients_alone(self):
        one = bench(plain=1, nodes=2)
        one.join(2, scope="local")
        (call,) = self.request(one)
        assert call.conn == 1
        got = one.fails(1)
        assert got == [Answer(LINK, 1, ERROR, Code.HANDLER_ERROR, b"", b"oops")], "neither to a node nor to a local one"
        self.request(one, 2, gather=True)
        assert [action.conn for action in one.done if isinstance(action, Call)] == [1, 1]

    def test_the_node_is_told_when_the_next_is_tried(self):
        one = bench(plain=2)
        self.request(one)
        _, moved = one.fails(1)
        assert moved == Moved(LINK, 1)

    def test_each_has_the_time_that_the_requester_gave(self):
        one = bench(plain=2)
        self.request(one)
        one.asking.terms(LINK, 1, 0.5, one.now)
        one.asking.terms(LINK, 9, 0.5, one.now)
        assert one.later(0.4) == []
        call, moved = one.later(0.1)
        assert (call.conn, moved) == (2, Moved(LINK, 1))
        one.asking.terms(LINK, 1, 100.0, one.now)
        assert one.later(99.0) == []

    def test_an_ask_is_answered_by_asking(self):
        one = bench(asking=2)
        assert asked(self.ask(one)) == [1, 2]
        assert one.says(1, False) == []
        assert one.says(2, True) == [Willing(LINK, 1, Code.OK)]
        (call,) = self.request(one)
        assert (call.conn, type(call)) == (2, Call), "who has said yes is not asked again"
        assert answer(one.replies(2)).conn == LINK
        assert one.idle()

    def test_nobody_is_willing_here(self):
        one = bench(asking=1, nodes=1)
        self.ask(one)
        assert one.says(1, False) == [Willing(LINK, 1, Code.REFUSED)]
        assert self.ask(Bench()) == [Willing(LINK, 1, Code.REFUSED)]
        assert one.idle()

    def test_who_need_not_be_asked_is_willing(self):
        one = bench(plain=1)
        assert self.ask(one) == [Willing(LINK, 1, Code.OK)]
        assert called_by(self.request(one)) == 1

    def test_a_promise_that_nobody_comes_back_to_is_forgotten(self):
        one = bench(plain=1, asking=1)
        self.ask(one)
        assert one.later(2.0) == []
        assert one.idle()
        assert called_by(self.request(one)) == 1, "and comes as any other"

    def test_a_promise_is_kept_by_the_next_if_its_provider_goes(self):
        one = bench(asking=2)
        self.ask(one)
        assert one.says(1, True) == [Willing(LINK, 1, Code.OK)]
        assert one.says(2, True) == []
        assert one.dies(1) == []
        assert called_by(self.request(one)) == 2

    def test_the_end_of_the_link_ends_it(self):
        one = bench(plain=1, asking=1)
        self.ask(one)
        self.request(one, 2)
        assert one.dies(LINK) == []
        assert one.idle()

    def test_an_ask_that_is_called_off(self):
        one = bench(asking=1)
        self.ask(one)
        one.asking.cancel(LINK, 1, one.now)
        assert one.idle()


def called_by(actions):
    (call,) = actions
    assert isinstance(call, Call)
    return call.conn
