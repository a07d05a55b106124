"""The interface all adapters share. A reader who compares two adapters sees that they do the same work."""

import shutil
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import ClassVar

import msgspec

from benchmarks.peers.load import Load
from benchmarks.peers.role import Control

PUBSUB = frozenset({"throughput", "fanout"})
GROUP = frozenset({"group"})
REQUESTS = frozenset({"request", "inflight"})
STORED = frozenset({"written", "synced", "catchup", "take"})


class Peer(ABC):
    """One message system: how to start its broker. What each of the other processes does is said by its heirs."""

    name: str
    works: frozenset[str]

    @abstractmethod
    def version(self) -> str | None:
        """Versions of broker and client, or None if one of them is not installed."""

    def address(self, folder: Path) -> str:  # noqa: ARG002
        """Where the broker of the next measurement listens."""
        return f"127.0.0.1:{free_port()}"

    @abstractmethod
    def ways(self, work: str) -> Sequence[str]:
        """The ways to do this work that are compared."""

    def broker(self, load: Load, folder: Path) -> list[str]:  # noqa: ARG002
        """The command that runs the broker; by default the role `serve` of this adapter."""
        return role_command(self.name, "serve", load)

    def serve(self, load: Load, control: Control) -> None:
        raise NotImplementedError


class System(Peer):
    """Messages that pass. The four roles run in processes of their own.

    `publish` says ready, waits for the start, publishes until the time is over and flushes; `subscribe` counts until stopped;
    `request` measures round trips; `respond` echoes until stopped.
    """

    modes: Sequence[str] = (
        "",
    )  # the ways to publish and receive that `throughput` compares; the first is used elsewhere

    def ways(self, work: str) -> Sequence[str]:
        return self.modes if work == "throughput" else self.modes[:1]

    @abstractmethod
    def publish(self, load: Load, control: Control) -> None: ...

    @abstractmethod
    def subscribe(self, load: Load, control: Control) -> None: ...

    def request(self, load: Load, control: Control) -> None:
        raise NotImplementedError

    def respond(self, load: Load, control: Control) -> None:
        raise NotImplementedError


class Store(Peer):
    """Messages that are stored. The roles run in processes of their own, on a broker that keeps its data in `load.data`.

    `append` stores with 256 messages in flight until the time is over, and then asks how many are stored; `fill` stores
    `load.messages` messages, however that is done best; `catch_up` reads them all; `take` takes and acknowledges them all.
    """

    works = STORED
    modes: ClassVar[dict[str, Sequence[str]]]

    def ways(self, work: str) -> Sequence[str]:
        return self.modes[work]

    @abstractmethod
    def append(self, load: Load, control: Control) -> None: ...

    @abstractmethod
    def fill(self, load: Load, control: Control) -> None: ...

    @abstractmethod
    def catch_up(self, load: Load, control: Control) -> None: ...

    @abstractmethod
    def take(self, load: Load, control: Control) -> None: ...


def role_command(name: str, role: str, load: Load) -> list[str]:
    return [sys.executable, "-m", "benchmarks.peers.role", name, role, msgspec.json.encode(load).decode()]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def program(name: str) -> str | None:
    """Path of a program; the virtual environment's own come first."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # mosquitto -h ends with 3
    return (done.stdout + done.stderr).strip()
