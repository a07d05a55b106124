"""Whatever tries at an epoch come to, in whatever order they get its rows: in the end each row is stored once."""

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark import TaskContext

from tests.spark.test_sink_tries import Breaks, Place, epoch

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b/c"]), st.sampled_from("xyz")), min_size=1, max_size=25)
TRY = st.tuples(st.integers(0, 25), st.integers(0, 1 << 16), st.sampled_from(["task", "run", "broker"]))
"""How many rows it writes before it breaks, in which order it gets them, and what is started anew before it."""
EPOCHS = st.lists(st.tuples(ROWS, st.lists(TRY, max_size=3)), min_size=1, max_size=3)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(EPOCHS)
def test_each_row_is_stored_once(epochs: list[tuple[list[tuple[str, str]], list[tuple[int, int, str]]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        try:
            _play(place, epochs)
            assert place.rows() == sorted(row for rows, _ in epochs for row in rows)
        finally:
            place.server.stop()
            TaskContext._setTaskContext(None)


def _play(place: Place, epochs: list[tuple[list[tuple[str, str]], list[tuple[int, int, str]]]]) -> None:
    run = task = attempt = 0
    for number, (rows, tries) in enumerate(epochs):
        for much, seed, anew in [*tries, (len(rows), 0, "task")]:
            given = random.Random(seed).sample(rows, len(rows))
            if anew == "broker":
                place.restart()
            elif anew == "run":
                run, attempt = run + 1, 0
            task, attempt = task + 1, attempt + 1
            told = {"attemptNumber": attempt - 1, "taskAttemptId": task}
            if much >= len(rows):
                epoch(place, number, given, f"run-{run}", **told)
                break
            with pytest.raises(Breaks):
                epoch(place, number, given[:much], f"run-{run}", breaks=True, **told)
        attempt = 0
