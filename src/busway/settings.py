"""Configuration values: broker limits and times, TLS, client identity and the behaviour of a publish while offline.

Callers of `serve()` and `connect()` create them. They are frozen and check themselves when they are created.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from os import PathLike
from types import NoneType
from typing import Final, Literal, TypeAlias

from busway.common import environment
from busway.common.checks import check_callable, check_count, check_seconds, check_type
from busway.common.durations import Seconds

LEAST: Final = 16
"""Fewest bytes of a secret."""
MOST: Final = 64
"""Most bytes of a secret."""
_DRAWN: Final = 32
_NUMBER: Final = 8


def draw_secret() -> bytes:
    """Create a new random secret."""
    while True:
        secret = environment.randbits(8 * _DRAWN).to_bytes(_DRAWN)
        if session_of(secret):
            return secret


def session_of(secret: bytes) -> int:
    """The public number of the session with this secret: the first 8 bytes of its SHA-256, most significant first."""
    return int.from_bytes(sha256(secret).digest()[:_NUMBER])


def is_secret(secret: object, session: int) -> bool:
    """True if `secret` belongs to the session with this public number."""
    return isinstance(secret, bytes) and LEAST <= len(secret) <= MOST and session_of(secret) == session


KiB: Final = 1024
MiB: Final = 1024 * KiB

DEFAULT_URL: Final = "tcp://127.0.0.1:7420"
DEFAULT_PORT: Final = 7420
URL_VARIABLE: Final = "BUSWAY_URL"

Policy: TypeAlias = Literal["block", "drop_oldest", "drop_new", "disconnect"]
POLICIES: Final[tuple[Policy, ...]] = ("block", "drop_oldest", "drop_new", "disconnect")
"""What the broker does when the queue of a subscription is full. The index is the policy's number on the wire."""

Scope: TypeAlias = Literal["global", "local", "remote"]
SCOPES: Final[tuple[Scope, ...]] = ("global", "local", "remote")
"""Clients of the whole cluster, of the same node or of the other nodes. The index is the scope's number on the wire."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Keep messages that are published while disconnected: up to `bytes` of payloads and topics, for `age` seconds."""

    bytes: int = 8 * MiB
    age: Seconds = Seconds(30.0)

    def __post_init__(self) -> None:
        check_count("bytes of a Buffer", self.bytes)
        object.__setattr__(self, "age", check_seconds("age of a Buffer", self.age, zero=False))


Offline: TypeAlias = Literal["fail"] | Buffer
"""How a publish behaves while the client is disconnected: it fails at once, or the message waits in a buffer."""


def check_offline(offline: object) -> None:
    """Raise ValueError or TypeError unless the value is an Offline."""
    if offline != "fail" and not isinstance(offline, Buffer):
        wanted = 'offline must be "fail" or a busway.Buffer'
        raise (ValueError if isinstance(offline, str) else TypeError)(f"{wanted}, not {offline!r}")


Wait: TypeAlias = Literal["cluster"]
"""What a registration waits for besides its broker: "cluster" waits until every node of the cluster knows it."""


def check_wait(wait: object) -> None:
    """Raise ValueError or TypeError unless the value is a Wait or None."""
    if wait is not None and wait != "cluster":
        raise (ValueError if isinstance(wait, str) else TypeError)(f'wait must be "cluster" or None, not {wait!r}')


def check_scope(scope: object) -> int:
    """Return the wire number of a scope. Raises ValueError or TypeError if the value is not a Scope."""
    if scope not in SCOPES:
        wanted = f"scope must be one of {', '.join(map(repr, SCOPES))}"
        raise (ValueError if isinstance(scope, str) else TypeError)(f"{wanted}, not {scope!r}")
    return SCOPES.index(scope)


@dataclass(frozen=True, slots=True)
class TLS:
    """Certificates of one end of a tls:// connection. `cert`, `key` and `ca` are paths of PEM files.

    A server needs `cert` and `key`. If `ca` is set, it requires that clients present a certificate signed by that
    authority (mutual authentication). A client trusts `ca` (the system's authorities if None) and presents `cert`.
    """

    cert: str | PathLike[str] | None = None
    key: str | PathLike[str] | None = None
    ca: str | PathLike[str] | None = None
    verify: bool = True
    server_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("cert", "key", "ca"):
            check_type(f"{name} of TLS", getattr(self, name), (str, PathLike, NoneType), "the path of a file or None")
        check_type("server_name of TLS", self.server_name, (str, NoneType), "a str or None")
        check_type("verify of TLS", self.verify, bool, "True or False")
        if self.key is not None and self.cert is None:
            raise ValueError("TLS has a key but no certificate: set cert, too")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a client that keeps its session when its process restarts.

    Only one client with an identity can be connected. The broker keeps the one with the higher generation, or the newer
    one if both are equal, and closes the other for good. It remembers generations until it stops. After a restart the
    client numbers its messages from 1, and the broker treats a message with a stored number as a duplicate: see
    Feed.skip().
    """

    secret: bytes = field(repr=False)
    """16 to 64 random bytes known only to this client. They prove its identity to the broker."""
    generation: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes):  # the error must not contain the secret
            raise TypeError(f"the secret of an Identity must be bytes, not {type(self.secret).__name__}")
        if not LEAST <= len(self.secret) <= MOST or not self.session:
            raise ValueError(f"the secret of an Identity must have {LEAST} to {MOST} random bytes")
        value: object = self.generation
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
            raise ValueError(f"the generation of an Identity must be a number from 0 to 2**64-1, but is {value!r}")

    @property
    def session(self) -> int:
        """The public 64-bit number of the session. The ids of this client's messages begin with it."""
        return session_of(self.secret)


@dataclass(frozen=True, slots=True)
class Caller:
    """A client that connects to the broker, as passed to `Settings.authenticate`."""

    name: str
    session: int
    credentials: str | bytes | None
    agent: str
    transport: str
    peer: str
    peer_name: str
    user: str = ""
    """The user that the client says it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Limits and times of a broker. Bytes and counts are per connection unless stated otherwise; times are seconds."""

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
    logins: int = 4096
    """Most connections that have not logged in yet. Above it the oldest of them is closed."""
    patience: Seconds = Seconds(30.0)
    stall: Seconds = Seconds(0.5)
    heartbeat: Seconds = Seconds(15.0)
    handshake: Seconds = Seconds(5.0)
    drain: Seconds = Seconds(5.0)
    streams: int = 1000
    """Most streams of the broker."""
    interest: int = 1_048_576
    """Most subscriptions and services that another node of the cluster may announce."""
    min_free_disk: int | None = None
    """Free bytes on the data folder's disk below which the broker refuses durable publishes to streams on that disk.
    None: 2 % of the disk, at most 256 MiB. 0: the broker refuses nothing before the disk is full."""
    kept: int = 4096
    kept_bytes: int = 16 * MiB
    grace: Seconds = Seconds(10.0)
    provider_timeout: Seconds = Seconds(2.0)
    servers: Sequence[str] = ()
    """Addresses that the broker sends to its clients, which try them when this broker is unreachable."""
    authenticate: Callable[[Caller], bool | str | Awaitable[bool | str]] | None = None
    """A function, plain or async, that returns True to admit a client, or the name of its user in the users file.

    It has the time of `handshake`. A plain function must not block. Without users and without it every client is admitted.
    """

    def __post_init__(self) -> None:
        check_callable("the setting authenticate", self.authenticate)
        for setting in fields(self):
            name = setting.name
            value = getattr(self, name)
            if setting.type is int:
                check_count(f"the setting {name}", value)
            elif setting.type is float:
                seconds = check_seconds(f"the setting {name}", value, zero=name in {"stall", "drain", "grace"})
                object.__setattr__(self, name, seconds)
        if self.min_free_disk:
            check_count("the setting min_free_disk", self.min_free_disk)
        elif self.min_free_disk is not None:
            check_type("the setting min_free_disk", self.min_free_disk, int, "a number of bytes or None")
        if isinstance(self.servers, str) or not isinstance(self.servers, Sequence):
            raise TypeError(f"the setting servers must be a list of addresses, not {self.servers!r}")
        for server in self.servers:
            check_type("each of the setting servers", server, str, "an address, as a str")
        object.__setattr__(self, "servers", tuple(self.servers))  # later changes of the caller's list have no effect
        if self.frame < KiB:
            raise ValueError("the setting frame must be 1024 or more: the handshake must fit in a frame")
        for name in ("frame", "fields", "topics"):
            if getattr(self, name) >= 2**32:
                raise ValueError(f"the setting {name} must fit in 32 bits")
        if self.topic > 65_535:
            raise ValueError("the setting topic must fit in 16 bits")
