"""Delays as users give them."""

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

import busway
from busway.backoff import backoff_of, delay_of, shown


@pytest.mark.parametrize(
    ("given", "delays"),
    [
        (["1s", 5, 30.0, timedelta(minutes=2)], (1.0, 5.0, 30.0, 120.0)),
        ([0, "5s"], (0.0, 5.0)),
        ([], ()),
        (0, ()),
        ("none", ()),
        (5, (5.0,)),
        (timedelta(seconds=3), (3.0,)),
        ("1s, 5s,30", (1.0, 5.0, 30.0)),
        ("250ms", (0.25,)),
        ("first=1s,factor=3,limit=1m", busway.Backoff(1, 3, 60)),
        (busway.Backoff("1s", limit="5m"), busway.Backoff(1.0, 2.0, 300.0, 0.1)),
    ],
)
def test_what_may_be_given(given: object, delays: object) -> None:
    assert backoff_of(given) == delays


@pytest.mark.parametrize(
    "wrong",
    [
        *("", " ", "1s,,2s", "soon", "1s,-1s", "first=1s,third=2", "first=1s,first=2s", "factor=x", "first=", "nan"),
        *([""], [-1], [float("nan")], [float("inf")], [1e10], [1] * 65, -1, [["1s"]]),
        *(True, [True], {"first": 1}, {1, 2}, b"1s", object(), [None]),
    ],
)
def test_what_may_not(wrong: object) -> None:
    with pytest.raises((ValueError, TypeError), match="backoff"):
        backoff_of(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"first": 0},
            {"first": "x"},
            {"factor": 0.5},
            {"factor": "2"},
            {"factor": 1e9},
            {"jitter": 2},
            {"jitter": -0.1},
        ),
        *({"limit": 0.5}, {"limit": float("nan")}, {"first": True}, {"jitter": True}, {"factor": float("nan")}),
    ],
)
def test_a_backoff_that_makes_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError), match="backoff"):
        busway.Backoff(**wrong)  # type: ignore[arg-type]


@given(
    st.lists(st.just(0.0) | st.floats(1e-3, 9e9), max_size=64).map(tuple)
    | st.builds(busway.Backoff, st.floats(1e-3, 10), st.floats(1, 1000), st.floats(10, 1e9), st.floats(0, 1))
)
def test_text_says_about_the_same(delays) -> None:
    again = backoff_of(shown(delays))
    for failures in (1, 2, 3, 70, 10**9):
        expected = delay_of(delays, failures, "key")
        assert delay_of(again, failures, "key") == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_growing_delays() -> None:
    steady = busway.Backoff("1s", factor=2, limit="10s", jitter=0)
    assert [steady.delay(failures, "key") for failures in range(1, 7)] == [1, 2, 4, 8, 10, 10]
    assert busway.Backoff(factor=1, jitter=0).delay(10**9, "") == 1.0
    assert busway.Backoff(1e-3, factor=1000, limit=1e9, jitter=0).delay(2**31, "") == 1e9


def test_jitter_is_bounded_and_the_same_for_the_same_failure() -> None:
    backoff = busway.Backoff(10, jitter=0.2)
    delays = [backoff.delay(1, str(key)) for key in range(500)]
    assert 8 <= min(delays) < 8.5
    assert 11.5 < max(delays) <= 12
    assert delays == [backoff.delay(1, str(key)) for key in range(500)]
