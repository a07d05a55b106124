"""Tables and figures for people: pairs of name and value, and rows under their names, with units. Values; no I/O.

A cell may hold text of other users, such as the name of a client: it is shown as it is, and stays in its cell.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from busway.cli.common import values
from busway.cli.common.values import one_line

_DURATIONS: Final = {"max_age", "once", "lease", "uptime", "max_processing", "takeover"}
_TIMES: Final = {"time", "held_since"}
_SIZES: Final = {"bytes", "frame", "topic_bytes", "outbox"}
_UNLIMITED: Final = {"lease", "max_deliveries"}
"""Settings whose zero means none."""


def ordered(
    figures: Mapping[str, Any], first: Collection[str] = (), *, everything: bool = False, sizes: Collection[str] = ()
) -> dict[str, str]:
    """Lines of a table. `first` names the figures that are always shown, in their order.

    Other figures follow, but only if they are neither zero nor empty, unless `everything` is asked for. `sizes` names
    figures in bytes that their names do not show.
    """
    names = [*(name for name in first if name in figures), *(name for name in figures if name not in first)]
    return {
        name.replace("_", " "): _text(name, figures[name], sizes)
        for name in names
        if everything or name in first or not empty(figures[name])
    }


def empty(value: object) -> bool:
    return value is None or value is False or value in (0, "", [], ())


def _text(name: str, value: Any, sizes: Collection[str]) -> str:
    if value is None or value in ("", [], ()) or (name in _UNLIMITED and not value):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _TIMES:
        return datetime.fromtimestamp(value, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")
    if name in _DURATIONS:
        return values.shown_duration(round(value, 3)) if name != "uptime" else elapsed(value)
    if name in _SIZES or name in sizes or name.endswith("_bytes"):
        return values.shown_size(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def elapsed(seconds: float) -> str:
    """A length of time in its two largest units: 3d 4h, 5m 2s."""
    left = round(max(seconds, 0))
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


_SHORT: Final = 12
"""Characters of a text that is never wrapped."""


def pairs(title: str, values: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan")
    table.add_column()
    for name, value in values.items():
        table.add_row(name, _cell(value))
    return table


def rows(title: str, given: list[dict[str, Any]], *, optional: Collection[str] = ()) -> Table:
    """Rows under their names, without columns in which every row is empty, or zero if the column is `optional`.

    Numbers keep their line on a narrow screen; texts are wrapped.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="cyan")
    names = [
        name
        for name in given[0]
        if any(row.get(name) not in (("", None, 0, "0") if name in optional else ("", None)) for row in given)
    ]
    for name in names:
        number = isinstance(given[0].get(name), int)
        short = all(len(str(row.get(name) or "")) <= _SHORT for row in given)
        table.add_column(name, justify="right" if number else "left", no_wrap=number or short)
    for row in given:
        table.add_row(*(_cell(row.get(name)) for name in names))
    return table


def _cell(value: object) -> Text:
    return Text(one_line(_cell_text(value)))


def _cell_text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return " ".join(str(one) for one in value)
    return str(value)
