"""The types of NODE frames between nodes, and the base class of their handlers.

The parts of the mesh subclass the handler; `links` calls it.
"""

from typing import Final

from busway.cluster.node import Node

SILENCE: Final = 5
"""Seconds without a frame after which a link counts as lost."""
SELF: Final = -1
"""Stands for a link to this node itself, which may have replicas of other nodes' streams."""

PROOF: Final = 1
MEMBERS: Final = 2
KEPT: Final = 3
PARTS: Final = 30
FETCH: Final = 31
LOCATE: Final = 33
DEFINED: Final = 35
PLACE: Final = 37
MIRROR: Final = 40
CONSUME: Final = 50
CONSUMER: Final = 51
OWNERS: Final = 41
PART: Final = 42
"""Replication of streams that a node owns by a promotion."""
CLAIM: Final = 43
SURVEY: Final = 60
TERMS: Final = 10
"""The time limit per provider of the ask or call with this number, in seconds."""
MOVED: Final = 11
"""The request with this number was moved to the next provider."""
ANSWER: Final = 12
"""The answer to the call with this number; see `links.calls`."""


class NodeProtocolHandler:
    """One part of a mesh. It gets the frames of its types while a link is open; methods do nothing by default."""

    kinds: frozenset[int] = frozenset()
    """The types of its NODE frames."""

    def opened(self, conn: int, node: Node) -> None:
        """A link to this node is open."""

    def closed(self, conn: int, now: float) -> None:
        """A link has ended."""

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        """A frame of one of its types has arrived. Raises Stranger for an invalid frame, which closes the link."""

    def pong(self, conn: int, token: int) -> None:
        """The answer to a PING has arrived on a link."""

    def room(self, conn: int) -> None:
        """The outbox of a connection has room. This covers clients too."""

    def expire(self, now: float) -> None:
        """Time has passed; `now` is that of the loop."""

    def deadline(self) -> float | None:
        """The time of the next call of expire(); None: not needed."""
        return None
