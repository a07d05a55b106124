"""Programs of a test that run as processes of their own, and may be killed."""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack, suppress

from tests.support.net import within


class Child:
    """A program that talks by lines."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name, self._process = name, process

    async def says(self, expected: str) -> None:
        assert await self.line() == expected

    async def line(self) -> str:
        assert self._process.stdout is not None
        return (await within(self._process.stdout.readline())).decode().rstrip("\n")

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await within(self._process.communicate())
        assert self._process.returncode == -signal.SIGKILL


class Children:
    """Starts them; all of them are dead in the end."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()

    async def start(self, program: str, *arguments: object, name: str = "") -> Child:
        return await self.run("-c", program, *arguments, name=name)

    async def run(self, *arguments: object, name: str = "") -> Child:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, *map(str, arguments), stdin=pipe, stdout=pipe)
        child = Child(name, process)
        self.stack.push_async_callback(_end, process)
        return child


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.communicate()
