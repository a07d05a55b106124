"""`busway cluster`: the nodes of a broker's cluster, as that broker sees them."""

import contextlib
import time
from typing import Annotated, Any, Final

import typer

import busway
from busway.cli.common import flags, terminal, values
from busway.cli.common.connect import Link, linked
from busway.cli.common.tables import elapsed, pairs, rows

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
        bool, typer.Option("--watch", help="Show it again at each change, and every two seconds.")
    ] = False,
    take: Annotated[
        str | None,
        typer.Option(
            "--take",
            metavar="NODE",
            help="Declare that this node never comes back. The mirror of the node, which must be the one that is asked, then delivers from its channels.",
        ),
    ] = None,
    json: flags.Json = False,
) -> None:
    """Show the nodes of the broker's cluster and the links to them.

    Ends with 0, with 1 if the broker is in no cluster, can't be reached or does not --take, with 2 if a flag is wrong, and with 130 after Ctrl-C.
    Any client of the mirror may --take.

    busway cluster --watch
    """

    async def declare(node: str) -> None:
        async with link.connect(reconnect=False) as bus:
            found = (await bus.request("$bus/cluster/take", node)).json()
        guid = found["guid"][:8]
        called = f"node {guid}" if found["guid"].startswith(node) else f"{node} ({guid})"
        terminal.note(f"the broker delivers from the channels of {called} from now on")

    async def look() -> None:
        if take is not None:
            await declare(take)
            return
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
    counts = {state: sum(one["state"] == state for one in nodes) for state in ("linked", "stopped", "lost")}
    stopped = f"{counts['stopped']} stopped, " if counts["stopped"] else ""
    summary = {
        "cluster": found["cluster"],
        "nodes": f"{len(nodes)}: this one, {counts['linked']} linked, {stopped}{counts['lost']} lost",
        "interest": _interest(found["interest"]),
        "kept": found["kept"],
        "refused": found["refused"],
        "conflicts": found["conflicts"],
    }
    summary |= _mirroring(found["mirroring"], {one["guid"]: one["name"] for one in nodes})
    terminal.out.print(pairs("", summary))
    now = time.time()
    terminal.out.print(rows("nodes", [_node(one, now) for one in nodes]))
    if links := [_traffic(one) for one in nodes if one["link"]]:
        terminal.out.print(rows("links", links, optional=("waiting", "dropped", "serves")))
    if found["lacking"]:
        lacking = [{"what": lacks(one), "why": one["error"], "tried": one["tries"]} for one in found["lacking"]]
        terminal.out.print(rows("not as at the other nodes", lacking))
    if found["missing"]:
        missing = [one | {"why": reason(one)} for one in found["missing"]]
        terminal.out.print(rows("listed, and not linked", missing))


def reason(missing: dict[str, Any]) -> str:
    """Why a server of the list is not linked, beside its address."""
    why: str = missing.get("why", "")
    return why.removeprefix(f"{' '.join(missing['addresses'])}: ")


def _interest(count: int) -> str:
    if count == 1:
        return "1 subscription or service"
    return f"{count} subscriptions and services"


def lacks(one: dict[str, Any]) -> str:
    """What a node does not have as the other nodes do."""
    channel = f"the channel {one['channel']!r} of " if one["channel"] else ""
    return f"{channel}the stream {one['stream']!r} can't be {'removed' if one['removed'] else 'made'}"


def _mirroring(found: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Who mirrors whom, and who hands out for whom; nothing where nobody has a mirror."""
    told: dict[str, Any] = {}
    if of := found["mirror_of"]:
        state = f"linked, {of['behind']} behind" if of["linked"] else "not linked, unknown how far behind"
        told["mirror of"] = f"{of['name'] or of['guid'][:8]}, {state}{_troubles(of)}"
    elif found["to_mirror"] is not None:
        told["mirror of"] = f"{found['to_mirror']!r}: no node with that name, guid or address was seen"
    if found["mirrors"]:
        mirrors = (
            f"{one['name'] or one['guid'][:8]}, {one['behind']} behind{_troubles(one)}" for one in found["mirrors"]
        )
        told["mirrored by"] = "; ".join(mirrors)
    if waits := [name for name, kept in found["mirrored"].items() if kept]:
        told["waits for its mirror"] = ", ".join(waits)
    if alone := unmirrored(found):
        told["not mirrored"] = f"{', '.join(alone)}: acknowledged without a mirror"
    if found["waits"]:
        told["waits in copies"] = "; ".join(waits_of(found, names))
    if other := differing(found, names):
        told["takeover"] = f"{found['takeover']:g} s here, {', '.join(other)}: it has to be the same at all nodes"
    if not (told or found["takeovers"]) and found["hands_out"]:
        return {}
    told["hands out"] = "its own channels" if found["hands_out"] else "nothing of its own: its mirror may do so"
    if found["stands_in_for"]:
        told["hands out for"] = ", ".join(names.get(guid) or guid[:8] for guid in found["stands_in_for"])
    return told | {"take-overs": found["takeovers"]}


def unmirrored(mirroring: dict[str, Any]) -> list[str]:
    """The streams that are to be mirrored, and whose messages are acknowledged without that at this node."""
    return [name for name, kept in mirroring["mirrored"].items() if not kept]


def _troubles(mirror: dict[str, Any]) -> str:
    return "".join(f"; {one}" for one in troubles_of(mirror))


def troubles_of(mirror: dict[str, Any]) -> list[str]:
    """Why streams are not copied, those with the same reason together."""
    streams: dict[str, list[str]] = {}
    for name, one in mirror["streams"].items():
        if one["trouble"]:
            streams.setdefault(one["trouble"], []).append(name)
    return [f"{', '.join(names)} can't be copied: {why}" for why, names in streams.items()]


def differing(mirroring: dict[str, Any], names: dict[str, str]) -> list[str]:
    """Nodes with another takeover than the one that is asked."""
    return [f"{time:g} s at {names.get(guid) or guid[:8]}" for guid, time in mirroring["takeover_differs"].items()]


def waits_of(mirroring: dict[str, Any], names: dict[str, str]) -> list[str]:
    """What nobody may hand out, though it is here: of which node, and why."""
    return [
        f"{one['messages']} message{'s' * (one['messages'] != 1)} of {', '.join(one['streams'])}, of {names.get(one['guid']) or 'a node'} ({one['guid'][:8]}) that is gone: {one['why']}"
        for one in mirroring["waits"]
    ]


def _node(node: dict[str, Any], now: float) -> dict[str, Any]:
    """A node, on a line of 80 characters."""
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
    """The figures of the link to a node, likewise."""
    link = node["link"]
    trip = link.get("round_trip")
    return {
        "link to": node["name"],
        "round trip": "" if trip is None else f"{trip * 1000:.2f} ms",
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
