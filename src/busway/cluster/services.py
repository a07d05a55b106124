"""Control messages between nodes about requests to shared services.

Asks, calls and replies themselves go through the engine. The broker's services call this module for messages to other
nodes, and `links` for received frames.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from busway.broker.peers import ServicePeers
from busway.cluster.node import Stranger
from busway.cluster.protocol import MOVED, TERMS, NodeProtocolHandler

if TYPE_CHECKING:
    from busway.broker.hub import Hub

_DRIVEN: Final = 1 << 63
"""The bit that the engine adds to the numbers of its own asks and calls."""

_seconds: Final = msgspec.msgpack.Decoder(float)


class Services(NodeProtocolHandler, ServicePeers):
    """The control messages of one hub's shared services."""

    kinds = frozenset({TERMS, MOVED})

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub

    def terms(self, conn: int, call: int, each: float) -> None:
        self._hub.engine.node(conn, TERMS, call | _DRIVEN, msgspec.msgpack.encode(each))

    def moved(self, conn: int, number: int) -> None:
        self._hub.engine.node(conn, MOVED, number, b"")

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        """Handle a control message of another node. Raises Stranger."""
        asking, now = self._hub.services.asking, self._hub.loop.time()
        if kind == MOVED:
            asking.moved(conn, number & ~_DRIVEN, now)
            return
        try:
            each = _seconds.decode(body)
        except msgspec.MsgspecError as error:
            raise Stranger(f"invalid time limit for providers: {error}") from error
        asking.terms(conn, number, each, now)
        self._hub.clock.arm()
