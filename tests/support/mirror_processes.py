"""Nodes as processes of their own, one of which is a mirror."""

import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack

import pytest

import busway
from tests.support.net import eventually


class Process:
    """`busway serve` in a process of its own."""

    def __init__(self, folder, name, *flags):
        self.data = folder / name
        self._arguments = ["--name", name, "--data", str(self.data), "--cluster", "test", *flags]
        self.port = 0

    async def start(self):
        arguments = ["-m", "busway", "serve", "--json", "--quiet", "--tcp", f"127.0.0.1:{self.port}", *self._arguments]
        self._process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        said = json.loads(await asyncio.wait_for(self._process.stdout.readline(), 60))
        self.address, self.guid = said["addresses"][0], said["guid"]
        self.port = int(self.address.rpartition(":")[2])
        return self

    async def end(self, number=signal.SIGTERM):
        if self._process.returncode is None:
            self._process.send_signal(number)
            await asyncio.wait_for(self._process.wait(), 60)
            self._process._transport.close()


@pytest.fixture
async def processes(tmp_path):
    async with AsyncExitStack() as stack:

        async def start(name, *flags):
            process = await Process(tmp_path, name, *flags).start()
            stack.push_async_callback(process.end)
            return process

        yield start


async def is_mirrored(bus, stream):
    async def mirrored():
        try:
            return (await (await bus.stream(stream)).info()).mirrored is True
        except busway.Disconnected:
            return False

    await eventually(mirrored)


async def make_mirrored(bus):
    """A stream `orders` that waits for the mirror, as soon as there is one."""

    async def made():
        try:
            await bus.create_stream("orders", ["orders/**"], safety="mirrored")
        except busway.Rejected:
            return False
        return True

    await eventually(made)
