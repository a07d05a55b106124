"""Deterministic simulation: real brokers and clients on a simulated network, disk and clock, driven by one seed.

`kit` is the simulated world, `workload` is what clients do in it, `faults` is what goes wrong, `checker` says which promises
were broken, and `runs` plays one seed or many.
"""

from busway.testing.simulation.faults.plan import KINDS
from busway.testing.simulation.kit.world import World
from busway.testing.simulation.runs.simulate import Report, simulate

__all__ = ["KINDS", "Report", "World", "simulate"]
