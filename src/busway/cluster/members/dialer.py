"""Which nodes and listed servers are to be dialled, and when.

A machine, part of the membership. A server of the list is a target by its address until a connection shows which node it is; a node
that others told of is a target by its guid.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from busway.cluster.members.actions import Dial
from busway.cluster.members.servers_file import RECONNECT, TIMEOUT, Listed
from busway.cluster.node import MOST_ADDRESSES, Node

JITTER: Final = 0.2
SECOND: Final = 0.5
"""Seconds by which the node with the higher guid lets the other one go first, so that mostly only one of them dials."""
HINTS: Final = 64
"""Addresses that may be there by hearsay alone: who makes up more of them costs no more."""
HOPELESS: Final = 30.0
"""Seconds between attempts at somebody who said no."""
STEADY: Final = 1.0
"""Seconds that a link must have lived for the schedule to begin anew, so that a node with which no link lasts is not dialled all the time."""


@dataclass(slots=True)
class Target:
    """Somebody to be linked to."""

    key: str
    """The guid, or the address as long as that isn't known."""
    listed: tuple[str, ...] = ()
    """Its addresses in the list, which are tried for ever."""
    hinted: tuple[str, ...] = ()
    """Where it may be, by the word of somebody who need not be a node."""
    node: Node | None = None
    reconnect: tuple[float, ...] = RECONNECT
    timeout: float = TIMEOUT
    name: str = ""
    tries: int = 0
    due: float | None = None
    attempt: int | None = None
    put_off: bool = False
    """Its dial waits for who has come as this node; that is done once."""
    since: float | None = None
    """Since when there is a link to it."""
    seen: float = 0.0
    """When it was there last, by what this node saw or others told."""
    stopped: bool = False
    """It has said that it stops."""
    leads: str = ""
    """Who was there, by its own word, when it was dialled last."""
    why: str = ""
    """Why there is no link, by what was seen last,"""
    refused: bool = False
    """which was somebody who said no, or to whom this side did."""

    @property
    def addresses(self) -> tuple[str, ...]:
        own = self.node.addresses if self.node is not None else ()
        return tuple(dict.fromkeys((*self.listed, *own, *self.hinted)))


class Dialer:
    """All targets of one node."""

    def __init__(self, me: Node, listed: Sequence[Listed], chance: Callable[[], float]) -> None:
        self._me = me
        self._chance = chance
        self._attempts: dict[int, Target] = {}
        self._last = 0
        self.targets: dict[str, Target] = {}
        for one in listed:
            if one.address not in me.addresses:  # the list may name this server
                key, delays = one.address, one.reconnect
                self.targets[key] = Target(key, (key,), reconnect=delays, timeout=one.timeout, name=one.name)

    def start(self, now: float) -> None:
        for target in self.targets.values():
            target.due = now

    @property
    def due(self) -> float | None:
        times = (one.due for one in self.targets.values() if one.attempt is None)
        return min((time for time in times if time is not None), default=None)

    def dial(self, now: float, linked: Collection[str], doubtful: Collection[str] = ()) -> list[Dial]:
        """Those whose time has come. `doubtful`: somebody has come as that node and proved nothing yet, so it may be anybody."""
        dials = []
        for target in self.targets.values():
            if target.attempt is not None or target.due is None or target.due > now:
                continue
            target.due = None
            if target.key in linked or target.leads in linked or not target.addresses:
                continue
            if not target.put_off and (target.key in doubtful or target.leads in doubtful):
                target.put_off, target.due = True, now + SECOND  # mostly it is that node, and two dials cross
                continue
            target.put_off = False
            self._last += 1
            target.attempt = self._last
            self._attempts[self._last] = target
            dials.append(Dial(self._last, target.addresses, target.timeout))
        return dials

    def hint(self, address: str, now: float) -> None:
        """An address to try; it is forgotten if nobody is there, as a node that is gone."""
        if address in self._me.addresses:
            return
        for target in self.targets.values():
            if address in target.addresses:
                target.seen = max(target.seen, now)
                return
        if sum(bool(one.hinted) and one.node is None for one in self.targets.values()) < HINTS:
            self.targets[address] = Target(address, hinted=(address,), seen=now, due=now)

    def ended(self, attempt: int | None) -> Target | None:
        """An attempt has led somewhere."""
        target = None if attempt is None else self._attempts.pop(attempt, None)
        if target is not None:
            target.attempt = None
        return target

    def failed(self, attempt: int, now: float, *, hopeless: bool) -> Target | None:
        target = self.ended(attempt)
        if target is not None:
            self.later(target, now, hopeless=hopeless)
        return target

    def failed_with(self, target: Target | None, now: float) -> None:
        """Somebody is there with whom there is no link."""
        if target is not None:
            self.later(target, now, hopeless=True)

    def later(self, target: Target, now: float, *, hopeless: bool = False) -> None:
        """Another attempt, by the schedule."""
        delay = target.reconnect[min(target.tries, len(target.reconnect) - 1)]
        target.tries += 1
        if hopeless:
            delay = max(delay, HOPELESS)
        target.due = now + delay * (1 + JITTER * (2 * self._chance() - 1))

    def learn(self, node: Node, target: Target | None, now: float, ago: float = 0.0) -> None:
        """A node is there, or was seen by another one so long ago; a target by address that led to it is one by its guid from now on."""
        known = self.targets.get(node.guid)
        if target is not None and target.node is None:
            self.targets.pop(target.key, None)
            if known is None:
                target.key = node.guid
                known = self.targets[node.guid] = target
            else:
                known.listed = tuple(dict.fromkeys((*known.listed, *target.listed)))
                known.hinted = tuple(dict.fromkeys((*known.hinted, *target.hinted)))[:MOST_ADDRESSES]
                known.reconnect, known.timeout = target.reconnect, target.timeout
        elif known is None:
            known = self.targets[node.guid] = Target(node.guid, seen=now - ago)
            known.due = now if self._me.guid < node.guid else now + SECOND
        if known.node is None or node.age >= known.node.age:
            known.node, known.name = node, node.name or known.name
        known.seen = max(known.seen, now - ago)

    def stops(self, node: Node) -> bool:
        """It has said that it stops; whether that is news."""
        target = self.targets.get(node.guid)
        if target is None or target.stopped or (target.node is not None and target.node.age > node.age):
            return False
        target.stopped = True
        return True

    def back(self, node: Node) -> None:
        """It was seen; if it was started again since it stopped, that is over."""
        target = self.targets.get(node.guid)
        if target is not None and (target.node is None or target.node.age < node.age):
            target.stopped = False

    def reached(self, node: Node, now: float) -> None:
        """There is a link to it."""
        for target in [one for one in self.targets.values() if one.leads == node.guid and one.node is None]:
            self.learn(node, target, now)
        self.learn(node, None, now)
        target = self.targets[node.guid]
        target.node, target.since, target.due, target.stopped = node, now, None, False

    def lost(self, guid: str, now: float, *, hopeless: bool = False) -> None:
        """Its link has ended, or did not come to be."""
        for target in self.targets.values():
            if guid not in {target.key, target.leads}:
                continue
            since, target.since = target.since, None
            if since is not None and now >= since + STEADY:
                target.tries = 0
            if target.attempt is None:
                self.later(target, now, hopeless=hopeless)
                if target.due is not None and self._me.guid > guid:
                    target.due += SECOND
        if guid in self.targets:
            self.targets[guid].seen = now

    def left_alone(self, guid: str, now: float) -> None:
        """Somebody came as this node and is gone without a proof: that changes nothing, but that it is dialled if it was not to be."""
        for target in self.targets.values():
            if guid in {target.key, target.leads} and target.attempt is None and target.due is None:
                self.later(target, now)

    def again(self, guid: str, now: float) -> None:
        """There is hope for it now."""
        for target in self.targets.values():
            if target.due is not None and guid in {target.key, target.leads}:
                target.due = min(target.due, now)

    def own(self, target: Target, now: float, *, same: bool) -> None:
        """An address has led to this very node, or to a copy of it."""
        if same:
            self.targets.pop(target.key, None)
        else:
            self.later(target, now, hopeless=True)

    def forgotten(self, now: float, after: float, linked: Collection[str]) -> list[Target]:
        """Those that were not seen for so long, and are not in the list; they are not dialled any more."""
        gone = [
            target
            for target in self.targets.values()
            if not target.listed and target.key not in linked and target.attempt is None and target.seen + after <= now
        ]
        for target in gone:
            del self.targets[target.key]
        return gone

    def forget(self, guid: str) -> None:
        target = self.targets.get(guid)
        if target is not None and not target.listed:
            del self.targets[guid]
        elif target is not None:
            target.node = None
