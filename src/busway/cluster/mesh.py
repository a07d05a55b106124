"""Wires a broker as a node of its cluster: makes the parts by constructor arguments, and passes calls to them.

The broker's hub makes the mesh and gets its five interfaces, `peers`. A part that needs a later one, or a driver that
the hub makes after the mesh, gets a method of the mesh.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from busway.broker.peers import Members, Peers
from busway.broker.session import Session
from busway.broker.streams.stream import Stream
from busway.cluster.channels.host import ConsumerHost
from busway.cluster.channels.remote_consumer import RemoteConsumers
from busway.cluster.config import Cluster
from busway.cluster.definitions.agreement import Agreement
from busway.cluster.links.barrier import Barrier
from busway.cluster.links.calls import Calls
from busway.cluster.links.links import Links
from busway.cluster.members.actions import Notice
from busway.cluster.members.membership import Membership
from busway.cluster.node import Node
from busway.cluster.peers import ClusterChannels, ClusterStreams
from busway.cluster.promotion.owners import Owners
from busway.cluster.promotion.owners_file import OwnersFile
from busway.cluster.promotion.parts import Parts
from busway.cluster.promotion.promotion import Promotion
from busway.cluster.replication.known_mirrors import KnownMirrors
from busway.cluster.replication.primary_driver import PrimaryDriver, send_to_mirror
from busway.cluster.replication.replica_driver import ReplicaDriver
from busway.cluster.reports import LinkReports
from busway.cluster.retained.driver import RetainedDriver
from busway.cluster.services import Services
from busway.cluster.status import TRIP, ClusterStatus
from busway.cluster.streams.provider import StreamProvider
from busway.cluster.streams.publish_lookup import PublishLookup
from busway.cluster.streams.reader import RemoteReader
from busway.cluster.streams.remote import RemoteStreams
from busway.cluster.streams.survey import Survey

if TYPE_CHECKING:
    from busway.broker.channels.consumers import ChannelConsumers
    from busway.broker.channels.manager import Channels
    from busway.broker.hub import Hub
    from busway.broker.retained.driver import RetainedDriver as LocalRetained
    from busway.broker.server_list import ServerList
    from busway.broker.services.requests import SharedRequests
    from busway.broker.streams.manager import Streams
    from busway.broker.streams.replay import Replays


class Mesh(Members):
    """The cluster for one hub: makes the parts, and answers for the nodes as members."""

    clustered = True

    def __init__(self, hub: "Hub", cluster: Cluster) -> None:
        self._hub = hub
        self._cluster = cluster
        runtime = hub.runtime
        self.status = ClusterStatus(runtime, hub.events, self, cluster.name, retained=self._retained_count)
        self.reports = LinkReports(self._server_list, cluster.name, self.status)
        self._calls = Calls(runtime)
        self._retained = RetainedDriver(runtime, self._local_retained, self._calls)
        self._barrier = Barrier(hub.engine.ping)
        self.agreement = Agreement(
            runtime, hub.table, self._streams, self.channels, self._calls, self.status.definition
        )

        # Streams and channels of other nodes. This node's own copies answer like a node: see SELF.
        self._remote = RemoteStreams(runtime, self._calls, self._replays, self._deliverer)
        self._provider = StreamProvider(runtime, hub.table, self._calls, self._copies)
        self._remote_consumers = RemoteConsumers(runtime, self._calls, self._consumers, self._remote)
        self._host = ConsumerHost(runtime, self._calls, self._consumers)
        self._lookup = PublishLookup(runtime, hub.table, self._calls, self._copies, self._owner_of)
        self._survey = Survey(
            runtime,
            hub.table,
            self.channels,
            self._calls,
            self._copies,
            self._remote.guids,
            self._why_stalled,
            self._known_members,
        )

        # Mirrors.
        known = KnownMirrors(hub.folder)
        send = partial(send_to_mirror, hub.engine)
        replica = None
        if hub.folder is not None:
            replica = ReplicaDriver(
                runtime,
                self,
                cluster.mirror_of,
                hub.folder,
                send,
                missing=self._mirror_missing,
                known=self._known_nodes,
            )
        file = OwnersFile(hub.folder)
        content = file.load()
        owners = Owners(hub.guid, content.owners)
        parts = Parts(
            runtime,
            cluster,
            owners,
            replica,
            self.channels,
            self._calls.nodes,
            notice=self.status.mirror,
            joined=self._mirror_joined,
        )
        self.promotion = Promotion(
            runtime,
            hub.table,
            self.channels,
            self._calls,
            file,
            content,
            owners,
            known,
            parts,
            changed=self._remote.turned,
            notice=self._promotion_notice,
            name_of=self._name_of,
            restart=hub.restart,
        )
        self.replication = PrimaryDriver(
            runtime,
            hub.table,
            self.channels,
            cluster,
            known,
            replica,
            send,
            joined=self.promotion.mirror_joined,
            follows=self.promotion.owns,
            notice=self.status.mirror,
            removed=self._stream_removed,
            channel_removed=self.agreement.removed,
        )

        services = Services(runtime, self._calls, self._shared_requests)
        self._handlers = (
            self._calls,  # first, so that the others can call over a new link
            self._retained,
            self.agreement,
            self._remote_consumers,
            self._remote,
            self._provider,
            self._host,
            self.promotion,
            parts,
            self.replication,
            self._barrier,
        )
        self.links = Links(runtime, cluster, self._handlers, notice=self._on_notice, stopping=self._on_stopping)
        self.peers = Peers(
            self,
            ClusterStreams(
                self.links,
                self.agreement,
                self.replication,
                self.promotion,
                self._provider,
                RemoteReader(runtime, self._remote),
                self._lookup,
                self._survey,
            ),
            ClusterChannels(self.agreement, self.replication, self.promotion, self._remote_consumers, self._survey),
            self._retained,
            services,
        )

    # What the parts ask of the broker's drivers, once these are made.

    def channels(self) -> "Channels":
        """The channels of this broker."""
        return self._hub.channels

    def number(self) -> int:
        """A number that no other stream of this broker has."""
        return self._hub.table.number()

    def copied(self, guid: str, stream: Stream, *, there: bool) -> None:
        """This broker has a replica of another node's stream, or has it no longer."""
        self._provider.copied(guid, stream, there=there)

    def _consumers(self) -> "ChannelConsumers":
        return self._hub.channels.consumers

    def _shared_requests(self) -> "SharedRequests":
        return self._hub.services.asking

    def _server_list(self) -> "ServerList":
        return self._hub.server_list

    def _local_retained(self) -> "LocalRetained":
        return self._hub.retained

    def _retained_count(self) -> int:
        return len(self._hub.retained.box)

    def _streams(self) -> "Streams":
        return self._hub.streams

    def _replays(self) -> "Replays":
        return self._hub.replays

    def _stream_removed(self, name: str) -> bool:
        return self._hub.streams.has_ended(name)

    # What the parts ask of each other, once all of them are made.

    def _copies(self) -> Mapping[tuple[str, str], Stream]:
        return self.replication.copies

    def _deliverer(self, guid: str) -> int | None:
        return self.promotion.deliverer(guid)

    def _owner_of(self, guid: str) -> str:
        return self.promotion.owners.get(guid).owner

    def _why_stalled(self, guid: str, stream: str) -> str | None:
        return self.promotion.why_waiting(guid, stream)

    def _mirror_joined(self, guid: str) -> None:
        self.promotion.mirror_joined(guid)

    def _known_members(self) -> Membership | None:
        return self.links.members if self.links.started else None

    def _known_nodes(self) -> Iterable[Node]:
        return self.links.members.known if self.links.started else ()

    def _name_of(self, guid: str) -> str:
        nodes = (self.members.me, *self.members.known) if self.links.started else ()
        return next((node.name for node in nodes if node.guid == guid), "")

    def _mirror_missing(self, target: str) -> None:
        self.status.mirror("mirror_missing", {"text": target})

    def _promotion_notice(self, kind: str, guid: str, text: str) -> None:
        self.status.tell(kind, text, node=self._name_of(guid), guid=guid)

    @property
    def members(self) -> Membership:
        return self.links.members

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._cluster.name

    # From start to stop.

    async def prepare(self) -> None:
        self._retained.prepare()
        self.replication.prepare()
        self._host.prepare()
        self.promotion.prepare()
        self.agreement.load()
        await self.agreement.prepare()

    def start(self, addresses: tuple[str, ...]) -> None:
        self._provider.start()
        self.links.start(addresses)

    async def stop(self) -> None:
        self._remote_consumers.stop()
        await self.links.stop()

    async def end(self) -> None:
        await self.agreement.stop()
        await self._calls.stop()
        await self.replication.stop()

    def kill(self) -> None:
        self.agreement.kill()
        self.replication.kill()

    async def promote(self, node: str, *, force: bool) -> dict[str, Any]:
        return await self.promotion.promote(node, force=force)

    async def figures(self) -> dict[str, Any]:
        return await self.status.figures() if self.links.started else {"cluster": None}

    def stats(self) -> dict[str, int]:
        return self.status.stats() if self.links.started else {}

    def servers(self) -> list[list[str]]:
        """Where clients may connect: this node, the linked nodes, and the nodes that were lost without a CLOSE."""
        if not self.links.started:  # it does not listen everywhere yet
            return [[self._hub.name]]
        members = self.members
        linked = members.linked
        stopped = members.stopped
        known = sorted(members.known, key=lambda node: node.guid not in linked)
        there = [node for node in known if node.guid not in stopped and node.addresses]
        return [[node.name, *node.addresses] for node in (members.me, *there)]

    def knows(self, guid: str) -> bool:
        return any(node.guid == guid for node in self._known_nodes())

    def when_known(self, done: Callable[[], None]) -> None:
        self._barrier.wait(done)

    # Events of the hub.

    def greeted(self, session: Session, version: int, node: Any) -> None:
        self.links.greeted(session, version, node)

    def welcomed(self, conn: int, version: int, packed: bytes) -> None:
        self.links.welcomed(conn, version, packed)

    def received(self, conn: int, kind: int, number: int, body: bytes) -> None:
        self.links.received(conn, kind, number, body)

    def synced(self, conn: int) -> None:
        self.links.synced(conn)

    def closed(self, conn: int, code: int, text: str) -> None:
        self.links.closed(conn, code, text)

    def forget(self, conn: int) -> None:
        self.links.forget(conn)

    def beat(self) -> None:
        self.links.beat()
        self.promotion.beat()

    def pong(self, conn: int, token: int) -> None:
        self.links.pong(conn, token)
        if token == TRIP:
            self.status.pong(conn)

    def room(self, conn: int) -> None:
        for handler in self._handlers:
            handler.room(conn)

    def expire(self, now: float) -> None:
        for handler in self._handlers:
            handler.expire(now)

    def deadline(self) -> float | None:
        return min((due for handler in self._handlers if (due := handler.deadline()) is not None), default=None)

    def conflict(self, conn: int, topic: str) -> None:
        self.reports.conflict(self.links.node_of(conn), topic)

    # What the links report.

    def _on_notice(self, notice: Notice) -> None:
        self.status.notice(notice)
        self.reports.notice(notice, self.links)

    def _on_stopping(self, guid: str) -> None:  # noqa: ARG002 - the whole list is sent
        self._server_list().changed()
