"""Measure the JSON door: `python -m benchmarks.gateway [--quick] [--work rates,stuck]`."""

import sys

import busway
from benchmarks.frame import Flag, Work, conclude, measure, numbers, options
from benchmarks.peers.report import machine
from benchmarks.peers.systems.base import package

from . import work
from .plan import Crowd, Plan
from .report import Figures, judge, markdown

WORKS = ("rates", "stuck")
FLAGS = (
    Flag("rounds", int, "interleaved rounds", 5, quick=1),
    Flag("seconds", float, "length of one measurement", 3.0, quick=1.0),
    Flag("clients", int, "that publish and subscribe", 64),
    Flag("depths", numbers, "messages of each on their way: 1,8,32", [1, 8, 32]),
    Flag("size", int, "bytes of a body", 64),
    Flag("crowd", int, "subscribers beside the one that never reads", 1000),
)
STUCK = 3
"""Rounds of that at most: its figures differ less."""


def main() -> int:
    told = options("gateway", __doc__, WORKS, FLAGS)
    names = ("websockets", "picows", "aiohttp", "msgspec", "uvloop")
    versions = [f"busway {busway.__version__}", *(f"{name} {package(name)}" for name in names)]
    how = {name: getattr(told, name) for name in ("clients", "rounds", "seconds", "size", "depths")}
    found = Figures(machine(), versions, how)
    plan = Plan(clients=told.clients, seconds=told.seconds, warm=told.seconds / 5, size=told.size)
    crowd = Crowd(clients=told.crowd, channels=max(told.crowd // 10, 1))
    works: dict[str, Work] = {
        "rates": lambda: work.rates(plan, told.depths, told.rounds),
        "stuck": lambda: work.stuck(crowd, min(told.rounds, STUCK)),
    }
    measure(found, works, told.work)
    return conclude("gateway", found, judge, markdown, told.out)


if __name__ == "__main__":
    sys.exit(main())
