"""The history of figures: samples with numbers, figures that come and go, and a bound."""

from busway.broker.admin.rate_history import RateHistory


def test_samples_come_with_their_times_and_numbers():
    history = RateHistory()
    history.add(100.0, {"messages": 5})
    history.add(101.0, {"messages": 7.5})
    assert history.since(0, ["messages"]) == {"first": 0, "times": [100.0, 101.0], "figures": {"messages": [5, 7.5]}}
    assert history.since(1, ["messages"]) == {"first": 1, "times": [101.0], "figures": {"messages": [7.5]}}
    assert history.since(2, ["messages"]) == {"first": 2, "times": [], "figures": {"messages": []}}


def test_a_number_of_the_future_gets_nothing_and_the_next_number():
    history = RateHistory()
    history.add(1.0, {"a": 1})
    assert history.since(99, ["a"]) == {"first": 1, "times": [], "figures": {"a": []}}


def test_old_samples_are_dropped():
    history = RateHistory(most=3)
    for number in range(10):
        history.add(float(number), {"a": number})
    found = history.since(0, ["a"])
    assert (found["first"], found["times"], found["figures"]["a"]) == (7, [7.0, 8.0, 9.0], [7, 8, 9])


def test_a_figure_that_begins_later_is_none_before():
    history = RateHistory()
    history.add(1.0, {"a": 1})
    history.add(2.0, {"a": 2, "b": 20})
    assert history.since(0, ["a", "b"])["figures"] == {"a": [1, 2], "b": [None, 20]}
    assert history.since(1, ["b"])["figures"] == {"b": [20]}


def test_a_figure_that_ends_is_none_behind_and_is_forgotten():
    history = RateHistory(most=2)
    history.add(1.0, {"a": 1, "b": 10})
    history.add(2.0, {"a": 2})
    assert history.since(0, ["b"])["figures"] == {"b": [10, None]}
    history.add(3.0, {"a": 3})
    history.add(4.0, {"a": 4})
    assert history.names() == ["a"]


def test_a_figure_that_returns_begins_anew():
    history = RateHistory()
    history.add(1.0, {"b": 1})
    history.add(2.0, {})
    history.add(3.0, {"b": 3})
    assert history.since(0, ["b"])["figures"] == {"b": [None, None, 3]}


def test_an_unknown_figure_is_left_out():
    history = RateHistory()
    history.add(1.0, {"a": 1})
    assert history.since(0, ["a", "nobody"])["figures"] == {"a": [1]}
