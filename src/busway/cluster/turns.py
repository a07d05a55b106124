"""Who hands out of the channels of which node: what this one says of that to the others, and hears from them.

A driver over takeover.py. Each node says for whom it hands out, for whom it could, and which mirror it wants for each node that it misses.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from busway.broker.progress import Entry, rebuild
from busway.cluster.config import Cluster
from busway.cluster.counting import Counting
from busway.cluster.heir import Heir
from busway.cluster.mirror_words import Back, Took
from busway.cluster.mirroring import Mirroring
from busway.cluster.node import MOST_NODES, Node, Stranger
from busway.cluster.takeover import Turn
from busway.cluster.talk import SELF, TURN, Talk

if TYPE_CHECKING:
    from busway.broker.hub import Hub

log = logging.getLogger("busway.cluster")

_Guid: TypeAlias = Annotated[str, msgspec.Meta(min_length=32, max_length=32)]
_Guids: TypeAlias = Annotated[tuple[_Guid, ...], msgspec.Meta(max_length=MOST_NODES)]
_STALE: Final = 2
"""So many times its patience after it has lost its node, a mirror that most do not want knows nothing for sure any more."""


class Said(msgspec.Struct, frozen=True, array_like=True):
    """What a node says."""

    hands: _Guids = ()
    """Whose channels it hands out of."""
    ready: _Guids = ()
    """Whose it could."""
    wants: Annotated[tuple[tuple[_Guid, _Guid], ...], msgspec.Meta(max_length=MOST_NODES)] = ()
    """Nodes that it misses, and the mirror that it wants for each."""
    stops: bool = False
    """It hands out no more, since it stops: it does not count any more."""
    anew: bool = False
    """It had stopped before it was started, so that others may not count it."""
    counts: _Guids = ()
    """Who counts for it; said where somebody has a mirror."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Said)


class Turns(Talk):
    """The turns of one node."""

    kinds = frozenset({TURN})

    def __init__(self, hub: "Hub", cluster: Cluster, mirroring: Mirroring, send: Callable[..., None]) -> None:
        self._hub = hub
        self._patience = cluster.patience
        self._mirroring = mirroring
        self._send = send
        self._heir = Heir(hub, mirroring.copying, send)
        self._links: dict[int, str] = {}
        self._incarnations: dict[int, int] = {}
        self._heard: dict[int, Said] = {}
        self._counted_by: set[str] = set()
        """Nodes for which this one counts, by what they said last."""
        self._anew = mirroring.known.left
        mirroring.known.leave(yes=False)
        self._said = Said((hub.guid,), anew=self._anew)
        self._wants: dict[str, str] = {}
        self._count = Counting(hub.guid, mirroring.known.nodes, most=False)
        """By which this node judges whether it has its turn,"""
        self._votes = Counting(hub.guid, mirroring.known.nodes, most=True)
        """and whether it has that of another."""
        self._own: Turn | None = None
        """None: nobody could take it over."""
        self._others: dict[str, Turn] = {}
        self._lost: dict[str, float] = {}
        """When this one lost the nodes that it mirrors."""
        self._back: dict[tuple[int, str], list[Entry]] = {}
        """What comes back of the channels of a stream, until all of it is here."""
        self._absorbing: list[asyncio.Future[None]] = []
        self._giving: set[str] = set()
        """Nodes that are back, and don't know yet what became of their channels."""
        self._stopped = False
        self.turned: Callable[[str], object] = lambda _: None
        """Hears whose channels somebody else hands out of."""
        self.notice: Callable[[str, str, str], object] = lambda *_: None
        """Hears what people want to know: a word, the guid of the node that it is about, and a text."""
        self.takeovers = 0
        mirroring.back = self._given_back
        mirroring.first = self._hand_back
        mirroring.asked = self._mirrored
        hub.delivering.standing.is_sure = self.is_sure
        if mirroring.known.heirs:
            self._own = Turn(owner=True, has=False, patience=self._patience)
            hub.delivering.standing.rest()
            self._said = Said(anew=self._anew)

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
        return {
            "hands_out": self._own is None or self._own.has,
            "stands_in_for": [guid for guid, turn in self._others.items() if turn.has],
            "takeovers": self.takeovers,
        }

    # Links.

    def opened(self, conn: int, node: Node) -> None:
        self._links[conn] = guid = node.guid
        self._incarnations[conn] = node.incarnation
        self._lost.pop(guid, None)
        self._know()
        self._look(quiet=True)
        self._say(conn)
        self.turned(guid)

    def _hand_back(self, conn: int, node: Node, then: Callable[[], None]) -> None:
        """A node is here again: it hands out itself, as soon as it knows what became of its channels."""
        guid = node.guid
        if (turn := self._others.get(guid)) is not None and turn.hand_over():
            self._tell_people(logging.INFO, "handback", guid, f"{node} is back: it hands out of its channels again")
        self._giving.add(guid)

        def done() -> None:
            self._giving.discard(guid)
            then()
            self._look()

        self._heir.give_back(guid, conn, done)

    def closed(self, conn: int, now: float) -> None:
        guid = self._links.pop(conn, "")
        if guid not in self._links.values():
            for one in (self._count, self._votes):
                one.went(guid)
        self._giving.discard(guid)
        self._incarnations.pop(conn, None)
        self._heard.pop(conn, None)
        for key in [key for key in self._back if key[0] == conn]:
            del self._back[key]
        if guid in self._heir.guids:
            self._lost[guid] = now
        self._look()
        self.turned(guid)

    def heard(self, conn: int, kind: int, number: int, body: bytes) -> None:  # noqa: ARG002 - one kind, no numbers
        try:
            said = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Stranger(f"turns: {error}") from error
        first, before = conn not in self._heard, self._heard.get(conn, Said())
        self._heard[conn] = said
        guid = self._links[conn]
        if said.stops and (turn := self._turn(guid)) is not None:
            turn.given()
        self._counts(conn, guid, said, first=first)
        self._look()
        for one in {*before.hands, *said.hands}:
            self.turned(one)

    def _counts(self, conn: int, guid: str, said: Said, *, first: bool) -> None:
        """What that says of who counts."""
        if said.stops:
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
            self._mirroring.known.drop(guid)
            self._drop(guid)

    def left(self, guid: str) -> None:
        """A node has said that it stops, to this one or to another."""
        if guid not in self._links.values():
            self._drop(guid)
            self._look()

    def _drop(self, guid: str) -> None:
        """It does not count any more."""
        self._count.left(guid)
        self._votes.left(guid)
        self._know()

    def _mirrored(self) -> None:
        """There is a mirror."""
        if self._own is None:
            self._own = Turn(owner=True, has=True, patience=self._patience)
        self._know()

    def _know(self) -> None:
        self._mirroring.known.knows(self._count.known)

    def _given_back(self, conn: int, back: Back | Took) -> None:
        """A mirror has handed out for this node; or this one has, and the other knows what came of it."""
        if isinstance(back, Took):
            self._heir.given(self._links.get(conn, ""))
            return
        if self._links.get(conn) not in self._mirroring.known.heirs:
            return
        entries = self._back.setdefault((conn, back.name), [])
        entries += back.entries
        if back.more:
            return
        del self._back[conn, back.name]
        stream = self._hub.streaming.streams.get(back.name)
        if stream is not None and stream.config.store != "db":
            told = self._hub.delivering.standing.absorb(stream, rebuild(entries), back.made, back.gone)
            self._absorbing += [one for one in told if not one.done()]
        if back.last:
            self._took(conn)

    def _took(self, conn: int) -> None:
        """Tell the mirror when everything is written."""
        self._absorbing = [one for one in self._absorbing if not one.done()]
        if self._absorbing:
            self._absorbing[0].add_done_callback(lambda _: self._took(conn))
        elif conn in self._links:
            self._send(conn, Took())
            self._hub.loop.call_soon(self._hub.flush)

    # Time.

    def beat(self) -> None:
        """A second has passed, about."""
        self._look()

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
        if self._links:
            self._mirroring.known.leave(yes=True)
        if self._own is not None and self._own.hand_over():
            self._rest()
        for guid, turn in self._others.items():
            if turn.hand_over():
                self._heir.end(guid)
        self._tell(Said(stops=True))

    # Inside.

    @property
    def _now(self) -> float:
        return self._hub.loop.time()

    def _turn(self, guid: str) -> Turn | None:
        """For a node that this one mirrors."""
        if guid not in self._others and self._heir.ready(guid):
            self._others[guid] = Turn(owner=False, has=False, patience=self._patience)
        return self._others.get(guid)

    def _look(self, *, quiet: bool = False) -> None:
        if self._stopped:
            return
        now = self._now
        self._stale(now)
        self._choose()
        self._look_own(now)
        for guid in self._heir.guids:
            self._look_other(guid, now)
        self._choose()
        hands = [self._hub.guid] if self._own is None or self._own.has else []
        hands += [guid for guid, turn in self._others.items() if turn.has or guid in self._giving]
        ready = [guid for guid in self._heir.guids if self._heir.ready(guid)]
        said = Said(
            tuple(hands),
            tuple(sorted(ready)),
            tuple(sorted(self._wants.items())),
            anew=self._anew,
            counts=self._counting(),
        )
        if said != self._said:
            before, self._said = self._said, said
            self._tell(said, leave_out=quiet)
            for guid in {*before.hands} ^ {*said.hands}:
                self.turned(guid)
        self._hub.pulse.arm()

    @property
    def mirrored(self) -> set[str]:
        """Other nodes of which there is a mirror, here or at a node that is linked."""
        told = {guid for said in self._heard.values() for guid in said.ready}
        return {*told, *(guid for guid in self._heir.guids if self._heir.ready(guid))} - {self._hub.guid}

    def _counting(self) -> tuple[str, ...]:
        """Who counts, for others; nobody asks in a cluster without mirrors."""
        if self._own is None and not self._heir.guids and not any(said.ready for said in self._heard.values()):
            return ()
        return tuple(sorted(self._count.met | self._votes.met))[:MOST_NODES]

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
        heirs = [conn for conn, guid in self._links.items() if guid in self._mirroring.known.heirs]
        claimed = any(me in said.hands for said in self._heard.values())
        told = heirs and all(conn in self._heard for conn in heirs)
        here = 1 + self._count.counted(
            self._links[conn] for conn, said in self._heard.items() if me not in dict(said.wants)
        )
        turn.look(now, linked=links, denied=here, known=known, other=bool(heirs) or claimed)
        if not turn.has and told and not claimed and turn.enough(links, known):
            turn.handed_over()
        if turn.has and not before:
            log.info("this node hands out of its channels")
            self._hub.delivering.standing.wake()
        elif before and not turn.has:
            text = "this node misses the others, so its mirror may hand out of its channels: it does so no longer"
            self._tell_people(logging.WARNING, "resting", me, text)
            self._rest()

    def _rest(self) -> None:
        self._hub.delivering.standing.rest()
        self._mirroring.noting.refuse()

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
        turn.look(now, linked=votes - 1, denied=votes, known=known, other=linked)
        if turn.has and not before:
            self.takeovers += 1
            text = f"this node hands out of the channels of node {guid[:8]} now, which is gone"
            self._tell_people(logging.WARNING, "takeover", guid, text)
            self._heir.begin(guid, self._votes.known)
        elif before and not turn.has:
            text = f"this node misses the others: it hands out of the channels of node {guid[:8]} no longer"
            self._tell_people(logging.WARNING, "resting", guid, text)
            self._heir.end(guid)

    def _stale(self, now: float) -> None:
        """A node that most others see goes on without its mirror after a time, which it then does not know of."""
        for guid in list(self._lost):
            if (due := self._spoils(guid)) is not None and now >= due:
                self._heir.spoil(guid)
                del self._lost[guid]

    def _spoils(self, guid: str) -> float | None:
        """When that time is over for a node that is lost; None: this node has its turn, or waits for it."""
        turn = self._others.get(guid)
        if turn is None or turn.has or turn.deadline() is not None:
            return None
        return self._lost[guid] + _STALE * self._patience

    def _say(self, conn: int) -> None:
        self._hub.engine.node(conn, TURN, 0, _encode(self._said))

    def _tell(self, said: Said, *, leave_out: bool = False) -> None:
        packed = _encode(said)
        last = next(reversed(self._links), None) if leave_out else None  # hears it as its first
        for conn in self._links:
            if conn != last:
                self._hub.engine.node(conn, TURN, 0, packed)
        self._hub.loop.call_soon(self._hub.flush)

    def _tell_people(self, level: int, kind: str, guid: str, text: str) -> None:
        log.log(level, "%s", text)
        self.notice(kind, guid, text)
