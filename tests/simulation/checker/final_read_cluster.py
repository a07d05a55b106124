"""The survey of a cluster at the end of a run: its links, the routing between nodes, and the stored data.

The survey reads the links from the brokers' state. For everything else it connects a client to each node.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import busway
from busway.cluster.mesh import Mesh
from busway.errors import BusError, NoResponders
from busway.testing.simulation.world import Node
from tests.simulation.checker.cluster import ClusterState, unknown
from tests.simulation.checker.final_read import until
from tests.simulation.workload.client import CHANNEL, RETRY
from tests.simulation.workload.cluster_client import BRIEF, Member, received_by
from tests.simulation.workload.history import History, Key, key_of, payload

NAME: Final = "auditor"
_SOON: Final = 10.0
"""Seconds within which a message must arrive."""
_PATIENCE: Final = 60.0
"""Seconds within which progress is expected."""
_PROBES: Final = 3
_TRIES: Final = 10


def _links(node: Node) -> dict[str, int]:
    """Return the connections of a node's links, by the guids of the linked nodes."""
    mesh = node.hub.peers.members
    assert isinstance(mesh, Mesh), "the node is in a cluster"
    return mesh.members.linked


def missing_links(nodes: Sequence[Node]) -> list[str]:
    """Describe the pairs of nodes without a link."""
    return [
        f"{node.name} has no link to {other.name}"
        for node in nodes
        for other in nodes
        if node is not other and other.server is not None and other.server.guid not in _links(node)
    ]


def wrong_interest(nodes: Sequence[Node]) -> Iterator[str]:
    """Find nodes that know another interest of a peer than it has, and nodes with more than one link to a peer."""
    by_guid = {node.server.guid: node for node in nodes if node.server is not None}
    for node in nodes:
        hub, links = node.hub, _links(node)
        between = sum(session.node for session in hub.sessions.values())
        if not between == len(links) == hub.engine.stats()["links"] == len(nodes) - 1:
            yield f"{node.name} has {between} connections to nodes and {len(links)} links; there are {len(nodes)} nodes"
        for guid, conn in links.items():
            if guid not in by_guid:
                yield f"{node.name} is linked to a node that does not run"
                continue
            figures, peer = hub.engine.connection(conn), by_guid[guid]
            known, actual = figures["subscriptions"] + figures["services"], peer.hub.engine.stats()["interest"]
            if known != actual:
                yield f"{node.name} knows {known} subscriptions and services at {peer.name}, which has {actual}"


class Survey:
    """The survey, in its own process, with a client at each node."""

    def __init__(
        self,
        nodes: Sequence[Node],
        ledger: History,
        programs: Sequence[Member],
        stream: str,
        gone: Mapping[str, str],
    ) -> None:
        self.seen = ClusterState()
        self.done = asyncio.Event()
        self._nodes = nodes
        self._ledger = ledger
        self._programs = programs
        self._stream = stream
        self._gone = gone
        """The guids of nodes that are lost for good, or were replaced, by name. Other nodes have their data."""
        self._number = 0

    async def main(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                buses = {node.name: busway.connect(node.url, name=f"{NAME}-{node.name}") for node in self._nodes}
                await asyncio.gather(*(bus.open() for bus in buses.values()))
                for bus in buses.values():
                    stack.push_async_callback(bus.close)
                self._present()
                await self._reaches(buses)
                for look in (self._works, self._answers, self._kept, self._stored):
                    await asyncio.gather(*(look(name, bus) for name, bus in buses.items()))
                await self._known()
                for name, guid in self._gone.items():
                    await self._stored_by_lost(name, guid, next(iter(buses.values())))
                await self._finish(self._unread)
                await self._finish(self._lag)
        except Exception as error:
            self._problem(f"a healthy node refuses: {type(error).__name__}: {error}")
        finally:
            self.done.set()

    def _problem(self, text: str) -> None:
        self._ledger.problems.append(f"{NAME}: {text}")

    def _playing(self, role: str) -> list[Member]:
        return [program for program in self._programs if role in program.roles]

    def _key(self, node: str) -> Key:
        self._number += 1
        return f"{NAME}@{node}", self._number

    def _present(self) -> None:
        """Check that the nodes have only the connections of living programs."""
        for node in self._nodes:
            hub = node.hub
            known = [session for session in hub.sessions.values() if session.accepted]  # others may still become links
            names = sorted(session.name for session in known if not session.node)
            right = sorted([*(one.name for one in self._programs if one.place == node.name), f"{NAME}-{node.name}"])
            if names != right:
                self._problem(f"{node.name} has the clients {names}, and there are {right}")

    # Messages.

    async def _reaches(self, buses: dict[str, busway.Bus]) -> None:
        """Check that a message goes to local clients and to nodes with subscribers only, and reaches each one once."""
        at = [program.place for program in self._playing("live")]
        sent = {name: [self._key(name) for _ in range(_PROBES)] for name in buses}
        await asyncio.gather(*(self._send(name, bus, at, sent[name]) for name, bus in buses.items()))
        everything = [key for keys in sent.values() for key in keys]
        for program in self._playing("live"):
            await self._has(program, everything)

    async def _send(self, name: str, bus: busway.Bus, at: list[str], keys: list[Key]) -> None:
        right = at.count(name) + len(set(at) - {name})
        for key in keys:
            count = await bus.publish(f"live/{NAME}", payload(key), confirm=True)
            if count != right:
                self._problem(
                    f"a message at {name} goes to {count} connections, not {right}: the subscribers are at {at}"
                )
        for number in range(BRIEF):
            if count := await bus.publish(f"brief/{number}", b"", confirm=True):
                self._problem(f"brief/{number} goes from {name} to {count} connections, but has no subscribers")

    async def _has(self, program: Member, sent: list[Key]) -> None:
        await until(lambda: set(sent) <= set(received_by(self._ledger.live, program.name)), _SOON)
        found = received_by(self._ledger.live, program.name)
        if wrong := {payload(key): count for key in sent if (count := found.count(key)) != 1}:
            dropped = {node.name: node.hub.engine.stats()["messages_dropped"] for node in self._nodes}
            self._problem(f"{program.name} at {program.place} got messages so often: {wrong}; dropped: {dropped}")

    async def _works(self, name: str, bus: busway.Bus) -> None:
        """Check that a member of the group and a consumer of pushes receive a message, at any node."""
        job, task = self._key(name), self._key(name)
        await bus.publish(f"jobs/{NAME}", payload(job))
        if self._playing("pull"):
            await bus.push(f"tasks/{NAME}", payload(task))

        def missing() -> list[str]:
            jobs = bool(self._playing("share")) and all(key != job for _, key in self._ledger.shared)
            tasks = bool(self._playing("pull")) and all(key != task for _, key in self._ledger.taken)
            return ["jobs"] * jobs + ["tasks"] * tasks

        if not await until(lambda: not missing(), _SOON):
            self._problem(f"no program has received the message sent at {name} to {missing()}")

    async def _answers(self, name: str, bus: busway.Bus) -> None:
        await asyncio.gather(*(self._answered(name, bus, program.service) for program in self._playing("only")))
        if self._playing("serve"):
            await self._answered(name, bus, "sum")

    async def _answered(self, name: str, bus: busway.Bus, service: str) -> None:
        try:
            reply = await self._retry(bus, service, name)
        except BusError as error:
            self._problem(f"{service}, asked from {name}: {type(error).__name__}: {error}")
            return
        if reply.text != f"re {name}":
            self._problem(f"{service} answers {reply.text!r}")

    async def _retry(self, bus: busway.Bus, service: str, text: str) -> Any:
        """Request, and retry after NoResponders: a provider that failed often gets only one request at a time."""
        for _ in range(_TRIES):
            with suppress(NoResponders):
                return await bus.request(service, text, timeout=_SOON)
            await asyncio.sleep(RETRY)
        return await bus.request(service, text, timeout=_SOON)

    # Retained and stored messages.

    async def _kept(self, name: str, bus: busway.Bus) -> None:
        self.seen.posts[name] = dict([key_of(message.text) for message in await bus.kept("status/**")])
        self.seen.pins[name] = dict([key_of(message.text) for message in await bus.kept("config/**")])

    async def _known(self) -> None:
        """Wait until watching subscribers know the last retained messages."""

        def same() -> bool:
            return not list(unknown(self.seen))

        for program in self._programs:
            self.seen.known[program.name] = program.place, self._ledger.known[program.name]
        await until(same, _SOON)
        # A copy, since programs see each other's posts being withdrawn when they end.
        self.seen.known = {program: (place, dict(known)) for program, (place, known) in self.seen.known.items()}

    async def _stored(self, name: str, bus: busway.Bus) -> None:
        self.seen.guids[name] = bus.server["guid"]
        stored = self.seen.stored[name] = []
        stream = await bus.stream(self._stream)
        async for some in stream.read(topic="orders/**"):
            stored += [(_offset(message), key_of(message.text)) for message in some]

    async def _stored_by_lost(self, name: str, guid: str, bus: busway.Bus) -> None:
        """Read the stored messages of a node that is gone at another node."""
        self.seen.guids[name] = guid
        stored = self.seen.stored[name] = []
        async with bus.subscribe("orders/**", since="all") as messages:
            with suppress(TimeoutError):
                while True:
                    message = await messages.recv(timeout=_SOON)
                    if message.broker == guid:
                        stored.append((_offset(message), key_of(message.text)))

    # Readers and consumers reach the end.

    async def _finish(self, left: Callable[[], int]) -> None:
        """Wait until nothing is left, as long as there is progress."""
        rest = left()
        while rest:
            before = rest
            if not await until(lambda: left() < before, _PATIENCE):
                self._problem(f"{left.__name__.strip('_')} stays {left()}")
                return
            rest = left()

    def _unread(self) -> int:
        """Return the number of messages that readers do not have yet."""
        have = self._ledger.history
        return sum(
            len(stored) - sum(broker == self.seen.guids[name] for broker, _, _ in have[program.name])
            for program in self._playing("read")
            for name, stored in self.seen.stored.items()
        )

    def _lag(self) -> int:
        """Return the number of messages at all nodes that the channel has not completed."""
        if not self._playing("consume"):
            return 0
        lags = 0
        for node in self._nodes:
            hub = node.hub
            mesh = hub.peers.members
            assert isinstance(mesh, Mesh), "the node is in a cluster"
            owned = [mesh.replication.copies.get((guid, self._stream)) for guid in mesh.promotion.held]
            for stream in (hub.streams.by_name[self._stream], *owned):
                figures = [] if stream is None else hub.channels.figures(stream.number)
                lags += sum(one["lag"] for one in figures if one["name"] == CHANNEL)
        return lags


def _offset(message: Any) -> int:
    assert message.offset is not None, "the message is stored"
    return int(message.offset)
