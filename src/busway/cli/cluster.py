"""`busway cluster`: shows the nodes of a cluster as one broker sees them, and promotes a mirror.

`busway doctor` shares its texts.
"""

import contextlib
import time
from typing import Annotated, Any, Final

import msgspec
import typer

import busway
from busway.cli.common import flags, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.tables import elapsed, pairs, rows

_EVERY: Final = 2.0
"""Seconds between two reports of --watch without a cluster event."""
_PROMOTE: Final = 30.0
"""Seconds for a promotion, which asks all linked nodes."""
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
    context: typer.Context,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the cluster again at each change, and every two seconds.")
    ] = False,
    json: flags.Json = False,
) -> None:
    """Show the nodes of the broker's cluster and the links to them.

    Exit code 1: the broker is in no cluster or can't be reached; 2: a flag is wrong; 130: Ctrl-C.

    busway cluster --watch
    """
    if context.invoked_subcommand is not None:
        return

    async def look() -> None:
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


@linked
def cluster_promote(
    link: Link,
    node: Annotated[
        str,
        typer.Argument(
            help="The failed node: its name, or the beginning of its guid.", show_default=False, metavar="NODE"
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Promote although the copy may be incomplete, as the broker has reported.")
    ] = False,
    json: flags.Json = False,
) -> None:
    """Make a mirror the owner of a failed node's streams and channels. Ask the mirror (--url).

    Exit code 1: the mirror refuses, since the node runs or the copy may be incomplete. Stop the node first: one that
    runs without links to the others goes on until it is linked again. Any client of the mirror may do this.

    busway cluster promote srv1 --url tcp://srv2:7420
    """

    async def promote() -> None:
        async with link.connect(reconnect=False) as bus:
            question = msgspec.json.encode({"node": node, "force": force})
            found = (await bus.request("$bus/cluster/promote", question, timeout=_PROMOTE)).json()
        if json:
            terminal.record(found)
            return
        for missing in found["missing"]:
            terminal.note(f"may be missing: {missing}")
        terminal.note(
            f"the broker owns the streams of {node} ({found['guid'][:8]}) since epoch {found['epoch']}: "
            f"{', '.join(found['streams']) or 'none'}"
        )

    terminal.run(promote)


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
    """Return the lines about mirrors and promotions. There are none if the node has no mirror and is no mirror."""
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
    if texts := ownership_of(found, names):
        lines["channels"] = "; ".join(texts)
    if found["owns"]:
        lines["owns"] = ", ".join(f"{_named(one['guid'], names)} since epoch {one['epoch']}" for one in found["owns"])
    return lines


def ownership_of(mirroring: dict[str, Any], names: dict[str, str]) -> list[str]:
    """Describe channels that no node delivers from, and records that are set aside."""
    texts = []
    if mirroring["awaits"]:
        mirrors = ", ".join(_named(guid, names) for guid in mirroring["awaits"])
        texts.append(f"this node's channels wait for its mirror {mirrors}, which may have been promoted: start it")
    texts += [
        f"the channels of {_named(guid, names)} wait: start it, or 'busway cluster promote {guid[:8]}' here"
        for guid in mirroring["waiting"]
    ]
    if count := sum(aside["count"] for aside in mirroring["set_aside"]):
        texts.append(f"{count} records that only this node has are set aside: see 'busway stream recover'")
    return texts


def _named(guid: str, names: dict[str, str]) -> str:
    return names.get(guid) or guid[:8]


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
