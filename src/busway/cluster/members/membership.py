"""Who belongs to the cluster, whom to dial and when, and which of several connections to a node is its link.

A machine: time, chance and connection numbers are handed in; what is to be done is taken out as actions. Two nodes have one
link. When both have dialled, the connection of the node with the lower guid stays. A link that is open stays too, unless
nobody answers on it: whoever comes beside it waits until that is known. So a node that was started again gets in when its old link is
seen to be dead, and a copy of a node that is alive does not.
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
"""Seconds that a link has to answer when somebody else comes as the same node."""
FORGET: Final = 600.0
"""Seconds after which a node that is gone, and not in the list, is not looked for any more."""
HOPELESS: Final = frozenset({Code.CLUSTER, Code.UNAUTHORIZED, Code.VERSION, Code.DUPLICATE_NODE})
"""With these the other side will say the same until somebody changes something."""
MISSED: Final = 30.0
"""Seconds after which it is told which servers of the list are not there."""
COPY: Final = 300.0
"""Seconds for which a copy of another node is not let in."""


@dataclass(slots=True)
class _Link:
    """The connection to a node that counts, and those that want to count instead."""

    conn: int
    node: Node
    mine: bool
    """This side has dialled."""
    open: bool = False
    """Both have shown that they know the key."""
    probed: float | None = None
    """When it counts as dead if nothing is heard."""
    judged: bool = False
    """Others see another node with this guid,"""
    accuser: Node | None = None
    """which has just answered them."""
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
        self._dialling = Dialer(me, listed, chance)
        self._actions: list[Action] = []
        self._telling = Warnings()
        self._begun: float | None = None
        """Since when servers of the list are missed of which nothing was said."""
        self._copies: dict[int, tuple[float, int]] = {}
        """Incarnations of copied nodes: until when they are not let in, and the incarnation of which each is a copy."""

    # What is seen from outside.

    def take(self) -> list[Action]:
        """What is to be done now."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def due(self) -> float | None:
        """When `tick` wants to be called at the latest."""
        missed = None if self._begun is None else self._begun + MISSED
        times = [missed, self._telling.due, self._dialling.due, *(link.probed for link in self._links.values())]
        return min((time for time in times if time is not None), default=None)

    @property
    def linked(self) -> dict[str, int]:
        """The open links: the connection of each node."""
        return {guid: link.conn for guid, link in self._links.items() if link.open}

    @property
    def known(self) -> list[Node]:
        """All other nodes of which is known, linked or not."""
        return [node for target in self._dialling.targets.values() if (node := target.node) is not None]

    @property
    def stopped(self) -> set[str]:
        """Those of them that have said that they stop, and did not come back."""
        return {target.node.guid for target in self._dialling.targets.values() if target.node and target.stopped}

    @property
    def missing(self) -> list[Missing]:
        """Servers of the list with which there was no link yet."""
        targets = self._dialling.targets.values()
        seen = {target.leads for target in targets if target.leads} & self._links.keys()
        return [
            Missing(one.name, one.addresses, one.why, one.refused)
            for one in targets
            if one.listed and one.node is None and one.leads not in seen
        ]

    def why(self, guid: str) -> str:
        """Why there is no link to a node that is known."""
        target = self._dialling.targets.get(guid)
        return target.why if target is not None else ""

    def node_of(self, conn: int) -> Node | None:
        """Who is at the other end of a connection that was admitted."""
        link = self._conns.get(conn)
        return link.node if link else None

    # What happens.

    def start(self, now: float) -> None:
        self._begun = now
        self._dialling.start(now)
        self.tick(now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        for link in [link for link in self._links.values() if link.probed is not None and link.probed <= now]:
            self._actions.append(Refuse(link.conn, Code.IDLE, "no answer on this link"))
            self.lost(link.conn, now, "no answer")
        for target in self._dialling.forgotten(now, self._forget, self._links):
            if (node := target.node) is not None:
                self._notice("forgotten", node, f"not seen for {self._forget:g} s", now)
        doubtful = {guid for guid, link in self._links.items() if not (link.open or link.mine)}
        self._actions += self._dialling.dial(now, self._links.keys() - doubtful, doubtful)
        self._actions += self._telling.left_out(now)
        if self._begun is not None and now >= self._begun + MISSED:
            self._begun = None
            for one in self.missing:
                if not one.refused:  # which was told when it happened
                    address = ", ".join(one.addresses)
                    why = f": {one.why.removeprefix(f'{address}: ')}" * bool(one.why)
                    text = f"in the list, and not linked after {MISSED:g} s{why}; it is tried again and again"
                    self._tell_people("missing", "", one.name, text, now, address=address)

    def hint(self, address: str, now: float) -> None:
        """Somebody may be there; nothing else is known, and nothing believed."""
        self._dialling.hint(address, now)
        self.tick(now)

    def failed(self, attempt: int, now: float, text: str, code: int = Code.OK) -> None:
        """An attempt came to nothing: nobody there, or closed with a code before anything was known of the other side."""
        target = self._dialling.failed(attempt, now, hopeless=code in HOPELESS)
        _note(target, text, refused=code in HOPELESS)
        if target is not None and code in HOPELESS:
            guid, address = ("", ", ".join(target.addresses)) if target.node is None else (target.key, "")
            self._tell_people(_kind(code), guid, target.name, text, now, address=address)

    def greeted(self, conn: int, node: Node, now: float, attempt: int | None = None) -> None:
        """A connection says who is there: one that this side has dialled by this attempt, or one that came."""
        target, came = self._dialling.ended(attempt), attempt is None
        if node.cluster != self.me.cluster:
            self._refuse(conn, node, Code.CLUSTER, f"this is the cluster {self.me.cluster!r}", now, came=came)
            self._dialling.failed_with(target, now)
            _note(target, f"{node} is of another cluster, {node.cluster!r}", refused=True)
            return
        if node.guid == self.me.guid:
            self._same_guid(conn, node, target, now, came=came)
            return
        if target is None and node.guid not in self._dialling.targets and len(self._dialling.targets) >= MOST_NODES:
            self._refuse(conn, node, Code.TOO_MANY_CONNECTIONS, f"{MOST_NODES} nodes are the limit", now, came=came)
            return
        if now < self._copies.get(node.incarnation, (now, 0))[0]:
            self._dialling.failed_with(target, now)
            _note(target, f"{node} is a copy of another node", refused=True)
            self._refuse(conn, node, Code.DUPLICATE_NODE, f"{node} is a copy of another node", now, came=came)
            return
        if target is not None:
            target.leads = node.guid
        new = _Link(conn, node, not came)
        old = self._links.get(node.guid)
        self._conns[conn] = new
        if old is None:
            self._admit(new)
        elif old.open or old.node.incarnation != node.incarnation:
            old.rivals.append(new)
            self._probe(old, now)
        elif new.mine in {old.mine, self.me.guid < node.guid}:
            self._drop(old, Code.LINKED, "another connection of these two nodes stays")
            new.rivals = old.rivals
            self._admit(new)
        else:
            self._drop(new, Code.LINKED, "another connection of these two nodes stays")

    def proved(self, conn: int, now: float) -> None:
        """Both sides of a connection know the key: it is the link."""
        link = self._conns.get(conn)
        if link is None or link.open or self._links.get(link.node.guid) is not link:
            return
        link.open, link.probed = True, None
        if link.rivals:  # who came meanwhile hears soon whether it is needed
            self._probe(link, now)
        # Only now it is believed who it is and what it says.
        self._dialling.reached(link.node, now)
        _note(self._dialling.targets.get(link.node.guid), "", refused=False)
        seen = Sighting(link.node, linked=True)
        for other in self._links.values():
            if other.open and other is not link:
                self._actions.append(Tell(other.conn, (seen,)))
        self._actions.append(Tell(conn, tuple(self._sightings(link.node.guid, now))))
        self._notice("up", link.node, "", now)

    def alive(self, conn: int, now: float) -> None:
        """Somebody answered a probe."""
        link = self._conns.get(conn)
        if link is None or link.probed is None:
            return
        link.probed = None
        for rival in link.rivals:
            if rival.node.incarnation == link.node.incarnation:
                self._drop(rival, Code.LINKED, "these two nodes are linked")
                continue
            text = f"two nodes have the guid {link.node.guid}: a copied data folder? {link.node} is here already"
            self._drop(rival, Code.DUPLICATE_NODE, text)
            self._notice("conflict", rival.node, text, now, stranger=not rival.mine)
        link.rivals.clear()
        if link.judged:
            accuser, link.judged, link.accuser = link.accuser, False, None
            self._spread(Sighting(link.node, linked=True, sure=True))
            if accuser is not None and link.node.age > accuser.age:
                self._expel(link, accuser, now)

    def stops(self, conn: int) -> None:
        """The other end of a link says that it stops."""
        link = self._conns.get(conn)
        if link is not None and link.open:
            self._leaves(link.node)

    def lost(self, conn: int, now: float, text: str = "", code: int = Code.OK) -> None:
        """A connection has ended; one side has closed it with this code."""
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
            self._spread(Sighting(link.node, linked=False, stopped=guid in self.stopped))
            self._notice("down", link.node, text, now)
            self._acquit(link.node, now)
        if link.rivals:  # whom this side has dialled goes first: whoever comes may be anybody
            new, *rest = sorted(link.rivals, key=lambda rival: not rival.mine)
            new.rivals = rest
            self._admit(new)
            if rest:
                self._probe(new, now)
            return
        hopeless = not link.open and code in HOPELESS
        if hopeless:
            self._notice(_kind(code), link.node, text, now, stranger=not link.mine)
        if (link.mine or link.open) and code != Code.LINKED:  # of others it isn't known who they are
            for target in self._dialling.targets.values():
                if guid in {target.key, target.leads}:
                    _note(target, text, refused=hopeless)
        if link.mine or link.open:
            self._dialling.lost(guid, now, hopeless=hopeless)
        else:
            self._dialling.left_alone(guid, now)

    def heard(self, sightings: Sequence[Sighting], now: float) -> None:
        """What the other end of a link tells of other nodes."""
        for seen in sightings:
            node = seen.node
            if node.cluster != self.me.cluster:
                continue
            if node.guid == self.me.guid:
                if node.incarnation != self.me.incarnation and seen.sure:
                    self._notice("conflict", node, "another node has this one's guid: a copied data folder?", now)
                continue
            if not seen.linked:
                self._acquit(node, now)
            link = self._links.get(node.guid)
            if link is None or not link.open:
                self._hearsay(seen, now)
            elif link.node.incarnation != node.incarnation and seen.linked:
                self._mismatch(link, seen, now)
        self.tick(now)

    # Inside.

    def _hearsay(self, seen: Sighting, now: float) -> None:
        """Of a node that has no link to this one. Who only tells on what was told does not make it any younger."""
        if len(self._dialling.targets) >= MOST_NODES or seen.ago >= self._forget:
            return
        self._dialling.back(seen.node)
        self._dialling.learn(seen.node, None, now, seen.ago)
        if seen.stopped:
            self._leaves(seen.node)

    def _leaves(self, node: Node) -> None:
        if self._dialling.stops(node):
            self._actions.append(Left(node.guid))

    def _mismatch(self, link: _Link, seen: Sighting, now: float) -> None:
        """Another node has a link to somebody else with the guid of this link.

        One of the two may be what is left of a node that was started again, so each side first sees whether its own one lives.
        """
        link.judged = True
        if seen.sure:
            link.accuser = seen.node
        self._probe(link, now)

    def _expel(self, link: _Link, first: Node, now: float) -> None:
        """There are two, and this is the later one."""
        text = f"two nodes have the guid {first.guid}: a copied data folder? {first} was there first"
        self._notice("conflict", link.node, text, now)
        if len(self._copies) > MOST_NODES:
            self._copies.clear()
        self._copies[link.node.incarnation] = now + COPY, first.incarnation
        self._actions.append(Refuse(link.conn, Code.DUPLICATE_NODE, text))
        self.lost(link.conn, now, text)
        self._dialling.forget(first.guid)
        self._dialling.learn(first, None, now)

    def _acquit(self, first: Node, now: float) -> None:
        """Somebody has lost the node that was there first: what it was heard to say may have been on its way when it ended, and its copy be itself, started again."""
        link = self._links.get(first.guid)
        if link is not None and link.accuser is not None and link.accuser.incarnation == first.incarnation:
            link.accuser = None
        for copy in [copy for copy, (_, of) in self._copies.items() if of == first.incarnation]:
            del self._copies[copy]
            self._dialling.again(first.guid, now)

    def _same_guid(self, conn: int, node: Node, target: Target | None, now: float, *, came: bool) -> None:
        if node.incarnation == self.me.incarnation:
            self._actions.append(Refuse(conn, Code.LINKED, "this is the same node"))
        else:
            text = f"two nodes have the guid {node.guid}: a copied data folder?"
            self._refuse(conn, node, Code.DUPLICATE_NODE, text, now, came=came)
            _note(target, text, refused=True)
        if target is not None:
            self._dialling.own(target, now, same=node.incarnation == self.me.incarnation)

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

    def _refuse(self, conn: int, node: Node, code: int, text: str, now: float, *, came: bool) -> None:
        self._actions.append(Refuse(conn, code, text))
        self._notice(_kind(code), node, text, now, stranger=came)

    def _sightings(self, leave: str, now: float) -> list[Sighting]:
        seen = [
            Sighting(node, linked=False, ago=ceil(max(now - target.seen, 0.0)), stopped=target.stopped)
            for target in self._dialling.targets.values()
            if (node := target.node) is not None and node.guid != leave and node.guid not in self._links
        ]
        links = [Sighting(link.node, linked=link.open) for guid, link in self._links.items() if guid != leave]
        return links + seen

    def _spread(self, seen: Sighting) -> None:
        for guid, link in self._links.items():
            if link.open and guid != seen.node.guid:
                self._actions.append(Tell(link.conn, (seen,)))

    def _notice(self, kind: Kind, node: Node, text: str, now: float, *, stranger: bool = False) -> None:
        self._tell_people(kind, node.guid, node.name, text, now, stranger=stranger)

    def _tell_people(
        self, kind: Kind, guid: str, name: str, text: str, now: float, *, stranger: bool = False, address: str = ""
    ) -> None:
        """A stranger is who came here and has shown no key; who it is and how often it comes is its own choice."""
        if self._telling.worth(kind, guid or address, now, stranger=stranger):
            self._actions.append(Notice(kind, guid, name, text, address=address))


def _note(target: Target | None, why: str, *, refused: bool) -> None:
    """Why there is no link."""
    if target is not None:
        target.why, target.refused = why, refused


def _kind(code: int) -> Kind:
    """What people are told of a connection that was closed with this code."""
    return "conflict" if code == Code.DUPLICATE_NODE else "refused"
