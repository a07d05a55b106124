"""Runs many seeds in parallel processes, and sums their reports; the command line calls it."""

import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulation.runs.simulate import Report, simulate

_CHUNK: Final = 20
"""Seeds per job of a process."""


@dataclass(slots=True)
class Sum:
    """The sum of many reports."""

    seeds: int = 0
    messages: int = 0
    stored: int = 0
    resumed: int = 0
    nanoseconds: int = 0
    """Virtual time. A sum of floats would depend on the order of the reports."""
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[Report] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.nanoseconds / 1e9

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.messages += report.messages
        self.stored += report.stored
        self.resumed += report.resumed
        self.nanoseconds += round(report.seconds * 1e9)
        self.faults.update(report.faults)
        if not report.ok:
            self.failed.append(report)


def simulate_many(
    first: int,
    count: int,
    *,
    processes: int | None = None,
    progress: Callable[[Sum], object] = lambda _: None,
    **how: Any,
) -> Sum:
    """Run the seeds from `first` on with the arguments of simulate(). `progress` gets the sum after each job."""
    total = Sum()
    for reports in _reports(first, count, processes or os.cpu_count() or 1, how):
        for report in reports:
            total.add(report)
        progress(total)
    total.failed.sort(key=lambda report: report.seed)
    return total


def _reports(first: int, count: int, processes: int, how: dict[str, Any]) -> Iterator[list[Report]]:
    chunks = [range(at, min(at + _CHUNK, first + count)) for at in range(first, first + count, _CHUNK)]
    if processes == 1 or len(chunks) == 1:
        for chunk in chunks:
            yield _run(chunk, how)
        return
    # Spawn, since a forked copy of a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(chunks)), mp_context=context) as pool:
        # In the order of completion, so that a slow job does not delay the reports of the others.
        for done in as_completed([pool.submit(_run, chunk, how) for chunk in chunks]):
            yield done.result()


def _run(seeds: range, how: dict[str, Any]) -> list[Report]:
    reports = [simulate(seed, **how) for seed in seeds]
    gc.collect()  # worlds leave reference cycles, and a running world disables garbage collection
    return reports
