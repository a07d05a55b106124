"""The delays before attempts to reconnect, and how chance spreads them."""

import random
from itertools import cycle, islice

import pytest

from busway.client.connection.dialer import JITTER, RetrySchedule


def taken(schedule: RetrySchedule, count: int) -> list[float]:
    return [schedule.next() for _ in range(count)]


def test_the_last_delay_repeats_and_the_schedule_can_begin_anew() -> None:
    schedule = RetrySchedule([0, 0.5, 2], 0, lambda: 0.9)
    assert taken(schedule, 4) == [0, 0.5, 2, 2]
    schedule.begin()
    assert taken(schedule, 2) == [0, 0.5]


def test_chance_makes_each_delay_longer_or_shorter_by_up_to_the_jitter() -> None:
    numbers = cycle([0.0, 0.5, 1.0])
    schedule = RetrySchedule([10.0], 0.2, lambda: next(numbers))
    assert taken(schedule, 6) == pytest.approx([8, 10, 12, 8, 10, 12])


def test_two_clients_with_the_same_schedule_do_not_keep_step() -> None:
    one, two = (RetrySchedule([1.0], JITTER, random.Random(seed).random) for seed in (1, 2))
    pairs = list(islice(zip(taken(one, 50), taken(two, 50), strict=True), 50))
    assert all(left != right for left, right in pairs)
    assert all(0.8 <= delay <= 1.2 for pair in pairs for delay in pair)


@pytest.mark.parametrize("never", [None, (), []])
def test_without_delays_there_is_no_coming_back(never: object) -> None:
    assert not RetrySchedule(never, 0.2, random.random)
    assert RetrySchedule([0], 0.2, random.random)


@pytest.mark.parametrize(
    ("delays", "jitter", "text"),
    [
        ([-1], 0.2, r"reconnect\[0\] must not be negative"),
        ([0, "x"], 0.2, r"reconnect\[1\]: 'x' is not a length of time"),
        ([0, float("inf")], 0.2, r"reconnect\[1\] must be a finite"),
        ([float("nan")], 0.2, r"reconnect\[0\] must be a finite"),
        ([None], 0.2, r"reconnect\[0\] must be a length of time"),
        ([True], 0.2, r"reconnect\[0\] must be a length of time"),
        ("1, 2", 0.2, "reconnect must be a list of delays"),
        (5, 0.2, "reconnect must be a list of delays"),
        ([1], -0.1, "jitter must not be negative"),
        ([1], 1.5, "jitter must be a fraction of each delay"),
        ([1], "little", "jitter must be a number"),
    ],
)
def test_what_is_no_schedule_is_refused(delays: object, jitter: object, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        RetrySchedule(delays, jitter, random.random)
