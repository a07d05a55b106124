"""The Spark server of a pipeline: found, started, ended. It lives on after a run, so that the next one starts in seconds."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from busway.errors import BusError
from busway.spark.runtime.session import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STARTING: Final = 180.0
_ENDING: Final = 30.0
_LOOK: Final = 0.1
_started: Final[dict[int, "subprocess.Popen[bytes]"]] = {}
"""Those that this process has started, and so has to bury."""


class ServerFailed(BusError):  # noqa: N818 - as the other errors of the bus
    """The server of a pipeline does not start, or somebody else uses it."""


class Server(NamedTuple):
    """One that runs."""

    pid: int
    port: int
    token: str
    master: str
    conf: list[str]

    @property
    def remote(self) -> str:
        # The name, not the number: with it the token is sent without a certificate, which stays on this machine.
        return f"sc://localhost:{self.port}/;token={self.token}"


class Use:
    """A state folder that is in use by this process, and by no other."""

    def __init__(self, state: Path, file: IO[bytes]) -> None:
        self.state = state
        self._file = file
        self._busy = state / "busy"

    @property
    def interrupted(self) -> bool:
        """Whether the last user was killed within an update: its server may still be at it."""
        return self._busy.exists()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While the server works for us; stays marked if that is interrupted, but not if it fails."""
        self._busy.touch()
        try:
            yield
        except Exception:
            self.forget()
            raise
        self.forget()

    def forget(self) -> None:
        self._busy.unlink(missing_ok=True)


@contextlib.contextmanager
def use(state: Path) -> Iterator[Use]:
    """Take a state folder into use, which is made if need be. Raises ServerFailed if somebody else does."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "use").open("ab") as file:
        if not _locked(file, _ENDING if find(state) is None else 3.0):
            raise ServerFailed(f"the pipeline in {state} runs already")
        yield Use(state, file)


def find(state: Path) -> Server | None:
    """The server of a state folder, if it runs."""
    try:
        told = json.loads((state / "server.json").read_text())
        server = Server(told["pid"], told["port"], told["token"], told["master"], told["conf"])
    except (OSError, ValueError, KeyError):
        return None
    return server if _alive(state) else None


def start(used: Use, master: str | None, conf: Mapping[str, str], idle: float) -> Server:
    """The server, started if there is none, or none with these settings. Raises ServerFailed, NeedsSpark, NeedsJava."""
    require()
    state, listed = used.state, sorted(f"{key}={value}" for key, value in conf.items())
    there = find(state)
    if there is not None and not used.interrupted and (there.master, there.conf) == (master or "", listed):
        return there
    stop(state)
    used.forget()
    command = [sys.executable, "-P", "-m", "busway.spark.runtime.connect_server_main", str(state), "--idle", str(idle)]
    command += ["--master", master] if master else []
    command += [word for one in listed for word in ("--conf", one)]
    with (state / "server.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    _started[process.pid] = process
    begun = time.monotonic()
    while time.monotonic() - begun < _STARTING:
        if (server := find(state)) is not None and server.pid == process.pid:
            return server
        if process.poll() is not None:
            last = (state / "server.log").read_text(errors="replace").strip().rpartition("\n")[2]
            raise ServerFailed(f"Spark does not start: {last} ({state / 'server.log'} has all of it)")
        time.sleep(_LOOK)
    process.terminate()
    raise ServerFailed(f"Spark has not started within {_STARTING:.0f} seconds; {state / 'server.log'} tells more")


@contextlib.contextmanager
def connected(server: Server) -> "Iterator[SparkSession]":
    """A session of its own on the server. Meanwhile PySpark's functions are those for a server, also if this process has another Spark."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - heavy

    before = {name: os.environ.get(name) for name in ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE")}
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    builder: Any = SparkSession.builder
    try:
        # A builder remembers what it was given.
        spark: SparkSession = type(builder)().remote(server.remote).create()
        try:
            yield spark
        finally:
            spark.stop()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def stop(state: Path) -> bool:
    """End the server of a state folder; whether there was one."""
    server = find(state)
    if server is None:
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, number)
        if _gone(state):
            break
    (state / "server.json").unlink(missing_ok=True)
    if (ours := _started.pop(server.pid, None)) is not None:
        ours.wait()
    return True


def stop_unused(state: Path) -> bool:
    """The same, unless a pipeline runs on it. Raises ServerFailed then."""
    if find(state) is None:
        return False
    with (state / "use").open("ab") as file:
        if not _locked(file, 0):
            raise ServerFailed(f"the pipeline in {state} is at work: end its run first")
        return stop(state)


def _gone(state: Path) -> bool:
    begun = time.monotonic()
    while _alive(state):
        if time.monotonic() - begun > _ENDING:
            return False
        time.sleep(_LOOK)
    return True


def _alive(state: Path) -> bool:
    """Its process holds this file for as long as it lives; a number could be that of another by now."""
    try:
        with (state / "keeper").open("rb") as file:
            return not _locked(file, 0)
    except FileNotFoundError:
        return False


def _locked(file: IO[bytes], patience: float) -> bool:
    begun = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - begun >= patience:
                return False
            time.sleep(_LOOK)
        else:
            return True
