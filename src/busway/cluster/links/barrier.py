"""A barrier: waits until every linked node has processed all frames that this node has sent so far.

The mesh calls it before the broker answers SUBSCRIBE or SERVE. A round is a PING to every link; it ends when each link
has answered or closed. Callers that arrive during a round wait for the next one, so a link has at most one open PING.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from busway.cluster.node import Node
from busway.cluster.protocol import NodeProtocolHandler

FIRST: Final = 1 << 32
"""The first PING token of rounds."""

Done: TypeAlias = Callable[[], None]


class Barrier(NodeProtocolHandler):
    """The rounds of one node. `ping` sends a PING over a link."""

    def __init__(self, ping: Callable[[int, int], None]) -> None:
        self._ping = ping
        self._links: dict[int, None] = {}
        self._left: set[int] = set()
        """Links that have not answered in the current round."""
        self._now: list[Done] = []
        self._next: list[Done] = []
        self._token = FIRST

    def wait(self, done: Done) -> None:
        """Call `done` after the next round; at once without links."""
        self._next.append(done)
        self._advance()

    def opened(self, conn: int, node: Node) -> None:  # noqa: ARG002 - the link counts
        self._links[conn] = None

    def closed(self, conn: int, now: float) -> None:  # noqa: ARG002 - the same at any time
        self._links.pop(conn, None)
        self._left.discard(conn)
        self._advance()

    def pong(self, conn: int, token: int) -> None:
        if token == self._token:
            self._left.discard(conn)
            self._advance()

    def _advance(self) -> None:
        """End the round if no link is left, and start another if a caller waits."""
        while not self._left:
            done, self._now = self._now, []
            for callback in done:
                callback()
            if self._left or not self._next:
                return
            self._now, self._next = self._next, []
            self._token += 1
            self._left = set(self._links)
            for conn in self._links:
                self._ping(conn, self._token)
