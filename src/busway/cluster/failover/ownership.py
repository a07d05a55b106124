"""Decides which node delivers from whose channels, by claims and votes that the nodes exchange.

`links` and the mesh call it for frames and time; `lease` has the rule. Each node sends for which nodes it delivers, for
which it could, and which mirror it votes for in place of each lost node.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from busway.cluster.config import Cluster
from busway.cluster.failover.handback import Handback
from busway.cluster.failover.lease import Lease
from busway.cluster.failover.messages import OwnershipClaim, pack, read
from busway.cluster.failover.quorum import Quorum, Witness, undisputed
from busway.cluster.failover.sleep import SleepDetector
from busway.cluster.failover.stalled import DISPUTED, STARTED, StalledChannels
from busway.cluster.failover.standby import Standby
from busway.cluster.node import MOST_NODES, Node
from busway.cluster.protocol import SELF, TURN, NodeProtocolHandler
from busway.cluster.replication.channel_progress import ChannelProgress
from busway.cluster.replication.known_mirrors import KnownMirrors
from busway.cluster.replication.messages import Back, Took
from busway.cluster.replication.replica_driver import ReplicaDriver
from busway.common import environment

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")

_STALE: Final = 2
"""So many times its patience after it has lost its node, a mirror that most do not want knows nothing for sure any more."""
_LATE: Final = 4
"""So many times its patience after a node has gone it is told that messages wait in its copy."""


class ChannelOwnership(NodeProtocolHandler):
    """The leases of one node."""

    kinds = frozenset({TURN})

    def __init__(
        self,
        hub: "Hub",
        cluster: Cluster,
        known: KnownMirrors,
        progress: ChannelProgress,
        replica: ReplicaDriver | None,
        send: Callable[..., None],
        *,
        turned: Callable[[str], object],
        notice: Callable[[str, str, str], object],
        name_of: Callable[[str], str],
    ) -> None:
        """`turned` hears of each node whose deliverer has changed; `notice` gets an event, the guid of its node and a text."""
        self._hub = hub
        self._known = known
        self._progress = progress
        self._turned = turned
        self._notice = notice
        self._name_of = name_of
        self._takeover, self._patience = cluster.takeover, cluster.patience
        self._send = send
        self._heir = Standby(hub, replica, send)
        self._witness = Witness()
        self._resumed: set[str] = set()
        """Nodes for which this one is about to go on, as long as nobody knows of another one that did."""
        told = partial(self._tell_people, logging.WARNING, "copy_waits")
        self.waiting = StalledChannels(self._heir, told, _LATE * self._patience)
        self._links: dict[int, str] = {}
        self._incarnations: dict[int, int] = {}
        self._heard: dict[int, OwnershipClaim] = {}
        self._counted_by: set[str] = set()
        """Nodes for which this one counts, by what they said last."""
        self._anew = known.left
        known.leave(yes=False)
        self._said = OwnershipClaim((hub.guid,), anew=self._anew, takeover=self._takeover)
        self._wants: dict[str, str] = {}
        self._count = Quorum(hub.guid, known.nodes, most=False)
        """By which this node judges whether it has its turn,"""
        self._votes = Quorum(hub.guid, {*known.nodes, *self._heir.marks.nodes}, most=True)
        """and whether it has that of another."""
        self._own: Lease | None = None
        """None: nobody could take it over."""
        self._others: dict[str, Lease] = {}
        self._lost: dict[str, float] = {}
        """When this one lost the nodes that it mirrors."""
        self._waking = SleepDetector(hub.engine.ping)
        self._returning = Handback(hub, known, send)
        self._differed: set[str] = set()
        self._giving: set[str] = set()
        """Nodes that are back, and don't know yet what became of their channels."""
        self._stopped = False
        self._rested = False
        """People were told that this node does not hand out of its own channels."""
        self.takeovers = 0
        if known.heirs:
            self._own = Lease(owner=True, has=False, patience=self._patience)
            self._said = OwnershipClaim(anew=self._anew, takeover=self._takeover)

    def prepare(self) -> None:
        """The broker's channels are there: suspend them if a mirror may deliver from them."""
        if self._own is not None:
            self._hub.channels.ownership.suspend()

    # What is asked.

    def hander(self, guid: str) -> int | None:
        """The link to who hands out of the channels of a node."""
        claims = [conn for conn, said in self._heard.items() if guid in said.hands]
        claims.sort(key=lambda conn: self._links[conn] != guid)
        if claims:
            return claims[0]
        turn = self._others.get(guid)
        return SELF if turn is not None and turn.has else None

    def is_sure(self, guid: str) -> bool:
        """Whether nobody else hands out for this node, or for the one for which it does so."""
        turn = self._others.get(guid) if guid else self._own
        return turn is None or (turn.has and turn.sure(self._now))

    def figures(self) -> dict[str, Any]:
        self.waiting.look(self._now, self._idle())
        return {
            "hands_out": self._own is None or self._own.has,
            "stands_in_for": [guid for guid, turn in self._others.items() if turn.has],
            "takeovers": self.takeovers,
            "waits": self.waiting.figures(),
            "takeover": self._takeover,
            "takeover_differs": self._differs(),
        }

    @property
    def copied(self) -> list[str]:
        """The nodes of which there are copies here."""
        return sorted(self._heir.guids)

    def declare(self, guid: str) -> None:
        """Somebody says that this node never comes again: this one hands out for it, with what it knows."""
        self._heir.marks.declare(guid)
        text = f"an operator declared that {self._called(guid)} never comes back: this node delivers from its channels"
        self._tell_people(logging.WARNING, "declared", guid, text)
        self._look()

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn] = guid = node.guid
        self._incarnations[conn] = node.incarnation
        self._lost.pop(guid, None)
        self._resumed.discard(guid)
        self._witness.came(guid)
        self._know()
        self._look(quiet=True)
        self._say(conn)
        self._turned(guid)

    def before_following(self, conn: int, node: Node, then: Callable[[], None]) -> None:
        """A node is here again: it hands out itself, as soon as it knows what became of its channels."""
        guid = node.guid
        if (turn := self._others.get(guid)) is not None and turn.hand_over():
            text = f"{node} is back: it delivers from its channels itself again"
            self._tell_people(logging.WARNING, "handback", guid, text)
        self._giving.add(guid)

        def done() -> None:
            self._giving.discard(guid)
            then()
            self._look()

        self._heir.give_back(guid, conn, done)

    def closed(self, conn: int, now: float) -> None:
        self._wake(now)
        guid = self._links.pop(conn, "")
        if guid not in self._links.values():
            for one in (self._count, self._votes):
                one.went(guid)
        self._giving.discard(guid)
        self._incarnations.pop(conn, None)
        self._heard.pop(conn, None)
        self._returning.closed(conn)
        since = self._waking.closed(conn, now)
        if guid in self._heir.guids:
            self._lost[guid] = since
        self._look()
        self._turned(guid)

    def pong(self, conn: int, token: int) -> None:
        if self._waking.pong(conn, token):
            self._look()

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:  # noqa: ARG002 - one kind, no numbers
        said = read(body)
        first, before = conn not in self._heard, self._heard.get(conn, OwnershipClaim())
        self._heard[conn] = said
        guid = self._links[conn]
        self._witness.saw(guid, said.hands, self._links.values())
        if said.stops and (turn := self._turn(guid)) is not None:
            turn.given()
        self._counts(conn, guid, said, first=first)
        self._look()
        for one in {*before.hands, *said.hands}:
            self._turned(one)

    def _counts(self, conn: int, guid: str, said: OwnershipClaim, *, first: bool) -> None:
        """What that says of who counts."""
        if said.stops:
            self._heir.marks.left(guid)
            self._drop(guid)
            return
        for count in (self._count, self._votes):
            if first:
                count.came(guid, self._incarnations[conn], anew=said.anew)
            if said.counts:
                count.told(guid, said.counts)
        (self._counted_by.add if self._hub.guid in said.counts else self._counted_by.discard)(guid)
        self._know()

    def forgotten(self, guid: str) -> None:
        """A node has not been there for long. If most are here it does not count any more."""
        if self._own is None or (self._own.has and self._count.enough):
            self._known.drop(guid)
            self._drop(guid)

    def left(self, guid: str) -> None:
        """A node has said that it stops, to this one or to another."""
        if guid not in self._links.values():
            self._heir.marks.left(guid)
            self._drop(guid)
            self._look()

    def _drop(self, guid: str) -> None:
        """It does not count any more."""
        self._count.left(guid)
        self._votes.left(guid)
        self._know()

    def mirror_joined(self) -> None:
        """There is a mirror."""
        if self._own is None:
            self._own = Lease(owner=True, has=True, patience=self._patience)
        self._know()

    def _know(self) -> None:
        self._known.knows(self._count.known)
        self._heir.marks.counts(self._votes.known)

    def received_back(self, conn: int, back: Back | Took) -> None:
        """A mirror has handed out for this node; or this one has, and the other knows what came of it."""
        if isinstance(back, Took):
            self._heir.given(self._links.get(conn, ""))
        elif (guid := self._links.get(conn, "")) in self._known.heirs:
            self._returning.heard(conn, guid, back)

    # Time.

    def beat(self) -> None:
        """A second has passed, about."""
        self._look()
        self.waiting.look(self._now, self._idle())
        differs = self._differs()
        for guid in differs.keys() - self._differed:
            text = (
                f"{self._called(guid)} has takeover {differs[guid]:g} s, this node {self._takeover:g} s:"
                " both may deliver the same messages; set the same value at all nodes"
            )
            self._tell_people(logging.WARNING, "takeover_differs", guid, text)
        self._differed = set(differs)

    def expire(self, now: float) -> None:  # noqa: ARG002 - it looks at all
        self._look()

    def deadline(self) -> float | None:
        turns = [*self._others.values(), *([self._own] if self._own is not None else [])]
        due = [turn.deadline() for turn in turns]
        due += [self._spoils(guid) for guid in self._lost if self._heir.ready(guid)]
        return min((one for one in due if one is not None), default=None)

    def stop(self) -> None:
        """This node is about to stop: whoever can may hand out at once."""
        if self._stopped:
            return
        self._stopped = True
        self._returning.stop()
        if self._links:
            self._known.leave(yes=True)
        if self._own is not None and self._own.hand_over():
            self._rest()
        for guid, turn in self._others.items():
            if turn.hand_over():
                self._heir.end(guid)
        self._tell(OwnershipClaim(stops=True))

    # Inside.

    @property
    def _now(self) -> float:
        return self._hub.loop.time()

    def _turn(self, guid: str) -> Lease | None:
        """For a node that this one mirrors."""
        if guid not in self._others and self._heir.ready(guid):
            self._others[guid] = Lease(owner=False, has=False, patience=self._patience)
        return self._others.get(guid)

    def _look(self, *, quiet: bool = False) -> None:
        if self._stopped:
            return
        now = self._now
        self._wake(now)
        self._stale(now)
        self._resume(now)
        self._choose()
        self._look_own(now)
        for guid in self._heir.guids:
            self._look_other(guid, now)
        self._choose()
        hands = [self._hub.guid] if self._own is None or self._own.has else []
        hands += [guid for guid, turn in self._others.items() if turn.has or guid in self._giving]
        ready = [guid for guid in self._heir.guids if self._heir.ready(guid)]
        said = OwnershipClaim(
            tuple(hands),
            tuple(sorted(ready)),
            tuple(sorted(self._wants.items())),
            anew=self._anew,
            counts=self._counting(),
            stood=self._witness.stood,
            takeover=self._takeover,
        )
        if said != self._said:
            before, self._said = self._said, said
            self._tell(said, leave_out=quiet)
            for guid in {*before.hands} ^ {*said.hands}:
                self._turned(guid)
        self._hub.clock.arm()

    @property
    def mirrored(self) -> set[str]:
        """Other nodes of which there is a mirror, here or at a node that is linked."""
        told = {guid for said in self._heard.values() for guid in said.ready}
        return {*told, *(guid for guid in self._heir.guids if self._heir.ready(guid))} - {self._hub.guid}

    def _counting(self) -> tuple[str, ...]:
        """Who counts, for others; nobody asks in a cluster without mirrors."""
        return tuple(sorted(self._count.met | self._votes.met))[:MOST_NODES] if self._concerned else ()

    @property
    def _concerned(self) -> bool:
        """Whether somebody has a mirror."""
        return self._own is not None or bool(self._heir.guids) or any(said.ready for said in self._heard.values())

    def _differs(self) -> dict[str, float]:
        """Nodes that have another time after which mirrors take over."""
        told = {self._links[conn]: said.takeover for conn, said in self._heard.items() if said.takeover}
        return {guid: time for guid, time in told.items() if time != self._takeover and self._concerned}

    def _choose(self) -> None:
        """Which mirror this node wants for each that it misses: the same one, as long as it is there and can."""
        linked = set(self._links.values())
        ready: dict[str, set[str]] = {}
        for conn, said in self._heard.items():
            for guid in said.ready:
                ready.setdefault(guid, set()).add(self._links[conn])
        for guid in self._heir.guids:
            if self._heir.ready(guid):
                ready.setdefault(guid, set()).add(self._hub.guid)
        missed = {guid: those for guid, those in ready.items() if guid not in linked and guid != self._hub.guid}
        old = self._wants
        self._wants = {guid: old[guid] if old.get(guid) in those else min(those) for guid, those in missed.items()}

    def _look_own(self, now: float) -> None:
        if (turn := self._own) is None:
            return
        me, links, known, before = self._hub.guid, self._count.here - 1, len(self._count.nodes), turn.has
        heirs = [conn for conn, guid in self._links.items() if guid in self._known.heirs]
        claimed = any(me in said.hands for said in self._heard.values())
        told = heirs and all(conn in self._heard and not self._waking.doubts(conn) for conn in heirs)
        here = 1 + self._count.counted(
            self._links[conn] for conn, said in self._heard.items() if me not in dict(said.wants)
        )
        turn.look(now, linked=links, denied=here, known=known, other=bool(heirs) or claimed)
        if not turn.has and told and not claimed and turn.enough(links, known):
            turn.handed_over()
        if turn.has and not before:
            log.log(logging.WARNING if self._rested else logging.INFO, "this node delivers from its own channels again")
            self._rested = False
            self._hub.channels.ownership.unsuspend()
        elif before and not turn.has:
            text = (
                "this node is isolated, so its mirror may take over its channels: this node stops delivering from them"
            )
            self._tell_people(logging.WARNING, "resting", me, text)
            self._rested = True
            self._rest()

    def _rest(self) -> None:
        self._hub.channels.ownership.suspend()
        self._progress.refuse()

    def _look_other(self, guid: str, now: float) -> None:
        if (turn := self._turn(guid)) is None:
            return
        self._votes.keep(guid)
        me, before = self._hub.guid, turn.has
        votes = int(self._wants.get(guid) == me)
        votes += self._votes.counted(
            self._links[conn] for conn, said in self._heard.items() if (guid, me) in said.wants
        )
        if guid not in self._counted_by:
            votes = 0  # others need not have counted this one, either
        known, linked = len(self._votes.nodes), guid in self._links.values()
        if self._heir.marks.get(guid).gone:  # nobody else has to be asked, but who does so already
            votes = 0 if any(guid in said.hands for said in self._heard.values()) else known
        turn.look(now, linked=votes - 1, denied=votes, known=known, other=linked)
        if turn.has and not before:
            self.takeovers += 1
            text = f"this node has taken over the channels of {self._called(guid)}, which is lost"
            self._tell_people(logging.WARNING, "takeover", guid, text)
            self._resumed.discard(guid)
            self._witness.saw(me, [guid], ())
            self._heir.begin(guid, self._votes.known)
        elif before and not turn.has:
            text = f"this node is isolated: it stops delivering from the channels of {self._called(guid)}"
            self._tell_people(logging.WARNING, "resting", guid, text)
            self._heir.end(guid)

    def _wake(self, now: float) -> None:
        """If this one has slept, others may have gone on without it: it gives links and votes time to show what is so now."""
        # Whoever of a node and its mirror hands out, the other one may not know it.
        concerned = {*self._heir.guids, *self._known.heirs}
        links = [conn for conn, guid in self._links.items() if guid in concerned]
        if not self._waking.look(now, environment.boottime(), links):
            return
        for turn in (self._own, *self._others.values()):
            if turn is not None:
                turn.slept()
        # Nobody was awake here to see that most miss a node; so it may have handed out.
        for guid in [guid for guid, since in self._lost.items() if now >= since + _STALE * self._patience]:
            if (turn := self._others.get(guid)) is None or not turn.has:
                self._heir.spoil(guid)
                del self._lost[guid]

    def _stale(self, now: float) -> None:
        """A node that most others see goes on without its mirror after a time, which it then does not know of."""
        for guid in list(self._lost):
            if (due := self._spoils(guid)) is not None and now >= due:
                self._heir.spoil(guid)
                del self._lost[guid]

    def _resume(self, now: float) -> None:
        """Go on for nodes for which this one was the last to hand out; until it begins that has to stay so."""
        told = {self._links[conn]: dict(said.stood) for conn, said in self._heard.items()}
        marks, here = self._heir.marks, self._links.values()
        for guid in self._heir.guids.intersection(marks).difference(here):
            ready, mark = self._heir.ready(guid), marks.get(guid)
            count = {guid, *mark.nodes, *self._votes.nodes}
            sure = mark.gone or (mark.last and undisputed(guid, self._hub.guid, told, count))
            if sure and not ready:
                self._heir.resume(guid)
                self._resumed.add(guid)
                self._counted_by.add(guid)
                self._lost[guid] = now
            elif not sure and guid in self._resumed:
                self._resumed.discard(guid)
                self._heir.spoil(guid)

    def _idle(self) -> dict[str, str]:
        """Nodes that are gone and for which nobody hands out, though there are copies here; and why this one does not."""
        away = self._heir.guids.difference(self._links.values())
        alone = [guid for guid in away if not self._heir.ready(guid) and self.hander(guid) is None]
        return {guid: DISPUTED if self._heir.marks.get(guid).last else STARTED for guid in alone}

    def _spoils(self, guid: str) -> float | None:
        """When that time is over for a node that is lost; None: this node has its turn, or waits for it."""
        turn = self._others.get(guid)
        if turn is None or turn.has or turn.deadline() is not None:
            return None
        return self._lost[guid] + _STALE * self._patience

    def _say(self, conn: int) -> None:
        self._hub.engine.node(conn, TURN, 0, pack(self._said))

    def _tell(self, said: OwnershipClaim, *, leave_out: bool = False) -> None:
        packed = pack(said)
        last = next(reversed(self._links), None) if leave_out else None  # hears it as its first
        for conn in self._links:
            if conn != last:
                self._hub.engine.node(conn, TURN, 0, packed)
        self._hub.loop.call_soon(self._hub.flush)

    def _called(self, guid: str) -> str:
        return f"{name} ({guid[:8]})" if (name := self._name_of(guid)) else f"node {guid[:8]}"

    def _tell_people(self, level: int, kind: str, guid: str, text: str) -> None:
        log.log(level, "%s", text)
        self._notice(kind, guid, text)
