"""Measure the file door: `python -m benchmarks.fuse [--quick] [--work pairs,one_core,trips]`."""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import busway
from benchmarks.peers.process import ProcessError
from benchmarks.peers.report import machine
from benchmarks.peers.systems.base import package

from . import work
from .report import WORKS, Figures, judge, markdown

RESULTS = Path(__file__).parent.parent / "results"
QUICK = {"rounds": 2, "seconds": 0.4}
WHOLE = {"rounds": 7, "seconds": 2.0}
TRIPS = 1000
"""Messages of each way in a round."""


def main() -> int:
    options = _options()
    versions = [f"busway {busway.__version__}", f"libfuse {_libfuse()}", f"uvloop {package('uvloop')}"]
    how = {name: getattr(options, name) for name in ("rounds", "seconds", "sizes")}
    found = Figures(machine(), versions, how)
    if found.machine["load_before"] > 0.5:
        print(
            f"this machine is busy (load average {found.machine['load_before']}): the figures will be noisy",
            file=sys.stderr,
        )
    rates = (options.sizes, options.rounds, options.seconds)
    works: dict[str, Callable[[], list[Any]]] = {
        "pairs": lambda: work.pairs(*rates),
        "one_core": lambda: work.one_core(*rates),
        "trips": lambda: work.trips(max(options.sizes), TRIPS, options.rounds),
    }
    for name in options.work:
        _do(found, name, works[name])
    print(markdown(found), flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "fuse.md").write_text(markdown(found))
        (options.out / "fuse.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        print(f"written: {options.out}/fuse.md, fuse.json")
    return int(bool(found.failures) or not all(goal.reached for goal in judge(found)))


def _libfuse() -> str:
    try:
        asked = subprocess.run(["pkg-config", "--modversion", "fuse3"], capture_output=True, text=True, check=False)  # noqa: S607, from the PATH
    except FileNotFoundError:
        return "?"
    return asked.stdout.strip() or "?"


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

    def numbers(text: str) -> list[int]:
        return [int(one) for one in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuse", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short measurements: a look, not a result")
    parser.add_argument("--work", type=works, default=names, help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (7; quick: 2)")
    parser.add_argument("--seconds", type=float, help="length of one measurement (2; quick: 0.4)")
    parser.add_argument("--sizes", type=numbers, default=[4, 512], help="bytes of payload: 4,512")
    parser.add_argument(
        "--out", type=Path, help="folder for fuse.md and fuse.json (benchmarks/results; quick or part: none)"
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
