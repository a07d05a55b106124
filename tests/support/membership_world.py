"""Membership machines of several nodes, joined by a network of queues in virtual time."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

from busway.cluster.members.actions import Action, Admit, Dial, Left, Notice, Probe, Refuse, Tell
from busway.cluster.members.membership import Membership
from busway.cluster.members.servers_file import listed
from busway.cluster.node import Node, pack_sightings, read_sightings
from busway.errors import Code

SILENCE = 9.0
"""Seconds after which a connection without its other end is given up."""


@dataclass(eq=False)
class End:
    """One end of a connection."""

    conn: int
    owner: "Machine"
    attempt: int | None = None
    other: "End | None" = None
    open: bool = True
    admitted: bool = False
    proved: bool = False
    welcomed: bool = False
    silent: float | None = None
    """Since when nothing can come from the other end."""


@dataclass(eq=False)
class Machine:
    """One node that runs."""

    node: Node
    members: Membership
    ends: dict[int, End] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    running: bool = True

    @property
    def links(self) -> set[str]:
        return set(self.members.linked)


class World:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.now = 0.0
        self.machines: dict[str, Machine] = {}
        """By address."""
        self.cut: set[tuple[str, str]] = set()
        """Ways, by address, on which nothing passes."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._conns = count(1)
        self._beat = 1.0
        self._last: dict[End, float] = {}
        self._stuck: dict[End, list[Callable[[], None]]] = {}
        self.dials = 0

    # Nodes.

    def start(
        self, address: str, servers: str, *, guid: str | None = None, cluster: str = "test", skew: float = 0
    ) -> Machine:
        guid = guid or f"{self.chance.getrandbits(128):032x}"
        since = int((self.now + skew + 1e6) * 1e9)
        full = f"tcp://{address}:1"
        node = Node(guid, self.chance.getrandbits(63) + 1, cluster, address, (full,), since)
        machine = Machine(node, Membership(node, listed(servers), chance=self.chance.random))
        self.machines[full] = machine
        machine.members.start(self.now)
        self._act(machine)
        return machine

    def kill(self, machine: Machine, *, silent: bool = False, code: int = Code.OK) -> None:
        """End it; silently as a host that loses power does, or so that others hear of it; GOING_AWAY: it says that it stops."""
        machine.running = False
        for end in list(machine.ends.values()):
            if not silent:
                self._close(end, code)
            end.open = False

    def close(self, machine: Machine, conn: int) -> None:
        """This one ends a link."""
        self._close(machine.ends[conn], Code.PROTOCOL)
        machine.members.lost(conn, self.now, "closed", Code.PROTOCOL)
        self._act(machine)

    def move_on(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            times = [self._queue[0][0]] if self._queue else []
            for machine in self.machines.values():
                if machine.running and (due := machine.members.due) is not None:
                    times.append(due)
            times.append(self._beat)
            when = max(min(times, default=until), self.now)
            if when > until:
                break
            self.now = when
            if when >= self._beat:
                self._beat_all()
            while self._queue and self._queue[0][0] <= self.now:
                heapq.heappop(self._queue)[2]()
            for machine in list(self.machines.values()):
                if machine.running and (due := machine.members.due) is not None and due <= self.now:
                    machine.members.tick(self.now)
                    self._act(machine)
        self.now = until

    def _beat_all(self) -> None:
        """Heartbeats: an end that hears nothing for long gives up, and so does one whose handshake takes long."""
        self._beat = self.now + 1
        stuck, self._stuck = self._stuck, {}
        for arrivals in stuck.values():
            for arrive in arrivals:
                arrive()
        for machine in list(self.living()):
            for end in list(machine.ends.values()):
                assert end.other is not None
                other = end.other.owner
                heard = (
                    other.running and end.other.open and self._passes(other, machine) and self._passes(machine, other)
                )
                if heard and end.proved:
                    end.silent = None
                elif end.silent is None:
                    end.silent = self.now
                elif self.now - end.silent >= SILENCE:
                    self._give_up(end)

    # The network.

    def _later(self, what: Callable[[], None], delay: float | None = None) -> None:
        delay = self.chance.uniform(0.001, 0.2) if delay is None else delay
        heapq.heappush(self._queue, (self.now + delay, next(self._order), what))

    def _address(self, machine: Machine) -> str:
        return machine.node.addresses[0]

    def _passes(self, one: Machine, other: Machine) -> bool:
        return (self._address(one), self._address(other)) not in self.cut

    def _send(self, end: End, what: Callable[[End], None]) -> None:
        """Do something at the other end, in order of sending on this connection."""
        assert end.other is not None
        other = end.other

        def arrive() -> None:
            if not (other.open and other.owner.running):
                return
            if not self._passes(end.owner, other.owner):  # sent again until it passes, or the connection is given up
                self._stuck.setdefault(end, []).append(arrive)
                return
            what(other)
            self._act(other.owner)

        at = max(self.now + self.chance.uniform(0.001, 0.1), self._last.get(end, 0.0))
        self._last[end] = at
        heapq.heappush(self._queue, (at, next(self._order), arrive))

    def _give_up(self, end: End) -> None:
        if end.open and end.owner.running:
            self._ended(end, Code.IDLE)
            self._act(end.owner)

    def _ended(self, end: End, code: int, text: str = "closed") -> None:
        """An end hears that its connection is over."""
        end.open = False
        end.owner.ends.pop(end.conn, None)
        if code == Code.GOING_AWAY:
            end.owner.members.stops(end.conn)
        if end.attempt is not None and not end.admitted:
            end.owner.members.failed(end.attempt, self.now, text, code)
        end.owner.members.lost(end.conn, self.now, text, code)

    def _close(self, end: End, code: int, text: str = "closed") -> None:
        if end.open:
            self._send(end, lambda other: self._ended(other, code, text))
            end.open = False
            end.owner.ends.pop(end.conn, None)

    # What machines want.

    def _act(self, machine: Machine) -> None:
        while actions := machine.members.take():
            for action in actions:
                self._do(machine, action)

    def _do(self, machine: Machine, action: Action) -> None:
        members = machine.members
        match action:
            case Dial(attempt, addresses):
                self.dials += 1
                self._later(lambda: self._connect(machine, attempt, addresses))
            case Admit(conn):
                end = machine.ends[conn]
                end.admitted = True
                self._welcome(machine, end)
                self._send(end, self._proof)
                if end.proved:
                    members.proved(conn, self.now)
            case Refuse(conn, code, text):
                if (end := machine.ends.get(conn)) is not None:
                    if action.welcome:
                        self._welcome(machine, end)
                    self._close(end, code, text)
            case Probe(conn):
                end = machine.ends[conn]
                self._send(end, lambda other: self._send(other, self._answered))
            case Tell(conn, sightings):
                packed = pack_sightings(sightings)
                if (end := machine.ends.get(conn)) is not None:
                    self._send(end, lambda other: self._told(other, packed))
            case Left(guid):
                machine.left.append(guid)
            case Notice():
                machine.notices.append(action)

    def _connect(self, machine: Machine, attempt: int, addresses: tuple[str, ...]) -> None:
        if not machine.running:
            return
        for address in addresses:
            other = self.machines.get(address)
            if (
                other is None
                or not other.running
                or not self._passes(machine, other)
                or not self._passes(other, machine)
            ):
                continue
            here = End(next(self._conns), machine, attempt)
            there = End(next(self._conns), other)
            here.other, there.other = there, here
            machine.ends[here.conn], other.ends[there.conn] = here, there
            node = machine.node
            self._send(here, lambda end: end.owner.members.greeted(end.conn, node, self.now))
            return
        machine.members.failed(attempt, self.now, "nobody there")
        self._act(machine)

    def _welcome(self, machine: Machine, end: End) -> None:
        if end.attempt is None and not end.welcomed:
            end.welcomed = True
            node = machine.node
            self._send(end, lambda other: self._welcomed(other, node))

    def _welcomed(self, end: End, node: Node) -> None:
        end.owner.members.greeted(end.conn, node, self.now, end.attempt)
        end.admitted = True  # from now on its end is told by `lost`

    def _proof(self, end: End) -> None:
        end.proved = True
        if end.owner.members.node_of(end.conn) is not None:
            end.owner.members.proved(end.conn, self.now)

    def _answered(self, end: End) -> None:
        end.owner.members.alive(end.conn, self.now)

    def _told(self, end: End, packed: bytes) -> None:
        end.owner.members.heard(read_sightings(packed), self.now)

    # What must hold.

    def living(self) -> Iterator[Machine]:
        return (machine for machine in self.machines.values() if machine.running)

    def assert_whole(self) -> None:
        """Each is linked to each, by one connection that both hold for the link."""
        for machine in self.living():
            others = {other.node.guid: other for other in self.living() if other is not machine}
            assert machine.links == set(others), (machine.node, machine.links, set(others))
            for guid, conn in machine.members.linked.items():
                end = machine.ends[conn].other
                assert end is not None
                assert end.owner is others[guid]
                assert end.owner.members.linked[machine.node.guid] == end.conn
            used = [end for end in machine.ends.values() if end.other and end.other.owner.running]
            assert len(used) == len(others), "more connections than links"
