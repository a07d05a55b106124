"""Simulated runs: programs and faults of one seed in a simulated world, and checks of what Busway promises.

`workload` has the programs, `faults` the fault injection, `checker` the promises, and `runs` the runs of one seed or
many. The world is that of `busway.testing.simulation`. `python -m tests.simulation` runs many seeds; CONTRIBUTING.md
describes a run.
"""

from tests.simulation.faults.plan import KINDS
from tests.simulation.runs.simulate import Report, simulate

__all__ = ["KINDS", "Report", "simulate"]
