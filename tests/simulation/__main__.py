"""`python -m tests.simulation N` runs N seeds and reports those that fail; `--seed` prints a trace of one."""

import argparse
import sys
import time
from typing import Any

from tests.simulation.faults.plan import KINDS
from tests.simulation.runs.many import Sum, simulate_many
from tests.simulation.runs.simulate import Report, simulate

_NUMBERS = ("nodes", "clients", "steps", "faults")
_SHOWN = 10
"""Failed seeds whose reports are printed in full."""


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

    def progress(total: Sum) -> None:
        nonlocal failed
        for report in total.failed[failed:]:  # at once, since the other seeds may take long
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

    total = simulate_many(arguments.first, arguments.count, processes=arguments.processes, progress=progress, **how)
    for report in total.failed[:_SHOWN]:
        print(report, f"  again: {_command(report, arguments)}", sep="\n")
    for report in total.failed[_SHOWN:]:
        print(f"seed {report.seed}: FAILED: {report.problems[0]}")
    print(
        f"{total.seeds} seeds from {arguments.first} on, {len(total.failed)} failed; "
        f"{total.seconds / 3600:.1f} simulated hours, {total.messages} messages received, {total.stored} stored, {total.resumed} reconnects of clients"
    )
    print("faults: " + (", ".join(f"{count} x {kind}" for kind, count in sorted(total.faults.items())) or "none"))
    return 1 if total.failed else 0


def _command(report: Report, arguments: argparse.Namespace) -> str:
    """Return the command that prints the trace of this run."""
    words = ["python -m tests.simulation", f"--seed {report.seed}"]
    words += [f"--{name} {given}" for name in _NUMBERS if (given := getattr(arguments, name)) is not None]
    words += [f"--kind {kind!r}" for kind in arguments.kind]
    return " ".join(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    parser.add_argument("count", nargs="?", type=_positive, default=1000, metavar="N", help="number of seeds (1000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="first seed (0)")
    parser.add_argument("--seed", type=int, metavar="SEED", help="run only this seed, and print its trace")
    parser.add_argument(
        "--nodes",
        type=_numbers,
        help="brokers in a world, a number or a range such as 3-7 (the seed chooses 1 or 3 to 7)",
    )
    parser.add_argument("--clients", type=_positive, help="clients in a world (3; with several brokers 3 to 5)")
    parser.add_argument("--steps", type=_positive, help="actions of each client (40; with several brokers 10)")
    parser.add_argument("--faults", type=int, help="number of faults (the seed chooses 0 to 8)")
    parser.add_argument("--kind", action="append", choices=KINDS, default=[], help="inject only this fault; repeatable")
    parser.add_argument("--processes", type=_positive, help="number of processes (the number of cores)")
    return parser


def _between(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _numbers(text: str) -> str:
    """Check a number or range and return its text, which the command for a failed seed repeats."""
    if not (found := _between(text)) or found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on, or a range such as 3-7")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
