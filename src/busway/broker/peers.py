"""What a broker asks of the other brokers of its cluster: five small interfaces, one for each noun.

The cluster implements them, since it stands above the broker. `ALONE` is the answer of a broker that is in no cluster.
"""

# ruff: noqa: ARG002 - a broker that is alone needs none of the arguments

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from busway.errors import Code, Rejected

if TYPE_CHECKING:
    from busway.broker.admin.survey import NodeAnswer
    from busway.broker.channels.dead_letters.redrive import Letter
    from busway.broker.channels.driver import ChannelDriver
    from busway.broker.channels.frames import Join, Take
    from busway.broker.channels.state.consumers import Who
    from busway.broker.retained.store import Key, RetainedMessage, Version
    from busway.broker.session import Session
    from busway.broker.streams.stream import Stream

Portion: TypeAlias = tuple[int, int, int, bytes, bool]
"""Records of another node: the offset below which nothing is left, the end of the records, the offset to read on from,
the records, and whether there are no more for now."""


class Placements(NamedTuple):
    """Where messages of a client are stored, as far as it is known."""

    known: set[str]
    """The nodes of which anything is known."""
    sure: set[str]
    """The nodes that answered themselves. A mirror's copy may lack what its node has stored last."""
    runs: list[tuple[str, str, int, int, int, int]]
    """Guid, stream, number, count, offset and sequence of messages that follow each other."""


class Reader(Protocol):
    """Reads a stream of another node for one subscription."""

    def read(self, offset: int, most: int, again: Callable[[], object]) -> Portion | None:
        """Read from this offset on. None: the records are being fetched, and `again` is called when they are here."""


class PeerStream(Protocol):
    """A stream of another node."""

    number: int
    guid: str
    name: str

    def takes(self, pattern: str) -> bool:
        """Whether it may hold messages that match this pattern."""

    def locate(self, kind: str, value: int, found: Callable[[int], object]) -> None:
        """Call `found` with the offset of a position as soon as a node can be asked: `offset`, `time` (ns) or `new`."""

    def reader(self, pattern: str, rules: bytes) -> Reader:
        """Make a reader for a subscription."""


class Members:
    """The other nodes and the links to them. These methods do what a broker does that is in no cluster."""

    clustered = False
    """Whether the broker is a node of a cluster."""
    name = ""
    """The name of the cluster."""

    async def prepare(self) -> None:
        """Load what is stored of the cluster, before the broker listens."""

    def start(self, addresses: tuple[str, ...]) -> None:
        """The broker listens on these addresses: look for the other nodes."""

    async def stop(self) -> None:
        """The broker is about to stop: open no further links."""

    async def end(self) -> None:
        """All connections have ended."""

    def kill(self) -> None:
        """Release files without writing, as a killed process does."""

    def servers(self) -> list[list[str]] | None:
        """Name and addresses of this broker, then of the other nodes. None: there are no others."""
        return None

    async def figures(self) -> dict[str, Any]:
        """The state of the cluster, as `busway cluster` shows it."""
        return {"cluster": None}

    def stats(self) -> dict[str, int]:
        """Counters of the cluster."""
        return {}

    async def promote(self, node: str, *, force: bool) -> dict[str, Any]:
        """Own the streams of a failed node from now on. Raises Rejected."""
        raise Rejected(f"this broker is in no cluster, so it can't own the streams of node {node!r}")

    def knows(self, guid: str) -> bool:
        """Whether a broker is a node of this cluster, linked or not."""
        return False

    def when_known(self, done: Callable[[], None]) -> None:
        """Call `done` when every linked node knows the subscriptions and services of this moment."""
        done()

    def greeted(self, session: "Session", version: int, node: Any) -> None:
        """HELLO of a node."""

    def welcomed(self, conn: int, version: int, packed: bytes) -> None:
        """WELCOME of a node that this broker has dialled."""

    def received(self, conn: int, kind: int, number: int, body: bytes) -> None:
        """A NODE frame."""

    def beat(self) -> None:
        """A second has passed: check whether the links live."""

    def synced(self, conn: int) -> None:
        """A link has sent all subscriptions of its node."""

    def conflict(self, conn: int, topic: str) -> None:
        """An unshared service has this topic here and behind a link."""

    def pong(self, conn: int, token: int) -> None:
        """The answer to a PING on a link."""

    def room(self, conn: int) -> None:
        """The outbox of a connection, which may be a client's, has room again."""

    def closed(self, conn: int, code: int, text: str) -> None:
        """CLOSE on a connection, which may be a client's."""

    def forget(self, conn: int) -> None:
        """A connection, which may be a client's, has ended."""

    def expire(self, now: float) -> None:
        """Do whatever is due."""

    def deadline(self) -> float | None:
        """When expire() has something to do."""
        return None


class Definitions:
    """Streams or channels that all nodes of a cluster have: the keys are `stream` and `stream/channel`."""

    def check_limit(self, key: str) -> None:
        """Raise LimitExceeded if the cluster has as many of them as it may."""

    async def agreed(self, key: str) -> None:
        """Return when a definition is on the other nodes as it is here."""


class StreamPeers(Definitions):
    """The streams of the other nodes. These methods do what a broker does that is in no cluster."""

    mirrored = False
    """Whether a mirror copies the streams of this broker now."""

    def changed(self, stream: "Stream", *, there: bool) -> None:
        """A stream was made or changed, or it was removed."""

    async def survey(self, name: str | None) -> "list[NodeAnswer]":
        """What each other node has of one stream, or of all."""
        return []

    async def read(self, guid: str, name: str, offset: int, most: int, pattern: str, rules: bytes) -> Portion:
        """Records from an offset on in the part of another node that match; a few others may be among them."""
        raise _not_here(guid)

    async def locate(self, guid: str, name: str, time: int) -> int:
        """The offset in the part of another node of the first message stored at this time (ns) or later."""
        raise _not_here(guid)

    async def positions(
        self, session: int, guids: Sequence[str], runs: Sequence[tuple[int, int]], within: float
    ) -> Placements:
        """Where these nodes have stored publishes of a client, given as runs of numbers, as far as they answer."""
        return Placements(set(), set(), [])

    def mirrored_nodes(self) -> list[str]:
        """The names of other nodes that have a mirror."""
        return []

    def copied(self, guid: str, stream: "Stream", *, there: bool) -> None:
        """This broker has a copy of another node's stream, or has it no longer."""

    def stored(self) -> None:
        """More of a watched stream is safe."""


class ChannelPeers(Definitions):
    """The channels of the other nodes. These methods do what a broker does that is in no cluster."""

    def changed(self, stream: str, name: str, settings: dict[str, Any] | None, start: tuple[str, Any] | None) -> None:
        """A channel was made or changed, or it was removed; and its start position at other nodes, if it is new."""

    def progress_written(self, stream: "Stream") -> None:
        """The progress log of a stream has more records on the disk."""

    async def survey(self, stream: str, channel: str | None) -> "list[NodeAnswer]":
        """Each other node's figures of one channel, or of all of a stream."""
        return []

    async def seek(self, stream: str, channel: str, start: tuple[str, Any], guid: str | None) -> "list[NodeAnswer]":
        """Move a channel at each other node, or at one alone, and return their answers."""
        return []

    async def dead_letters(
        self, what: Literal["dead", "redrive"], stream: str, channel: str, letters: "Sequence[Letter]", guid: str
    ) -> "list[NodeAnswer]":
        """Ask another node for the state of dead letters of its part of a channel, or have it send them back."""
        return []

    def joined(self, who: "Who", join: "Join", driver: "ChannelDriver") -> None:
        """A client consumes a channel: it gets the messages of other nodes, too. Called again if its window changes."""

    def left(self, who: "Who", *, lost: bool = False) -> None:
        """A consumer left its channel, or its connection was lost."""

    def take(self, who: "Who", call: int, take: "Take | int") -> bool:
        """A consumer takes messages, or cancels a take. Returns whether the cluster handles it."""
        return False

    def acknowledge(self, who: "Who", guid: str, call: int, kind: int, rest: bytes) -> None:
        """A consumer acknowledges messages of another node, by an ACK or a NACK."""

    def acknowledged_here(self, who: "Who") -> None:
        """A consumer has acknowledged messages of this broker."""

    def renew(self, who: "Who") -> int:
        """A consumer is alive: renew its leases at other nodes. Returns how many messages of theirs it has."""
        return 0

    def more_here(self, who: "Who") -> None:
        """There is more for a consumer that takes."""


class RetainedPeers:
    """The retained messages of the other nodes. These methods do what a broker does that is in no cluster."""

    def added(self, message: "RetainedMessage") -> None:
        """A client has posted or pinned a message, or has come here with what it had posted elsewhere."""

    def removed(self, gone: "list[RetainedMessage]", by: "RetainedMessage | None") -> None:
        """Messages are retained no longer: this message removed them, or their client has gone."""

    def removed_since(self, key: "Key") -> "Version | None":
        """Since when the pin with this key is removed, at any node; None: it is not."""
        return None

    def at_another_node(self, key: "Key") -> bool:
        """Whether the client of a post is at another node now, so that the post stays."""
        return False


class ServicePeers:
    """Requests of other nodes' clients. These methods do what a broker does that is in no cluster."""

    def terms(self, conn: int, call: int, each: float) -> None:
        """How long each provider may take that another node asks or calls for this broker."""

    def moved(self, conn: int, number: int) -> None:
        """A request of another node went on to the next provider."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The cluster as the broker's drivers see it: each driver gets the interface of its noun."""

    members: Members
    streams: StreamPeers
    channels: ChannelPeers
    retained: RetainedPeers
    services: ServicePeers


ALONE = Peers(Members(), StreamPeers(), ChannelPeers(), RetainedPeers(), ServicePeers())


def _not_here(guid: str) -> Rejected:
    return Rejected(f"broker {guid[:8]}: this broker is in no cluster", code=Code.NO_STREAM)
