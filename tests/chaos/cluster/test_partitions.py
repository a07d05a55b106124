"""A mesh of real processes, of which a node is killed and another one cut off: nothing acknowledged is lost, nothing acknowledged twice.

`make crash-mesh` does the same for longer.
"""

import asyncio
from pathlib import Path

import pytest

from tests.chaos.cluster.network import Unavailable
from tests.chaos.cluster.trial import Trial


@pytest.mark.timeout(600)
def test_killed_and_cut_off_nodes_break_no_promise(tmp_path: Path) -> None:
    trial = Trial(tmp_path, seed=5, partition=5.0)
    try:
        asyncio.run(trial.run(1))
    except Unavailable as missing:
        pytest.fail(f"partitions can't be tried here: {missing}")
    assert trial.faults == 2
    assert len(trial.ledger.stored) > 100
