"""A node and its mirror over real sockets, and helpers that compare their content."""

from contextlib import AsyncExitStack

import pytest

import busway
from busway._core import block_records
from tests.support.cluster import FAST, Cluster
from tests.support.net import eventually


class Mirrored(Cluster):
    """A node `a` and its mirror `b`, each with a data folder; both can be stopped and started again."""

    def __init__(self, stack, folder):
        super().__init__(stack)
        self.folder = folder
        self.ports = {}

    async def node(self, name, *, mirror_of=None, wait=60.0, data=True):
        servers = [
            busway.cluster.members.servers_file.Listed(f"tcp://127.0.0.1:{port}", reconnect=FAST)
            for other, port in self.ports.items()
            if other != name
        ]
        place = busway.Cluster(name="test", servers=servers, mirror_of=mirror_of, mirror_wait=wait)
        server = busway.serve(
            f"tcp://127.0.0.1:{self.ports.get(name, 0)}",
            name=name,
            cluster=place,
            data=self.folder / name if data else None,
        )
        await self.stack.enter_async_context(server)
        self.ports[name] = int(server.addresses[0].rpartition(":")[2])
        return server

    async def pair(self, **more):
        a = await self.node("a", **more)
        b = await self.node("b", mirror_of="a")
        await follows(a, b)
        return a, b


@pytest.fixture
async def nodes(tmp_path):
    async with AsyncExitStack() as stack:
        yield Mirrored(stack, tmp_path)


def mirroring(server):
    return server._hub.peers.members.replication


def streams(server):
    return server._hub.streams.by_name


def content(log, begin=0):
    """The records of a log as they are."""
    out, at = [], begin
    while at < log.written:
        _, at, block = log.read_written(at, 1 << 20)
        out.append(block)
    return b"".join(out)


def payloads(log):
    return [row[4] for row in block_records(content(log))]


async def follows(a, b):
    """The mirror has all that the node has: messages, and progress of channels."""

    def same(name, mirrored):
        copy = mirroring(b).copies.get((a.guid, mirrored.stream.name))
        found = None if copy is None else dict(copy.logs()).get(name)
        (primary, *_) = mirroring(a)._primaries.values()
        written = mirrored.log.written
        return found is not None and name in primary.logs and found.written == primary.logs[name].have == written

    async def equal():
        return mirroring(a).mirrored and all(same(name, mirrored) for name, mirrored in mirroring(a)._logs.items())

    await eventually(equal)


async def copied(a, b, count):
    async def has():
        copies = b._hub.peers.members.replication.copies
        return (a.guid, "default") in copies and copies[a.guid, "default"].safe >= count

    await eventually(has)
