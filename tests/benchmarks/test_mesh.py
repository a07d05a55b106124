"""The benchmark of a cluster: each part works on real brokers for a moment. Speed is not checked."""

import pytest

from benchmarks.mesh import hops, joining, passing, silent
from benchmarks.mesh.nodes import Broker, until
from benchmarks.mesh.report import Figures, judge, markdown
from benchmarks.peers.goals import Goal
from benchmarks.peers.load import Load
from benchmarks.peers.process import ProcessError

MACHINE = {"processor": "p", "cores": 2, "memory_gib": 1, "system": "s", "python": "3", "load_before": 0.0}
pytestmark = pytest.mark.timeout(240)  # many processes, each with an end of its own to every wait
SHORT = Load("", seconds=0.4, warm=0.05)


def figures() -> Figures:
    return Figures(MACHINE, ["busway 1"], {"size": 128, "rounds": 1})


def test_messages_pass_within_a_node_and_over_a_link() -> None:
    [found] = passing.rates(SHORT, 1)
    assert found["one_rate"] > 0
    assert found["two_rate"] > 0
    assert (found["one_lost"], found["two_lost"]) == (0, 0)


def test_sixteen_subscribers_cost_a_link_one_copy() -> None:
    found = passing.copies(SHORT)
    assert found["crossed"] == found["published"] > 0
    assert found["delivered"] == 16 * found["published"]


def test_every_way_of_a_message_is_timed() -> None:
    found = hops.trips(128, 20, 2)
    assert [set(one) for one in found] == [{"one", "two", "bare_one", "bare_two"}] * 2
    assert all(time > 0 for one in found for time in one.values())


def test_a_new_node_learns_of_all_subscriptions() -> None:
    [found] = joining.joins(1, 300)
    assert 0 < found["from_ready"] < found["from_start"]


def test_a_silent_mesh_has_a_link_for_each_pair() -> None:
    found = silent.idles(0.2, 3)
    assert found["links"] == 3
    assert found["each_link"] == found["all"] / 3


def test_a_broker_that_can_not_start_is_told_with_what_it_wrote(tmp_path) -> None:
    with Broker("broken", tmp_path, ["nowhere:99999"]) as broken, pytest.raises(ProcessError, match="99999"):
        broken.wait_until_ready()


def test_a_wait_has_an_end() -> None:
    with pytest.raises(ProcessError, match=r"not within 0.05 s: pigs fly"):
        until(lambda: False, "pigs fly", 0.05)


def test_the_goals_are_those_of_what_was_measured() -> None:
    found = figures()
    assert not list(judge(found))
    found.rate = [{"one_rate": 4e6, "two_rate": 1e6, "one_lost": 0, "two_lost": 1, "one_broker_cpu_per_million": 1, "two_broker_cpu_per_million": 2}]  # fmt: skip
    found.hop = [{"one": 100.0, "two": 155.0, "bare_one": 80.0, "bare_two": 120.0}]
    found.copies = [{"subscribers": 16, "published": 10, "crossed": 20, "delivered": 160, "bytes_each": 164}]
    rate, lost, hop, copies = judge(found)
    assert (rate.value, rate.reached) == (0.25, False)
    assert (lost.value, lost.reached) == (1, False)
    assert (hop.value, hop.reached) == (1.375, False)
    assert hop.what == "p50 that the second node adds / what a second bare relay adds"
    assert (copies.value, copies.reached) == (10, False)
    text = markdown(found)
    assert "| nodes | 100.0 | 155.0 | 55.0 | 50.0 |" in text
    assert "| bare relays | 80.0 | 120.0 | 40.0 | 40.0 |" in text


def hop_of(*rounds: tuple[float, float]) -> Goal:
    """The goal of rounds with these times that the second node and the second bare relay add."""
    found = figures()
    found.hop = [{"one": 100.0, "two": 100 + node, "bare_one": 50.0, "bare_two": 50 + relay} for node, relay in rounds]
    [goal] = judge(found)
    return goal


def test_a_hop_is_what_the_second_bare_relay_adds_in_the_same_round() -> None:
    goal = hop_of((10, 10), (90, 100), (400, 100))
    assert (goal.value, goal.bar, goal.reached) == (1.0, 1.2, True)


def test_a_round_in_which_the_second_bare_relay_adds_nothing_does_not_help_the_goal() -> None:
    for nothing in (0, -5):
        assert (hop_of((10, 10), (10, 10), (10, nothing)).value, hop_of((10, nothing)).reached) == (1.0, False)
        assert not hop_of((-10, nothing), (10, nothing), (10, 10)).reached
