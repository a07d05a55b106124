"""What the membership of a cluster wants done: the words between the machine and its driver."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from busway.cluster.node import Node, Sighting
from busway.errors import Code

Kind: TypeAlias = Literal["up", "down", "refused", "conflict", "forgotten", "missing"]


@dataclass(frozen=True, slots=True)
class Dial:
    """Try these addresses, one after the other; the answer is `failed` or `greeted`."""

    attempt: int
    addresses: tuple[str, ...]
    timeout: float


@dataclass(frozen=True, slots=True)
class Admit:
    """Go on with this connection: welcome the node if it has dialled, and exchange proofs; the answer is `proved` or `lost`."""

    conn: int
    node: Node


@dataclass(frozen=True, slots=True)
class Refuse:
    """Close this connection with this code; nothing is heard of it any more."""

    conn: int
    code: int
    text: str

    @property
    def welcome(self) -> bool:
        """Whether a node that has dialled is told first whom it has reached, so that it need not ask again."""
        return self.code == Code.LINKED


@dataclass(frozen=True, slots=True)
class Probe:
    """See whether somebody is at the other end of this link; the answer is `alive`, or nothing."""

    conn: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this to the other end of a link."""

    conn: int
    sightings: tuple[Sighting, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """A node has said that it stops, here or to another one: nobody waits for it."""

    guid: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people want to know."""

    kind: Kind
    guid: str
    """Of whom; nothing if only its address is known, or if it is about many."""
    name: str
    text: str = ""
    times: int = 1
    """How often it has happened."""
    address: str = ""
    """Of a server of which no more is known."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A server of the list with which there was no link yet."""

    name: str
    addresses: tuple[str, ...]
    why: str
    refused: bool
    """Somebody is there, and said no, or this side did."""


Action: TypeAlias = Dial | Admit | Refuse | Probe | Tell | Left | Notice
