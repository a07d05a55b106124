"""`busway info`: shows the figures of a broker, its streams, channels and connections. Called by busway.cli.app."""

from typing import Annotated, Any

import typer

from busway.cli.channels import channel
from busway.cli.common import flags, terminal
from busway.cli.common.connect import Link, linked
from busway.cli.common.tables import empty, ordered, pairs, rows
from busway.cli.stream import SPARE, row

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
"""Figures of a connection and their columns in the table; --json prints all figures."""
_BROKER = ("name", "version", "addresses", "uptime", "storage")
"""The figures of the broker that are shown first."""
_RARE = ("serves", "waiting", "held", "dropped", "buckets", "first", "damage")
"""Columns that are left out if they are zero in all rows."""


@linked
def info(
    link: Link,
    connections: Annotated[
        bool, typer.Option("--connections/--no-connections", help="List the connections, too.")
    ] = True,
    everything: Annotated[bool, typer.Option("--all", help="Show figures that are zero or empty, too.")] = False,
    json: flags.Json = False,
) -> None:
    """Show the broker: its streams and channels, the connected clients, its counters and limits.

    busway info
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
                _show(found, bus.url, everything=everything)
            if connections and left_out > 0:
                terminal.note(f"{left_out} more connections are not listed")

    terminal.run(look)


def _show(found: dict[str, Any], url: str, *, everything: bool) -> None:
    listed = found.pop("connections", [])
    found.pop("connections_left_out", 0)  # reported on stderr
    limits = found.pop("limits", {})
    stats = found.pop("stats", {})
    kept = found.pop("kept", {})
    store = kept.pop("store", None) or {}
    shared = found.pop("shared", [])
    streams = found.pop("streams", [])
    disk = found.pop("disk", None) or {}
    if found.get("storage") == "memory":
        found["storage"] = "memory: streams are lost when the broker stops"
    if url not in found["addresses"]:
        found["asked_at"] = url
    terminal.out.print(pairs("broker", ordered(found, _BROKER, everything=everything)))
    if streams:
        terminal.out.print(rows("streams", [row(figures) for figures in streams], optional=_RARE, spare=SPARE))
    if channels := [figures for stream in streams for figures in stream.get("channels", ())]:
        terminal.out.print(
            rows("channels", [channel.row(figures) for figures in channels], optional=channel.RARE, spare=channel.SPARE)
        )
    if shared:
        terminal.out.print(rows("shared services", shared))
    if listed:
        shown = [{short: figures.get(name) for name, short in _SHORT.items()} for figures in listed]
        terminal.out.print(rows("connections", shown, optional=_RARE))
    for title, figures, first, sizes in (
        ("retained messages", kept, (), ("bytes",)),
        ("pins on disk", {} if empty(store.get("bytes")) and not everything else store, (), ("bytes",)),
        ("disk", disk, tuple(disk), ("free", "floor")),
        ("counters", stats, ("connections", "messages_received", "messages_delivered"), ()),
        ("limits", limits, (), ("frame", "topic", "fields", "outbox")),
    ):
        if lines := ordered(figures, first, everything=everything, sizes=sizes):
            terminal.out.print(pairs(title, lines))
    if not everything:
        terminal.note("counters that are zero are not shown: --all shows them")
