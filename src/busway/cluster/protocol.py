"""What nodes say to each other besides messages: the types of NODE frames, and what everyone does who says or hears some of them."""

from typing import ClassVar, Final

from busway.cluster.node import Node

SELF: Final = -1
"""In the place of a link: this node itself, which may have copies of what others store."""

PROOF: Final = 1
MEMBERS: Final = 2
KEPT: Final = 3
PARTS: Final = 30
FETCH: Final = 31
FETCHED: Final = 32
LOCATE: Final = 33
LOCATED: Final = 34
DEFINED: Final = 35
DONE: Final = 36
PLACE: Final = 37
PLACED: Final = 38
MIRROR: Final = 40
CONSUME: Final = 50
ANSWERED: Final = 51
GIVEN: Final = 52
MORE: Final = 53
ENDED: Final = 54
MISSING: Final = 55
TURN: Final = 41
"""Who hands out of whose channels, who could, and who is wanted to."""
SURVEY: Final = 60
SURVEYED: Final = 61
TERMS: Final = 10
"""How long each provider may take, of the ask or call with this number: seconds."""
MOVED: Final = 11
"""The request with this number has gone on to the next provider."""


class NodeProtocolHandler:
    """One matter of a mesh. Its frames come while a link is open; nothing of what it does not override happens."""

    kinds: ClassVar[frozenset[int]] = frozenset()
    """The types of NODE frames that are its own."""

    def opened(self, conn: int, node: Node) -> None:
        """There is a link to this node."""

    def closed(self, conn: int, now: float) -> None:
        """That link has ended."""

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:
        """A frame of one of its types. Raises Stranger for what can't be meant: that ends the link."""

    def pong(self, conn: int, token: int) -> None:
        """The answer to a PING on a link."""

    def room(self, conn: int) -> None:
        """Little waits for a connection; of clients, too."""

    def expire(self, now: float) -> None:
        """Time has passed."""

    def deadline(self) -> float | None:
        """When expire() has something to do."""
        return None
