"""Measure a cluster: `python -m benchmarks.mesh [--quick] [--work rate,hop,copies,join,silent,size]`."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import busway
from benchmarks.peers.load import Load
from benchmarks.peers.process import ProcessError
from benchmarks.peers.report import machine
from benchmarks.peers.systems.base import package

from . import hops, joining, passing, silent, size
from .report import WORKS, Figures, judge, markdown

RESULTS = Path(__file__).parent.parent / "results"
QUICK = {"rounds": 2, "seconds": 0.8, "silence": 5.0, "subscriptions": 20_000, "nodes": 12}
WHOLE = {"rounds": 7, "seconds": 2.0, "silence": 20.0, "subscriptions": 100_000, "nodes": 50}
ONCE = 3
"""Nodes that join, one after the other: each is a measurement."""
TRIPS = 400
"""Messages of each way before the next has its turn,"""
TURNS = 12
"""and turns of a round."""
WANTS = 100
"""Subscriptions at each node of the simulated mesh."""


def main() -> int:
    options = _options()
    versions = [f"busway {busway.__version__}", f"uvloop {package('uvloop')}"]
    how = {"rounds": options.rounds, "seconds": options.seconds, "size": options.size, "silence": options.silence}
    found = Figures(machine(), versions, how)
    if found.machine["load_before"] > 0.5:
        print(
            f"this machine is busy (load average {found.machine['load_before']}): the figures will be noisy",
            file=sys.stderr,
        )
    for name, work in _works(options).items():
        if name in options.work:
            _do(found, name, work)
    print(markdown(found), flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "mesh.md").write_text(markdown(found))
        (options.out / "mesh.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        print(f"written: {options.out}/mesh.md, mesh.json")
    return int(bool(found.failures) or not all(goal.reached for goal in judge(found)))


def _works(options: argparse.Namespace) -> dict[str, Callable[[], list[Any]]]:
    load = Load("", seconds=options.seconds, warm=options.seconds / 5, size=options.size)
    return {
        "rate": lambda: passing.rates(load, options.rounds),
        "hop": lambda: hops.trips(options.size, TRIPS, TURNS * options.rounds),
        "copies": lambda: [passing.copies(load)],
        "join": lambda: joining.joins(ONCE, options.subscriptions),
        "silent": lambda: [silent.idles(options.silence)],
        "size": lambda: [size.measure(options.nodes, WANTS)],
    }


def _do(found: Figures, name: str, work: Callable[[], list[Any]]) -> None:
    """One work; what fails is told and does not end the others."""
    begin = time.monotonic()
    print(f"{name} …", file=sys.stderr, end=" ", flush=True)
    try:
        setattr(found, name, work())
    except (ProcessError, TimeoutError) as error:
        found.failures.append(f"{name}: {error}")
        print(f"failed: {error}", file=sys.stderr, flush=True)
    else:
        print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    names = list(WORKS)

    def works(text: str) -> list[str]:
        found = text.split(",")
        if wrong := set(found) - set(names):
            raise argparse.ArgumentTypeError(f"no work is called {', '.join(wrong)}; there are {', '.join(names)}")
        return found

    parser = argparse.ArgumentParser(prog="python -m benchmarks.mesh", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short measurements: a look, not a result")
    parser.add_argument("--work", type=works, default=names, help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, help="interleaved rounds of rates and times (7; quick: 2)")
    parser.add_argument("--seconds", type=float, help="length of one measurement of a rate (2; quick: 0.8)")
    parser.add_argument("--silence", type=float, help="seconds in which nothing happens (20; quick: 5)")
    parser.add_argument("--subscriptions", type=int, help="that a new node has to learn (100,000; quick: 20,000)")
    parser.add_argument("--nodes", type=int, help="of the simulated mesh (50; quick: 12)")
    parser.add_argument("--size", type=int, default=128, help="bytes of payload")
    parser.add_argument(
        "--out", type=Path, help="folder for mesh.md and mesh.json (benchmarks/results; quick or part: none)"
    )
    options = parser.parse_args()
    for name, value in (QUICK if options.quick else WHOLE).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.out is None and not options.quick and options.work == names:
        options.out = RESULTS
    return options


if __name__ == "__main__":
    sys.exit(main())
