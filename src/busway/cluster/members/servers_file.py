"""The list of a cluster's servers, from an argument, the command line or a file `servers.json`.

`busway.serve` and the command line call it. An argument overrides the command line, and that the file. The
list may name the server itself.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Final

import msgspec

from busway.common.checks import check_type
from busway.settings import DEFAULT_PORT
from busway.transport.address import Address, parse

log = logging.getLogger("busway.cluster")

FILE: Final = "servers.json"
RECONNECT: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to reach a server; the last one repeats."""
TIMEOUT: Final = 5.0
LEAST: Final = 0.01
"""The minimum of the repeated delay in seconds, to limit the load of dialling a missing server."""

_SPAN: Final = re.compile(r"^(?:(\d+)D)?(\d{1,2}):(\d{2})(?::(\d{2})(\.\d+)?)?$")
_SECONDS: Final = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h)?$")
_PLACE: Final = re.compile(r"^`\$\[(\d+)\](.*)`$")
_LACKING: Final = re.compile(r"^Object missing required field `(.+)`$")
_EXPECTED: Final = re.compile(r"^Expected `(.+)`, got `(.+)`$")
_TYPES: Final = {
    "int": "a whole number",
    "int | null": "a whole number",
    "float": "a number",
    "str": "a text",
    "str | null": "a text",
    "bool": "true or false",
    "object": "an object {…}",
    "array": "a list […]",
    "null": "null",
}
"""The names of decoder types in error messages."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


@dataclass(frozen=True, slots=True)
class Listed:
    """One server of the list."""

    address: str
    name: str = ""
    reconnect: tuple[float, ...] = RECONNECT
    timeout: float = TIMEOUT
    fields: Mapping[str, Any] | None = None
    """The address fields of this server, which it adds to each message."""

    def __post_init__(self) -> None:
        if not self.reconnect:
            raise ValueError("reconnectSchedule: at least one delay is needed")
        if self.reconnect[-1] < LEAST:
            raise ValueError(
                f"reconnectSchedule: the last delay repeats and must be at least {LEAST * 1000:g}ms,"
                f" not {self.reconnect[-1]:g} s"
            )


class ServersError(ValueError):
    """A list of servers is invalid. The text names the faulty place."""


class _Connection(msgspec.Struct, rename={"reconnect": "reconnectSchedule"}):
    """The `connection` of an entry."""

    port: int | None = None
    host: str = "127.0.0.1"
    url: str | None = None
    reconnect: Any = None
    timeout: Any = None


class _Entry(msgspec.Struct):
    """One entry of the file."""

    connection: _Connection
    name: str = ""
    enabled: bool = True
    address: dict[str, Any] = {}


def listed(servers: str | Sequence[str | Listed] | None, *, port: int = DEFAULT_PORT) -> list[Listed]:
    """The servers of an argument: `tcp://HOST:PORT`, `HOST:PORT`, `PORT`, or several separated by commas."""
    if servers is None:
        return []
    given: list[str | Listed] = []
    for item in servers.split(",") if isinstance(servers, str) else servers:
        if isinstance(item, Listed):
            given.append(item)
        else:
            check_type("a server", item, str, "a text such as HOST:PORT")
            given.extend(part.strip() for part in item.split(",") if part.strip())
    if isinstance(servers, str) and servers.strip() and not given:
        raise ServersError(f"the list of servers names no server: {servers!r}")
    found: dict[str, Listed] = {}
    for item in given:
        server = item if isinstance(item, Listed) else Listed(address_of(item, port=port))
        found.setdefault(server.address, server)
    return list(found.values())


def address_of(text: str, *, port: int = DEFAULT_PORT) -> str:
    """The full address for `tcp://HOST:PORT`, `unix:PATH`, `HOST:PORT`, `HOST` or `PORT`."""
    try:
        address = parse(_whole(text, port))
        _check_port(address)
        return str(address)
    except ValueError as error:
        raise ServersError(
            f"not a server: {text!r} (write HOST:PORT, PORT, tcp://HOST:PORT or unix:PATH): {error}"
        ) from error


def _check_port(address: Address) -> None:
    """Port 0 is for listening on a free port only. Raises ValueError."""
    if not address.path and not address.port:
        raise ValueError("no server can be reached at port 0")


def _whole(text: str, port: int) -> str:
    """Complete an address with scheme, host and port."""
    if text.startswith("memory:"):
        raise ValueError("other processes can't reach it")
    if "://" in text or text.startswith("unix:"):
        return text
    if text.isdecimal():
        return f"tcp://127.0.0.1:{text}"
    if text.count(":") > 1 and not text.startswith("["):
        return f"tcp://[{text}]:{port}"
    has_port = text.rpartition("]")[2].startswith(":") if text.startswith("[") else ":" in text
    return f"tcp://{text}" if has_port else f"tcp://{text}:{port}"


def read_file(path: str | PathLike[str]) -> list[Listed]:
    """The enabled servers of a file in the format of servers.json. Raises ServersError."""
    path = Path(path)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ServersError(f"can't read {path}: {error}") from error
    if not text.strip():
        raise ServersError(f"{path} is empty; write [] for no servers")
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ServersError(
            f"{path} is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ServersError(f"{path}: {error}") from error
    try:
        entries = msgspec.convert(given, list[_Entry])
    except (msgspec.ValidationError, RecursionError) as error:
        raise ServersError(f"{path}{_located_error(str(error), given)}") from error
    _warn_unknown(path, given)
    _warn_duplicates(path, entries)
    found: dict[str, Listed] = {}
    for number, entry in enumerate(entries):
        where = f"{path}, entry {number + 1}" + (f" ({entry.name})" if entry.name else "")
        if not entry.enabled:
            continue
        try:
            server = _server(entry)
        except ValueError as error:
            raise ServersError(f"{where}: {error}") from error
        if server.address in found:
            raise ServersError(f"{where}: {server.address} is in the list twice")
        found[server.address] = server
    return list(found.values())


def _located_error(message: str, given: Any) -> str:
    """A decoder's error, with the place in the file."""
    what, _, where = message.partition(" - at ")
    found = _PLACE.match(where)
    if found is None:  # the error is not in an entry
        return f": {_readable_error(what)}"
    entry = given[int(found[1])]
    name = entry.get("name") if isinstance(entry, dict) else None
    text = f", entry {int(found[1]) + 1}" + f" ({name})" * isinstance(name, str)
    place = found[2].strip(".")
    return f"{text}: {place}: {_readable_error(what)}" if place else f"{text}: {_readable_error(what)}"


def _readable_error(message: str) -> str:
    """A decoder's error with the type names of JSON."""
    if found := _LACKING.match(message):
        return f"{found[1]!r} is missing"
    if found := _EXPECTED.match(message):
        wanted, got = (_TYPES.get(kind, kind) for kind in found.groups())
        return f"{wanted} is expected, not {got}"
    return message


def _warn_duplicates(path: Path, entries: "Sequence[_Entry]") -> None:
    """Warn about a name that several servers have. It must identify one node, as for --mirror-of."""
    names = Counter(entry.name for entry in entries if entry.enabled and entry.name)
    for name in [name for name, count in names.items() if count > 1]:
        log.warning("%s: %d servers have the name %r; give each its own name", path, names[name], name)


def _warn_unknown(path: Path, entries: list[dict[str, Any]]) -> None:
    """Warn about unknown settings: those of other programs, or misspelt ones."""
    unused: dict[str, str] = {}
    for entry in entries:
        for kind, given in ((_Entry, entry), (_Connection, entry["connection"])):
            known = {name.lower(): name for name in kind.__struct_encode_fields__}
            for name in given.keys() - set(known.values()):
                close = get_close_matches(name.lower(), known, 1)
                unused[name] = known[close[0]] if close else ""
    if unused:
        names = (f"{name!r}" + f" (is {meant!r} meant?)" * bool(meant) for name, meant in sorted(unused.items()))
        log.warning("%s: unknown settings: %s", path, ", ".join(names))


def _server(entry: _Entry) -> Listed:
    connection = entry.connection
    if connection.url is not None:
        found = parse(connection.url)
        _check_port(found)
        address = str(found)
    elif connection.port is None:
        raise ValueError("connection: needs a port or a url")
    else:
        if not 0 < connection.port < 1 << 16:
            raise ValueError(f"connection: {connection.port} is not a valid port")
        address = address_of(f"{connection.host}:{connection.port}")
    delays = connection.reconnect
    schedule = (
        RECONNECT
        if delays is None
        else tuple(span(delay) for delay in (delays if isinstance(delays, list) else [delays]))
    )
    timeout = TIMEOUT if connection.timeout is None else span(connection.timeout)
    return Listed(address, entry.name, schedule, timeout or TIMEOUT, entry.address)


def span(given: object) -> float:
    """Seconds: a number, `10s`, `500ms`, or a span as kdb+ writes it (`0D00:01` is a minute)."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise ValueError(f"not a time span: {given!r}")  # noqa: TRY004 - an error in the file, not of a caller
    if not isinstance(given, str):
        if not 0 <= given < float("inf"):
            raise ValueError(f"not a time span: {given!r}")
        return float(given)
    if found := _SPAN.match(given):
        days, hours, minutes, seconds, parts = found.groups()
        return int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0) + float(parts or 0)
    if found := _SECONDS.match(given):
        return float(found[1]) * _UNITS[found[2]]
    raise ValueError(f"not a time span: {given!r} (write seconds, 10s, 500ms or 0D00:01)")


def chosen(
    argument: str | Sequence[str | Listed] | None, line: str | None, file: str | PathLike[str] | None
) -> list[Listed]:
    """The servers of the first given source: argument, command line or file. It counts even if it is empty."""
    for given in (argument, line):
        if given is not None:
            return listed(given)
    return [] if file is None else read_file(file)
