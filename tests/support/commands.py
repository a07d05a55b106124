"""Many commands of `busway`, each in a process of its own, without the half second in which Python and its modules are loaded.

A nursery has loaded them once; a fork of it runs each command, with an environment, streams and an end of its own. Commands
that are to be stopped, killed or looked at while they run are started as users do, see tests/cli/conftest.py.
"""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

NURSERY = Path(__file__).with_name("nursery.py")


def plain() -> dict[str, str]:
    """The environment of a command, without what would be taken for its flags."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("BUSWAY_")}
    return inherited | {"COLUMNS": "200", "NO_COLOR": "1"}


class Nursery:
    """The process that has loaded them; it ends when this one does."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "nursery")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._path)
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, NURSERY, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                env=plain(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def close(self) -> None:
        self._process.communicate()

    async def run(self, words: list[str], environment: Mapping[str, str], stdin: bytes) -> tuple[int, bytes, bytes]:
        """Exit status, stdout and stderr of one command. Who is cancelled has killed it."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            (read_in, ours_in), (ours_out, write_out), (ours_err, write_err) = os.pipe(), os.pipe(), os.pipe()
            theirs = [read_in, write_out, write_err]
            socket.send_fds(connection, [b"."], theirs)
            for each in theirs:
                os.close(each)
            connection.sendall(pickle.dumps((words, dict(environment), str(Path.cwd()))))
            connection.setblocking(False)
            outcome = await asyncio.gather(
                loop.sock_recv(connection, 16), _all(ours_out), _all(ours_err), _say(ours_in, stdin)
            )
        return int(outcome[0]), outcome[1], outcome[2]


async def _all(pipe: int) -> bytes:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb"))
    try:
        return await reader.read()
    finally:
        transport.close()


async def _say(pipe: int, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(lambda: _Said(loop), os.fdopen(pipe, "wb"))
    transport.write(data)
    transport.close()
    await protocol.over


class _Said(asyncio.BaseProtocol):
    """All is written, or who should read it has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.over: asyncio.Future[None] = loop.create_future()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)
