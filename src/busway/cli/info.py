"""`busway info`: what the broker says of itself, its limits, counters and connections."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from busway.cli import channel, flags, terminal, values
from busway.cli.link import Link, linked
from busway.cli.stream import row
from busway.cli.tables import pairs, rows

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
    streams = found.pop("streams", [])
    disk = found.pop("disk", None)
    if found.get("storage") == "memory":
        found["storage"] = "memory: streams end with the broker"
    found["uptime"] = str(timedelta(seconds=round(found["uptime"])))
    found["time"] = datetime.fromtimestamp(found["time"], UTC).isoformat(" ", "seconds")
    found["asked at"] = url
    terminal.out.print(pairs("broker", found))
    terminal.out.print(pairs("limits", limits))
    terminal.out.print(pairs("counters", stats))
    terminal.out.print(pairs("kept messages", kept))
    if store:
        terminal.out.print(pairs("pins on disk", store))
    if disk:
        shown = {name: values.shown_size(disk[name]) for name in ("free", "floor")}
        terminal.out.print(pairs("disk", disk | shown))
    if shared:
        terminal.out.print(rows("shared services", shared))
    if streams:
        terminal.out.print(rows("streams", [row(one) for one in streams]))
    if channels := [one for stream in streams for one in stream.get("channels", ())]:
        terminal.out.print(rows("channels", [channel.row(one) for one in channels]))
    if listed:
        terminal.out.print(
            rows("connections", [{short: row.get(name) for name, short in _SHORT.items()} for row in listed])
        )
