"""Wires a broker as a node of its cluster: makes the parts by constructor arguments, and reports links that come and go.

The broker's hub makes the mesh and gets its five interfaces, `peers`. A part that needs another one which is made later gets
a method of the mesh.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from busway.broker.peers import Members, Peers
from busway.broker.session import Session
from busway.broker.streams.stream import Stream
from busway.cluster.channels.host import ConsumerHost
from busway.cluster.channels.remote_consumer import RemoteConsumers
from busway.cluster.config import Cluster
from busway.cluster.definitions.agreement import Agreement
from busway.cluster.failover.ownership import ChannelOwnership
from busway.cluster.links.barrier import Barrier
from busway.cluster.links.links import Links
from busway.cluster.members.actions import Notice
from busway.cluster.members.membership import Membership
from busway.cluster.node import Node
from busway.cluster.peers import ClusterChannels, ClusterStreams
from busway.cluster.replication.channel_progress import ChannelProgress
from busway.cluster.replication.channel_recovery import ChannelRecovery
from busway.cluster.replication.known_mirrors import KnownMirrors
from busway.cluster.replication.primary_driver import PrimaryDriver, send_to_mirror
from busway.cluster.replication.replica_driver import ReplicaDriver
from busway.cluster.retained.driver import RetainedDriver
from busway.cluster.services import Services
from busway.cluster.status import TRIP, ClusterStatus
from busway.cluster.streams.messages import Fetch, Locate
from busway.cluster.streams.provider import StreamProvider
from busway.cluster.streams.publish_lookup import PublishLookup
from busway.cluster.streams.reader import RemoteReader
from busway.cluster.streams.remote import RemoteStreams
from busway.cluster.streams.survey import Survey
from busway.errors import Rejected

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")
news = logging.getLogger("busway.cluster.links")
"""Links that come up, for who wants to hear also that all is well."""

_SHORTEST: Final = 4
"""Digits of a guid that are enough to mean a node."""
_LOUD: Final = {"linked": logging.INFO, "forgotten": logging.INFO}
"""How loudly the log tells what is no warning."""


class Mesh(Members):
    """The cluster for one hub: makes the parts, and answers for the nodes as members."""

    clustered = True

    def __init__(self, hub: "Hub", cluster: Cluster) -> None:
        self._hub = hub
        self._cluster = cluster
        self.seeing = ClusterStatus(hub, self, cluster.name)
        self._keeping = RetainedDriver(hub)
        self._rounds = Barrier(hub.engine.ping)
        self.agreeing = Agreement(hub, self.seeing.definition)

        # Streams and channels of other nodes. This node's own copies answer like a node: see SELF.
        self._parts = RemoteStreams(hub, self._deliverer, self._ask_here)
        self._lending = StreamProvider(hub, self._copies, self._parts.heard_here)
        self._seats = RemoteConsumers(hub, self._parts, self._host_here)
        self._hosting = ConsumerHost(hub, self._seats.heard)
        self._placing = PublishLookup(hub, self._copies)
        self._surveying = Survey(hub, self._copies, self._parts.guids, self._why_stalled)

        # Mirrors.
        known = KnownMirrors(hub.folder)
        send = partial(send_to_mirror, hub.engine)
        progress = ChannelProgress(hub, send, cluster.patience)
        replica = None
        if hub.folder is not None:
            replica = ReplicaDriver(
                hub, cluster.mirror_of, hub.folder, send, missing=self._mirror_missing, known=self._known_nodes
            )
        self.turns = ChannelOwnership(
            hub,
            cluster,
            known,
            progress,
            replica,
            send,
            turned=self._parts.turned,
            notice=self._ownership_notice,
            name_of=self._name_of,
        )
        recovery = ChannelRecovery(hub, send, self.agreeing.removed)
        self.mirroring = PrimaryDriver(
            hub,
            cluster,
            known,
            progress,
            recovery,
            replica,
            send,
            self.turns,
            notice=self.seeing.mirror,
            stopping=self._is_stopping,
        )

        services = Services(hub)
        self._handlers = (
            self._keeping,
            self.agreeing,
            self._seats,
            self._parts,
            self._lending,
            self._placing,
            self._hosting,
            self.mirroring,
            self.turns,  # after the mirroring, which hands back progress before a node claims its channels
            services,
            self._surveying,
            self._rounds,
        )
        self.links = Links(hub, cluster, self._handlers, notice=self._notice, stopping=self._node_stops)
        self.peers = Peers(
            self,
            ClusterStreams(
                self.links,
                self.agreeing,
                self.mirroring,
                self.turns,
                self._lending,
                RemoteReader(hub, self._parts),
                self._placing,
                self._surveying,
            ),
            ClusterChannels(self.links, self.agreeing, self.turns, self._seats, self._surveying),
            self._keeping,
            services,
        )
        self._prepared = False
        self.refused = 0
        self.conflicts = 0
        self._apart: set[str] = set()
        """Nodes whose links were lost without a CLOSE."""
        self._down: set[str] = set()
        """Nodes of which the log has reported that their links were lost."""
        self._shared: set[str] = set()
        """Names that two nodes have, as the log has reported."""

    # What the parts ask of each other, once all of them are made.

    def _copies(self) -> Mapping[tuple[str, str], Stream]:
        return self.mirroring.copies

    def _deliverer(self, guid: str) -> int | None:
        return self.turns.hander(guid)

    def _ask_here(self, number: int, question: Fetch | Locate) -> None:
        self._lending.ask_here(number, question)

    def _host_here(self, number: int, body: bytes) -> None:
        self._hosting.heard_here(number, body)

    def _why_stalled(self, guid: str, stream: str) -> str | None:
        return self.turns.waiting.why(guid, stream)

    def _known_nodes(self) -> Iterable[Node]:
        return self.links.members.known if self.links.started else ()

    def _is_stopping(self, guid: str) -> bool:
        return self.links.started and guid in self.links.members.stopped

    def _name_of(self, guid: str) -> str:
        nodes = (self.members.me, *self.members.known)
        return next((node.name for node in nodes if node.guid == guid), "")

    def _mirror_missing(self, target: str) -> None:
        self.seeing.mirror("mirror_missing", {"text": target})

    def _ownership_notice(self, kind: str, guid: str, text: str) -> None:
        self.seeing.tell(kind, text, node=self._name_of(guid), guid=guid)

    @property
    def members(self) -> Membership:
        return self.links.members

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._cluster.name

    # From start to stop.

    async def prepare(self) -> None:
        self._keeping.prepare()
        self.mirroring.prepare()
        self._hosting.prepare()
        self.turns.prepare()
        self.agreeing.load()
        self._prepared = True
        await self.agreeing.prepare()

    def start(self, addresses: tuple[str, ...]) -> None:
        self._lending.start()
        self.links.start(addresses)

    async def stop(self) -> None:
        self._seats.stop()
        await self.links.stop()

    def clients_gone(self) -> None:
        self.turns.stop()

    async def end(self) -> None:
        self.turns.stop()
        await self.agreeing.stop()
        await self._surveying.stop()
        await self.mirroring.stop()

    def kill(self) -> None:
        self.agreeing.kill()
        self.mirroring.kill()

    def take_over(self, node: str) -> dict[str, Any]:
        """Deliver from the channels of a node that will never come back, given by its name or guid, or how that begins."""
        named = {one.guid for one in self.members.known if one.name == node}
        found = [
            guid for guid in self.turns.copied if guid in named or (len(node) >= _SHORTEST and guid.startswith(node))
        ]
        found = [guid for guid in found if guid not in self.members.linked] or found
        if len(found) != 1:
            which = ", ".join(guid[:8] for guid in found or self.turns.copied) or "none"
            raise Rejected(
                f"{'no' if not found else 'more than one'} node {node!r} has copies here; there are copies of: {which}"
            )
        if found[0] in self.members.linked:
            raise Rejected(f"node {node!r} is linked and delivers from its channels itself")
        self.turns.declare(found[0])
        return {"guid": found[0]}

    async def figures(self) -> dict[str, Any]:
        return await self.seeing.figures() if self.links.started else {"cluster": None}

    def stats(self) -> dict[str, int]:
        return self.seeing.stats() if self.links.started else {}

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
        self._rounds.wait(done)

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
        self.turns.beat()

    def pong(self, conn: int, token: int) -> None:
        self.links.pong(conn, token)
        if token == TRIP:
            self.seeing.pong(conn)

    def room(self, conn: int) -> None:
        for handler in self._handlers:
            handler.room(conn)

    def expire(self, now: float) -> None:
        for handler in self._handlers:
            handler.expire(now)

    def deadline(self) -> float | None:
        return min((due for handler in self._handlers if (due := handler.deadline()) is not None), default=None)

    def conflict(self, conn: int, topic: str) -> None:
        """Two nodes began to serve a topic at the same time; each service gets the requests of its own node's clients."""
        self.conflicts += 1
        node = self.links.node_of(conn)
        log.warning("cluster %s: %r is served here and at %s", self._cluster.name, topic, node)
        text = f"{topic!r} is served here and at {node}"
        self.seeing.tell("conflict", text, node=node.name if node else "", guid=node.guid if node else "", topic=topic)

    # Inside.

    def _count_apart(self, notice: Notice) -> None:
        """Who stops has nobody left who could publish; one that is lost and comes back may have had."""
        if notice.kind == "down" and not self._is_stopping(notice.guid):
            self._apart.add(notice.guid)
        elif notice.guid in self._apart:
            self._apart.discard(notice.guid)
            if notice.kind == "up":
                self._hub.server_list.apart()

    def _node_stops(self, guid: str) -> None:
        self.turns.left(guid)
        self._hub.server_list.changed()

    def _notice(self, notice: Notice) -> None:
        if notice.kind in {"up", "down", "forgotten"}:
            self._hub.server_list.changed()
            self._count_apart(notice)
        if notice.kind == "forgotten":
            self.turns.forgotten(notice.guid)
        self.refused += notice.times * (notice.kind == "refused")
        self.conflicts += notice.times * (notice.kind == "conflict")
        self.seeing.notice(notice)
        state = self._state(notice)
        level = logging.DEBUG if self.links.stopped else _LOUD.get(state, logging.WARNING)
        if not (notice.guid or notice.address):
            log.log(level, "cluster %s: %s", self._cluster.name, notice.text)
            return
        if notice.guid:
            who = f"{notice.name or 'a node'} ({notice.guid[:8]})"
        else:
            who = f"{notice.name} ({notice.address})" if notice.name else notice.address
        (news if notice.kind == "up" else log).log(
            level,
            "cluster %s: %s is %s%s",
            self._cluster.name,
            who,
            state,
            f": {notice.text}" * bool(notice.text),
        )
        if notice.kind == "up" and not self.links.stopped:
            self._compare_names(notice)

    def _state(self, notice: Notice) -> str:
        """How a node is now, in a word. Who was told that it is down is told as loudly that it is there again."""
        again = notice.guid in self._down
        if notice.kind == "down":
            self._down.add(notice.guid)
        elif notice.kind in {"up", "forgotten"}:
            self._down.discard(notice.guid)
        if notice.kind == "up":
            return "linked again" if again else "linked"
        return "in conflict" if notice.kind == "conflict" else notice.kind

    def _compare_names(self, notice: Notice) -> None:
        """Warn, once, of a name that two nodes have: whoever is given by its name may be the one or the other."""
        members = self.members
        linked = [node for conn in members.linked.values() if (node := members.node_of(conn)) is not None]
        other = next(
            (one for one in (members.me, *linked) if one.name == notice.name and one.guid != notice.guid), None
        )
        if other is not None and notice.name and notice.name not in self._shared:
            self._shared.add(notice.name)
            log.warning(
                "cluster %s: two nodes have the name %r, %s and %s: give each its own",
                self._cluster.name,
                notice.name,
                other.guid[:8],
                notice.guid[:8],
            )
