"""Spark Connect server of a pipeline: finds, starts and stops it. `busway lake run` and `stop` call this module.

The server outlives a run, so that the next run starts within seconds.
"""

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

_START_TIMEOUT: Final = 180.0
_STOP_TIMEOUT: Final = 30.0
_POLL: Final = 0.1
"""Seconds between two checks."""
_started: Final[dict[int, "subprocess.Popen[bytes]"]] = {}
"""Server processes that this process has started, by pid. It has to wait for their exit status."""


class ServerFailed(BusError):  # noqa: N818 - as the other errors of the bus
    """The server of a pipeline does not start, or another process uses it."""


class Server(NamedTuple):
    """A running server, as its file server.json describes it."""

    pid: int
    port: int
    token: str
    master: str
    conf: list[str]

    @property
    def remote(self) -> str:
        # Only for the name localhost PySpark sends the token without TLS. The connection stays on this machine.
        return f"sc://localhost:{self.port}/;token={self.token}"


class Use:
    """A state folder that this process has locked."""

    def __init__(self, state: Path, file: IO[bytes]) -> None:
        self.state = state
        self._file = file
        self._busy = state / "busy"

    @property
    def interrupted(self) -> bool:
        """True if the last process was killed during an update: its server may still run the update."""
        return self._busy.exists()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Mark the folder during an update. The mark stays if the process is killed, but not if the update fails."""
        self._busy.touch()
        try:
            yield
        except Exception:
            self.forget()
            raise
        self.forget()

    def forget(self) -> None:
        """Remove the mark of an update."""
        self._busy.unlink(missing_ok=True)


@contextlib.contextmanager
def use(state: Path) -> Iterator[Use]:
    """Create and lock a state folder. Raises ServerFailed if another process has locked it."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "use").open("ab") as file:
        if not _locked(file, _STOP_TIMEOUT if find(state) is None else 3.0):
            raise ServerFailed(
                f"the pipeline in {state} runs already: end the other run, or give another folder with --state"
            )
        yield Use(state, file)


def find(state: Path) -> Server | None:
    """Return the running server of a state folder, or None."""
    try:
        found = json.loads((state / "server.json").read_text())
        server = Server(found["pid"], found["port"], found["token"], found["master"], found["conf"])
    except (OSError, ValueError, KeyError):
        return None
    return server if _alive(state) else None


def start(used: Use, master: str | None, conf: Mapping[str, str], idle: float) -> Server:
    """Return a server with these settings, and start one if none runs. Raises ServerFailed, NeedsSpark, NeedsJava."""
    require()
    state, listed = used.state, sorted(f"{key}={value}" for key, value in conf.items())
    running = find(state)
    if running is not None and not used.interrupted and (running.master, running.conf) == (master or "", listed):
        return running
    stop(state)
    used.forget()
    command = [sys.executable, "-P", "-m", "busway.spark.runtime.connect_server_main", str(state), "--idle", str(idle)]
    command += ["--master", master] if master else []
    command += [word for setting in listed for word in ("--conf", setting)]
    with (state / "server.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    _started[process.pid] = process
    start_time = time.monotonic()
    while time.monotonic() - start_time < _START_TIMEOUT:
        if (server := find(state)) is not None and server.pid == process.pid:
            return server
        if process.poll() is not None:
            last = (state / "server.log").read_text(errors="replace").strip().rpartition("\n")[2]
            raise ServerFailed(f"Spark does not start: {last} ({state / 'server.log'} has the complete log)")
        time.sleep(_POLL)
    process.terminate()
    raise ServerFailed(f"Spark has not started within {_START_TIMEOUT:.0f} seconds; see {state / 'server.log'}")


@contextlib.contextmanager
def connected(server: Server) -> "Iterator[SparkSession]":
    """Yield a new session on the server. PySpark uses its functions for servers until the session ends."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - heavy

    before = {name: os.environ.get(name) for name in ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE")}
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    builder: Any = SparkSession.builder
    try:
        # A new builder, because a builder keeps earlier settings.
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
    """Stop the server of a state folder. Returns False if no server runs."""
    server = find(state)
    if server is None:
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, number)
        if _wait_until_ended(state):
            break
    (state / "server.json").unlink(missing_ok=True)
    if (process := _started.pop(server.pid, None)) is not None:
        process.wait()
    return True


def stop_unused(state: Path) -> bool:
    """Stop the server of a state folder, unless a pipeline runs on it. Raises ServerFailed if one does."""
    if find(state) is None:
        return False
    with (state / "use").open("ab") as file:
        if not _locked(file, 0):
            raise ServerFailed(f"the pipeline in {state} is running: end its run first")
        return stop(state)


def _wait_until_ended(state: Path) -> bool:
    start_time = time.monotonic()
    while _alive(state):
        if time.monotonic() - start_time > _STOP_TIMEOUT:
            return False
        time.sleep(_POLL)
    return True


def _alive(state: Path) -> bool:
    """Return True if the server runs: it locks this file. The pid alone may belong to another process."""
    try:
        with (state / "keeper").open("rb") as file:
            return not _locked(file, 0)
    except FileNotFoundError:
        return False


def _locked(file: IO[bytes], patience: float) -> bool:
    start_time = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - start_time >= patience:
                return False
            time.sleep(_POLL)
        else:
            return True
