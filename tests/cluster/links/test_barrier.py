"""The barrier: calls wait until every linked node knows a registration. The machine alone."""

from busway.cluster.links.barrier import FIRST, Barrier
from busway.cluster.node import Node

NODE = Node("0" * 32, 1, "test")


class Bench:
    def __init__(self, *links):
        self.pings = []
        self.done = []
        self.rounds = Barrier(lambda conn, token: self.pings.append((conn, token)))
        for conn in links:
            self.rounds.opened(conn, NODE)

    def wait(self, name):
        self.rounds.wait(lambda: self.done.append(name))

    def pong(self, *conns, token=None):
        for conn in conns:
            self.rounds.pong(conn, token if token is not None else self.pings[-1][1])


def test_without_links_nobody_waits():
    bench = Bench()
    bench.wait("a")
    assert (bench.done, bench.pings) == (["a"], [])


def test_all_must_have_answered():
    bench = Bench(1, 2, 3)
    bench.wait("a")
    assert [conn for conn, _ in bench.pings] == [1, 2, 3]
    assert {token for _, token in bench.pings} == {FIRST + 1}
    bench.pong(2, 1)
    bench.pong(1)
    assert bench.done == []
    bench.pong(3)
    assert bench.done == ["a"]


def test_an_answer_to_another_ping_is_none():
    bench = Bench(1)
    bench.wait("a")
    for token in (0, 1, FIRST, FIRST + 2):
        bench.pong(1, token=token)
    assert bench.done == []


def test_who_comes_during_a_round_waits_for_the_next():
    bench = Bench(1, 2)
    bench.wait("a")
    bench.wait("b")
    bench.wait("c")
    assert len(bench.pings) == 2
    bench.pong(1, 2)
    assert (bench.done, len(bench.pings)) == (["a"], 4)
    bench.pong(1, 2)
    assert (bench.done, len(bench.pings)) == (["a", "b", "c"], 4)


def test_a_link_that_ends_is_not_waited_for():
    bench = Bench(1, 2)
    bench.wait("a")
    bench.pong(1)
    bench.rounds.closed(2, 0.0)
    assert bench.done == ["a"]
    bench.wait("b")
    bench.rounds.closed(1, 0.0)
    assert bench.done == ["a", "b"]
    bench.rounds.closed(9, 0.0)


def test_a_link_that_opens_during_a_round_was_told_everything_by_then():
    bench = Bench(1)
    bench.wait("a")
    bench.rounds.opened(2, NODE)
    bench.pong(1)
    assert bench.done == ["a"]
    bench.wait("b")
    assert [conn for conn, _ in bench.pings] == [1, 1, 2]


def test_who_begins_to_wait_when_a_round_ends():
    bench = Bench(1)

    def again():
        bench.done.append("a")
        bench.wait("b")

    bench.rounds.wait(again)
    bench.pong(1)
    assert (bench.done, len(bench.pings)) == (["a"], 2)
    bench.pong(1)
    assert bench.done == ["a", "b"]
