"""A connection to another node: its handshake state, and the session of a connection that this broker dialled.

`links` owns them. `membership` decides which of several connections to a node counts.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from busway.broker.session import Session
from busway.cluster.links.key_proof import NONCE, prove
from busway.cluster.node import Node
from busway.common import environment

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime


@dataclass(slots=True, eq=False)
class Peer:
    """The state of a connection to another node."""

    session: Session
    attempt: int | None
    nonce: bytes
    """This side's nonce."""
    node: Node | None = None
    other_nonce: bytes = b""
    """The other side's nonce."""
    received_proof: bytes | None = None
    """The other side's proof, which may arrive before this side admits the link."""
    welcomed: bool = False
    admitted: bool = False
    linked: bool = False
    synced: bool = False
    trip: float = 0.0
    probed_at: float = 0.0

    def proof(self, secret: bytes, me: str, *, ours: bool) -> bytes:
        """This side's proof of the key, or the one that the other side must send."""
        if self.node is None:
            raise RuntimeError("the other node is not known yet")
        mine = self.attempt is not None
        nonces = (self.nonce, self.other_nonce) if mine else (self.other_nonce, self.nonce)
        guids = (me, self.node.guid) if mine else (self.node.guid, me)
        return prove(secret, dialler=nonces[0], acceptor=nonces[1], guids=guids, dialled=mine == ours)


class Outgoing(Session):
    """A connection that this broker has dialled."""

    __slots__ = ("_hello", "_made")

    dialled = True
    _awaited = "WELCOME"

    def __init__(self, runtime: "Runtime", scheme: str, hello: bytes, made: "Callable[[Outgoing], None]") -> None:
        super().__init__(runtime, scheme)
        self._hello = hello
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and not self.accepted and not self.fault:
            wants = "a certificate that this node does not send" if self.scheme == "tls" else "TLS"
            self.fault = f"the other side closed the connection at once: it is no broker, or it requires {wants}"
        super().connection_lost(exc)

    def not_understood(self, text: str) -> str:
        return text if self.accepted else f"no broker answers at this address, check the port ({text})"

    def _enter(self, write: Callable[[memoryview], object]) -> int:
        return self._runtime.engine.dial(write, self._hello)


def new_nonce() -> bytes:
    return environment.randbits(8 * NONCE).to_bytes(NONCE)
