"""Brokers of one cluster as processes, started as everybody starts them: `busway serve --cluster`.

Every wait has an end, and says which broker did not do its part and what it wrote to standard error.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import busway.sync
from benchmarks.peers.load import Load
from benchmarks.peers.process import LIFE, PATIENCE, Process, ProcessError
from benchmarks.peers.systems.base import free_port, role_command
from busway.errors import BusError

CLUSTER = "bench"
_LOOK = 0.02

P = TypeVar("P", bound=Process)


class Broker(Process):
    """One `busway serve`, in a cluster or alone."""

    def __init__(self, name: str, folder: Path, servers: list[str] | None) -> None:
        self.port = free_port()
        self.url = f"tcp://127.0.0.1:{self.port}"
        place = [] if servers is None else ["--cluster", CLUSTER, "--servers", ",".join([*servers, str(self.port)])]
        serve = ["serve", "--quiet", "--json", "--for", LIFE, "--name", name, "--tcp", f"127.0.0.1:{self.port}", *place]
        self.begun = time.monotonic()
        super().__init__(name, [sys.executable, "-m", "busway", *serve], folder)

    def wait_until_ready(self) -> float:
        """Until it listens; seconds since the start of the process."""
        self.hear("addresses", PATIENCE)
        return time.monotonic() - self.begun

    def look(self) -> dict[str, Any]:
        """What `busway cluster --json` shows."""
        return self._ask("$bus/cluster")

    def stats(self) -> dict[str, Any]:
        """The counters of `busway info`."""
        stats: dict[str, Any] = self._ask("$bus/info")["stats"]
        return stats

    def has(self, links: int) -> bool:
        """Whether it has so many."""
        return bool(self.stats()["links"] == links)

    def link(self, other: "Broker") -> dict[str, Any]:
        """The figures of its link to another one."""
        for node in self.look()["nodes"]:
            if node["name"] == other.name:
                found: dict[str, Any] = node["link"]
                return found
        raise ProcessError(f"{self.name} does not know {other.name}")

    def _ask(self, topic: str) -> dict[str, Any]:
        try:
            with busway.sync.connect(self.url, timeout=PATIENCE, reconnect=None) as bus:
                found: dict[str, Any] = bus.request(topic, timeout=PATIENCE).json()
                return found
        except BusError as error:
            self.fail(f"does not answer: {error}")


class Mesh:
    """Brokers that are linked to each other, and the clients around them; leaving ends every process."""

    def __init__(self) -> None:
        self._crew = contextlib.ExitStack()
        self.nodes: list[Broker] = []

    def __enter__(self) -> Self:
        self.folder = Path(self._crew.enter_context(tempfile.TemporaryDirectory(prefix="busway-mesh-")))
        return self

    def __exit__(self, *_error: object) -> None:
        self._crew.close()

    def add(self, count: int = 1) -> list[Broker]:
        """Start so many more; they know of the first one."""
        new = []
        for _ in range(count):
            first = [str(self.nodes[0].port)] if self.nodes else []
            self.nodes.append(self.enter(Broker(f"n{len(self.nodes) + 1}", self.folder, first)))
            new.append(self.nodes[-1])
        return new

    def alone(self) -> Broker:
        """A broker that is in no cluster."""
        return self.enter(Broker("alone", self.folder, None))

    def wait_until_linked(self) -> None:
        """Until each has a link to each."""
        for node in self.nodes:
            node.wait_until_ready()
        links = len(self.nodes) - 1
        for node in self.nodes:
            until(partial(node.has, links), f"{node.name} has {links} links")

    def client(self, role: str, load: Load) -> Process:
        """A client that is a process of its own: a role of `benchmarks.peers`."""
        return self.enter(Process(f"{role}-{len(self.nodes)}", role_command("busway-tcp", role, load), self.folder))

    def enter(self, process: P) -> P:
        """Have it end with the others."""
        self._crew.enter_context(process)
        return process


def until(true: Callable[[], bool], what: str, timeout: float = PATIENCE) -> None:
    """Look again and again; raises if it never is."""
    end = time.monotonic() + timeout
    while not true():
        if time.monotonic() > end:
            raise ProcessError(f"not within {timeout:g} s: {what}")
        time.sleep(_LOOK)


@contextlib.contextmanager
def mesh(count: int) -> Iterator[Mesh]:
    """So many nodes, each linked to each."""
    with Mesh() as made:
        made.add(count)
        made.wait_until_linked()
        yield made
