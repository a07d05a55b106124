"""Tables for people: pairs of name and value, and rows under their names.

A cell may hold text of other users, such as the name of a client: it is shown as it is, and stays in its cell.
"""

from collections.abc import Collection
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from busway.cli.values import one_line

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
    return Text(one_line(_text(value)))


def _text(value: object) -> str:
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
