"""Whole buses in virtual time: real brokers and clients on a simulated network, with simulated disks and clocks, from one seed.

`process` (whose code runs), `loop` (time), `ends` and `network` (connections), `disk`, `world` (all of that together), `ledger`,
`programs` and `audit` (what clients do and see), `faults` (what goes wrong), `checks` (what has to be true), `simulate` (one run), `many` (several).
"""

from busway.testing.simulation.faults import KINDS
from busway.testing.simulation.simulate import Report, simulate

__all__ = ["KINDS", "Report", "simulate"]
