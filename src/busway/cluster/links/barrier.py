"""Who waits until every linked node knows what the clients of this one want.

A machine. A round is a PING to every link, behind what it was told; it is over when each has answered or ended. Who comes while one
is under way waits for the next, so there is one PING on its way to a link at most, however many wait.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from busway.cluster.node import Node
from busway.cluster.protocol import NodeProtocolHandler

FIRST: Final = 1 << 32
"""Tokens from here on are of rounds."""

Done: TypeAlias = Callable[[], None]


class Barrier(NodeProtocolHandler):
    """The rounds of one node, with a function that says PING to a link."""

    def __init__(self, ping: Callable[[int, int], None]) -> None:
        self._ping = ping
        self._links: dict[int, None] = {}
        self._left: set[int] = set()
        """Links that have not answered in this round."""
        self._now: list[Done] = []
        self._next: list[Done] = []
        self._token = FIRST

    def wait(self, done: Done) -> None:
        """Call this when every linked node knows; at once if there is none."""
        self._next.append(done)
        self._look()

    def opened(self, conn: int, node: Node) -> None:  # noqa: ARG002 - whoever it is
        self._links[conn] = None

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - at whatever time
        self._links.pop(conn, None)
        self._left.discard(conn)
        self._look()

    def pong(self, conn: int, token: int) -> None:
        if token == self._token:
            self._left.discard(conn)
            self._look()

    def _look(self) -> None:
        """End the round if nobody is left, and begin another if somebody waits for it."""
        while not self._left:
            done, self._now = self._now, []
            for one in done:
                one()
            if self._left or not self._next:
                return
            self._now, self._next = self._next, []
            self._token += 1
            self._left = set(self._links)
            for conn in self._links:
                self._ping(conn, self._token)
