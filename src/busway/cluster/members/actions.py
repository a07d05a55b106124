"""The actions that `membership` returns and `links` carries out."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from busway.cluster.node import Node, Sighting
from busway.errors import Code

Kind: TypeAlias = Literal["up", "down", "refused", "conflict", "forgotten", "missing"]


@dataclass(frozen=True, slots=True)
class Dial:
    """Dial these addresses, one after the other. The result is `failed` or `greeted`."""

    attempt: int
    addresses: tuple[str, ...]
    timeout: float


@dataclass(frozen=True, slots=True)
class Admit:
    """Continue with this connection: welcome a node that dialled, and exchange proofs. Leads to `proved` or `lost`."""

    conn: int
    node: Node


@dataclass(frozen=True, slots=True)
class Refuse:
    """Close this connection with this code and ignore its frames."""

    conn: int
    code: int
    text: str

    @property
    def welcome(self) -> bool:
        """Whether to send WELCOME first, so that the dialling node learns which node it reached."""
        return self.code == Code.LINKED


@dataclass(frozen=True, slots=True)
class Probe:
    """Probe whether the other end of this link answers. The result is `alive`, or a timeout."""

    conn: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Send sightings over a link."""

    conn: int
    sightings: tuple[Sighting, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """A node has announced its stop, to this node or another one, so no node waits for it."""

    guid: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A report to operators."""

    kind: Kind
    guid: str
    """The node; empty if only its address is known, or if there are many."""
    name: str
    text: str = ""
    times: int = 1
    """How often the event has happened."""
    address: str = ""
    """The address of a server whose node is unknown."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A server of the list that was not linked yet."""

    name: str
    addresses: tuple[str, ...]
    why: str
    refused: bool
    """A node answered, and either side refused the link."""


Action: TypeAlias = Dial | Admit | Refuse | Probe | Tell | Left | Notice
