"""`busway cluster`: the nodes of a broker's cluster, as that broker sees them."""

import contextlib
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

import busway
from busway.cli import flags, terminal, values
from busway.cli.link import Link, linked
from busway.cli.tables import pairs, rows

_EVERY: Final = 2.0
"""Seconds between two looks with --watch, if nothing happens."""
_LINK: Final = {
    "messages_in": "in",
    "messages_out": "out",
    "subscriptions": "subs",
    "services": "serves",
    "dropped": "dropped",
}
"""Figures of a link that are shown as they are, and their columns; --json has everything."""
_ALONE: Final = "this broker is in no cluster; start it with 'busway serve --cluster NAME'"


@linked
def cluster(
    link: Link,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again whenever something happens, and every two seconds.")
    ] = False,
    json: flags.Json = False,
) -> None:
    """Show the nodes of the broker's cluster, its links to them and what crosses those.

    busway cluster --watch
    """

    async def look() -> None:
        async with link.connect(reconnect=watch) as bus:
            if not watch:
                _show(await _ask(bus), json=json)
                return
            async with bus.subscribe("$bus/cluster/**", policy="drop_oldest", limit=100) as happens:
                while True:
                    with contextlib.suppress(busway.Disconnected):  # it comes back by itself, maybe to another node
                        _show(await _ask(bus), json=json, again=True)
                    with contextlib.suppress(busway.Timeout):
                        await happens.recv(timeout=_EVERY)

    terminal.run(look)


async def _ask(bus: busway.Bus) -> dict[str, Any]:
    found: dict[str, Any] = (await bus.request("$bus/cluster")).json()
    if found["cluster"] is None:
        raise terminal.Ended(terminal.ERROR, f"busway: {_ALONE}")
    return found


def _show(found: dict[str, Any], *, json: bool, again: bool = False) -> None:
    if json:
        terminal.record(found)
        return
    if again and terminal.out.is_terminal:
        terminal.out.clear()
    nodes = found["nodes"]
    counts = {state: sum(one["state"] == state for one in nodes) for state in ("linked", "lost")}
    summary = {
        "cluster": found["cluster"],
        "nodes": f"{len(nodes)}: this one, {counts['linked']} linked, {counts['lost']} lost",
        "wanted here": f"{found['interest']} subscriptions and services are told to the others",
        "kept": found["kept"],
        "refused": found["refused"],
        "conflicts": found["conflicts"],
    }
    names = {one["guid"]: one["name"] for one in nodes}
    mirroring = found["mirroring"]
    if mirroring["stands_in_for"]:
        summary["hands out for"] = ", ".join(names.get(guid, guid) for guid in mirroring["stands_in_for"])
    if not mirroring["hands_out"]:
        summary["hands out"] = "nothing of its own channels: its mirror may do so"
    terminal.out.print(pairs("", summary))
    terminal.out.print(rows("nodes", [_row(one) for one in nodes]))
    if found["missing"]:
        terminal.out.print(rows("listed, and never seen", found["missing"]))


def _row(node: dict[str, Any]) -> dict[str, Any]:
    link = node["link"] or {}
    trip = link.get("round_trip")
    return {
        "name": node["name"],
        "guid": node["guid"][:8],
        "addresses": node["addresses"],
        "started": _time(node["started"]),
        "state": node["state"],
        "since": _time(link.get("since")),
        "round trip": "" if trip is None else f"{trip * 1000:.2f} ms",
        **{short: link.get(name, "") for name, short in _LINK.items()},
        "bytes in": _size(link.get("bytes_in")),
        "bytes out": _size(link.get("bytes_out")),
        "waiting": _size(link.get("waiting")),
        "mirror behind": link.get("mirror_behind"),
    }


def _time(seconds: float | None) -> str:
    return (
        "" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    )


def _size(size: int | None) -> str:
    return "" if size is None else values.shown_size(size)
