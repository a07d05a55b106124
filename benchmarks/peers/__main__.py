"""Run the comparison: `python -m benchmarks.peers [--quick] [--only busway,nats] [--work throughput,request]`."""

import argparse
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.frame import RESULTS, some_of, warn_if_busy

from .goals import Medians, judge
from .load import Load, Run, Sample
from .long import LONG
from .picture import draw
from .process import ProcessError
from .report import COLUMNS, TITLES, bar, cells, machine, markdown, shown, word
from .scale import SCALE
from .stored import STORED
from .systems import NAMES, find
from .work import WORKS, Work

ALL: dict[str, Work] = {**WORKS, **STORED, **LONG, **SCALE}
SHORT = {
    "busway": ("busway-tcp", "busway-unix", "busway-streams"),
    "nats": ("nats", "jetstream"),
    "redis": ("redis", "redis-streams"),
    "zmq": ("zeromq",),
}
ONCE = {"long"}
"""Works that take minutes and whose bars are far: measured in the first repeat only."""


def main() -> int:
    options = _options()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 1 << 20)), hard))  # thousands of connections
    versions = {name: version for name in options.only if (version := find(name).version())}
    for name in options.only:
        if name not in versions:
            print(f"{name} is not installed and is left out", file=sys.stderr)
    load = Load(
        "",
        seconds=options.seconds,
        warm=options.seconds / 5,
        size=options.size,
        messages=options.messages,
        gib=options.gib,
        data="data" if options.data else "",
    )
    settings = {
        "seconds": load.seconds,
        "warm": load.warm,
        "size": load.size,
        "messages": load.messages,
        "gib": load.gib,
        "data": options.data,
        "repeats": options.repeats,
    }
    run = Run(machine(), versions, settings, [], [])
    warn_if_busy(run.machine)
    _measure(run, list(_plan(options.work, list(versions), options.repeats)), load)
    _show(run)
    if options.out:
        _write(run, options.out)
    return 1 if run.failures else 0


def _options() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        found = [name for word in text.split(",") for name in SHORT.get(word, (word,))]
        for name in found:
            find(name)
        return found

    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repeat of short measurements: a look, not a result")
    parser.add_argument(
        "--only",
        type=names,
        default=list(NAMES),
        help=f"systems, of {', '.join(NAMES)}; {', '.join(SHORT)} mean all of theirs",
    )
    parser.add_argument("--work", type=some_of(ALL), default=list(ALL), help=f"of {', '.join(ALL)}")
    parser.add_argument("--repeats", type=int, help="how often each is measured (3; quick: 1)")
    parser.add_argument("--seconds", type=float, help="length of one measurement (2; quick: 0.8)")
    parser.add_argument("--size", type=int, default=128, help="bytes of payload")
    parser.add_argument("--messages", type=int, help="stored messages that are read (1,000,000; quick: 50,000)")
    parser.add_argument("--gib", type=float, help="GiB of the long stream (10; quick: 0.5)")
    parser.add_argument("--data", action="store_true", help="give Busway's brokers a data folder in all work")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for latest.md, latest.json and peers.svg, or data.md and data.json (benchmarks/results; quick: none)",
    )
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 3)
    options.seconds = options.seconds or (0.8 if options.quick else 2.0)
    options.messages = options.messages or (50_000 if options.quick else 1_000_000)
    options.gib = options.gib or (0.5 if options.quick else 10.0)
    options.out = options.out or (None if options.quick else RESULTS)
    return options


def _plan(works: list[str], names: list[str], repeats: int) -> Iterator[tuple[int, str, str, str]]:
    """(repeat, work, system, mode): every system once before any is measured again, so a slow minute hits all alike."""
    for repeat in range(repeats):
        for work in works:
            if work in SCALE:
                if "busway-tcp" in names:
                    yield repeat, work, "busway-tcp", "batch"
                continue
            for name in names:
                system = find(name)
                if work in system.works and (work not in ONCE or not repeat):
                    for mode in system.ways(work):
                        yield repeat, work, name, mode


def _measure(run: Run, plan: list[tuple[int, str, str, str]], load: Load) -> None:
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(plan))
        for repeat, work, name, mode in plan:
            label = f"{name} {mode}" if len(find(name).ways(work)) > 1 else name
            progress.update(task, description=f"{work}: {label}")
            try:
                values = ALL[work](name, msgspec.structs.replace(load, mode=mode))
            except ProcessError as error:
                run.failures.append(f"{work}, {label}: {error}")
                progress.console.print(f"[red]{work}, {label}:[/] {error}")
            else:
                run.samples.append(Sample(work, label, repeat, values))
            progress.advance(task)


def _show(run: Run) -> None:
    console = Console()
    of = Medians(run.samples)
    for work, columns in COLUMNS.items():
        if systems := of.systems(work):
            table = Table("system", title=TITLES[work], title_justify="left")
            for title, *_ in columns:
                table.add_column(title, justify="right")
            for system in systems:
                table.add_row(system, *cells(of, work, system))
            console.print(table)
    if goals := judge(run.samples):
        table = Table("goal", "bar", "measured", "", title="Goals", title_justify="left")
        for goal in goals:
            table.add_row(
                goal.what,
                bar(goal),
                shown(goal.value, goal.unit),
                f"[{'green' if goal.reached else 'red'}]{word(goal)}[/]",
            )
        console.print(table)


def _write(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = "data" if run.settings["data"] else "latest"
    (folder / f"{name}.md").write_text(markdown(run))
    (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    print(f"written: {folder}/{name}.md, {name}.json")
    if run.settings["data"]:
        return
    caption = f"{run.settings['size']}-byte payload, {run.machine['cores']} cores, loopback, Python {run.machine['python']}, medians"
    (folder / "peers.svg").write_text(draw(run.samples, caption))
    print(f"written: {folder}/peers.svg")


if __name__ == "__main__":
    sys.exit(main())
