"""A broker process whose files may only grow to a limit."""

import asyncio
import sys
import textwrap
from pathlib import Path
from typing import Self

from tests.support.net import within

# A server in a process of its own whose files may not become larger than told by a line; SIGXFSZ would end it.
LIMITED = """
import asyncio, resource, signal, sys, busway

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main():
    loop = asyncio.get_running_loop()
    async with busway.serve(f"unix:{sys.argv[1]}", data=sys.argv[2]):
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            size = int(line) or resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            print("ready", flush=True)

asyncio.run(main())
"""


class Limited:
    """A broker whose disk can be made full, and empty again."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{folder / 'bus'}"
        self.folder = folder

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        arguments = (textwrap.dedent(LIMITED), str(self.folder / "bus"), str(self.folder / "data"))
        self._process = await asyncio.create_subprocess_exec(sys.executable, "-c", *arguments, stdin=pipe, stdout=pipe)
        await self._ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.returncode is None, "the broker has ended"
        assert self._process.stdin is not None
        self._process.stdin.close()  # which stops it
        try:
            assert await within(self._process.wait()) == 0
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()

    async def limit(self, size: int) -> None:
        """Bytes a file may have; 0: any number."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % size)
        await self._ready()

    async def _ready(self) -> None:
        assert self._process.stdout is not None
        assert await within(self._process.stdout.readline()) == b"ready\n"
