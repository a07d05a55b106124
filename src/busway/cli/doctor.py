"""`busway doctor`: checks the installation and the broker. Called by busway.cli.app."""

import asyncio
import os
import platform
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import busway
from busway.cli.cluster import lacks, ownership_of, reason, troubles_of, unmirrored
from busway.cli.common import flags, terminal, values
from busway.cli.common.advice import advice
from busway.cli.common.connect import Link, linked
from busway.cli.common.values import one_line
from busway.settings import DEFAULT_URL, URL_VARIABLE

_FILES = 4096
_SKEW = 2.0
_FEW = 3
_MARKS = {"ok": "[green]ok  [/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    state: Literal["ok", "warn", "fail"]
    text: str


@linked
def doctor(link: Link, json: flags.Json = False) -> None:
    """Check this installation and the connection to the broker; exit code 1 if a check fails.

    busway doctor --url tcp://127.0.0.1:7420
    """

    async def examine() -> None:
        failed = 0
        async for finding in _everything(link):
            failed += finding.state == "fail"
            if json:
                terminal.record({"check": finding.check, "state": finding.state, "text": finding.text})
            else:
                terminal.out.print(f"{_MARKS[finding.state]} [bold]{finding.check:<12}[/]", end=" ")
                terminal.out.print(one_line(finding.text), markup=False)
        if failed:
            raise terminal.Ended(terminal.ERROR, f"{failed} check{'s' * (failed != 1)} failed")

    terminal.run(examine)


async def _everything(link: Link) -> AsyncIterator[Finding]:
    for finding in (_python(), _engine(), _loop(), *_packages(), _files(), _cores(), _fuse()):
        yield finding
    urls = link.urls or [os.environ.get(URL_VARIABLE) or DEFAULT_URL]
    if not link.urls:
        yield Finding("address", "ok", f"{urls[0]} (the default: neither --url nor {URL_VARIABLE} is set)")
    for url in urls:
        reached = await _reach(url, link.connect_timeout)
        yield reached
        if reached.state == "fail":
            continue
        async for finding in _connection(link, url):
            yield finding


def _python() -> Finding:
    version = platform.python_version()
    text = f"{platform.python_implementation()} {version} on {platform.platform()}, {sys.executable}"
    return Finding("python", "ok" if sys.version_info >= (3, 11) else "fail", text)


def _engine() -> Finding:
    from busway import _core

    same = _core.__version__ == busway.__version__
    text = f"{_core.__version__}, protocol {_core.PROTOCOL}, {_core.__file__}"
    return Finding("engine", "ok" if same else "warn", text if same else f"{text}: the package is {busway.__version__}")


def _loop() -> Finding:
    name = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    if name == "uvloop":
        return Finding("loop", "ok", f"uvloop {metadata.version('uvloop')}")
    return Finding("loop", "warn", f"{name}: install uvloop, which is about twice as fast: pip install uvloop")


def _packages() -> list[Finding]:
    found = []
    for name in ("msgspec", "typer", "rich", "pydantic"):
        try:
            found.append(Finding(name, "ok", metadata.version(name)))
        except metadata.PackageNotFoundError:
            state: Literal["ok", "fail"] = "ok" if name == "pydantic" else "fail"
            found.append(
                Finding(name, state, "not installed" + (" (only needed for pydantic models)" * (state == "ok")))
            )
    return found


def _files() -> Finding:
    try:
        import resource
    except ImportError:
        return Finding("nofile", "ok", "this system has no limit of open files")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"at most {soft} open files ({hard} if raised): one for each connection"
    if soft < _FILES:
        return Finding("nofile", "warn", f"{text}; a busy broker needs more: run ulimit -n {hard}")
    return Finding("nofile", "ok", text)


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("cores", "ok", f"{cores} usable, load {os.getloadavg()[0]:.1f}")


def _fuse() -> Finding:
    """Check FUSE, which only `busway mount` needs."""
    from busway.gateway.files.kernel.mount import missing

    lacking = missing()
    if lacking is None:
        return Finding("fuse", "ok", "busway mount can mount folders")
    return Finding("fuse", "ok", f"busway mount can't mount folders: {lacking}")


async def _reach(url: str, timeout: float) -> Finding:
    """Check that a server listens at the address. No handshake takes place."""
    try:
        if url.startswith("unix:"):
            path = url.removeprefix("unix:").removeprefix("//")
            if not stat.S_ISSOCK(Path(path).stat().st_mode):  # noqa: ASYNC240
                return Finding("reach", "fail", f"{path} is not a socket")
            async with asyncio.timeout(timeout):
                _, writer = await asyncio.open_unix_connection(path)
            tried = path
        else:
            parts = urlsplit(url)
            loop = asyncio.get_running_loop()
            host, port = parts.hostname or "127.0.0.1", parts.port or 7420
            async with asyncio.timeout(timeout):
                answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                _, writer = await asyncio.open_connection(host, port)
            tried = f"{host} is {', '.join(sorted({str(answer[4][0]) for answer in answers}))}; port {port} is open"
        writer.close()
        await writer.wait_closed()
    except TimeoutError:
        return Finding("reach", "fail", f"{url}: no answer within {timeout:g} s")
    except OSError as error:
        return Finding("reach", "fail", f"{url}: {error.strerror or error}; start a server with 'busway serve'")
    return Finding("reach", "ok", tried)


async def _connection(link: Link, url: str) -> AsyncIterator[Finding]:
    """Check the handshake, the round trip, the clock, the limits, and a message to this client."""
    from dataclasses import replace

    try:
        async with replace(link, url=[url]).connect(reconnect=False) as bus:
            server = bus.server
            yield Finding("handshake", "ok", f"{server.get('name')} {server.get('agent')} (guid {server.get('guid')})")
            times = sorted([await bus.rtt() for _ in range(20)])
            yield Finding("round trip", "ok", f"{times[10] * 1e6:.0f} µs median, {times[-1] * 1e6:.0f} µs worst of 20")
            yield Finding(
                "limits", "ok", ", ".join(f"{name} {value}" for name, value in server.get("limits", {}).items())
            )
            yield await _clock(bus)
            yield await _cluster(bus)
            for finding in await _damage(bus):
                yield finding
            yield await _storage(bus)
            yield await _self(bus)
    except busway.BusError as error:
        hint = advice(error)
        text = str(error) if str(error).startswith(url) else f"{url}: {error}"
        yield Finding("talk", "fail", text + (f" ({hint})" if hint else ""))


async def _clock(bus: busway.Bus) -> Finding:
    """Check that the clocks agree, because a message carries the time of its sender."""
    before = time.time()
    broker_time = (await bus.info())["time"]
    skew = broker_time - (before + time.time()) / 2
    if abs(skew) > _SKEW:
        return Finding(
            "clock", "warn", f"the broker's clock differs by {skew:+.1f} s from this one: synchronize both with NTP"
        )
    return Finding("clock", "ok", f"the broker's clock differs by {skew * 1000:+.1f} ms from this one")


async def _cluster(bus: busway.Bus) -> Finding:
    """Check that the broker is linked to all nodes of its cluster and all servers of its list."""
    found = (await bus.request("$bus/cluster")).json()
    if found["cluster"] is None:
        return Finding("cluster", "ok", "the broker is in no cluster")
    lost = [
        (entry["name"] or entry["guid"], entry["link"].get("why", ""))
        for entry in found["nodes"]
        if entry["state"] == "lost"
    ]
    lost += [
        (entry["name"], entry.get("why", "")) if entry["name"] else (" ".join(entry["addresses"]), reason(entry))
        for entry in found["missing"]
    ]
    unlinked = ", ".join(name + f" ({why})" * bool(why) for name, why in lost)
    others = any(entry.addresses for entry in bus.servers[1:])
    stopped = sum(entry["state"] == "stopped" for entry in found["nodes"])  # stopped on purpose
    count = len(found["nodes"])
    summary = f"{found['cluster']}, {count} node{'s' * (count != 1)}" + f", {stopped} stopped" * bool(stopped)
    mirroring = found["mirroring"]
    alone, names = unmirrored(mirroring), {node["guid"]: node["name"] for node in found["nodes"]}
    troubles = [
        *([f"not linked: {unlinked}"] if lost else []),
        *([f"{found['refused']} refused"] if found["refused"] else []),
        *([f"{clashes} conflict{'s' * (clashes != 1)}"] if (clashes := found["conflicts"]) else []),
        *(
            [f"--mirror-of {mirroring['to_mirror']!r}: no node with that name, guid or address was seen"]
            if mirroring["to_mirror"] is not None and mirroring["mirror_of"] is None
            else []
        ),
        *([f"no mirror has the stream{'s' * (len(alone) != 1)} {', '.join(alone)}"] if alone else []),
        *(
            f"its mirror {entry['name'] or entry['guid'][:8]}: {why}"
            for entry in mirroring["mirrors"]
            for why in troubles_of(entry)
        ),
        *(f"as a mirror: {why}" for why in (troubles_of(mirroring["mirror_of"]) if mirroring["mirror_of"] else ())),
        *ownership_of(mirroring, names),
        *_lacks(found["lacking"]),
        *(
            []
            if others or len(found["nodes"]) == 1 + stopped
            else ["no address of the other nodes is known to this client"]
        ),
    ]
    return Finding("cluster", "warn" if troubles else "ok", "; ".join([summary, *troubles]))


def _lacks(definitions: list[dict[str, Any]]) -> list[str]:
    """Describe the first definitions of the cluster that the broker could not apply."""
    texts = [f"{lacks(definition)}: {definition['error']}" for definition in definitions[:_FEW]]
    return texts + ([f"and {len(definitions) - _FEW} more"] if len(definitions) > _FEW else [])


async def _damage(bus: busway.Bus) -> list[Finding]:
    """Report the streams of this broker that have damaged or missing files."""
    found = [f"{info.name} ({info.damage})" for info in await bus.streams() if info.damage]
    text = f"files are damaged or missing, the log of the broker names them: {', '.join(found)}"
    return [Finding("streams", "warn", text)] if found else []


async def _storage(bus: busway.Bus) -> Finding:
    """Check that streams are on disk, and that the disk has space."""
    found = await bus.info()
    if found.get("storage") == "memory":
        text = (
            "streams are in memory and are lost when the broker stops; start it with --data DIR to store them on disk"
        )
        return Finding("storage", "warn", text)
    if (disk := found.get("disk")) is None:  # a broker of an earlier version
        return Finding("storage", "ok", "unknown: the broker does not report it")
    free, floor = (values.shown_size(disk[name]) for name in ("free", "floor"))
    if disk["low"]:
        text = f"{free} free on the broker's disk, less than the floor of {floor}: durable publishes are refused; free some space"
        return Finding("storage", "warn", text)
    return Finding("storage", "ok", f"streams are on disk, {free} free, the floor is {floor}")


async def _self(bus: busway.Bus) -> Finding:
    """Check that a message of this client arrives at its own subscription."""
    topic = f"busway/doctor/{os.getpid()}"
    async with bus.subscribe(topic) as subscription:
        await bus.publish(topic, b"?")
        message = await subscription.recv(timeout=5)
    return Finding("message", "ok", f"published and received on {topic} as {message.id}")
