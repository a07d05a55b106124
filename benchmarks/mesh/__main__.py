"""Measure a cluster: `python -m benchmarks.mesh [--quick] [--work rate,hop,copies,join,silent,size]`."""

import argparse
import sys

import busway
from benchmarks.frame import Flag, Work, conclude, measure, options
from benchmarks.peers.load import Load
from benchmarks.peers.report import machine
from benchmarks.peers.systems.base import package

from . import hops, joining, passing, silent, size
from .report import WORKS, Figures, judge, markdown

FLAGS = (
    Flag("rounds", int, "interleaved rounds of rates and times", 7, quick=2),
    Flag("seconds", float, "length of one measurement of a rate", 2.0, quick=0.8),
    Flag("silence", float, "seconds in which nothing happens", 20.0, quick=5.0),
    Flag("subscriptions", int, "that a new node has to learn", 100_000, quick=20_000),
    Flag("nodes", int, "of the simulated mesh", 50, quick=12),
    Flag("size", int, "bytes of payload", 128),
)
ONCE = 3
"""Nodes that join, one after the other: each is a measurement."""
TRIPS = 400
"""Messages of each way before the next has its turn,"""
TURNS = 12
"""and turns of a round."""
WANTS = 100
"""Subscriptions at each node of the simulated mesh."""


def main() -> int:
    told = options("mesh", __doc__, WORKS, FLAGS)
    versions = [f"busway {busway.__version__}", f"uvloop {package('uvloop')}"]
    how = {name: getattr(told, name) for name in ("rounds", "seconds", "size", "silence")}
    found = Figures(machine(), versions, how)
    measure(found, _works(told), told.work)
    return conclude("mesh", found, judge, markdown, told.out)


def _works(told: argparse.Namespace) -> dict[str, Work]:
    load = Load("", seconds=told.seconds, warm=told.seconds / 5, size=told.size)
    return {
        "rate": lambda: passing.rates(load, told.rounds),
        "hop": lambda: hops.trips(told.size, TRIPS, TURNS * told.rounds),
        "copies": lambda: [passing.copies(load)],
        "join": lambda: joining.joins(ONCE, told.subscriptions),
        "silent": lambda: [silent.idles(told.silence)],
        "size": lambda: [size.measure(told.nodes, WANTS)],
    }


if __name__ == "__main__":
    sys.exit(main())
