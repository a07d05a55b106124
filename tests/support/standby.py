"""Three nodes: one that ends, its mirror, and one more."""

import asyncio

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
    for progress in [*server._hub.channels.journals.values(), *(copy.journal for copy in copies)]:
        if isinstance(progress, ProgressLog):
            progress.close()


def alone(*servers):
    """None of these looks for others any more."""
    for server in servers:
        mesh = server._hub.peers.members
        mesh.links._stopped = True
        if mesh.links._timer is not None:
            mesh.links._timer.cancel()


def turns(server):
    return server._hub.peers.members.ownership


async def ready(mirror, *guids):
    """The mirror has heard everything of these nodes' channels, and they know that."""

    async def fresh():
        return all(turns(mirror)._heir.ready(guid) for guid in guids)

    await eventually(fresh)


async def stands_in(mirror, guid):
    async def does():
        return guid in turns(mirror).figures()["stands_in_for"]

    await eventually(does)


async def hands_out(server):
    async def does():
        return turns(server).figures()["hands_out"]

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
