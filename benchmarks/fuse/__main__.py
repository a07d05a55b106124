"""Measure the file door: `python -m benchmarks.fuse [--quick] [--work pairs,one_core,trips]`."""

import subprocess
import sys

import busway
from benchmarks.frame import Flag, Work, conclude, measure, numbers, options
from benchmarks.peers.report import machine
from benchmarks.peers.systems.base import package

from . import work
from .report import WORKS, Figures, judge, markdown

FLAGS = (
    Flag("rounds", int, "interleaved rounds", 7, quick=2),
    Flag("seconds", float, "length of one measurement", 2.0, quick=0.4),
    Flag("sizes", numbers, "bytes of payload: 4,512", [4, 512]),
)
TRIPS = 1000
"""Messages of each way in a round."""


def main() -> int:
    told = options("fuse", __doc__, WORKS, FLAGS)
    versions = [f"busway {busway.__version__}", f"libfuse {_libfuse()}", f"uvloop {package('uvloop')}"]
    how = {name: getattr(told, name) for name in ("rounds", "seconds", "sizes")}
    found = Figures(machine(), versions, how)
    rates = (told.sizes, told.rounds, told.seconds)
    works: dict[str, Work] = {
        "pairs": lambda: work.pairs(*rates),
        "one_core": lambda: work.one_core(*rates),
        "trips": lambda: work.trips(max(told.sizes), TRIPS, told.rounds),
    }
    measure(found, works, told.work)
    return conclude("fuse", found, judge, markdown, told.out)


def _libfuse() -> str:
    try:
        asked = subprocess.run(["pkg-config", "--modversion", "fuse3"], capture_output=True, text=True, check=False)  # noqa: S607, from the PATH
    except FileNotFoundError:
        return "?"
    return asked.stdout.strip() or "?"


if __name__ == "__main__":
    sys.exit(main())
