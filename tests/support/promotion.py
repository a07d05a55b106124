"""Three nodes: one that fails, its mirror, and one more."""

import asyncio

import msgspec

import busway
from busway.broker.channels.progress_log import ProgressLog
from tests.support.cluster_streams import some
from tests.support.mirrored import follows
from tests.support.net import eventually


def crash(server):
    """As a process that is killed: nothing is said, nothing is written."""
    alone(server)
    for session in list(server._hub.everyone):
        session.abort()
    server._kill()
    copies = server._hub.peers.members.replication.copies.values()
    for stream in [*server._hub.streams.by_name.values(), *copies]:  # a process that ends lets go of them
        stream._stop_listening()
        stream.log.close()
    for copy in copies:
        copy.close_now()
    for progress in server._hub.channels.journals.values():
        if isinstance(progress, ProgressLog):
            progress.close()


def alone(*servers):
    """None of these looks for others any more."""
    for server in servers:
        mesh = server._hub.peers.members
        mesh.links._stopped = True
        if mesh.links._timer is not None:
            mesh.links._timer.cancel()


def promotion(server):
    return server._hub.peers.members.promotion


async def whole(mirror, *nodes):
    """The mirror has everything of these nodes, and their channels' progress."""
    replica = mirror._hub.peers.members.replication.replica

    async def complete():
        return all((copies := replica.of(node.guid)) and not replica.missing(copies) for node in nodes)

    await eventually(complete)


async def promote(mirror, node, *, force=False):
    """As `busway cluster promote` does, by the name of the node."""
    async with mirror.connect() as bus:
        question = msgspec.json.encode({"node": node, "force": force})
        return (await bus.request("$bus/cluster/promote", question, timeout=60)).json()


async def gone(server, guid):
    """The link to a node has ended."""

    async def away():
        return guid not in server._hub.peers.members.members.linked

    await eventually(away)


async def delivers(server):
    """It delivers from its own channels."""

    async def does():
        return promotion(server).figures()["delivers"]

    await eventually(does)


async def take(channel, count):
    got = []
    async with asyncio.timeout(60):
        while len(got) < count:
            got.append(await channel.recv())
    return got


def numbers(messages):
    return sorted(int(message.payload) for message in messages)


class Three:
    """A node `a`, its mirror `b`, and `c`; ten messages of the stream `jobs` are at `a`, and the channel `work` is made."""

    def __init__(self, nodes):
        self.nodes = nodes

    async def begin(self, **settings):
        self.a, self.b = await self.nodes.pair()
        self.c = await self.nodes.node("c", data=False)
        await self.nodes.whole(self.a, self.b, self.c)
        self.at_a = await self.nodes.client(self.a)
        self.stream = await self.at_a.create_stream("jobs", ["jobs/**"], safety="mirrored", **settings)
        await some(self.at_a, "jobs/1", 0, 10)
        await follows(self.a, self.b)
        return self

    async def loose(self, server):
        """A client that does not go elsewhere."""
        bus = busway.connect(server.addresses[0], learn=False)
        return await self.nodes.stack.enter_async_context(bus)
