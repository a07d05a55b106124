"""The command line as its users see it: processes, their output and their exit codes."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

import busway
from tests.support.commands import Nursery, plain

PATIENCE = 60.0


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: bytes
    notes: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


class Running:
    """A command that runs on."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.first = ""

    async def ready(self) -> str:
        """The first note on stderr."""
        async with asyncio.timeout(PATIENCE):
            self.first = (await self.process.stderr.readline()).decode()
        return self.first

    async def line(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.process.stdout.readline()

    async def end(self, signal: int | None = None) -> Done:
        if signal is not None:
            self.process.send_signal(signal)
        async with asyncio.timeout(PATIENCE):
            out, notes = await self.process.communicate()
        return Done(self.process.returncode, out, self.first + notes.decode())


class Shell:
    """Runs `busway` against a server of the test: `start` as a user does, `run` in a process that had less to load."""

    def __init__(self, url: str, nursery: Nursery) -> None:
        self.url = url
        self.environment = plain() | {"BUSWAY_URL": url}
        self._nursery = nursery
        self.stack = contextlib.AsyncExitStack()

    async def start(self, *arguments: object, stdout: int | None = None, **environment: str) -> Running:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "busway", *map(str, arguments)),
            stdin=pipe,
            stdout=pipe if stdout is None else stdout,
            stderr=pipe,
            env=self.environment | environment,
        )
        self.stack.push_async_callback(_kill, process)
        return Running(process)

    async def run(self, *arguments: object, stdin: bytes = b"", **environment: str) -> Done:
        words = [str(argument) for argument in arguments]
        async with asyncio.timeout(PATIENCE):
            code, out, notes = await self._nursery.run(words, self.environment | environment, stdin)
        return Done(code, out, notes.decode())


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        # What a command started may live on and hold its pipes: then their end is not waited for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE / 4):
                await process.communicate()
        process._transport.close()


@pytest.fixture
async def server() -> AsyncIterator[busway.Server]:
    async with busway.serve("tcp://127.0.0.1:0", name="shell") as server:
        yield server


@pytest.fixture
async def bus(server: busway.Server) -> AsyncIterator[busway.Bus]:
    async with server.connect(name="test") as bus:
        yield bus


@pytest.fixture
async def shell(server: busway.Server, nursery: Nursery) -> AsyncIterator[Shell]:
    shell = Shell(server.addresses[0], nursery)
    async with shell.stack:
        yield shell
