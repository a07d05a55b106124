"""The checks of a trial find each guarantee that is broken on purpose."""

import copy
from collections.abc import Callable

import pytest

from tests.chaos.cluster.history import Ledger, Place
from tests.chaos.cluster.service import Outage, Service, summary

A, B = "a" * 32, "b" * 32
GOOD = [
    ["p", "stored", 1.0, 1, A, 0, False],
    ["p", "stored", 2.0, 2, A, 1, False],
    ["p", "stored", 3.0, 3, B, 0, True],
    ["c", "got", 1.1, A, 0, "p 1"],
    ["c", "acked", 1.2, A, 0],
    ["c", "got", 2.1, A, 1, "p 2"],
    ["c", "unsure", 2.2, A, 1, "Disconnected"],
    ["d", "got", 2.3, A, 1, "p 2"],
    ["d", "acked", 2.4, A, 1],
    ["d", "got", 3.1, B, 0, "p 3"],
    ["d", "unsure", 3.2, B, 0, "Disconnected"],
]
HISTORY = [(Place(A, 0), "p 1"), (Place(A, 1), "p 2"), (Place(B, 0), "p 3")]


def noted(records: list[list[object]]) -> Ledger:
    ledger = Ledger()
    for client, *record in records:
        ledger.note(str(client), record)
    return ledger


def without(*gone: int) -> list[list[object]]:
    return [record for number, record in enumerate(GOOD) if number not in gone]


def test_what_is_allowed_is_not_called_wrong() -> None:
    """A message comes again if the answer to its acknowledgement was lost, and need not come again."""
    ledger = noted(GOOD)
    assert ledger.check() == ledger.finish(HISTORY) == ledger.missing() == []
    assert (ledger.again(), ledger.unanswered()) == (1, [Place(B, 0)])
    assert ledger.waits() == pytest.approx([0.1, 0.1, 0.1])


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([*GOOD, ["d", "acked", 5.0, A, 0]], "acknowledged already"),
        ([*GOOD, ["d", "got", 5.0, A, 0, "p 1"]], "after it was acknowledged"),
        ([["d", "got", 5.0, A, 0, "p 1"], *GOOD], "after it was acknowledged"),
        ([*GOOD, ["d", "got", 2.35, A, 1, "p 7"]], "where 'p 2' was"),
        ([*GOOD, ["d", "got", 5.0, B, 1, "p 1"]], "stored twice"),
    ],
)
def test_each_broken_promise_is_seen_at_once(records: list[list[object]], text: str) -> None:
    wrong = noted(records).check()
    assert len(wrong) == 1
    assert text in wrong[0]


def test_a_publish_that_was_sent_again_elsewhere_may_be_stored_twice_but_is_counted() -> None:
    ledger = noted([*GOOD, ["c", "got", 5.0, A, 2, "p 3"], ["c", "acked", 5.1, A, 2]])
    assert ledger.check() == []
    assert ledger.twice() == ["p 3"]


def test_a_lost_message_is_missing_from_then_on() -> None:
    ledger = noted(without(9, 10))
    assert ledger.missing() == ["p 3"]
    assert ledger.missing(until=2.5) == []


@pytest.mark.parametrize(
    ("records", "change", "text"),
    [
        (without(9, 10), lambda history: history, "lost"),
        (GOOD, lambda history: history[:-1], "was to be at"),
        (GOOD, lambda history: [*history, history[-1]], "came twice"),
        (GOOD, lambda history: [history[1], history[0], history[2]], "goes on from"),
        (GOOD, lambda history: [*history, (Place(B, 2), "p 3")], "goes on from 0 to 2"),
        (GOOD, lambda history: [*history, (Place(B, 1), "q 9")], "published by nobody"),
        (GOOD, lambda history: [*history, (Place(B, 1), "p 1")], "never consumed"),
    ],
)
def test_the_end_sees_what_is_lost_doubled_moved_or_invented(
    records: list[list[object]], change: Callable[[list[tuple[Place, str]]], list[tuple[Place, str]]], text: str
) -> None:
    wrong = noted(records).finish(change(copy.copy(HISTORY)))
    assert any(text in one for one in wrong), wrong


def test_time_without_service_is_the_longest_pause_around_a_fault() -> None:
    service = Service()
    for when in (0.0, 9.0, 10.0):
        service.done("p", when)  # a pause before the fault does not count
        service.done("c", when)
    service.begin()
    for when in (10.1, 13.1, 13.2):
        service.done("p", when)
    found = service.end("killed", {"p": "publisher", "c": "consumer"}, {"p"}, 14.0)
    assert [(one.role, one.struck, round(one.seconds, 6)) for one in found] == [
        ("publisher", True, 3.0),
        ("consumer", False, 4.0),  # it has not come back at all
    ]
    assert [line.split()[:2] for line in summary([*found, Outage("killed", "publisher", True, 5.0)])] == [
        ["killed", "consumer"],
        ["killed", "publisher"],
    ]
