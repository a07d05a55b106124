"""Control messages between nodes about requests to shared services.

Asks, calls and replies themselves go through the engine. The broker's services call this module for messages to other
nodes, and `links` for received frames.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from busway.broker.peers import ServicePeers
from busway.cluster.node import Stranger
from busway.cluster.protocol import MOVED, TERMS, NodeProtocolHandler

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime
    from busway.broker.services.requests import SharedRequests

_DRIVEN: Final = 1 << 63
"""The bit that the engine adds to the numbers of its own asks and calls."""

_seconds: Final = msgspec.msgpack.Decoder(float)


class Services(NodeProtocolHandler, ServicePeers):
    """The control messages of one broker's shared services."""

    kinds = frozenset({TERMS, MOVED})

    def __init__(self, runtime: "Runtime", requests: "Callable[[], SharedRequests]") -> None:
        self._runtime = runtime
        self._requests = requests

    def terms(self, conn: int, call: int, each: float) -> None:
        self._runtime.engine.node(conn, TERMS, call | _DRIVEN, msgspec.msgpack.encode(each))

    def moved(self, conn: int, number: int) -> None:
        self._runtime.engine.node(conn, MOVED, number, b"")

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        """Handle a control message of another node. Raises Stranger."""
        requests, now = self._requests(), self._runtime.loop.time()
        if kind == MOVED:
            requests.moved(conn, number & ~_DRIVEN, now)
            return
        try:
            each = _seconds.decode(body)
        except msgspec.MsgspecError as error:
            raise Stranger(f"invalid time limit for providers: {error}") from error
        requests.terms(conn, number, each, now)
        self._runtime.arm()
