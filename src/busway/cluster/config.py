"""What a broker is told about its cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Final

from busway.cluster.failover.lease import PATIENCE, SILENCE
from busway.cluster.members.discovery import available
from busway.cluster.members.servers_file import Listed, listed
from busway.cluster.node import MOST_ADDRESSES
from busway.common.checks import check_seconds, check_timeout, check_type
from busway.common.durations import Seconds
from busway.settings import TLS
from busway.transport.address import parse

DEFAULT: Final = "busway"
"""The cluster of servers that were given a list of others, but no name."""
_LONGEST: Final = 255
_LEAST: Final = 2 * PATIENCE
"""Of `takeover`: two sides of a cut notice it up to three seconds apart, for silence is counted in whole ones and asked for every other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A broker's place in a cluster."""

    name: str = DEFAULT
    servers: Sequence[str | Listed] = ()
    """Others of it, one is enough; the server itself may be among them."""
    key: str | bytes | None = None
    """What only its nodes know; None: everybody who knows the name may join."""
    advertise: Sequence[str] = ()
    """Where the others reach this one; none: where it listens, at 0.0.0.0 the addresses of its interfaces."""
    tls: TLS | None = None
    """For links that this one dials at tls:// addresses; None: as the server's own."""
    credentials: str | bytes | None = None
    """For the others' `Settings.authenticate`."""
    mirror_of: str | None = None
    """A node of which this one has a copy, by its name, guid or address."""
    mirror_wait: Seconds = Seconds(5.0)
    """Seconds that an acknowledgement waits for a mirror of this one, in streams that ask for that."""
    takeover: Seconds = Seconds(2 * PATIENCE)
    """Seconds after which the mirror of a node that is gone hands out of its channels, six or more. The same at all nodes."""
    discover: bool | Sequence[str] = False
    """Whether nodes of the local network are found by multicast DNS (needs `busway[mdns]`); or the addresses of the interfaces on which."""

    def __post_init__(self) -> None:
        check_type("cluster", self.name, str, "a str")
        if not 0 < len(self.name) <= _LONGEST:
            raise ValueError(f"the name of a cluster has from 1 to {_LONGEST} characters, not {len(self.name)}")
        check_type("key of a cluster", self.key, (str, bytes, NoneType), "a str, bytes or None")
        if self.key is not None and not self.key.strip():
            raise ValueError("the key of a cluster is empty; None is for a cluster that everybody may join")
        if len(self.advertise) > MOST_ADDRESSES:
            raise ValueError(f"{len(self.advertise)} addresses to advertise, the limit is {MOST_ADDRESSES}")
        for address in self.advertise:
            if parse(address).scheme == "memory":
                raise ValueError(f"other processes can't reach {address!r}")
        listed(self.servers)  # a wrong one is found here
        check_type("mirror_of", self.mirror_of, (str, NoneType), "the name, guid or address of a node, or None")
        if self.mirror_of == "":
            raise ValueError("mirror_of is the name, guid or address of a node, and is empty")
        object.__setattr__(self, "mirror_wait", check_timeout("mirror_wait", self.mirror_wait, forever=False))
        object.__setattr__(self, "takeover", check_seconds("takeover", self.takeover, zero=False))
        if self.takeover < _LEAST:
            raise ValueError(
                f"takeover is at least {_LEAST:g} seconds, not {self.takeover:g}: a link counts as lost when nothing was heard for {SILENCE} s, and a node"
                " that is cut off has to notice that and to stop driver out before its mirror begins, or both would hand out the same"
            )
        check_type("discover", self.discover, (bool, list, tuple), "True, False or a list of addresses of interfaces")
        if self.discover:
            available()

    @property
    def patience(self) -> float:
        """Seconds that a node without the others goes on driver out."""
        return self.takeover / 2

    @property
    def secret(self) -> bytes:
        return self.key.encode() if isinstance(self.key, str) else self.key or b""
