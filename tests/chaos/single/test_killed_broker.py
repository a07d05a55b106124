"""A broker killed at random moments under load: acknowledged messages are there once, and all clients continue."""

from pathlib import Path

import pytest

from busway.positions import Position
from tests.chaos.single.harness import Stored, Trial, check
from tests.chaos.single.workers import Consumer, Jobs, Publisher, Subscriber, usual

ROUNDS = {"synced": 5, "written": 2}


@pytest.mark.parametrize("safety", ["synced", "written"])
async def test_nothing_acknowledged_is_lost(tmp_path: Path, safety: str) -> None:
    trial = Trial(tmp_path, usual(7), safety=safety, seed=7)  # type: ignore[arg-type]
    await trial.run(rounds := ROUNDS[safety])
    assert trial.broker.kills == rounds
    assert all(worker.busy > rounds for worker in trial.workers)


GOOD = [
    Stored(Position("0" * 32, "default", 0, 1), "audit", b"one 1 ."),
    Stored(Position("0" * 32, "default", 1, 2), "audit", b"one 2 ."),
    Stored(Position("0" * 32, "default", 2, 1), "orders/north", b"one 3 ."),
]


def test_the_checks_find_what_they_look_for() -> None:
    """A lost, a repeated, a moved and an invented message, a gap, a wrong order: none passes."""
    check(GOOD)
    again = Stored(Position("0" * 32, "default", 3, 2), "orders/north", b"one 3 .")
    for bad in (GOOD[1:], [GOOD[0], GOOD[2]], [*GOOD, again], [GOOD[1], GOOD[0], GOOD[2]]):
        with pytest.raises(AssertionError):
            check(bad)
    publisher, subscriber = Publisher("one", 0), Subscriber("reader", "audit")
    publisher.placed = {one.payload: one.place for one in GOOD}
    subscriber.seen = GOOD[:2]
    publisher.check(GOOD)
    subscriber.check(GOOD)
    for bad in (
        GOOD[1:],
        [*GOOD, again._replace(payload=b"one 4 .")],
        [GOOD[0], GOOD[1], GOOD[2]._replace(place=again.place)],
    ):
        with pytest.raises(AssertionError):
            publisher.check(bad)
    for seen in (GOOD[:1], GOOD, [GOOD[0], GOOD[0]], GOOD[1::-1]):
        subscriber.seen = seen
        with pytest.raises(AssertionError):
            subscriber.check(GOOD)
    consumer = Consumer("clerk", Jobs(), 0)
    jobs = consumer.jobs
    jobs.acknowledged, jobs.unsure = {0: b"one 1 .", 2: b"one 3 ."}, {1}
    consumer.check(GOOD)
    for acknowledged, wrong in (
        ({0: b"one 1 ."}, []),
        ({0: b"one 1 .", 2: b"one 2 ."}, []),
        ({0: b"one 1 .", 2: b"one 3 ."}, ["it came again"]),
    ):
        jobs.acknowledged, jobs.wrong = acknowledged, wrong
        with pytest.raises(AssertionError):
            consumer.check(GOOD)
