"""The short version of `make crash-spark`."""

from pathlib import Path

import pytest

from tests.chaos.spark import crash


@pytest.mark.timeout(1800)
def test_a_query_that_is_killed_loses_nothing_and_stores_nothing_twice(tmp_path: Path) -> None:
    crash(1, tmp_path, seed=1)
