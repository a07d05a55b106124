"""Exposure: finds listeners that other hosts can reach without authentication. An `insecure` server allows them.

Rules only, called by the server and its doors. Users are the authentication of all doors. Without them
each listener needs its own: `Settings.authenticate` or client certificates for native addresses, keys for the HTTP port.
The links of a cluster need its key.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from busway.errors import ListenFailed
from busway.settings import TLS, Settings
from busway.transport import Address

NATIVE: Final = (
    "{at} is refused: other hosts can reach it, and its clients need not prove who they are. Give users with users=FILE "
    "(busway serve --users FILE), ask for certificates at "
    "a tls:// address with tls=TLS(cert=..., key=..., ca=...) "
    "(busway serve --tls HOST:PORT --cert FILE --key FILE --ca FILE), "
    "give authenticate= in busway.Settings, or bind to 127.0.0.1; insecure=True (busway serve --insecure) allows it"
)
HTTP: Final = (
    "{at} is refused: other hosts can reach it, and its clients need not prove who they are. "
    "Give users with users=FILE (busway serve --users FILE), give keys with busway.Http(keys=FILE) "
    "(busway serve --http-keys FILE), or bind to 127.0.0.1; "
    "insecure=True (busway serve --insecure) allows it"
)
CLUSTER: Final = (
    "a cluster at {at} without a key is refused: any host that reaches the address can join and change its streams. "
    "Give key=... to all nodes (busway serve --cluster-key-file FILE), or bind to 127.0.0.1; "
    "insecure=True (busway serve --insecure) allows it"
)

log = logging.getLogger("busway.broker")


@dataclass(frozen=True, slots=True)
class Exposure:
    """Whether a server may be open to other hosts without authentication."""

    insecure: bool = False
    keyless: bool = False
    """Whether the server is a node of a cluster without a key."""
    users: bool = False
    """Whether the server has users, so that clients have to log in."""

    def open(self, text: str, at: str, lack: str) -> None:
        """Log that other hosts can reach an address without `lack`, or raise ListenFailed if that is not allowed."""
        if not self.insecure:
            raise ListenFailed(text.format(at=at))
        log.warning("%s is open to other hosts without %s (insecure)", at, lack, extra={"address": at})

    def faults(self, exposed: Sequence[Address], settings: Settings, tls: TLS | None) -> Iterator[tuple[str, str, str]]:
        """For each native address that other hosts can reach: the error text, the address, and what is missing."""
        for address in exposed:
            mutual = address.scheme == "tls" and tls is not None and tls.ca is not None
            if settings.authenticate is None and not mutual and not self.users:
                yield NATIVE, str(address), "authentication"
        if exposed and self.keyless:
            yield CLUSTER, str(exposed[0]), "a key of the cluster"


CLOSED: Final = Exposure()
"""The exposure of a server that is not insecure."""
