"""The servers that are measured and the processes that load them, each started as everybody would start it."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.process import LIFE, PATIENCE, Process
from benchmarks.peers.systems.base import free_port

from .plan import Crowd, Plan


class Server(Process):
    """One of the two."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.port = free_port()
        if kind == "echo":
            command = ["-m", "benchmarks.gateway.echo", str(self.port)]
        else:
            tcp = ["--tcp", "127.0.0.1:0"]
            command = ["-m", "busway", "serve", "--quiet", "--json", "--for", LIFE, *tcp, "--http", str(self)]
        super().__init__(kind, [sys.executable, *command], folder)

    def __str__(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wait_until_ready(self) -> None:
        self.hear("addresses", PATIENCE)


class Stage:
    """A folder, and the servers that are running."""

    def __init__(self, folder: Path, crew: contextlib.ExitStack) -> None:
        self._folder = folder
        self._crew = crew
        self.servers: dict[str, Server] = {}

    def start(self, kind: str) -> Server:
        server = self.servers[kind] = self._crew.enter_context(Server(kind, self._folder))
        server.wait_until_ready()
        return server

    @contextlib.contextmanager
    def crowd(self, module: str, plan: Plan | Crowd) -> Iterator[Process]:
        """A process with many clients; it has said that all of them are there."""
        said = msgspec.json.encode(plan).decode()
        with Process(module, [sys.executable, "-m", f"benchmarks.gateway.{module}", said], self._folder) as process:
            process.hear("ready", PATIENCE)
            yield process

    def run(self, kind: str, plan: Plan) -> dict[str, Any]:
        """Load a server; what its clients have seen, and what it has cost."""
        server = self.servers[kind]
        with self.crowd("load", msgspec.structs.replace(plan, kind=kind, port=server.port)) as process:
            cpu = server.cpu()
            process.say("go")
            values = process.hear("rate", plan.seconds + PATIENCE)
            return values | {"cpu_us": (server.cpu() - cpu) / max(values["got"], 1) * 1e6}


@contextlib.contextmanager
def stage(*kinds: str) -> Iterator[Stage]:
    """Start these servers; leaving ends them."""
    with contextlib.ExitStack() as crew:
        folder = Path(crew.enter_context(tempfile.TemporaryDirectory(prefix="busway-gateway-")))
        made = Stage(folder, crew)
        for kind in kinds:
            made.start(kind)
        yield made
