"""Parses addresses of a bus: `unix:PATH`, `tcp://HOST:PORT`, `tls://HOST:PORT`, or `memory:NAME` in one event loop."""

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from busway.common.checks import check_type
from busway.settings import DEFAULT_PORT
from busway.transport.schemes import carriers

SCHEMES: Final = ("memory", "unix", "tcp", "tls")

_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104, only compared, no socket binds to it


@dataclass(frozen=True, slots=True)
class Address:
    """An address. `path` is the socket file or the memory name; TCP and TLS have `host` and `port`."""

    scheme: str
    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.scheme in {"memory", "unix"}:
            return f"{self.scheme}:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def everywhere(self) -> bool:
        """True if a server with this address listens on all addresses of its host."""
        return self.host in _ANY_HOST

    def reachable(self, port: int) -> "Address":
        """Return the address for clients on this host if a server listens here and the system chose `port`."""
        return replace(self, host=_ANY_HOST.get(self.host, self.host), port=port)


def parse(text: str) -> Address:
    """Parse an address. Raises ValueError if it is not valid."""
    check_type("an address", text, str, "a str such as tcp://HOST:PORT")
    scheme, colon, rest = text.partition(":")
    if scheme in {"http", "https", "ws", "wss"}:
        raise ValueError(
            f"not an address of the bus: {text!r} is for HTTP and WebSocket clients (native ones use tcp://HOST:PORT)"
        )
    if not colon or (scheme not in SCHEMES and scheme not in carriers):
        raise ValueError(f"not an address: {text!r} (write unix:PATH, tcp://HOST:PORT or tls://HOST:PORT)")
    if scheme == "memory":
        return Address("memory", path=rest)
    if scheme == "unix":
        path = rest.removeprefix("//")
        if not path:
            raise ValueError(f"not an address: {text!r} has no path (write unix:PATH)")
        return Address("unix", path=path)
    if not rest.startswith("//"):
        raise ValueError(f"not an address: {text!r} (write {scheme}://{rest})")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not an address: {text!r} ({error})") from error
    if parts.path not in {"", "/"} or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"not an address: {text!r} (give only host and port)")
    host = parts.hostname or "127.0.0.1"
    return Address(scheme, host=host, port=DEFAULT_PORT if port is None else port)
