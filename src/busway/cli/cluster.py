"""`busway cluster`: shows the nodes of a cluster as one broker sees them. `busway doctor` shares its texts."""

import contextlib
import time
from typing import Annotated, Any, Final

import typer

import busway
from busway.cli.common import flags, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.tables import elapsed, pairs, rows

_EVERY: Final = 2.0
"""Seconds between two reports of --watch without a cluster event."""
_LINK: Final = {
    "messages_in": "in",
    "messages_out": "out",
    "subscriptions": "subs",
    "services": "serves",
    "dropped": "dropped",
}
"""Figures of a link and their columns in the table; --json prints all figures."""
_ALONE: Final = "this broker is in no cluster; start it with 'busway serve --cluster NAME'"


@linked
def cluster(
    link: Link,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the cluster again at each change, and every two seconds.")
    ] = False,
    take: Annotated[
        str | None,
        typer.Option(
            "--take",
            metavar="NODE",
            help="Declare that this node never comes back. The broker, which must be its mirror, then delivers from its channels.",
        ),
    ] = None,
    json: flags.Json = False,
) -> None:
    """Show the nodes of the broker's cluster and the links to them.

    Exit code 1: the broker is in no cluster, can't be reached or refuses --take; 2: a flag is wrong; 130: Ctrl-C.
    Any client of the mirror may use --take.

    busway cluster --watch
    """

    async def take_over(node: str) -> None:
        async with link.connect(reconnect=False) as bus:
            found = (await bus.request("$bus/cluster/take", node)).json()
        guid = found["guid"][:8]
        shown = f"node {guid}" if found["guid"].startswith(node) else f"{node} ({guid})"
        terminal.note(f"the broker now delivers from the channels of {shown}")

    async def look() -> None:
        if take is not None:
            await take_over(take)
            return
        async with link.connect(reconnect=watch) as bus:
            if not watch:
                _show(await _ask(bus), json=json)
                return
            async with bus.subscribe("$bus/cluster/**", policy="drop_oldest", limit=100) as events:
                while True:
                    with contextlib.suppress(busway.Disconnected):  # the bus reconnects, maybe to another node
                        _show(await _ask(bus), json=json, again=True)
                    with contextlib.suppress(busway.Timeout):
                        await events.recv(timeout=_EVERY)

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
    counts = {state: sum(entry["state"] == state for entry in nodes) for state in ("linked", "stopped", "lost")}
    stopped = f"{counts['stopped']} stopped, " if counts["stopped"] else ""
    summary = {
        "cluster": found["cluster"],
        "nodes": f"{len(nodes)}: this one, {counts['linked']} linked, {stopped}{counts['lost']} lost",
        "interest": _interest(found["interest"]),
        "kept": found["kept"],
        "refused": found["refused"],
        "conflicts": found["conflicts"],
    }
    summary |= _mirroring(found["mirroring"], {entry["guid"]: entry["name"] for entry in nodes})
    terminal.out.print(pairs("", summary))
    now = time.time()
    terminal.out.print(rows("nodes", [_node(entry, now) for entry in nodes]))
    if links := [_traffic(entry) for entry in nodes if entry["link"]]:
        terminal.out.print(rows("links", links, optional=("waiting", "dropped", "serves")))
    if found["lacking"]:
        lacking = [{"what": lacks(entry), "why": entry["error"], "tried": entry["tries"]} for entry in found["lacking"]]
        terminal.out.print(rows("differs from the other nodes", lacking))
    if found["missing"]:
        missing = [entry | {"why": reason(entry)} for entry in found["missing"]]
        terminal.out.print(rows("listed, but not linked", missing))


def reason(missing: dict[str, Any]) -> str:
    """Return why a server of the list is not linked, without its addresses."""
    why: str = missing.get("why", "")
    return why.removeprefix(f"{' '.join(missing['addresses'])}: ")


def _interest(count: int) -> str:
    if count == 1:
        return "1 subscription or service"
    return f"{count} subscriptions and services"


def lacks(definition: dict[str, Any]) -> str:
    """Describe a definition of the cluster that the node could not apply."""
    channel = f"the channel {definition['channel']!r} of " if definition["channel"] else ""
    return f"{channel}the stream {definition['stream']!r} can't be {'removed' if definition['removed'] else 'made'}"


def _mirroring(found: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return the lines about mirrors and take-overs. There are none if the node has no mirror and is no mirror."""
    lines: dict[str, Any] = {}
    if of := found["mirror_of"]:
        state = f"linked, {of['behind']} behind" if of["linked"] else "not linked, backlog unknown"
        lines["mirror of"] = f"{of['name'] or of['guid'][:8]}, {state}{_troubles(of)}"
    elif found["to_mirror"] is not None:
        lines["mirror of"] = f"{found['to_mirror']!r}: no node with that name, guid or address was seen"
    if found["mirrors"]:
        mirrors = (
            f"{mirror['name'] or mirror['guid'][:8]}, {mirror['behind']} behind{_troubles(mirror)}"
            for mirror in found["mirrors"]
        )
        lines["mirrored by"] = "; ".join(mirrors)
    if waits := [name for name, kept in found["mirrored"].items() if kept]:
        lines["waits for its mirror"] = ", ".join(waits)
    if alone := unmirrored(found):
        lines["not mirrored"] = f"{', '.join(alone)}: acknowledged without a mirror; start one with --mirror-of"
    if found["waits"]:
        lines["waits in mirrors"] = "; ".join(waits_of(found, names))
    if other := differing(found, names):
        lines["takeover"] = f"{found['takeover']:g} s here, {', '.join(other)}: set the same --takeover at all nodes"
    if not (lines or found["takeovers"]) and found["hands_out"]:
        return {}
    lines["delivers"] = (
        "from its own channels" if found["hands_out"] else "not from its own channels: its mirror may deliver"
    )
    if found["stands_in_for"]:
        lines["delivers for"] = ", ".join(names.get(guid) or guid[:8] for guid in found["stands_in_for"])
    return lines | {"take-overs": found["takeovers"]}


def unmirrored(mirroring: dict[str, Any]) -> list[str]:
    """Return the streams with safety mirrored whose messages this node acknowledges without a mirror."""
    return [name for name, kept in mirroring["mirrored"].items() if not kept]


def _troubles(mirror: dict[str, Any]) -> str:
    return "".join(f"; {text}" for text in troubles_of(mirror))


def troubles_of(mirror: dict[str, Any]) -> list[str]:
    """Describe why streams are not mirrored, one text for each reason."""
    streams: dict[str, list[str]] = {}
    for name, stream in mirror["streams"].items():
        if stream["trouble"]:
            streams.setdefault(stream["trouble"], []).append(name)
    return [f"{', '.join(names)} can't be mirrored: {why}" for why, names in streams.items()]


def differing(mirroring: dict[str, Any], names: dict[str, str]) -> list[str]:
    """Describe the nodes whose takeover time differs from that of the broker."""
    return [f"{time:g} s at {names.get(guid) or guid[:8]}" for guid, time in mirroring["takeover_differs"].items()]


def waits_of(mirroring: dict[str, Any], names: dict[str, str]) -> list[str]:
    """Describe the messages of failed nodes that this mirror has but may not deliver."""
    return [
        f"{backlog['messages']} message{'s' * (backlog['messages'] != 1)} in {', '.join(backlog['streams'])} of the failed node "
        f"{names.get(backlog['guid']) or 'without a name'} ({backlog['guid'][:8]}): {backlog['why']}"
        for backlog in mirroring["waits"]
    ]


def _node(node: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the row of a node. It fits into a line of 80 characters."""
    link = node["link"] or {}
    return {
        "name": node["name"],
        "guid": node["guid"][:8],
        "state": node["state"],
        "for": _since(link.get("since"), now),
        "up": _since(node["started"], now),
        "addresses": node["addresses"],
        "why": link.get("why", "") if node["state"] == "lost" else "",
    }


def _traffic(node: dict[str, Any]) -> dict[str, Any]:
    """Return the row of the link to a node. It fits into a line of 80 characters."""
    link = node["link"]
    round_trip = link.get("round_trip")
    return {
        "link to": node["name"],
        "round trip": "" if round_trip is None else f"{round_trip * 1000:.2f} ms",
        **{short: link.get(name, "") for name, short in _LINK.items()},
        "bytes in": _size(link.get("bytes_in")),
        "bytes out": _size(link.get("bytes_out")),
        "waiting": _size(link.get("waiting")),
        "behind": "" if (behind := link.get("mirror_behind")) is None else behind,
    }


def _since(seconds: float | None, now: float) -> str:
    return "" if seconds is None else elapsed(now - seconds)


def _size(size: int | None) -> str:
    return "" if size is None else values.shown_size(size)
