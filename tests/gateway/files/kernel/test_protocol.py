"""The kernel's requests: each invalid one is answered with an error, and none ends the mount."""

import asyncio
import errno
import logging
import random
import socket
import struct

import pytest

import busway
from busway.gateway.files.door import FileDoor
from busway.gateway.files.fusebus.bridge import Bridge
from busway.gateway.files.kernel import protocol
from busway.gateway.files.kernel.device import Kernel
from busway.gateway.files.kernel.filesystem import FileSystem
from busway.gateway.files.kernel.protocol import Op

SILENT = {Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT}


class Peer:
    """The other end of /dev/fuse."""

    def __init__(self, end):
        self._end = end
        self._number = 0

    def send(self, op, node=1, body=b""):
        self._number += 2
        header = protocol.HEADER.pack(protocol.HEADER.size + len(body), op, self._number, node, 0, 0, 0, 0, 0)
        self._end.send(header + body)
        return self._number

    async def answer(self):
        """Number, error and body of the next one."""
        async with asyncio.timeout(60):
            data = await asyncio.get_running_loop().sock_recv(self._end, 1 << 21)
        length, error, number = protocol.OUT.unpack_from(data)
        assert length == len(data)
        return number, -error, data[protocol.OUT.size :]

    async def ask(self, op, node=1, body=b""):
        number = self.send(op, node, body)
        while True:
            answered, error, data = await self.answer()
            if answered == number:
                return error, data


@pytest.fixture
async def peer(tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    async with busway.serve() as server:
        door = FileDoor(tmp_path, lambda name: server.connect(name=name))
        for bus in door._buses:
            await bus.open()
        kernel = Kernel(theirs.detach())
        bridge = door._bridge = Bridge(door.bus, door.exchange, door.settings)
        door._kernel = kernel
        files = door._files = FileSystem(kernel, door._root(kernel, bridge), door.settings, started=1)
        bridge.start()
        kernel.start(files.table())
        made = Peer(ours)
        made.files = files
        error, _ = await made.ask(Op.INIT, body=protocol.INIT.pack(7, 38, 0, 0))
        assert error == 0
        yield made
        kernel.stop()
        await door.close()
    ours.close()


async def find(peer, name, node=1):
    error, data = await peer.ask(Op.LOOKUP, node, name.encode() + b"\0")
    assert error == 0
    return struct.unpack_from("=Q", data)[0]


async def opened(peer, node, flags=2):
    error, data = await peer.ask(Op.OPEN, node, protocol.OPEN.pack(flags, 0))
    assert error == 0
    return struct.unpack_from("=Q", data)[0]


async def test_a_read_that_waits_is_interrupted(peer):
    node = await find(peer, "fusebus")
    handle = await opened(peer, node)
    read = peer.send(Op.READ, node, protocol.READ.pack(handle, 0, 4096, 0, 0, 2, 0))
    peer.send(Op.INTERRUPT, 0, protocol.HANDLE.pack(read))
    assert await peer.answer() == (read, errno.EINTR, b"")
    assert not peer.files.files[handle]._reads
    # Once more for one that has been answered: nobody is told anything.
    peer.send(Op.INTERRUPT, 0, protocol.HANDLE.pack(read))
    assert (await peer.ask(Op.RELEASE, node, protocol.HANDLE.pack(handle) + bytes(16)))[0] == 0
    assert not peer.files.files


async def test_what_asks_the_broker_is_interrupted(peer):
    streams = await find(peer, "streams")
    lookup = peer.send(Op.LOOKUP, streams, b"default\0")
    peer.send(Op.INTERRUPT, 0, protocol.HANDLE.pack(lookup))
    assert (await peer.answer())[:2] == (lookup, errno.EINTR)


async def test_nodes_are_forgotten(peer):
    before = len(peer.files._nodes)
    found = [await find(peer, "x%2Fy", await find(peer, "topics")) for _ in range(3)]
    assert len(set(found)) == 1
    peer.send(Op.FORGET, found[0], protocol.FORGET.pack(2))
    assert (await peer.ask(Op.GETATTR, found[0], bytes(16)))[0] == 0
    peer.send(
        Op.BATCH_FORGET, 0, protocol.BATCH.pack(2, 0) + protocol.PAIR.pack(found[0], 1) + protocol.PAIR.pack(999, 1)
    )
    assert (await peer.ask(Op.GETATTR, found[0], bytes(16)))[0] == errno.ESTALE
    assert len(peer.files._nodes) == before + 1


async def test_an_old_kernel_is_refused(peer):
    assert (await peer.ask(Op.INIT, body=protocol.INIT.pack(7, 30, 0, 0)))[0] == errno.EPROTO


@pytest.mark.parametrize("op", [Op.RENAME, Op.RENAME2, Op.LINK, Op.SYMLINK])
async def test_what_is_never_allowed(peer, op):
    assert (await peer.ask(op, 1, b"a\0b\0"))[0] == errno.EPERM


async def test_owners_and_permissions_can_not_be_set(peer):
    node = await find(peer, "fusebus")
    assert (await peer.ask(Op.SETATTR, node, protocol.SETATTR.pack(1, 0) + bytes(80)))[0] == errno.EPERM
    assert (await peer.ask(Op.SETATTR, node, protocol.SETATTR.pack(8, 0) + bytes(80)))[0] == 0


@pytest.mark.parametrize("seed", range(20))
async def test_garbage(peer, seed, caplog):
    """Requests of every kind, with bodies that are right, nearly right, or nothing at all."""
    caplog.set_level(logging.CRITICAL, "busway.gateway")
    chance = random.Random(seed)
    nodes = [1, 2, 10**9, *[await find(peer, name) for name in ("fusebus", "channels", "topics", "README", "streams")]]
    handles = [0, 10**9, *[await opened(peer, node) for node in nodes[3:5]]]
    names = [b"fusebus", b"a", b"a%2Fb", b"\xff", b"%", b"", b"x" * 300, b"42", b"default"]
    sent = 0
    for _ in range(300):
        op = chance.choice([*Op, 0, 99, 2**32 - 1])
        if op in {Op.INIT, Op.DESTROY}:
            continue
        body = chance.choice(
            [
                bytes(chance.randrange(100)),
                chance.randbytes(chance.randrange(100)),
                chance.choice(names) + b"\0",
                bytes(chance.choice([8, 16])) + chance.choice(names) + b"\0" + chance.choice(names) + b"\0",
                protocol.READ.pack(chance.choice(handles), 0, chance.randrange(200), 0, 0, 0o4002, 0)
                + chance.randbytes(50),
                protocol.READ.pack(chance.choice(handles), 0, 40, 0, 0, 0o4002, 0)
                + protocol.PAIR.pack(chance.randrange(4), 0),
            ]
        )
        peer.send(op, chance.choice(nodes), body)
        sent += op not in SILENT
        if sent >= 20:
            await peer.ask(Op.STATFS)
            sent = 0
    assert (await peer.ask(Op.STATFS))[0] == 0
    assert await opened(peer, await find(peer, "fusebus"))


async def test_what_is_interrupted_before_it_begins_is_answered(peer):
    kernel = peer.files._kernel
    kernel._begin(77, asyncio.sleep(3600))
    kernel._interrupt(0, 0, memoryview(protocol.HANDLE.pack(77)))
    assert await peer.answer() == (77, errno.EINTR, b"")
    assert not kernel._tasks
