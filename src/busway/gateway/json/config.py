"""Settings of the JSON door: `Http`, a frozen value that checks itself when a caller of `busway.serve` makes it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from os import PathLike
from types import NoneType
from typing import Final
from urllib.parse import urlsplit

from busway.common.checks import check_count, check_seconds, check_type
from busway.common.durations import Seconds
from busway.settings import KiB, MiB

DEFAULT: Final = "127.0.0.1:15555"
"""The default address of the JSON door."""
ALL: Final = "*"
"""As a host: any name. As an origin: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """The JSON door of a server: queues, services and publish/subscribe over HTTP and WebSocket, on one port."""

    address: str = DEFAULT
    """HOST:PORT, with port 0 for any; `[::1]:15555` for IPv6."""
    cors: Sequence[str] = ()
    """Origins whose pages may call the door, such as `https://example.org`; `*`: all. Empty: only its own origin."""
    hosts: Sequence[str] = ()
    """Names by which clients reach the door, such as `bus.example`; `*`: any name.

    The door always answers for localhost and the address that it listens on; if that is not loopback, also for every
    IP address.
    """
    keys: str | PathLike[str] | None = None
    """A file of keys. Without keys every client may do everything."""
    body: int = 8 * MiB
    """Largest size of an HTTP request body or a WebSocket message, in bytes."""
    head: int = 16 * KiB
    """Largest size of the request line and of each header of an HTTP request, in bytes."""
    slow: Seconds = Seconds(30.0)
    """Seconds within which a request must have arrived."""
    idle: Seconds = Seconds(180.0)
    """Seconds of silence after which the door closes a WebSocket."""
    stall: Seconds = Seconds(30.0)
    """Seconds after which the door closes a client that reads none of its queued messages."""
    call: Seconds = Seconds(10.0)
    """Seconds that a service has for an answer, unless the caller sets a timeout."""
    longest: Seconds = Seconds(300.0)
    """Longest time that a request may wait."""
    pending: int = 1024
    """Unanswered requests per client; the door reads no more from a client that has this many."""
    clients: int = 20_000
    """WebSockets at a time. The door refuses more with 503."""
    aside: int = 1024
    """Messages per channel that the door holds while no filter of a subscriber matches them."""
    memory_count: int = 100_000
    """Messages that a queue in memory keeps; the oldest are removed."""
    memory_bytes: int = 64 * MiB
    """Bytes of messages that a queue in memory keeps; the oldest are removed."""

    def __post_init__(self) -> None:
        host_port(self.address)
        check_type("keys of Http", self.keys, (str, PathLike, NoneType), "the path of a file or None")
        if isinstance(self.cors, str) or not isinstance(self.cors, Sequence):
            raise TypeError(f"cors of Http must be a list of origins, not {self.cors!r}")
        for origin in self.cors:
            check_type("each origin of cors", origin, str, "a str")
        if isinstance(self.hosts, str) or not isinstance(self.hosts, Sequence):
            raise TypeError(f"hosts of Http must be a list of names, not {self.hosts!r}")
        for host in self.hosts:
            check_type("each name of hosts", host, str, "a str")
            check_host(host)
        object.__setattr__(self, "cors", tuple(self.cors))  # the caller may change its list later
        object.__setattr__(self, "hosts", tuple(self.hosts))
        for field in fields(self):
            if field.type is int:
                check_count(f"{field.name} of Http", getattr(self, field.name))
            elif field.type is float:
                seconds = check_seconds(f"{field.name} of Http", getattr(self, field.name), zero=False)
                object.__setattr__(self, field.name, seconds)


def host_port(address: object) -> tuple[str, int]:
    """Host and port of an address. Raises TypeError or ValueError."""
    if not isinstance(address, str):
        raise TypeError(f"the address of the JSON door must be HOST:PORT, not {address!r}")
    host, colon, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not an address of the JSON door: write HOST:PORT, such as {DEFAULT}")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_host(name: str) -> None:
    """Raises ValueError if `name` can't be the name of a host."""
    if name != ALL and host_name(name) != name.lower():
        raise ValueError(
            f"{name!r} is not the name of a host: write it without scheme and port, such as bus.example, or * for any"
        )


def host_name(host: str) -> str | None:
    """The name in a Host header, without port; None if the header has none."""
    if set(host) & set("@/?#\\ "):
        return None
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".") or None
    except ValueError:
        return None
