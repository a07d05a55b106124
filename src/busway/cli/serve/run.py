"""Runs the broker of `busway serve` until a signal or --for ends it. Called by busway.cli.serve.command."""

import asyncio
import gc
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import busway
from busway.cli.common import terminal
from busway.cluster.members.servers_file import listed
from busway.settings import DEFAULT_URL


async def run(
    server: busway.Server,
    member: busway.Cluster | None,
    data: str | None,
    seconds: float | None,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Start the server, print where it listens, and stop it after a signal or so many seconds."""
    with terminal.Signals() as signals:
        try:
            await server.start()
        except OverflowError as error:
            raise terminal.Ended(terminal.USAGE, f"busway: a limit is too large: {error}") from None
        # These objects live until the broker ends. A collection that visits them would take tens of milliseconds.
        gc.collect()
        gc.freeze()
        loop = asyncio.get_running_loop()
        if server.authority.policy is not None:
            loop.add_signal_handler(signal.SIGHUP, server.reload_users)
        try:
            if not quiet:
                _announce(server, member, data)
            if json:
                record: dict[str, Any] = {"addresses": server.addresses, "guid": server.guid, "name": server.name}
                record["storage"] = "memory" if data is None else "disk"
                if server.http is not None:
                    record["http"] = server.http
                if member is not None:
                    addresses = [entry.address for entry in listed(member.servers)]
                    record |= {"cluster": member.name, "servers": addresses, "mirror_of": member.mirror_of}
                terminal.record(record)
            await _until(signals.first, seconds)
            if not quiet:
                terminal.note("delivering waiting messages; a second Ctrl-C stops at once")
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            stopping = asyncio.ensure_future(server.stop())
            second_signal = asyncio.ensure_future(signals.second.wait())
            await asyncio.wait({stopping, second_signal}, return_when=asyncio.FIRST_COMPLETED)
            second_signal.cancel()
            if stopping.done():
                stopping.result()
            stopping.cancel()  # the loop cancels the remaining tasks when it ends
    if signals.interrupted:
        raise terminal.Ended(terminal.INTERRUPTED)


async def _until(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _announce(server: busway.Server, member: busway.Cluster | None, data: str | None) -> None:
    """Print where the broker listens, and commands to watch, publish and look."""
    console = terminal.notes
    named = f" {server.name!r}" if server.name else ""
    console.print(f"[bold]busway {busway.__version__}[/] serves{named} on")
    if server.http is not None:
        console.print(f"  [cyan]{server.http}[/] [dim](console in a browser; JSON over HTTP and WebSocket)[/]")
    for address in server.bound:
        console.print(f"  [cyan]{address}[/]")
    if member is not None:
        console.print(_membership(member), markup=False)
    if data is None:
        console.print("[yellow]streams are in memory and end with this process; --data DIR stores them on disk[/]")
    else:
        console.print(f"streams are on disk, in {data}", markup=False, highlight=False)
    first = server.addresses[0]
    url = "" if DEFAULT_URL in server.addresses else f" --url {first}"
    if first.startswith("tls:"):
        url += " --ca FILE"
    command = _command()
    console.print(f"[dim]watch    [/]{command} sub{url} '**'")
    console.print(f"[dim]publish  [/]{command} pub{url} hello/world 'Hello'")
    console.print(f"[dim]look     [/]{command} info{url}")
    console.print("[dim]Ctrl-C stops it[/]")


def _membership(member: busway.Cluster) -> str:
    """Describe the node's cluster, as its flags set it."""
    count = len(listed(member.servers))
    text = f"as a node of the cluster {member.name!r}, with {count} server{'s' * (count != 1)} in its list"
    text += ", which also finds others on the local network" * bool(member.discover)
    return text + (f", as the mirror of {member.mirror_of!r}" if member.mirror_of is not None else "")


def _command() -> str:
    """Return the command that calls busway from this folder: its path if its virtual environment is not active."""
    program = Path(sys.argv[0])
    if shutil.which("busway") or program.name != "busway":
        return "busway"
    return os.path.relpath(program)
