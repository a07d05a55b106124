"""Tables for the terminal: pairs of name and value, and rows under column names, with units. Called by verbs; no I/O.

A cell may hold text of other users, such as the name of a client. It is shown unchanged, on one line, without markup.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from busway.cli.common import values
from busway.cli.common.values import one_line

_DURATIONS: Final = {"max_age", "once", "lease", "uptime", "max_processing"}
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


def rows(
    title: str, records: list[dict[str, Any]], *, optional: Collection[str] = (), spare: Collection[str] = ()
) -> "Rows":
    """Return a table of rows. A column is left out if it is empty in every row, or zero if it is `optional`.

    On a narrow screen texts are wrapped, numbers are not; `spare` columns are left out, in their order, until it fits.
    """
    names = [
        name
        for name in records[0]
        if any(row.get(name) not in (("", None, 0, "0") if name in optional else ("", None)) for row in records)
    ]
    return Rows(title, [{name: row.get(name) for name in names} for row in records], spare)


class Rows:
    """A table of rows that knows the width of the screen only when it is printed."""

    def __init__(self, title: str, records: list[dict[str, Any]], spare: Collection[str]) -> None:
        self._title = title
        self._records = records
        self._widths = {name: max(len(name), *(_cell(row[name]).cell_len for row in records)) for name in records[0]}
        self._spare = spare

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        names = list(self._records[0])
        for name in self._spare:
            if self._least(names) <= options.max_width:
                break
            names = [other for other in names if other != name]
        yield self._table(names)

    def _least(self, names: list[str]) -> int:
        """Return the least width of a table of these columns, with a gap of two between them."""
        return sum(self._widths[name] if self._fixed(name) else _SHORT for name in names) + 2 * (len(names) - 1)

    def _number(self, name: str) -> bool:
        return isinstance(self._records[0][name], int)

    def _fixed(self, name: str) -> bool:
        """Return True if the column is not wrapped."""
        return self._number(name) or all(len(str(row[name] or "")) <= _SHORT for row in self._records)

    def _table(self, names: list[str]) -> Table:
        table = Table(
            title=self._title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="cyan"
        )
        for name in names:
            table.add_column(name, justify="right" if self._number(name) else "left", no_wrap=self._fixed(name))
        for row in self._records:
            table.add_row(*(_cell(row[name]) for name in names))
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
