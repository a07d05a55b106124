"""Deterministic simulation: real brokers and clients on a simulated network, disk and clock, driven by one seed.

`kit` has the simulated world, `workload` its clients, `faults` the fault injection, `checker` the invariants, and
`runs` the runs of one seed or many. Tests and the command `python -m busway.testing.simulation` call it.
"""

from busway.testing.simulation.faults.plan import KINDS
from busway.testing.simulation.kit.world import World
from busway.testing.simulation.runs.simulate import Report, simulate

__all__ = ["KINDS", "Report", "World", "simulate"]
