"""`busway info`: what the broker says of itself, its limits, counters and connections."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.table import Table

from busway.cli import flags, terminal
from busway.cli.link import Link, linked

_SHORT = {
    "client": "client",
    "name": "name",
    "transport": "over",
    "peer": "peer",
    "peer_name": "certified as",
    "state": "state",
    "subscriptions": "subs",
    "services": "serves",
    "messages_received": "in",
    "messages_delivered": "out",
    "outbox_bytes": "waiting",
    "held": "held",
    "messages_dropped": "dropped",
}
"""What a screen has room for; --json has everything."""


@linked
def info(
    link: Link,
    connections: Annotated[
        bool, typer.Option("--connections/--no-connections", help="List the connections too.")
    ] = True,
    json: flags.Json = False,
) -> None:
    """Show the broker: its limits, its counters and who is connected.

    busway info --json | jq .stats
    """

    async def look() -> None:
        async with link.connect(reconnect=False) as bus:
            found = await bus.info()
            left_out = found["stats"]["connections"] - len(found["connections"])
            if not connections:
                del found["connections"]
            elif left_out > 0:
                found["connections_left_out"] = left_out
            if json:
                terminal.record(found)
            else:
                _show(found, bus.url)
            if connections and left_out > 0:
                terminal.note(f"{left_out} more connections are not listed")

    terminal.run(look)


def _show(found: dict[str, Any], url: str) -> None:
    listed = found.pop("connections", [])
    found.pop("connections_left_out", 0)  # told on stderr
    limits = found.pop("limits", {})
    stats = found.pop("stats", {})
    kept = found.pop("kept", {})
    store = kept.pop("store", None)
    shared = found.pop("shared", [])
    found["uptime"] = str(timedelta(seconds=round(found["uptime"])))
    found["time"] = datetime.fromtimestamp(found["time"], UTC).isoformat(" ", "seconds")
    found["asked at"] = url
    terminal.out.print(_pairs("broker", found))
    terminal.out.print(_pairs("limits", limits))
    terminal.out.print(_pairs("counters", stats))
    terminal.out.print(_pairs("kept messages", kept))
    if store:
        terminal.out.print(_pairs("pins on disk", store))
    if shared:
        terminal.out.print(_rows("shared services", shared))
    if listed:
        terminal.out.print(
            _rows("connections", [{short: row.get(name) for name, short in _SHORT.items()} for row in listed])
        )


def _pairs(title: str, values: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan")
    table.add_column()
    for name, value in values.items():
        table.add_row(name, _text(value))
    return table


def _rows(title: str, rows: list[dict[str, Any]]) -> Table:
    """Columns in which every row is empty are left out."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="cyan")
    names = [name for name in rows[0] if any(row.get(name) not in ("", None) for row in rows)]
    for name in names:
        table.add_column(name, justify="right" if isinstance(rows[0].get(name), int) else "left")
    for row in rows:
        table.add_row(*(_text(row.get(name)) for name in names))
    return table


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
