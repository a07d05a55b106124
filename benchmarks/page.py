"""What the reports of the benchmarks of one part of Busway have in common: machine, goals, one table per work, failures."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import TypeAlias

from benchmarks.peers.goals import Goal
from benchmarks.peers.report import bar, shown, word

Row: TypeAlias = tuple[str, ...]
Section: TypeAlias = tuple[str, Row, Sequence[Row]]
"""Title, head and rows of a table."""


def page(
    title: str,
    where: str,
    method: str,
    goals: Iterable[Goal],
    sections: Iterable[Section],
    failures: Sequence[str],
) -> str:
    """The report as Markdown."""
    judged = [(goal.what, bar(goal), shown(goal.value, goal.unit), word(goal)) for goal in goals]
    lines = [f"# {title}", "", where, "", method, "", "## Goals", "", *table(("what", "bar", "measured", ""), judged)]
    for name, head, rows in sections:
        lines += ["", f"## {name}", "", *table(head, rows)]
    if failures:
        lines += ["", "## Failures", "", *(f"- {failure.splitlines()[0]}" for failure in failures)]
    return "\n".join(lines) + "\n"


def table(head: Row, rows: Sequence[Row]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|---{'|--:' * (len(head) - 1)}|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def spread(values: Sequence[float], form: str) -> str:
    """The median, with the lowest and the highest."""
    return f"{format(median(values), form)} ({format(min(values), form)} to {format(max(values), form)})"
