"""The cluster settings of a broker, as passed to `busway.serve`."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Final

from busway.cluster.members.discovery import available
from busway.cluster.members.servers_file import Listed, listed
from busway.cluster.node import MOST_ADDRESSES
from busway.common.checks import check_timeout, check_type
from busway.common.durations import Seconds
from busway.settings import TLS
from busway.transport.address import parse

DEFAULT: Final = "busway"
"""The name of a cluster that was configured by a list of servers only."""
_LONGEST: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The settings of a broker as a node of a cluster."""

    name: str = DEFAULT
    servers: Sequence[str | Listed] = ()
    """Servers of the cluster. One other server is enough, and the server itself may be among them."""
    key: str | bytes | None = None
    """A secret that all nodes have; None: every broker that knows the name may join."""
    advertise: Sequence[str] = ()
    """The addresses at which other nodes reach this one; none: those where it listens, or of its interfaces."""
    tls: TLS | None = None
    """TLS settings for links dialled at tls:// addresses; None: those of the server."""
    credentials: str | bytes | None = None
    """Credentials for `Settings.authenticate` of the other nodes."""
    mirror_of: str | None = None
    """The node that this one mirrors: its name, guid or address."""
    mirror_wait: Seconds = Seconds(5.0)
    """Seconds that an acknowledgement waits for a mirror in streams with safety=mirrored."""
    discover: bool | Sequence[str] = False
    """Find nodes of the local network by multicast DNS (needs `busway[mdns]`): True, or addresses of interfaces."""

    def __post_init__(self) -> None:
        check_type("cluster", self.name, str, "a str")
        if not 0 < len(self.name) <= _LONGEST:
            raise ValueError(f"the name of a cluster has from 1 to {_LONGEST} characters, not {len(self.name)}")
        check_type("key of a cluster", self.key, (str, bytes, NoneType), "a str, bytes or None")
        if self.key is not None and not self.key.strip():
            raise ValueError("the key of a cluster is empty; use None for a cluster without a key")
        if len(self.advertise) > MOST_ADDRESSES:
            raise ValueError(f"{len(self.advertise)} addresses to advertise, the limit is {MOST_ADDRESSES}")
        for address in self.advertise:
            if parse(address).scheme == "memory":
                raise ValueError(f"can't advertise {address!r}: other processes can't reach it")
        listed(self.servers)  # raises for an invalid one
        check_type("mirror_of", self.mirror_of, (str, NoneType), "the name, guid or address of a node, or None")
        if self.mirror_of == "":
            raise ValueError("mirror_of is empty; it must be the name, guid or address of a node")
        object.__setattr__(self, "mirror_wait", check_timeout("mirror_wait", self.mirror_wait, forever=False))
        check_type("discover", self.discover, (bool, list, tuple), "True, False or a list of addresses of interfaces")
        if self.discover:
            available()

    @property
    def secret(self) -> bytes:
        """The key as bytes; empty without a key."""
        return self.key.encode() if isinstance(self.key, str) else self.key or b""
