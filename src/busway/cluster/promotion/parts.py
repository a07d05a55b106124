"""Replication of streams that a node owns by a promotion: from the owner to the nodes that have copies of them.

Each such part has its own pair of replication drivers, which exchange their messages in PART frames. A node follows a
part if it has copies of it, or mirrors the owner. `promotion` calls this driver.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from busway.broker.streams.table import StreamTable
from busway.cluster.config import Cluster
from busway.cluster.node import Node, Stranger
from busway.cluster.promotion.owners import Owner, Owners
from busway.cluster.promotion.returned import unshared
from busway.cluster.protocol import MIRROR, PART, NodeProtocolHandler
from busway.cluster.replication.copies import Copy
from busway.cluster.replication.known_mirrors import KnownMirrors
from busway.cluster.replication.messages import Word, pack, read
from busway.cluster.replication.primary_driver import PrimaryDriver
from busway.cluster.replication.replica_driver import ReplicaDriver
from busway.streams import StreamConfig

if TYPE_CHECKING:
    from busway.broker.channels.manager import Channels
    from busway.broker.runtime import Runtime

_GUID: Final = 16
"""Bytes of the guid before each message."""


class Parts(NodeProtocolHandler):
    """The parts of one node: those that it owns, and those that it follows."""

    kinds = frozenset({PART})

    def __init__(
        self,
        runtime: "Runtime",
        cluster: Cluster,
        owners: Owners,
        replica: ReplicaDriver | None,
        channels: "Callable[[], Channels]",
        nodes: Mapping[int, Node],
        *,
        notice: Callable[[str, dict[str, Any]], object],
        joined: Callable[[str], object],
    ) -> None:
        """`nodes` has the node behind each link; `joined` is called for each node that follows an own part."""
        self._runtime = runtime
        self._cluster = cluster
        self._owners = owners
        self.replica = replica
        self._channels = channels
        self._nodes = nodes
        self._notice = notice
        self._joined = joined
        self._owned: dict[str, PrimaryDriver] = {}
        self._followed: dict[str, ReplicaDriver] = {}

    def copies(self, guid: str) -> list[Copy]:
        """The copies of a node's streams here."""
        return [] if self.replica is None else self.replica.of(guid)

    def follower(self, guid: str) -> ReplicaDriver | None:
        """The driver that keeps the copies of a node's streams up to date."""
        return self._followed.get(guid, self.replica)

    def serve(self, guid: str) -> None:
        """This node owns these streams, and their channels are open: replicate them to other nodes."""
        self._followed.pop(guid, None)
        table = StreamTable("disk")
        table.by_name |= {copy.name: copy for copy in self.copies(guid)}
        driver = self._owned[guid] = PrimaryDriver(
            self._runtime,
            table,
            self._channels,
            self._cluster,
            KnownMirrors(None),
            None,
            partial(self._send, guid),
            joined=self._joined,
            follows=lambda guid: False,  # noqa: ARG005
            notice=self._notice,
            removed=lambda stream: False,  # noqa: ARG005
            channel_removed=lambda stream, channel: 0,  # noqa: ARG005
        )
        driver.prepare()
        for conn, node in self._nodes.items():
            driver.opened(conn, node)

    @property
    def served(self) -> tuple[str, ...]:
        """The nodes whose streams this one owns and replicates."""
        return tuple(self._owned)

    def follow(self, conn: int, node: Node, serves: Iterable[str]) -> None:
        """A node has reported which parts it replicates: follow those of which there are copies here."""
        if (replica := self.replica) is None:
            return
        for part in serves:
            owner, followed = self._owners.get(part), self._followed.get(part)
            wanted = replica.conn == conn or replica.has(part)
            if owner.owner == node.guid and wanted and (followed is None or followed.conn != conn):
                self._follow(conn, node, owner, replica)

    def _follow(self, conn: int, node: Node, owner: Owner, replica: ReplicaDriver) -> None:
        part = owner.guid
        store = replica.store(part)
        for copy in list(store.streams.values()):
            if unshared(copy.log, owner.ends.get(copy.name)) < copy.log.next:
                store.remove(copy.name, keep=True)
        driver = self._followed.get(part)
        if driver is None or driver.target != node.guid:
            driver = self._followed[part] = replica.for_part(part, node.guid, partial(self._send, part))
        driver.opened(conn, node)

    def configure(self, copy: Copy, config: StreamConfig) -> None:
        """A stream was changed in the whole cluster: change an owned part of it."""
        if self.replica is not None:
            self.replica.store(copy.copied).configure(config)
            self._owned[copy.copied].stream(copy, there=True)

    def remove(self, copy: Copy) -> None:
        """A stream was removed in the whole cluster: remove an owned part of it."""
        if self.replica is not None:
            self._owned[copy.copied].stream(copy, there=False)
            self.replica.store(copy.copied).remove(copy.name, keep=False)

    def progress_written(self, copy: Copy) -> None:
        """The progress log of an owned part has more records on the disk."""
        if (driver := self._owned.get(copy.copied)) is not None:
            driver.progress_written(copy)

    def _send(self, guid: str, conn: int, message: Word) -> None:
        self._runtime.engine.node(conn, PART, 0, bytes.fromhex(guid) + pack(message))

    # Events.

    def _drivers(self) -> Iterator[PrimaryDriver | ReplicaDriver]:
        yield from self._owned.values()
        yield from self._followed.values()

    def opened(self, conn: int, node: Node) -> None:
        for driver in self._owned.values():
            driver.opened(conn, node)

    def closed(self, conn: int, now: float) -> None:
        for driver in self._owned.values():
            driver.closed(conn, now)
        for follower in self._followed.values():
            follower.closed(conn)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:  # noqa: ARG002, one kind, no numbers
        if len(body) < _GUID:
            raise Stranger("message about a part without its guid")
        guid, message = body[:_GUID].hex(), body[_GUID:]
        if (driver := self._owned.get(guid)) is not None:
            driver.heard(conn, MIRROR, 0, message)
        elif (follower := self._followed.get(guid)) is not None:
            follower.heard(conn, read(message))  # type: ignore[arg-type]  # it ignores other messages

    def room(self, conn: int) -> None:
        for driver in self._owned.values():
            driver.room(conn)

    def expire(self, now: float) -> None:
        for driver in self._drivers():
            driver.expire(now)

    def deadline(self) -> float | None:
        return min((due for driver in self._drivers() if (due := driver.deadline()) is not None), default=None)
