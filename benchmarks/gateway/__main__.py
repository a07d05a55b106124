"""Measure the JSON door: `python -m benchmarks.gateway [--quick] [--work rates,stuck]`."""

import argparse
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
from .plan import Crowd, Plan
from .report import Figures, judge, markdown

RESULTS = Path(__file__).parent.parent / "results"
WORKS = ("rates", "stuck")
QUICK = {"rounds": 1, "seconds": 1.0}
WHOLE = {"rounds": 5, "seconds": 3.0}
STUCK = 3
"""Rounds of that at most: its figures differ less."""


def main() -> int:
    options = _options()
    names = ("websockets", "picows", "aiohttp", "msgspec", "uvloop")
    versions = [f"busway {busway.__version__}", *(f"{name} {package(name)}" for name in names)]
    how = {name: getattr(options, name) for name in ("clients", "rounds", "seconds", "size", "depths")}
    found = Figures(machine(), versions, how)
    if found.machine["load_before"] > 0.5:
        print(
            f"this machine is busy (load average {found.machine['load_before']}): the figures will be noisy",
            file=sys.stderr,
        )
    plan = Plan(clients=options.clients, seconds=options.seconds, warm=options.seconds / 5, size=options.size)
    crowd = Crowd(clients=options.crowd, channels=max(options.crowd // 10, 1))
    if "rates" in options.work:
        _do(found, "rates", lambda: work.rates(plan, options.depths, options.rounds))
    if "stuck" in options.work:
        _do(found, "stuck", lambda: {"stuck": work.stuck(crowd, min(options.rounds, STUCK))})
    print(markdown(found), flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "gateway.md").write_text(markdown(found))
        (options.out / "gateway.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        print(f"written: {options.out}/gateway.md, gateway.json")
    return int(bool(found.failures) or not all(goal.reached for goal in judge(found)))


def _do(found: Figures, name: str, work: Callable[[], dict[str, Any]]) -> None:
    """One work; what fails is told and does not end the others."""
    begin = time.monotonic()
    print(f"{name} …", file=sys.stderr, end=" ", flush=True)
    try:
        for key, value in work().items():
            setattr(found, key, value)
    except (ProcessError, TimeoutError) as error:
        found.failures.append(f"{name}: {error}")
        print(f"failed: {error}", file=sys.stderr, flush=True)
    else:
        print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    def works(text: str) -> list[str]:
        found = text.split(",")
        if wrong := set(found) - set(WORKS):
            raise argparse.ArgumentTypeError(f"no work is called {', '.join(wrong)}; there are {', '.join(WORKS)}")
        return found

    def numbers(text: str) -> list[int]:
        return [int(one) for one in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short measurements: a look, not a result")
    parser.add_argument("--work", type=works, default=list(WORKS), help=f"of {', '.join(WORKS)}")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (5; quick: 1)")
    parser.add_argument("--seconds", type=float, help="length of one measurement (3; quick: 1)")
    parser.add_argument("--clients", type=int, default=64, help="that publish and subscribe")
    parser.add_argument("--depths", type=numbers, default=[1, 8, 32], help="messages of each on their way: 1,8,32")
    parser.add_argument("--size", type=int, default=64, help="bytes of a body")
    parser.add_argument("--crowd", type=int, default=1000, help="subscribers beside the one that never reads")
    parser.add_argument(
        "--out", type=Path, help="folder for gateway.md and gateway.json (benchmarks/results; quick or part: none)"
    )
    options = parser.parse_args()
    for name, value in (QUICK if options.quick else WHOLE).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.out is None and not options.quick and options.work == list(WORKS):
        options.out = RESULTS
    return options


if __name__ == "__main__":
    sys.exit(main())
