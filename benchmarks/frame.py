"""What the benchmarks of one part of Busway have in common: the command line, one work after the other, and the files that are written."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from benchmarks.peers.goals import Goal
from benchmarks.peers.process import ProcessError

RESULTS = Path(__file__).parent / "results"


class Figures(Protocol):
    """Everything a run has found; what the JSON file holds. A field of its own, or several, for each work."""

    machine: dict[str, Any]
    failures: list[str]


F = TypeVar("F", bound=Figures)
Work = Callable[[], list[Any] | dict[str, list[Any]]]
"""Gives the value of the field that is called as the work, or of several fields by their names."""


class Flag(NamedTuple):
    """One of the command line; where a quick run has a value of its own, its help tells both."""

    name: str
    read: Callable[[str], Any]
    about: str
    usual: Any
    quick: Any = None


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def some_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Reads names of works with commas between them."""
    known = list(names)

    def works(text: str) -> list[str]:
        found = text.split(",")
        if wrong := set(found) - set(known):
            raise argparse.ArgumentTypeError(f"no work is called {', '.join(wrong)}; there are {', '.join(known)}")
        return found

    return works


def options(name: str, about: str | None, works: Sequence[str], flags: Sequence[Flag]) -> argparse.Namespace:
    """The command line of `benchmarks.NAME`, with every flag filled in; `out` is None if nothing is to be written."""
    names = list(works)
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="short measurements: a look, not a result")
    parser.add_argument("--work", type=some_of(names), default=names, help=f"of {', '.join(names)}")
    for flag in flags:
        both = "" if flag.quick is None else f" ({flag.usual:,g}; quick: {flag.quick:,g})"
        parser.add_argument(f"--{flag.name}", type=flag.read, help=flag.about + both)
    files = f"folder for {name}.md and {name}.json (benchmarks/results; quick or part: none)"
    parser.add_argument("--out", type=Path, help=files)
    found = parser.parse_args()
    for flag in flags:
        if getattr(found, flag.name) is None:
            setattr(found, flag.name, flag.quick if found.quick and flag.quick is not None else flag.usual)
    if found.out is None and not found.quick and found.work == names:
        found.out = RESULTS
    return found


def warn_if_busy(machine: Mapping[str, Any]) -> None:
    if machine["load_before"] > 0.5:
        print(
            f"this machine is busy (load average {machine['load_before']}): the figures will be noisy",
            file=sys.stderr,
        )


def measure(found: Figures, works: Mapping[str, Work], chosen: Sequence[str]) -> None:
    """The chosen works, one after the other."""
    warn_if_busy(found.machine)
    for name, work in works.items():
        if name in chosen:
            _do(found, name, work)


def _do(found: Figures, name: str, work: Work) -> None:
    """One work; what fails is told and does not end the others."""
    begin = time.monotonic()
    print(f"{name} …", file=sys.stderr, end=" ", flush=True)
    try:
        values = work()
    except (ProcessError, TimeoutError) as error:
        found.failures.append(f"{name}: {error}")
        print(f"failed: {error}", file=sys.stderr, flush=True)
    else:
        for field, value in (values if isinstance(values, dict) else {name: values}).items():
            setattr(found, field, value)
        print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def conclude(
    name: str, found: F, judge: Callable[[F], Iterable[Goal]], markdown: Callable[[F], str], out: Path | None
) -> int:
    """Show the report, write it if there is a folder for it, and give the exit code: 1 if a work failed or a goal is missed."""
    text = markdown(found)
    print(text, flush=True)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.md").write_text(text)
        (out / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        print(f"written: {out}/{name}.md, {name}.json")
    return int(bool(found.failures) or not all(goal.reached for goal in judge(found)))
