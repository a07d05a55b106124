"""The harness's side of a measured process: start it, talk to it, see what it costs, end it."""

import contextlib
import queue
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import msgspec
import psutil
from msgspec.structs import replace

from .load import Load
from .systems import find
from .systems.base import Peer, role_command

PATIENCE = 60.0
"""Seconds that anything may take on a busy machine."""
LIFE = "1h"
"""After which a broker ends by itself, if the benchmark was killed and could not end it."""


class ProcessError(Exception):
    """A process did not do its part."""


class Process:
    """One started process; leaving the context ends it."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self._errors = (folder / f"{name}-{time.monotonic_ns()}.log").open("w+")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, bufsize=1
        )
        self.pid = self._process.pid
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a word that it never read
                    pipe.close()
        self._errors.close()

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word + "\n")
        except BrokenPipeError:
            self.fail("ended early")

    def hear(self, key: str, timeout: float) -> dict[str, Any]:
        """The next line that has this key; others are skipped (late answers to `count`)."""
        end = time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self.fail(f"said no {key!r} within {timeout:g} s")
            if not line:
                self.fail(f"ended before it said {key!r}")
            if line.startswith("{"):
                values: dict[str, Any] = msgspec.json.decode(line)
                if key in values:
                    return values

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self, timeout: float = 30.0) -> None:
        """Ask it to stop, and wait until it has ended."""
        self.say("stop")
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.fail(f"did not stop within {timeout:g} s")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def cpu(self) -> float:
        """CPU seconds so far, of all threads and child processes."""
        total = 0.0
        for process in self._tree():
            times = process.cpu_times()
            total += times.user + times.system
        return total

    def memory(self) -> int:
        """Resident bytes now, child processes included."""
        return sum(process.memory_info().rss for process in self._tree())

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]

    def fail(self, what: str) -> NoReturn:
        """Raise, with the end of what it wrote to standard error."""
        self._errors.flush()
        tail = Path(self._errors.name).read_text()[-2000:]
        raise ProcessError(f"{self.name} {what}\n{tail}".rstrip())


class Stage:
    """One system with its broker running, on which the other processes are put."""

    def __init__(self, system: Peer, load: Load, folder: Path, crew: contextlib.ExitStack) -> None:
        self.system = system
        self.url = load.url
        self.folder = folder
        self._command = system.broker(load, folder)
        self._crew = crew
        self.start_broker()

    def start_broker(self) -> None:
        """Start the broker; again, if it has been stopped or killed."""
        self.broker = self._crew.enter_context(Process(f"{self.system.name}-broker", self._command, self.folder))
        _wait_until_listening(self.broker, self.url)

    def start(self, role: str, load: Load) -> Process:
        command = role_command(self.system.name, role, load)
        return self._crew.enter_context(Process(f"{self.system.name}-{role}", command, self.folder))


@contextlib.contextmanager
def stage(name: str, load: Load) -> Iterator[Stage]:
    """Start the system's broker, with a data folder if `load` names one; leaving ends every process of it."""
    system = find(name)
    with contextlib.ExitStack() as crew:
        folder = Path(crew.enter_context(tempfile.TemporaryDirectory(prefix="busway-bench-")))
        url = system.address(folder)
        load = replace(load, url=url, data=str(folder / load.data) if load.data else "")
        yield Stage(system, load, folder, crew)


def _wait_until_listening(broker: Process, url: str, timeout: float = 15.0) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end and broker.alive():
        with contextlib.suppress(OSError), _dial(url):
            return
        time.sleep(0.02)
    broker.hear("a connection", 0.1)


def _dial(url: str) -> socket.socket:
    if url.startswith("unix:"):
        probe = socket.socket(socket.AF_UNIX)
        probe.connect(url.removeprefix("unix:"))
        return probe
    host, ports = url.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(ports.split(",")[-1])), timeout=1)
