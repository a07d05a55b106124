"""The membership of a cluster: its nodes, when to dial each, and which of several connections to a node is its link.

`links` passes time, randomness and connection numbers, and carries out the returned actions. Two nodes have one link.
If both have dialled, the connection of the node with the lower guid stays. An open link stays too if the other end
answers a probe; a new connection waits for the result. So a restarted node is admitted when its old link is found dead,
and a copy of a living node is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from busway.cluster.members.actions import Action, Admit, Kind, Left, Missing, Notice, Probe, Refuse, Tell
from busway.cluster.members.dialer import Dialer, Target
from busway.cluster.members.servers_file import Listed
from busway.cluster.members.warnings import Warnings
from busway.cluster.node import MOST_NODES, Node, Sighting
from busway.errors import Code

PROBE: Final = 2.0
"""Seconds for a link to answer a probe after another connection claims to be the same node."""
FORGET: Final = 600.0
"""Seconds after which a lost node that is not in the list is not dialled any more."""
HOPELESS: Final = frozenset({Code.CLUSTER, Code.UNAUTHORIZED, Code.VERSION, Code.DUPLICATE_NODE})
"""Close codes that repeat until an operator changes something."""
MISSED: Final = 30.0
"""Seconds after which unlinked servers of the list are reported."""
COPY: Final = 300.0
"""Seconds for which a copy of another node is refused."""


@dataclass(slots=True)
class _Link:
    """The connection that counts as the link to a node, and those that may replace it."""

    conn: int
    node: Node
    mine: bool
    """This node has dialled the connection."""
    open: bool = False
    """Both sides have proved that they know the key."""
    probed: float | None = None
    """The time at which the link counts as dead without an answer; None: no probe is open."""
    disputed: bool = False
    """Another node reported a different node with this guid."""
    claimant: Node | None = None
    """That different node, if it has just answered the reporting node."""
    rivals: list["_Link"] = field(default_factory=list)


class Membership:
    """The cluster as one node sees it."""

    def __init__(
        self,
        me: Node,
        listed: Sequence[Listed] = (),
        *,
        chance: Callable[[], float],
        probe: float = PROBE,
        forget: float = FORGET,
    ) -> None:
        self.me = me
        self._probe_time = probe
        self._forget = forget
        self._links: dict[str, _Link] = {}
        self._conns: dict[int, _Link] = {}
        self._dialer = Dialer(me, listed, chance)
        self._actions: list[Action] = []
        self._warnings = Warnings()
        self._unreported_since: float | None = None
        """When the servers of the list were first dialled; None: unlinked ones were reported."""
        self._copies: dict[int, tuple[float, int]] = {}
        """Copied nodes by incarnation: until when they are refused, and the incarnation of the original."""

    # Queries.

    def take(self) -> list[Action]:
        """Returns the actions to carry out now."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def due(self) -> float | None:
        """The time of the next call of `tick`."""
        missed = None if self._unreported_since is None else self._unreported_since + MISSED
        times = [missed, self._warnings.due, self._dialer.due, *(link.probed for link in self._links.values())]
        return min((time for time in times if time is not None), default=None)

    @property
    def linked(self) -> dict[str, int]:
        """The open links: the connection of each node."""
        return {guid: link.conn for guid, link in self._links.items() if link.open}

    @property
    def known(self) -> list[Node]:
        """All other known nodes, linked or not."""
        return [node for target in self._dialer.targets.values() if (node := target.node) is not None]

    @property
    def stopped(self) -> set[str]:
        """Known nodes that have announced their stop and are not back."""
        return {target.node.guid for target in self._dialer.targets.values() if target.node and target.stopped}

    @property
    def missing(self) -> list[Missing]:
        """Servers of the list that were not linked yet."""
        targets = self._dialer.targets.values()
        seen = {target.leads for target in targets if target.leads} & self._links.keys()
        return [
            Missing(target.name, target.addresses, target.why, target.refused)
            for target in targets
            if target.listed and target.node is None and target.leads not in seen
        ]

    def why(self, guid: str) -> str:
        """Why a known node is not linked."""
        target = self._dialer.targets.get(guid)
        return target.why if target is not None else ""

    def node_of(self, conn: int) -> Node | None:
        """The node at the other end of an admitted connection."""
        link = self._conns.get(conn)
        return link.node if link else None

    # Events.

    def start(self, now: float) -> None:
        self._unreported_since = now
        self._dialer.start(now)
        self.tick(now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        for link in [link for link in self._links.values() if link.probed is not None and link.probed <= now]:
            self._actions.append(Refuse(link.conn, Code.IDLE, "no answer on this link"))
            self.lost(link.conn, now, "no answer")
        for target in self._dialer.forgotten(now, self._forget, self._links):
            if (node := target.node) is not None:
                self._notice("forgotten", node, f"not seen for {self._forget:g} s", now)
        doubtful = {guid for guid, link in self._links.items() if not (link.open or link.mine)}
        self._actions += self._dialer.dial(now, self._links.keys() - doubtful, doubtful)
        self._actions += self._warnings.left_out(now)
        if self._unreported_since is not None and now >= self._unreported_since + MISSED:
            self._unreported_since = None
            for server in self.missing:
                if not server.refused:  # a refusal was reported at once
                    address = ", ".join(server.addresses)
                    why = f": {server.why.removeprefix(f'{address}: ')}" * bool(server.why)
                    text = f"in the list, but not linked after {MISSED:g} s{why}; this node keeps dialling it"
                    self._report("missing", "", server.name, text, now, address=address)

    def hint(self, address: str, now: float) -> None:
        """A node may be at this address, according to an unverified source."""
        self._dialer.hint(address, now)
        self.tick(now)

    def failed(self, attempt: int, now: float, text: str, code: int = Code.OK) -> None:
        """An attempt failed: there was no answer, or the connection was closed before the other side named itself."""
        target = self._dialer.failed(attempt, now, hopeless=code in HOPELESS)
        _set_reason(target, text, refused=code in HOPELESS)
        if target is not None and code in HOPELESS:
            guid, address = ("", ", ".join(target.addresses)) if target.node is None else (target.key, "")
            self._report(_notice_kind(code), guid, target.name, text, now, address=address)

    def greeted(self, conn: int, node: Node, now: float, attempt: int | None = None) -> None:
        """The other side of a connection has named itself. `attempt`: this node dialled it."""
        target, incoming = self._dialer.ended(attempt), attempt is None
        if node.cluster != self.me.cluster:
            self._refuse(conn, node, Code.CLUSTER, f"this is the cluster {self.me.cluster!r}", now, incoming=incoming)
            self._dialer.failed_with(target, now)
            _set_reason(target, f"{node} is of another cluster, {node.cluster!r}", refused=True)
            return
        if node.guid == self.me.guid:
            self._same_guid(conn, node, target, now, incoming=incoming)
            return
        if target is None and node.guid not in self._dialer.targets and len(self._dialer.targets) >= MOST_NODES:
            self._refuse(
                conn,
                node,
                Code.TOO_MANY_CONNECTIONS,
                f"the limit of {MOST_NODES} nodes is reached",
                now,
                incoming=incoming,
            )
            return
        if now < self._copies.get(node.incarnation, (now, 0))[0]:
            self._dialer.failed_with(target, now)
            _set_reason(target, f"{node} is a copy of another node", refused=True)
            self._refuse(conn, node, Code.DUPLICATE_NODE, f"{node} is a copy of another node", now, incoming=incoming)
            return
        if target is not None:
            target.leads = node.guid
        new = _Link(conn, node, not incoming)
        old = self._links.get(node.guid)
        self._conns[conn] = new
        if old is None:
            self._admit(new)
        elif old.open or old.node.incarnation != node.incarnation:
            old.rivals.append(new)
            self._probe(old, now)
        elif new.mine in {old.mine, self.me.guid < node.guid}:
            self._drop(old, Code.LINKED, "these two nodes are linked by another connection")
            new.rivals = old.rivals
            self._admit(new)
        else:
            self._drop(new, Code.LINKED, "these two nodes are linked by another connection")

    def proved(self, conn: int, now: float) -> None:
        """Both sides of a connection have proved that they know the key, so it is the link."""
        link = self._conns.get(conn)
        if link is None or link.open or self._links.get(link.node.guid) is not link:
            return
        link.open, link.probed = True, None
        if link.rivals:  # decide soon about connections that wait
            self._probe(link, now)
        # Only now the identity and the statements of the other side are trusted.
        self._dialer.reached(link.node, now)
        _set_reason(self._dialer.targets.get(link.node.guid), "", refused=False)
        seen = Sighting(link.node, linked=True)
        for other in self._links.values():
            if other.open and other is not link:
                self._actions.append(Tell(other.conn, (seen,)))
        self._actions.append(Tell(conn, tuple(self._sightings(link.node.guid, now))))
        self._notice("up", link.node, "", now)

    def alive(self, conn: int, now: float) -> None:
        """The other end of a link answered a probe."""
        link = self._conns.get(conn)
        if link is None or link.probed is None:
            return
        link.probed = None
        for rival in link.rivals:
            if rival.node.incarnation == link.node.incarnation:
                self._drop(rival, Code.LINKED, "these two nodes are linked")
                continue
            text = f"two nodes have the guid {link.node.guid}: a copied data folder? {link.node} is linked already"
            self._drop(rival, Code.DUPLICATE_NODE, text)
            self._notice("conflict", rival.node, text, now, stranger=not rival.mine)
        link.rivals.clear()
        if link.disputed:
            claimant, link.disputed, link.claimant = link.claimant, False, None
            self._broadcast(Sighting(link.node, linked=True, sure=True))
            if claimant is not None and link.node.age > claimant.age:
                self._refuse_copy(link, claimant, now)

    def stops(self, conn: int) -> None:
        """The other end of a link announces that it stops."""
        link = self._conns.get(conn)
        if link is not None and link.open:
            self._mark_stopped(link.node)

    def lost(self, conn: int, now: float, text: str = "", code: int = Code.OK) -> None:
        """A connection has ended, or was closed with this code by either side."""
        link = self._conns.pop(conn, None)
        if link is None:
            return
        guid = link.node.guid
        if self._links.get(guid) is not link:
            for other in self._links.values():
                if link in other.rivals:
                    other.rivals.remove(link)
            return
        del self._links[guid]
        if link.open:
            self._broadcast(Sighting(link.node, linked=False, stopped=guid in self.stopped))
            self._notice("down", link.node, text, now)
            self._withdraw_dispute(link.node, now)
        if link.rivals:  # prefer dialled connections: an incoming one is unverified
            new, *rest = sorted(link.rivals, key=lambda rival: not rival.mine)
            new.rivals = rest
            self._admit(new)
            if rest:
                self._probe(new, now)
            return
        hopeless = not link.open and code in HOPELESS
        if hopeless:
            self._notice(_notice_kind(code), link.node, text, now, stranger=not link.mine)
        if (link.mine or link.open) and code != Code.LINKED:  # the identity of other ends is unverified
            for target in self._dialer.targets.values():
                if guid in {target.key, target.leads}:
                    _set_reason(target, text, refused=hopeless)
        if link.mine or link.open:
            self._dialer.lost(guid, now, hopeless=hopeless)
        else:
            self._dialer.left_alone(guid, now)

    def heard(self, sightings: Sequence[Sighting], now: float) -> None:
        """Handle the sightings that the other end of a link reports."""
        for seen in sightings:
            node = seen.node
            if node.cluster != self.me.cluster:
                continue
            if node.guid == self.me.guid:
                if node.incarnation != self.me.incarnation and seen.sure:
                    self._notice("conflict", node, "another node has this one's guid: a copied data folder?", now)
                continue
            if not seen.linked:
                self._withdraw_dispute(node, now)
            link = self._links.get(node.guid)
            if link is None or not link.open:
                self._learn(seen, now)
            elif link.node.incarnation != node.incarnation and seen.linked:
                self._mismatch(link, seen, now)
        self.tick(now)

    # Inside.

    def _learn(self, seen: Sighting, now: float) -> None:
        """Learn of a node without a link. A forwarded sighting keeps its age."""
        if len(self._dialer.targets) >= MOST_NODES or seen.ago >= self._forget:
            return
        self._dialer.back(seen.node)
        self._dialer.learn(seen.node, None, now, seen.ago)
        if seen.stopped:
            self._mark_stopped(seen.node)

    def _mark_stopped(self, node: Node) -> None:
        if self._dialer.stops(node):
            self._actions.append(Left(node.guid))

    def _mismatch(self, link: _Link, seen: Sighting, now: float) -> None:
        """Another node has a link to a different node with the guid of this link.

        One of the two may be a dead link to a restarted node, so each side probes its own first.
        """
        link.disputed = True
        if seen.sure:
            link.claimant = seen.node
        self._probe(link, now)

    def _refuse_copy(self, link: _Link, first: Node, now: float) -> None:
        """Two nodes have the guid, and this link leads to the later one: refuse it."""
        text = f"two nodes have the guid {first.guid}: a copied data folder? {first} was started first"
        self._notice("conflict", link.node, text, now)
        if len(self._copies) > MOST_NODES:
            self._copies.clear()
        self._copies[link.node.incarnation] = now + COPY, first.incarnation
        self._actions.append(Refuse(link.conn, Code.DUPLICATE_NODE, text))
        self.lost(link.conn, now, text)
        self._dialer.forget(first.guid)
        self._dialer.learn(first, None, now)

    def _withdraw_dispute(self, first: Node, now: float) -> None:
        """Another node has lost the earlier node. The supposed copy may be that node itself, started again."""
        link = self._links.get(first.guid)
        if link is not None and link.claimant is not None and link.claimant.incarnation == first.incarnation:
            link.claimant = None
        for copy in [copy for copy, (_, original) in self._copies.items() if original == first.incarnation]:
            del self._copies[copy]
            self._dialer.again(first.guid, now)

    def _same_guid(self, conn: int, node: Node, target: Target | None, now: float, *, incoming: bool) -> None:
        if node.incarnation == self.me.incarnation:
            self._actions.append(Refuse(conn, Code.LINKED, "this is the same node"))
        else:
            text = f"two nodes have the guid {node.guid}: a copied data folder?"
            self._refuse(conn, node, Code.DUPLICATE_NODE, text, now, incoming=incoming)
            _set_reason(target, text, refused=True)
        if target is not None:
            self._dialer.own(target, now, same=node.incarnation == self.me.incarnation)

    def _admit(self, link: _Link) -> None:
        self._links[link.node.guid] = link
        self._actions.append(Admit(link.conn, link.node))

    def _probe(self, link: _Link, now: float) -> None:
        if link.probed is None:
            link.probed = now + self._probe_time
            if link.open:
                self._actions.append(Probe(link.conn))

    def _drop(self, link: _Link, code: int, text: str) -> None:
        self._conns.pop(link.conn, None)
        if self._links.get(link.node.guid) is link:
            del self._links[link.node.guid]
        self._actions.append(Refuse(link.conn, code, text))

    def _refuse(self, conn: int, node: Node, code: int, text: str, now: float, *, incoming: bool) -> None:
        self._actions.append(Refuse(conn, code, text))
        self._notice(_notice_kind(code), node, text, now, stranger=incoming)

    def _sightings(self, leave: str, now: float) -> list[Sighting]:
        seen = [
            Sighting(node, linked=False, ago=ceil(max(now - target.seen, 0.0)), stopped=target.stopped)
            for target in self._dialer.targets.values()
            if (node := target.node) is not None and node.guid != leave and node.guid not in self._links
        ]
        links = [Sighting(link.node, linked=link.open) for guid, link in self._links.items() if guid != leave]
        return links + seen

    def _broadcast(self, seen: Sighting) -> None:
        for guid, link in self._links.items():
            if link.open and guid != seen.node.guid:
                self._actions.append(Tell(link.conn, (seen,)))

    def _notice(self, kind: Kind, node: Node, text: str, now: float, *, stranger: bool = False) -> None:
        self._report(kind, node.guid, node.name, text, now, stranger=stranger)

    def _report(
        self, kind: Kind, guid: str, name: str, text: str, now: float, *, stranger: bool = False, address: str = ""
    ) -> None:
        """Report to operators. A stranger has not proved the key and may use any name any number of times."""
        if self._warnings.worth(kind, guid or address, now, stranger=stranger):
            self._actions.append(Notice(kind, guid, name, text, address=address))


def _set_reason(target: Target | None, why: str, *, refused: bool) -> None:
    """Record why a target is not linked."""
    if target is not None:
        target.why, target.refused = why, refused


def _notice_kind(code: int) -> Kind:
    """The kind of notice for a connection that was closed with this code."""
    return "conflict" if code == Code.DUPLICATE_NODE else "refused"
