"""Tables for the terminal: pairs of name and value, and rows under column names, with units. Called by verbs; no I/O.

A cell may hold text of other users, such as the name of a client. It is shown unchanged, on one line, without markup.
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
"""Settings for which zero means no limit."""


def ordered(
    figures: Mapping[str, Any], first: Collection[str] = (), *, everything: bool = False, sizes: Collection[str] = ()
) -> dict[str, str]:
    """Return the lines of a table. `first` names the figures that are always shown, in their order.

    Figures that are zero or empty are left out unless `everything` is true. `sizes` names figures that count bytes
    although their names do not say so.
    """
    names = [*(name for name in first if name in figures), *(name for name in figures if name not in first)]
    return {
        name.replace("_", " "): _text(name, figures[name], sizes)
        for name in names
        if everything or name in first or not empty(figures[name])
    }


def empty(value: object) -> bool:
    """Return True for zero, False, None and empty texts and lists."""
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
    """Return a duration in its two largest units: 3d 4h, 5m 2s."""
    left = round(max(seconds, 0))
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


_SHORT: Final = 12
"""Longest text, in characters, that is never wrapped."""


def pairs(title: str, values: dict[str, Any]) -> Table:
    """Return a table with one line per name and value."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan")
    table.add_column()
    for name, value in values.items():
        table.add_row(name, _cell(value))
    return table


def rows(title: str, records: list[dict[str, Any]], *, optional: Collection[str] = ()) -> Table:
    """Return a table of rows. A column is left out if it is empty in every row, or zero if it is `optional`.

    On a narrow screen texts are wrapped, numbers are not.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="cyan")
    names = [
        name
        for name in records[0]
        if any(row.get(name) not in (("", None, 0, "0") if name in optional else ("", None)) for row in records)
    ]
    for name in names:
        number = isinstance(records[0].get(name), int)
        short = all(len(str(row.get(name) or "")) <= _SHORT for row in records)
        table.add_column(name, justify="right" if number else "left", no_wrap=number or short)
    for row in records:
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
        return " ".join(str(item) for item in value)
    return str(value)
