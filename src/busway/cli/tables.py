"""Tables for people: pairs of name and value, and rows under their names.

What stands in a cell may be a stranger's word, as the name of a client: it is shown as it is, and stays in its cell.
"""

from typing import Any

from rich.table import Table
from rich.text import Text

from busway.cli.values import one_line


def pairs(title: str, values: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan")
    table.add_column()
    for name, value in values.items():
        table.add_row(name, _cell(value))
    return table


def rows(title: str, given: list[dict[str, Any]]) -> Table:
    """Columns in which every row is empty are left out."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="cyan")
    names = [name for name in given[0] if any(row.get(name) not in ("", None) for row in given)]
    for name in names:
        table.add_column(name, justify="right" if isinstance(given[0].get(name), int) else "left")
    for row in given:
        table.add_row(*(_cell(row.get(name)) for name in names))
    return table


def _cell(value: object) -> Text:
    return Text(one_line(_text(value)))


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return " ".join(str(one) for one in value)
    return str(value)
