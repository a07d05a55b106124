"""The last look at a world of several nodes: who is linked to whom, what each heard of the others, and whether what is said at one is heard at all.

What nodes know of each other is read out of them; all else is seen by clients, one at each node.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import busway
from busway.cluster.mesh import Mesh
from busway.errors import BusError, NoResponders
from busway.testing.simulation.checker.cluster import Seen, unknown
from busway.testing.simulation.checker.final_read import until
from busway.testing.simulation.kit.world import Node
from busway.testing.simulation.workload.client import AGAIN, CHANNEL
from busway.testing.simulation.workload.cluster_client import BRIEF, Member, heard
from busway.testing.simulation.workload.history import History, Key, key_of, payload

if TYPE_CHECKING:
    from busway.broker.hub import Hub

NAME: Final = "auditor"
_SOON: Final = 10.0
"""Seconds in which what was said is heard."""
_PATIENCE: Final = 60.0
"""Seconds in which something is expected to come on."""
_PROBES: Final = 3
_TRIES: Final = 10


def _hub(node: Node) -> "Hub":
    if node.server is None:
        raise RuntimeError(f"{node.name} does not run")
    return node.server._running()  # noqa: SLF001, who looks into nodes has to open them


def _links(node: Node) -> dict[str, int]:
    """The nodes to which it has a link, with the link's connection."""
    mesh = _hub(node).peers.members
    assert isinstance(mesh, Mesh), "it is one of several"
    return mesh.members.linked


def strangers(nodes: Sequence[Node]) -> list[str]:
    """Pairs of which one has no link to the other."""
    return [
        f"{one.name} has no link to {two.name}"
        for one in nodes
        for two in nodes
        if one is not two and two.server is not None and two.server.guid not in _links(one)
    ]


def unheard(nodes: Sequence[Node]) -> Iterator[str]:
    """Where a node has heard something else of another one's interest than there is; and who is linked more than once."""
    by_guid = {node.server.guid: node for node in nodes if node.server is not None}
    for node in nodes:
        hub, links = _hub(node), _links(node)
        between = sum(session.node for session in hub.sessions.values())
        if not between == len(links) == hub.engine.stats()["links"] == len(nodes) - 1:
            yield f"{node.name} has {between} connections to nodes and {len(links)} links; there are {len(nodes)} nodes"
        for guid, conn in links.items():
            if guid not in by_guid:
                yield f"{node.name} is linked to somebody who is not there"
                continue
            figures, there = hub.engine.connection(conn), by_guid[guid]
            told, wanted = figures["subscriptions"] + figures["services"], _hub(there).engine.stats()["interest"]
            if told != wanted:
                yield f"{node.name} heard of {told} things that clients of {there.name} want; they want {wanted}"


class Survey:
    """Its own process, with a client at each node."""

    def __init__(
        self, nodes: Sequence[Node], ledger: History, programs: Sequence[Member], stream: str, lost: Sequence[Node]
    ) -> None:
        self.seen = Seen()
        self.done = asyncio.Event()
        self._nodes = nodes
        self._ledger = ledger
        self._programs = programs
        self._stream = stream
        self._lost = lost
        """Nodes that will not come again; what they had is elsewhere."""
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
                for node in self._lost:
                    await self._left_behind(node, next(iter(buses.values())))
                await self._come_on(self._unread)
                await self._come_on(self._lag)
        except Exception as error:  # noqa: BLE001, noted
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
        """The nodes have the connections of those who live, and no others."""
        for node in self._nodes:
            hub = _hub(node)
            known = [session for session in hub.sessions.values() if session.accepted]  # others may become links
            names = sorted(session.name for session in known if not session.node)
            right = sorted([*(one.name for one in self._programs if one.place == node.name), f"{NAME}-{node.name}"])
            if names != right:
                self._problem(f"{node.name} has the clients {names}, and there are {right}")

    # Messages.

    async def _reaches(self, buses: dict[str, busway.Bus]) -> None:
        """A message goes to clients of its own node and to nodes where somebody wants it, and to nobody else; each of those gets it once."""
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
                    f"a message at {name} goes to {count} connections, not {right}: those who want it are at {at}"
                )
        for number in range(BRIEF):
            if count := await bus.publish(f"brief/{number}", b"", confirm=True):
                self._problem(f"brief/{number} goes from {name} to {count} connections, and nobody wants it")

    async def _has(self, program: Member, sent: list[Key]) -> None:
        await until(lambda: set(sent) <= set(heard(self._ledger.live, program.name)), _SOON)
        found = heard(self._ledger.live, program.name)
        if wrong := {payload(key): count for key in sent if (count := found.count(key)) != 1}:
            dropped = {node.name: _hub(node).engine.stats()["messages_dropped"] for node in self._nodes}
            self._problem(f"{program.name} at {program.place} got messages so often: {wrong}; dropped: {dropped}")

    async def _works(self, name: str, bus: busway.Bus) -> None:
        """One member of the group, one taker; whoever it is and wherever."""
        job, task = self._key(name), self._key(name)
        await bus.publish(f"jobs/{NAME}", payload(job))
        if self._playing("pull"):
            await bus.push(f"tasks/{NAME}", payload(task))

        def missing() -> list[str]:
            jobs = bool(self._playing("share")) and all(key != job for _, key in self._ledger.shared)
            tasks = bool(self._playing("pull")) and all(key != task for _, key in self._ledger.taken)
            return ["jobs"] * jobs + ["tasks"] * tasks

        if not await until(lambda: not missing(), _SOON):
            self._problem(f"nobody has what was sent at {name} to {missing()}")

    async def _answers(self, name: str, bus: busway.Bus) -> None:
        await asyncio.gather(*(self._answered(name, bus, program.service) for program in self._playing("only")))
        if self._playing("serve"):
            await self._answered(name, bus, "sum")

    async def _answered(self, name: str, bus: busway.Bus, service: str) -> None:
        try:
            reply = await self._insist(bus, service, name)
        except BusError as error:
            self._problem(f"{service}, asked from {name}: {type(error).__name__}: {error}")
            return
        if reply.text != f"re {name}":
            self._problem(f"{service} answers {reply.text!r}")

    async def _insist(self, bus: busway.Bus, service: str, text: str) -> Any:
        """One that failed often is set aside, and then tried by one request at a time: the others are told that nobody is willing."""
        for _ in range(_TRIES):
            with suppress(NoResponders):
                return await bus.request(service, text, timeout=_SOON)
            await asyncio.sleep(AGAIN)
        return await bus.request(service, text, timeout=_SOON)

    # What is kept and stored.

    async def _kept(self, name: str, bus: busway.Bus) -> None:
        self.seen.posts[name] = dict([key_of(message.text) for message in await bus.kept("status/**")])
        self.seen.pins[name] = dict([key_of(message.text) for message in await bus.kept("config/**")])

    async def _known(self) -> None:
        """Who subscribed to what is kept has the last of it."""

        def same() -> bool:
            return not list(unknown(self.seen))

        for program in self._programs:
            self.seen.known[program.name] = program.place, self._ledger.known[program.name]
        await until(same, _SOON)
        # When the programs go they are told of the end of each other's posts.
        self.seen.known = {who: (place, dict(known)) for who, (place, known) in self.seen.known.items()}

    async def _stored(self, name: str, bus: busway.Bus) -> None:
        self.seen.guids[name] = bus.server["guid"]
        stored = self.seen.stored[name] = []
        stream = await bus.stream(self._stream)
        async for some in stream.read(topic="orders/**"):
            stored += [(_offset(message), key_of(message.text)) for message in some]

    async def _left_behind(self, node: Node, bus: busway.Bus) -> None:
        """What a node had stored that is lost, as it is read at another one."""
        self.seen.guids[node.name] = node.guid
        stored = self.seen.stored[node.name] = []
        async with bus.subscribe("orders/**", since="all") as messages:
            with suppress(TimeoutError):
                while True:
                    message = await messages.recv(timeout=_SOON)
                    if message.broker == node.guid:
                        stored.append((_offset(message), key_of(message.text)))

    # Those who read and consume come to the end.

    async def _come_on(self, left: Callable[[], int]) -> None:
        """Wait until nothing is left, as long as it becomes less."""
        rest = left()
        while rest:
            before = rest
            if not await until(lambda: left() < before, _PATIENCE):  # noqa: B023, called before it changes
                self._problem(f"{left.__name__.strip('_')} stays {left()}")
                return
            rest = left()

    def _unread(self) -> int:
        """Messages that readers do not have yet."""
        have = self._ledger.history
        return sum(
            len(stored) - sum(broker == self.seen.guids[name] for broker, _, _ in have[program.name])
            for program in self._playing("read")
            for name, stored in self.seen.stored.items()
        )

    def _lag(self) -> int:
        """Messages that the consumers of the channel are not done with, at all nodes."""
        if not self._playing("consume"):
            return 0
        lags = 0
        for node in self._nodes:
            hub = _hub(node)
            figures = hub.channels.figures(hub.streams.by_name[self._stream].number)
            lags += sum(one["lag"] for one in figures if one["name"] == CHANNEL)
        return lags


def _offset(message: Any) -> int:
    assert message.offset is not None, "it is a stored one"
    return int(message.offset)
