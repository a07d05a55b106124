"""What can be set: the broker's limits and times, TLS, and what a publish does while there is no connection.

Frozen values. They check themselves when made, so the rest of the code never meets a setting that can't be.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import iscoroutinefunction
from typing import Final, Literal, TypeAlias

KiB: Final = 1024
MiB: Final = 1024 * KiB

DEFAULT_URL: Final = "tcp://127.0.0.1:7420"
DEFAULT_PORT: Final = 7420
URL_VARIABLE: Final = "BUSWAY_URL"

Policy: TypeAlias = Literal["block", "drop_oldest", "drop_new", "disconnect"]
POLICIES: Final[tuple[Policy, ...]] = ("block", "drop_oldest", "drop_new", "disconnect")
"""What happens to a subscription whose queue is full; the position is the policy's number on the wire."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Keep what is published while disconnected, up to so many payload and topic bytes, none older than `age` seconds."""

    bytes: int = 8 * MiB
    age: float = 30.0

    def __post_init__(self) -> None:
        if self.bytes <= 0 or self.age <= 0:
            raise ValueError("bytes and age of a Buffer must be above zero")


Offline: TypeAlias = Literal["fail"] | Buffer
"""What a publish does while there is no connection: fail at once, or wait in a buffer."""


@dataclass(frozen=True, slots=True)
class TLS:
    """Certificates of one end of a tls:// connection; all but `server_name` are paths of PEM files.

    A server needs `cert` and `key`; with `ca` it asks its clients for a certificate that this authority signed (mutual
    authentication). A client trusts `ca` (without one: the system's authorities) and shows `cert` if it has one.
    """

    cert: str | None = None
    key: str | None = None
    ca: str | None = None
    verify: bool = True
    server_name: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.cert is None:
            raise ValueError("a key without its certificate")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who knocks at the broker, as `Settings.authenticate` gets to see it."""

    name: str
    session: int
    credentials: str | bytes | None
    agent: str
    transport: str
    peer: str
    peer_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Limits and times of a broker. Bytes and counts are per connection, times are seconds."""

    frame: int = 8 * MiB
    topic: int = 1024
    fields: int = 64 * KiB
    subscriptions: int = 131_072
    expressions: int = 1024
    outbox: int = 16 * MiB
    topics: int = 65_536
    senders: int = 4096
    pending: int = 65_536
    connections: int = 65_536
    stall: float = 0.5
    heartbeat: float = 15.0
    handshake: float = 5.0
    drain: float = 5.0
    servers: tuple[str, ...] = ()
    """Addresses told to the clients, to be tried when this broker is gone."""
    authenticate: Callable[[Caller], bool] | None = None
    """Decides whether a client may come in, by returning True; without it everybody may. A plain function, not a coroutine."""

    def __post_init__(self) -> None:
        if iscoroutinefunction(self.authenticate):
            raise ValueError(
                "authenticate must be a plain function that returns True or False, not a coroutine function"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and (value < 0 or (value == 0 and field.name not in {"stall", "drain"})):
                raise ValueError(f"the setting {field.name} must be above zero, not {value}")
        if self.frame < KiB:
            raise ValueError("the setting frame must be 1024 or more: the handshake has to fit")
        if self.frame >= 2**32:
            raise ValueError("the setting frame must fit in 32 bits")
        if self.topic > 65_535:
            raise ValueError("the setting topic must fit in 16 bits")
