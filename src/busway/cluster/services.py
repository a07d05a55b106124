"""Control messages between nodes about requests to shared services.

Asks, calls and replies themselves go through the engine. The broker's services call this module for messages to other
nodes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from busway.broker.peers import ServicePeers
from busway.cluster.links.calls import Call, Calls
from busway.cluster.protocol import MOVED, TERMS

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime
    from busway.broker.services.requests import SharedRequests

_DRIVEN: Final = 1 << 63
"""The bit that the engine adds to the numbers of its own asks and calls."""

LIMIT: Final = Call[float, None](TERMS, "time limit for providers", float)
NEXT: Final = Call[None, None](MOVED, "move of a request", None)


class Services(ServicePeers):
    """The control messages of one broker's shared services."""

    def __init__(self, runtime: "Runtime", calls: Calls, requests: "Callable[[], SharedRequests]") -> None:
        self._runtime = runtime
        self._requests = requests
        self._calls = calls
        calls.on(LIMIT, self._limited)
        calls.on(NEXT, self._moved)

    def terms(self, conn: int, call: int, each: float) -> None:
        self._calls.tell(conn, LIMIT, each, call | _DRIVEN)

    def moved(self, conn: int, number: int) -> None:
        self._calls.tell(conn, NEXT, None, number)

    def _limited(self, conn: int, number: int, each: float) -> None:
        self._requests().terms(conn, number, each, self._runtime.loop.time())
        self._runtime.arm()

    def _moved(self, conn: int, number: int, _: None) -> None:
        self._requests().moved(conn, number & ~_DRIVEN, self._runtime.loop.time())
