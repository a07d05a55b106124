"""The figures of the JSON door as Markdown: machine, goals, one table per work."""

from collections.abc import Iterator
from statistics import median
from typing import Any

import msgspec

from benchmarks.page import Row, Section, page, spread
from benchmarks.peers.goals import MIB, Goal
from benchmarks.peers.report import where

from .work import PACED, Values

RATES = {
    "echo": "echo of `websockets`",
    "share": "one queue, one channel for all",
    "quiet": "the same, not acknowledged",
    "fan": "each message to eight subscribers",
}


class Figures(msgspec.Struct):
    """Everything a run has found; what the JSON file holds."""

    machine: dict[str, Any]
    versions: list[str]
    settings: dict[str, Any]
    echo: list[Values] = []
    share: list[Values] = []
    quiet: list[Values] = []
    fan: list[Values] = []
    paced_echo: list[Values] = []
    paced_share: list[Values] = []
    paced_fan: list[Values] = []
    stuck: list[Values] = []
    failures: list[str] = []


def ratios(found: Figures, way: str) -> list[float]:
    """Of each round: the best rate of a way by the best of the echo."""
    return [_best(getattr(found, way), turn) / _best(found.echo, turn) for turn in _rounds(found.echo)]


def _rounds(rows: list[Values]) -> list[float]:
    return sorted({one["round"] for one in rows})


def _turn(rows: list[Values], turn: float) -> list[Values]:
    return [one for one in rows if one["round"] == turn]


def _best(rows: list[Values], turn: float) -> float:
    return max(one["rate"] for one in _turn(rows, turn))


def _asked(one: Values) -> float:
    return one["asked"]


def judge(found: Figures) -> Iterator[Goal]:
    """The goals whose parts were measured."""
    if found.echo:
        for way in ("share", "quiet", "fan"):
            yield Goal(f"{RATES[way]}: rate / echo's", median(ratios(found, way)), 2, True)
        ways = [*found.share, *found.quiet, *found.fan, *found.paced_share, *found.paced_fan]
        yield Goal("messages and acknowledgements that did not come", sum(_missing(one) for one in ways), 0, False, "")
    for way in ("share", "fan"):
        if rows := getattr(found, f"paced_{way}"):
            what = f"{RATES[way]}, at half of its best rate: p99 of an acknowledgement"
            yield Goal(
                what, median(max(_turn(rows, turn), key=_asked)["p99"] for turn in _rounds(rows)), 5, False, "ms"
            )
    if rows := found.stuck:
        missing = sum(one[f"due_{way}"] - one[f"got_{way}"] for one in rows for way in ("without", "with"))
        yield Goal("one that never reads: deliveries that others did not get", missing, 0, False, "")
        slower = median(one["p99_with"] / one["p99_without"] for one in rows)
        yield Goal("p99 of deliveries to the others, with it / without", slower, 1.5, False)
        yield Goal("memory that it costs the gateway", max(_grown(one) for one in rows) / MIB, 8, False, "MiB")


def _missing(one: Values) -> float:
    return one["lost"] + one["unanswered"]


def _grown(one: Values) -> float:
    return one["memory_with"] - one["memory_without"]


def markdown(found: Figures) -> str:
    how = found.settings
    method = (
        f"{how['clients']} clients, bodies of {how['size']} bytes, {how['seconds']:g} s per measurement; medians of {how['rounds']} rounds "
        "in which all ways are taken in turn, with the lowest and highest in brackets."
    )
    place = where(found.machine, *found.versions, "loopback")
    return page("The JSON door", place, method, judge(found), _sections(found), found.failures)


def _sections(found: Figures) -> Iterator[Section]:
    """Title, head and rows of each table."""
    if found.echo:
        depths = sorted({one["depth"] for one in found.echo})
        head: Row = ("", "on their way, of each", "messages/s", "/ echo's", "server CPU µs per message", "lost")
        yield "Messages that clients get", head, [_rate(found, way, depth) for way in RATES for depth in depths]
        head = ("best of each", "/ echo's best")
        yield (
            "The ratios",
            head,
            [(RATES[way], spread(ratios(found, way), ".2f")) for way in ("share", "quiet", "fan")],
        )
    if found.paced_echo:
        depths = sorted({one["depth"] for one in found.paced_echo})
        head = (
            "",
            "sent at once",
            "messages/s asked for",
            "had",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "server CPU µs per message",
        )
        yield (
            "Acknowledgements, and echoes, at half of that",
            head,
            [_paced(found, way, depth) for way in PACED for depth in depths],
        )
    if found.stuck:
        head = ("deliveries", "due", "got", "p50 ms", "p99 ms", "gateway MiB, most")
        rows = [
            (
                title,
                *(f"{sum(one[f'{key}_{way}'] for one in found.stuck):,.0f}" for key in ("due", "got")),
                *(spread([one[f"{key}_{way}"] for one in found.stuck], ".1f") for key in ("p50", "p99")),
                spread([one[f"memory_{way}"] / MIB for one in found.stuck], ".1f"),
            )
            for way, title in (("without", "a thousand subscribers"), ("with", "and one that never reads"))
        ]
        yield "One that never reads", head, rows


def _rate(found: Figures, way: str, depth: float) -> Row:
    rows = [one for one in getattr(found, way) if one["depth"] == depth]
    echo = {one["round"]: one["rate"] for one in found.echo if one["depth"] == depth}
    return (
        RATES[way],
        f"{depth:.0f}",
        spread([one["rate"] for one in rows], ",.0f"),
        spread([one["rate"] / echo[one["round"]] for one in rows], ".2f"),
        spread([one["cpu_us"] for one in rows], ".1f"),
        f"{sum(_missing(one) for one in rows):,.0f}",
    )


def _paced(found: Figures, way: str, depth: float) -> Row:
    rows = [one for one in getattr(found, f"paced_{way}") if one["depth"] == depth]
    had = [spread([one[key] for one in rows], ",.0f") for key in ("asked", "rate")]
    return (
        RATES[way],
        f"{depth:.0f}",
        *had,
        *(spread([one[key] for one in rows], ".2f") for key in ("p50", "p99", "p999")),
        spread([one["cpu_us"] for one in rows], ".1f"),
    )
