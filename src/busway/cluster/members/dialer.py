"""The dial schedule: which nodes and listed servers to dial, and when.

`membership` owns it and passes the time. A listed server is a target by its address until a connection shows its node.
A node that other nodes reported is a target by its guid.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from busway.cluster.members.actions import Dial
from busway.cluster.members.servers_file import RECONNECT, TIMEOUT, Listed
from busway.cluster.node import MOST_ADDRESSES, Node

JITTER: Final = 0.2
SECOND: Final = 0.5
"""Seconds by which the node with the higher guid dials later, so that usually only one of two nodes dials."""
HINTS: Final = 64
"""Unverified addresses that are dialled at most, so that forged ones cost little."""
HOPELESS: Final = 30.0
"""Seconds between attempts at a server that refused the link."""
STEADY: Final = 1.0
"""Seconds that a link must last to reset the schedule, so that a node with short links is not dialled all the time."""


@dataclass(slots=True)
class Target:
    """A node or server to link to."""

    key: str
    """The guid, or the address while the guid is unknown."""
    listed: tuple[str, ...] = ()
    """Its addresses in the list, which are dialled for ever."""
    hinted: tuple[str, ...] = ()
    """Unverified addresses."""
    node: Node | None = None
    reconnect: tuple[float, ...] = RECONNECT
    timeout: float = TIMEOUT
    name: str = ""
    tries: int = 0
    due: float | None = None
    attempt: int | None = None
    delayed: bool = False
    """The dial was delayed once, for an incoming connection of this node."""
    since: float | None = None
    """When the link was opened; None: not linked."""
    seen: float = 0.0
    """When this node or another one last saw it."""
    stopped: bool = False
    """The node has announced its stop."""
    leads: str = ""
    """The guid that answered the last dial, unverified."""
    why: str = ""
    """Why there is no link."""
    refused: bool = False
    """The link was refused by either side."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses to dial, in order."""
        own = self.node.addresses if self.node is not None else ()
        return tuple(dict.fromkeys((*self.listed, *own, *self.hinted)))


class Dialer:
    """The dial targets of one node."""

    def __init__(self, me: Node, listed: Sequence[Listed], chance: Callable[[], float]) -> None:
        self._me = me
        self._chance = chance
        self._attempts: dict[int, Target] = {}
        self._last = 0
        self.targets: dict[str, Target] = {}
        for server in listed:
            if server.address not in me.addresses:  # the list may name this server
                key, delays = server.address, server.reconnect
                self.targets[key] = Target(key, (key,), reconnect=delays, timeout=server.timeout, name=server.name)

    def start(self, now: float) -> None:
        for target in self.targets.values():
            target.due = now

    @property
    def due(self) -> float | None:
        times = (target.due for target in self.targets.values() if target.attempt is None)
        return min((time for time in times if time is not None), default=None)

    def dial(self, now: float, linked: Collection[str], doubtful: Collection[str] = ()) -> list[Dial]:
        """Returns the dials that are due. `doubtful`: nodes with an incoming connection that is not verified yet."""
        dials = []
        for target in self.targets.values():
            if target.attempt is not None or target.due is None or target.due > now:
                continue
            target.due = None
            if target.key in linked or target.leads in linked or not target.addresses:
                continue
            if not target.delayed and (target.key in doubtful or target.leads in doubtful):
                target.delayed, target.due = True, now + SECOND  # usually it is that node, and both sides have dialled
                continue
            target.delayed = False
            self._last += 1
            target.attempt = self._last
            self._attempts[self._last] = target
            dials.append(Dial(self._last, target.addresses, target.timeout))
        return dials

    def hint(self, address: str, now: float) -> None:
        """Add an unverified address. It is forgotten like a lost node if no node answers."""
        if address in self._me.addresses:
            return
        for target in self.targets.values():
            if address in target.addresses:
                target.seen = max(target.seen, now)
                return
        if sum(bool(target.hinted) and target.node is None for target in self.targets.values()) < HINTS:
            self.targets[address] = Target(address, hinted=(address,), seen=now, due=now)

    def ended(self, attempt: int | None) -> Target | None:
        """An attempt has ended. Returns its target."""
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
        """A node answered that can't be linked."""
        if target is not None:
            self.later(target, now, hopeless=True)

    def later(self, target: Target, now: float, *, hopeless: bool = False) -> None:
        """Schedule the next attempt."""
        delay = target.reconnect[min(target.tries, len(target.reconnect) - 1)]
        target.tries += 1
        if hopeless:
            delay = max(delay, HOPELESS)
        target.due = now + delay * (1 + JITTER * (2 * self._chance() - 1))

    def learn(self, node: Node, target: Target | None, now: float, ago: float = 0.0) -> None:
        """A node is there, or another one saw it `ago` seconds ago. Its target by address becomes one by guid."""
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
        """A node announced its stop. Returns whether that is new."""
        target = self.targets.get(node.guid)
        if target is None or target.stopped or (target.node is not None and target.node.age > node.age):
            return False
        target.stopped = True
        return True

    def back(self, node: Node) -> None:
        """A node was seen. If it was started after its stop, it is not stopped any more."""
        target = self.targets.get(node.guid)
        if target is not None and (target.node is None or target.node.age < node.age):
            target.stopped = False

    def reached(self, node: Node, now: float) -> None:
        """A link to a node is open."""
        for target in [other for other in self.targets.values() if other.leads == node.guid and other.node is None]:
            self.learn(node, target, now)
        self.learn(node, None, now)
        target = self.targets[node.guid]
        target.node, target.since, target.due, target.stopped = node, now, None, False

    def lost(self, guid: str, now: float, *, hopeless: bool = False) -> None:
        """The link to a node has ended, or could not be opened."""
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
        """An incoming connection of this node ended without a proof. Make sure that the node is dialled."""
        for target in self.targets.values():
            if guid in {target.key, target.leads} and target.attempt is None and target.due is None:
                self.later(target, now)

    def again(self, guid: str, now: float) -> None:
        """A node may be reachable now: dial it at once."""
        for target in self.targets.values():
            if target.due is not None and guid in {target.key, target.leads}:
                target.due = min(target.due, now)

    def own(self, target: Target, now: float, *, same: bool) -> None:
        """An address leads to this node itself, or to a copy of it."""
        if same:
            self.targets.pop(target.key, None)
        else:
            self.later(target, now, hopeless=True)

    def forgotten(self, now: float, after: float, linked: Collection[str]) -> list[Target]:
        """Remove and return targets that were not seen for `after` seconds and are not in the list."""
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
