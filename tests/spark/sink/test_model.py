"""Whatever tries at an epoch come to, in whatever order they get its rows: in the end each row is stored once."""

import random
import tempfile
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark import TaskContext

from tests.support.spark.sink import Breaks, Place, epoch
from tests.support.strength import examples

Rows: TypeAlias = list[tuple[str, str]]
Try: TypeAlias = tuple[int, int, str]
"""How many rows it writes before it breaks, in which order it gets them, and what is started anew before it."""

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b/c"]), st.sampled_from("xyz")), min_size=1, max_size=25)
TRY = st.tuples(
    st.integers(0, 30), st.integers(0, 1 << 16), st.sampled_from(["task", "run", "broker", "run and broker"])
)
EPOCHS = st.lists(st.tuples(ROWS, st.lists(TRY, max_size=4)), min_size=1, max_size=3)


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(EPOCHS)
def test_each_row_is_stored_once(epochs: list[tuple[Rows, list[Try]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        try:
            _play(place, epochs)
            assert place.rows() == sorted(row for rows, _ in epochs for row in rows)
        finally:
            place.server.stop()
            TaskContext._setTaskContext(None)


def _play(place: Place, epochs: list[tuple[Rows, list[Try]]]) -> None:
    """A try behind one that came to its end is a run to which Spark has not noted that the epoch is done."""
    run = task = attempt = 0
    for number, (rows, tries) in enumerate(epochs):
        done = False
        for much, seed, anew in [*tries, (len(rows), 0, "task")]:
            given = random.Random(seed).sample(rows, len(rows))
            if "broker" in anew:
                place.restart()
            if "run" in anew or done:
                run, attempt = run + 1, 0
            told = {"attemptNumber": attempt, "taskAttemptId": task}
            task, attempt, done = task + 1, attempt + 1, much >= len(rows)
            if done:
                epoch(place, number, given, f"run-{run}", **told)
            else:
                with pytest.raises(Breaks):
                    epoch(place, number, given[:much], f"run-{run}", breaks=True, **told)
        attempt = 0
