"""What can be set of the JSON door. A frozen value that checks itself when made."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from os import PathLike
from types import NoneType
from typing import Final

from busway.common.checks import check_count, check_seconds, check_type
from busway.common.durations import Seconds
from busway.gateway.http.origins import check_host
from busway.settings import KiB, MiB

DEFAULT: Final = "127.0.0.1:15555"
"""Where it listens if nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """The JSON door of a server: queues, services and publish/subscribe over HTTP and WebSocket, on one port."""

    address: str = DEFAULT
    """HOST:PORT, with port 0 for any; `[::1]:15555` for IPv6."""
    cors: Sequence[str] = ()
    """Origins whose pages may call it, such as `https://example.org`; `*`: all. None: pages of its own origin only."""
    hosts: Sequence[str] = ()
    """Names by which clients reach it, such as `bus.example`, besides localhost, the address it listens on and, if that is not loopback,
    every IP address; `*`: any name."""
    keys: str | PathLike[str] | None = None
    """A file of keys: without one everybody may do everything."""
    body: int = 8 * MiB
    """Longest request: the body of an HTTP request, or a message of a WebSocket."""
    head: int = 16 * KiB
    """Longest line of an HTTP request, and longest header."""
    slow: Seconds = Seconds(30.0)
    """Seconds in which a request has to be there."""
    idle: Seconds = Seconds(180.0)
    """Seconds of silence after which a WebSocket is closed."""
    stall: Seconds = Seconds(30.0)
    """Seconds after which a client that takes nothing of what waits for it is told so and closed."""
    call: Seconds = Seconds(10.0)
    """Seconds that a service has for an answer, if the caller does not say."""
    longest: Seconds = Seconds(300.0)
    """Longest time that a request may wait."""
    pending: int = 1024
    """Requests of one client that are under way; it is not read from beyond that."""
    clients: int = 20_000
    """WebSockets at a time; beyond that commands are refused with 503."""
    aside: int = 1024
    """Messages of a channel that no filter of its subscribers takes, and that wait for one who does."""
    memory_count: int = 100_000
    """Messages that a queue in memory keeps; the oldest go."""
    memory_bytes: int = 64 * MiB
    """And bytes of them."""

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
        object.__setattr__(self, "cors", tuple(self.cors))  # a value doesn't change under its holder
        object.__setattr__(self, "hosts", tuple(self.hosts))
        for field in fields(self):
            if field.type is int:
                check_count(f"{field.name} of Http", getattr(self, field.name))
            elif field.type is float:
                seconds = check_seconds(f"{field.name} of Http", getattr(self, field.name), zero=False)
                object.__setattr__(self, field.name, seconds)


def host_port(address: object) -> tuple[str, int]:
    """The two parts of an address. Raises TypeError or ValueError."""
    if not isinstance(address, str):
        raise TypeError(f"the address of the JSON door must be HOST:PORT, not {address!r}")
    host, colon, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is no address of the JSON door: write HOST:PORT, such as {DEFAULT}")
    return host.strip("[]") or "127.0.0.1", int(port)
