"""`python -m busway.testing.simulation N`: run N seeds and say which break a promise; with `--seed` one of them, line by line."""

# ruff: noqa: T201, a command prints

import argparse
import sys
import time
from typing import Any

from busway.testing.simulation.faults.plan import KINDS
from busway.testing.simulation.runs.many import Sum, simulate_many
from busway.testing.simulation.runs.simulate import Report, simulate

_NUMBERS = ("nodes", "clients", "steps", "faults")
_SHOWN = 10
"""Reports of failed seeds that are printed whole."""


def main() -> int:
    arguments = _parser().parse_args()
    how: dict[str, Any] = {name: getattr(arguments, name) for name in _NUMBERS}
    how["nodes"] = arguments.nodes and _between(arguments.nodes)
    if arguments.kind:
        how["kinds"] = tuple(arguments.kind)
    if arguments.seed is not None:
        report = simulate(arguments.seed, lines=True, **how)
        print(*report.lines, report, sep="\n")
        return 0 if report.ok else 1
    begin, failed = time.monotonic(), 0

    def told(total: Sum) -> None:
        nonlocal failed
        for report in total.failed[failed:]:  # now, since the others may take their time
            print(f"seed {report.seed}: FAILED: {report.problems[0]}", file=sys.stderr)
        failed = len(total.failed)
        end = "\r" if sys.stderr.isatty() and total.seeds < arguments.count else "\n"
        if end == "\r" or total.seeds % 1000 < 20 or total.seeds == arguments.count:
            spent = time.monotonic() - begin
            print(
                f"{total.seeds}/{arguments.count} seeds, {len(total.failed)} failed, {spent:.0f} s",
                end=end,
                file=sys.stderr,
            )

    total = simulate_many(arguments.first, arguments.count, processes=arguments.processes, told=told, **how)
    for report in total.failed[:_SHOWN]:
        print(report, f"  again: {_again(report, arguments)}", sep="\n")
    for report in total.failed[_SHOWN:]:
        print(f"seed {report.seed}: FAILED: {report.problems[0]}")
    print(
        f"{total.seeds} seeds from {arguments.first} on, {len(total.failed)} failed; {total.seconds / 3600:.1f} simulated hours, "
        f"{total.messages} messages got, {total.stored} stored, {total.resumed} times a client came back"
    )
    print(
        "what went wrong: "
        + (", ".join(f"{count} x {kind}" for kind, count in sorted(total.faults.items())) or "nothing")
    )
    return 1 if total.failed else 0


def _again(report: Report, arguments: argparse.Namespace) -> str:
    """The command that shows this run line by line."""
    words = ["python -m busway.testing.simulation", f"--seed {report.seed}"]
    words += [f"--{name} {given}" for name in _NUMBERS if (given := getattr(arguments, name)) is not None]
    words += [f"--kind {kind!r}" for kind in arguments.kind]
    return " ".join(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m busway.testing.simulation", description=__doc__)
    parser.add_argument("count", nargs="?", type=_positive, default=1000, metavar="N", help="how many seeds (1000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of them (0)")
    parser.add_argument("--seed", type=int, metavar="SEED", help="run this one only, and print what happens in it")
    parser.add_argument(
        "--nodes",
        type=_numbers,
        help="brokers of a world, a number or two with - between (as the seed says, 1 or 3 to 7)",
    )
    parser.add_argument("--clients", type=_positive, help="clients of a world (3; of several brokers 3 to 5)")
    parser.add_argument("--steps", type=_positive, help="things that each of them does (40; of several brokers 10)")
    parser.add_argument("--faults", type=int, help="how often something goes wrong (as the seed says, 0 to 8 times)")
    parser.add_argument(
        "--kind", action="append", choices=KINDS, default=[], help="only this goes wrong; may be given again"
    )
    parser.add_argument("--processes", type=_positive, help="(as many as there are cores)")
    return parser


def _between(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _numbers(text: str) -> str:
    """As it is, if it can be understood: a seed that fails is run again with the same word."""
    if not (found := _between(text)) or found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text} is neither 1 or more nor such as 3-7")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
