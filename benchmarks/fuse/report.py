"""The figures of the file door as Markdown: machine, goals, one table per work."""

from collections.abc import Iterator
from statistics import median
from typing import Any

import msgspec

from benchmarks.page import Row, Section, page, spread
from benchmarks.peers.goals import Goal
from benchmarks.peers.report import where

Values = dict[str, float]
SYSTEMS = {"plain": "C file system", "busway": "busway fusebus"}
PLACES = {"pairs": "As the system places the processes", "one_core": "Every process on one core"}


class Figures(msgspec.Struct):
    """Everything a run has found; what the JSON file holds."""

    machine: dict[str, Any]
    versions: list[str]
    settings: dict[str, Any]
    pairs: list[Values] = []
    one_core: list[Values] = []
    trips: list[Values] = []
    failures: list[str] = []


WORKS = ("pairs", "one_core", "trips")


def ratios(rows: list[Values], what: str, size: float) -> list[float]:
    """Of each round: the rate through the mount by that of the C file system."""
    return [one[f"{what}_busway"] / one[f"{what}_plain"] for one in rows if one["size"] == size]


def _sizes(rows: list[Values]) -> list[float]:
    return sorted({one["size"] for one in rows})


def judge(found: Figures) -> Iterator[Goal]:
    """The goals whose parts were measured."""
    for work, place in PLACES.items():
        rows = getattr(found, work)
        for size in _sizes(rows):
            what = f"{place[0].lower()}{place[1:]}, {size:.0f} bytes: pairs / those of the C file system"
            yield Goal(what, median(ratios(rows, "pairs", size)), 0.5, True)


def markdown(found: Figures) -> str:
    how = found.settings
    method = (
        f"One process with two open files of each, {how['seconds']:g} s of each way in a round; medians of {how['rounds']} rounds in which "
        "all ways are taken in turn, with the lowest and highest in brackets."
    )
    place = where(found.machine, *found.versions)
    return page("The file door", place, method, judge(found), _sections(found), found.failures)


def _sections(found: Figures) -> Iterator[Section]:
    """Title, head and rows of each table."""
    for work, title in PLACES.items():
        if rows := getattr(found, work):
            head: Row = ("", "bytes", "pairs/s", "/ C", "publishes/s", "/ C")
            yield title, head, [_rate(rows, system, size) for size in _sizes(rows) for system in SYSTEMS]
    if found.trips:
        head = ("published", "p50 µs")
        ways = (("native", "by a native client"), ("file", "to the file"))
        rows = [(name, spread([one[way] for one in found.trips], ",.0f")) for way, name in ways]
        yield "One message after the other, to a native subscriber", head, rows


def _rate(rows: list[Values], system: str, size: float) -> Row:
    cells: list[str] = []
    for what in ("pairs", "publishes"):
        each = [one[f"{what}_{system}"] for one in rows if one["size"] == size]
        cells += [spread(each, ",.0f"), "" if system == "plain" else spread(ratios(rows, what, size), ".2f")]
    return (SYSTEMS[system], f"{size:.0f}", *cells)
