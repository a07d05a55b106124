"""The processes of a trial: nodes that can be killed and restarted on the same folder, and clients that report events."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import busway
from tests.chaos.cluster.network import Network

PATIENCE: Final = 120.0
"""Seconds in which all has to be well again; nothing is expected to take so long."""
PORT: Final = 7420
HEARTBEAT: Final = "2s"
"""Three of them without a sign of life, and the other side counts as gone."""

Tell = Callable[[str, list[Any]], None]


class Node:
    """`busway serve` on one of the hosts. This process, which is on none of them, reaches it by a Unix socket."""

    def __init__(self, network: Network, host: str, folder: Path, servers: list[str], *flags: str) -> None:
        self.host = host
        self.url = f"tcp://{network.address(host)}:{PORT}"
        self.door = f"unix:{folder / host}.socket"
        self.log = folder / f"{host}.log"
        self.kills = 0
        self._command = network.command(
            host,
            *(sys.executable, "-m", "busway", "serve", "--name", host, "--cluster", "trial", "--insecure"),
            *("--tcp", f"0.0.0.0:{PORT}", "--unix", self.door.removeprefix("unix:"), "--advertise", self.url),
            *("--servers", ",".join(servers), "--data", str(folder / host), "--heartbeat", HEARTBEAT, *flags),
        )
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Return when it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    async with busway.connect(self.door, timeout=PATIENCE):
                        return
                except busway.ConnectFailed:
                    self.alive()
                    await asyncio.sleep(0.02)

    def alive(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"the node {self.host} has ended by itself: {self.end_of_log()}"

    async def kill(self) -> None:
        """Without warning; return when it is gone."""
        self.alive()
        await self._end(signal.SIGKILL)
        self.kills += 1

    async def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            await self._end(signal.SIGTERM)

    async def abandon(self) -> None:
        """At once, whatever it is doing."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    async def linked(self) -> set[str]:
        """The nodes that it has links to, by their names. None while it starts again, since another one replaced it."""
        try:
            async with busway.connect(self.door, timeout=PATIENCE) as bus:
                found = (await bus.request("$bus/cluster", timeout=PATIENCE)).json()
        except (busway.Disconnected, busway.ConnectFailed):
            return set()
        return {node["name"] for node in found["nodes"] if node["state"] == "linked"}

    def end_of_log(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    async def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        await asyncio.to_thread(self._process.wait, PATIENCE)


class Client:
    """A publisher or a consumer on a host of its own; it lives as long as the trial."""

    def __init__(self, network: Network, role: str, name: str, url: str, tell: Tell) -> None:
        self.role, self.name = role, name
        self.at: str | None = None
        """The address of the node that it is connected to."""
        self._tell = tell
        module = (sys.executable, "-m", "tests.chaos.cluster.clients", role, name, url)
        self._command = network.command(name, *module)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        self._reading = asyncio.create_task(self._read(), name=self.name)

    def alive(self) -> None:
        assert self._reading is not None
        assert not self._reading.done(), f"{self.name} has ended by itself"

    async def stop(self) -> None:
        """Let it come to an end with what is under way."""
        if self._process is None or self._reading is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            await self._reading
            code = await self._process.wait()
        assert code == 0, f"{self.name} ended with {code}"

    async def abandon(self) -> None:
        """At once, whatever it is doing."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            record = json.loads(line)
            if record[0] == "at":
                self.at = record[2]
            elif record[0] == "lost":
                self.at = None
            self._tell(self.name, record)


async def until(condition: Callable[[], object], what: Callable[[], str], *watched: Node | Client) -> None:
    """Wait until it is so, while all of these live; gives up loudly."""
    end = time.monotonic() + PATIENCE
    while not condition():
        for one in watched:
            one.alive()
        assert time.monotonic() < end, f"{PATIENCE:g} s were not enough: {what()}"
        await asyncio.sleep(0.05)
