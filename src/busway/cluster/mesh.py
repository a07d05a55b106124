"""A broker as a node of its cluster: all matters that are spoken of over its links, and what its hub tells and asks.

A driver, which hands everything on to who deals with it; `linking` has the links themselves.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from busway.broker.admin.survey import NodeAnswer
from busway.broker.channels.dead_letters.redrive import Letter
from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.frames import Join, Take
from busway.broker.channels.state.consumers import Who
from busway.broker.peers import Placements, Portion
from busway.broker.retained.store import Key, RetainedMessage, Version
from busway.broker.streams.stream import Stream
from busway.cluster.channels.host import ConsumerHost
from busway.cluster.channels.remote_consumer import RemoteConsumers
from busway.cluster.config import Cluster
from busway.cluster.definitions.agreement import Agreement
from busway.cluster.failover.ownership import ChannelOwnership
from busway.cluster.links.barrier import Barrier
from busway.cluster.links.links import Links
from busway.cluster.members.actions import Notice
from busway.cluster.replication.primary_driver import PrimaryDriver
from busway.cluster.retained.driver import RetainedDriver
from busway.cluster.retained.replica import version
from busway.cluster.services import Services
from busway.cluster.status import TRIP, ClusterStatus
from busway.cluster.streams.messages import Place
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


class Mesh(Links):
    """The cluster for one hub."""

    def __init__(self, hub: "Hub", cluster: Cluster) -> None:
        super().__init__(hub, cluster)
        self._keeping = RetainedDriver(hub)
        self._rounds = Barrier(hub.engine.ping)
        self.agreeing = Agreement(hub)
        self.mirroring = PrimaryDriver(hub, cluster)
        self.mirroring.recalling.removed = self.agreeing.removed
        parts = RemoteStreams(hub)
        self._borrowing = RemoteReader(hub, parts)
        self._lending = StreamProvider(hub, lambda: self.mirroring.copies, parts.heard_here)
        parts.ask_here = self._lending.ask_here
        self._seats = RemoteConsumers(hub, parts)
        self._placing = PublishLookup(hub, lambda: self.mirroring.copies)
        hosting = ConsumerHost(hub, self._seats.heard)
        self._seats.host = hosting.heard_here
        self.turns = ChannelOwnership(hub, cluster, self.mirroring, self.mirroring.send)
        self.turns.turned = parts.turned
        self.turns.name_of = self._name_of
        parts.hander = self.turns.hander
        self.mirroring.leaving = self._leaving
        if self.mirroring.copying is not None:
            self.mirroring.copying.known = lambda: [] if self._members is None else self._members.known
        self._surveying = Survey(hub, lambda: self.mirroring.copies)
        self._surveying.elsewhere = parts.guids
        self._surveying.why = self.turns.waiting.why
        self.say(
            self._keeping,
            self.agreeing,
            self._seats,
            parts,
            self._lending,
            self._placing,
            hosting,
            self.mirroring,
            self.turns,  # behind the mirroring, which gives back what it has before somebody says who hands out
            Services(hub),
            self._surveying,
            self._rounds,
        )
        self.seeing = ClusterStatus(hub, self, cluster.name)
        self.mirroring.notice = self.seeing.mirror
        self.agreeing.notice = self.seeing.definition
        self.turns.notice = lambda kind, guid, text: self.seeing.tell(kind, text, node=self._name_of(guid), guid=guid)
        self.refused = 0
        self.conflicts = 0
        self._apart: set[str] = set()
        """Nodes whose links were lost without a word."""
        self._down: set[str] = set()
        """Nodes of which people were told that their links were lost."""
        self._shared: set[str] = set()
        """Names of which it was told that two nodes have them."""

    @property
    def name(self) -> str:
        return self._cluster.name

    # From start to stop.

    async def prepare(self) -> None:
        await self.agreeing.prepare()

    def start(self, addresses: tuple[str, ...]) -> None:
        self._lending.start()
        super().start(addresses)

    async def stop(self) -> None:
        self._seats.stop()
        await super().stop()

    def part(self) -> None:
        """The clients have gone, and the links are about to end."""
        self.turns.stop()

    async def end(self) -> None:
        """The links have ended."""
        self.turns.stop()
        await self.agreeing.stop()
        await self._surveying.stop()
        await self.mirroring.stop()

    def kill(self) -> None:
        """Let go of files, without writing."""
        self.agreeing.kill()
        self.mirroring.kill()

    def _name_of(self, guid: str) -> str:
        nodes = (self.members.me, *self.members.known)
        return next((node.name for node in nodes if node.guid == guid), "")

    def inherit(self, node: str) -> dict[str, Any]:
        """Hand out for a node that never comes again; it is given by its name or guid, or how that begins."""
        named = {one.guid for one in self.members.known if one.name == node}
        found = [
            guid for guid in self.turns.copied if guid in named or (len(node) >= _SHORTEST and guid.startswith(node))
        ]
        found = [guid for guid in found if guid not in self.members.linked] or found
        if len(found) != 1:
            which = ", ".join(guid[:8] for guid in found or self.turns.copied) or "none"
            raise Rejected(
                f"{'no' if not found else 'more than one'} node {node!r} has copies here; there are those of: {which}"
            )
        if found[0] in self.members.linked:
            raise Rejected(f"node {node!r} is here, and hands out itself")
        self.turns.declare(found[0])
        return {"guid": found[0]}

    async def figures(self) -> dict[str, Any]:
        return {"cluster": None} if self._members is None else await self.seeing.figures()

    def stats(self) -> dict[str, int]:
        return {} if self._members is None else self.seeing.stats()

    def servers(self) -> list[list[str]]:
        """Where clients may go: this node, those that are linked, and those that were lost without a word."""
        if (members := self._members) is None:  # it does not listen everywhere yet
            return [[self._hub.name]]
        linked = members.linked
        stopped = members.stopped
        known = sorted(members.known, key=lambda node: node.guid not in linked)
        there = [node for node in known if node.guid not in stopped and node.addresses]
        return [[node.name, *node.addresses] for node in (members.me, *there)]

    def knows(self, guid: str) -> bool:
        return self._members is not None and any(node.guid == guid for node in self._members.known)

    # Events of the hub.

    def beat(self) -> None:
        super().beat()
        self.turns.beat()

    def pong(self, conn: int, token: int) -> None:
        super().pong(conn, token)
        if token == TRIP:
            self.seeing.pong(conn)

    def kept(self, message: RetainedMessage) -> None:
        self._keeping.kept(message)

    def taken_back(self, key: Key) -> Version | None:
        return self._keeping.taken_back(key)

    def elsewhere(self, key: Key) -> bool:
        return self._keeping.elsewhere(key)

    def unkept(self, gone: list[RetainedMessage], by: RetainedMessage | None) -> None:
        self._keeping.unkept(gone, None if by is None else version(by))

    def stream(self, stream: Stream, *, there: bool) -> None:
        self._lending.changed(stream, there=there)
        self.agreeing.stream(stream, there=there)
        self.mirroring.stream(stream, there=there)

    def channel(self, stream: str, name: str, settings: dict[str, Any] | None, start: tuple[str, Any] | None) -> None:
        self.agreeing.channel(stream, name, settings, start)

    def check_room(self, key: str) -> None:
        self.agreeing.check_room(key)

    async def settled(self, key: str) -> None:
        await self.agreeing.settled(key)

    async def placed(
        self, session: int, guids: Sequence[str], runs: Sequence[tuple[int, int]], within: float
    ) -> Placements:
        return await self._placing.find(Place(session, tuple(guids), tuple(runs)), within)

    async def survey(self, stream: str, channel: str | None) -> list[NodeAnswer]:
        return [] if self._members is None else await self._surveying.listed(stream, channel, self._members)

    async def streams(self, name: str | None) -> list[NodeAnswer]:
        return [] if self._members is None else await self._surveying.streams(name, self._members)

    async def read(self, guid: str, name: str, offset: int, most: int, pattern: str, rules: bytes) -> Portion:
        return await self._borrowing.read(guid, name, offset, most, pattern, rules)

    async def locate(self, guid: str, name: str, time: int) -> int:
        return await self._borrowing.locate(guid, name, time)

    async def seek(self, stream: str, channel: str, start: tuple[str, Any], guid: str | None) -> list[NodeAnswer]:
        members = self._members
        return [] if members is None else await self._surveying.sought(stream, channel, start, members, guid)

    async def letters(
        self, what: Literal["dead", "redrive"], stream: str, channel: str, letters: Sequence[Letter], guid: str
    ) -> list[NodeAnswer]:
        members = self._members
        return [] if members is None else await self._surveying.letters(what, stream, channel, letters, members, guid)

    def joined(self, who: Who, join: Join, driver: ChannelDriver) -> None:
        self._seats.joined(who, join, driver)

    def left(self, who: Who, *, lost: bool = False) -> None:
        self._seats.left(who, lost=lost)

    def take(self, who: Who, call: int, take: Take | int) -> bool:
        return self._seats.take(who, call, take)

    def settle(self, who: Who, guid: str, call: int, kind: int, rest: bytes) -> None:
        self._seats.settle(who, guid, call, kind, rest)

    def renew(self, who: Who) -> int:
        return self._seats.renew(who)

    def settled_here(self, who: Who) -> None:
        self._seats.settled_here(who)

    def more_here(self, who: Who) -> None:
        self._seats.more_here(who)

    def copied(self, guid: str, stream: Stream, *, there: bool) -> None:
        self._lending.copied(guid, stream, there=there)

    def mirrored_elsewhere(self) -> list[str]:
        members = self.members
        nodes = [*members.known, *(node for conn in members.linked.values() if (node := members.node_of(conn)))]
        names = {node.guid: node.name or node.guid for node in nodes}
        return sorted(names.get(guid, guid) for guid in self.turns.mirrored)

    @property
    def mirrored(self) -> bool:
        return self.mirroring.mirrored

    def stored(self, number: int) -> None:  # noqa: ARG002, it looks at all of them
        self.mirroring.stored()

    def room(self, conn: int) -> None:
        for talk in self.talks:
            talk.room(conn)

    def expire(self, now: float) -> None:
        for talk in self.talks:
            talk.expire(now)

    def deadline(self) -> float | None:
        return min((due for talk in self.talks if (due := talk.deadline()) is not None), default=None)

    def known(self, done: Callable[[], None]) -> None:
        self._rounds.wait(done)

    def conflict(self, conn: int, topic: str) -> None:
        """Two began to serve a topic at the same time; each is asked by the clients of its own node."""
        self.conflicts += 1
        peer = self._peers.get(conn)
        node = peer.node if peer is not None else None
        log.warning("cluster %s: %r is served here and at %s", self._cluster.name, topic, node)
        text = f"{topic!r} is served here and at {node}"
        self.seeing.tell("conflict", text, node=node.name if node else "", guid=node.guid if node else "", topic=topic)

    # Inside.

    def _count_apart(self, notice: Notice) -> None:
        """Who stops has nobody left who could publish; one that is lost and comes back may have had."""
        if notice.kind == "down" and not self._leaving(notice.guid):
            self._apart.add(notice.guid)
        elif notice.guid in self._apart:
            self._apart.discard(notice.guid)
            if notice.kind == "up":
                self._hub.server_list.apart()

    def _leaving(self, guid: str) -> bool:
        return self._members is not None and guid in self._members.stopped

    def _leaves(self, guid: str) -> None:
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
        level = logging.DEBUG if self._stopped else _LOUD.get(state, logging.WARNING)
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
        if notice.kind == "up" and not self._stopped:
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
