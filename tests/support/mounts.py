"""A mount as its users have it: a process that runs `busway fusebus` or `busway mount`, from which nothing is known but its folder."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.commands import plain

PATIENCE = 60.0
BUSWAY = [sys.executable, "-m", "busway"]


def until(true: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Look again and again, with an end."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)


_FUTEX = {"98", "202", "422"}
"""Numbers of the calls with which a thread waits for another one, on any machine."""


def waits(process: int, thread: int | None = None) -> bool:
    """Whether it sleeps in a call of the system, and not for another thread of its own."""
    task = Path(f"/proc/{process}/task/{thread or process}")
    with contextlib.suppress(OSError, IndexError):
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        return state == "S" and (task / "syscall").read_text().split()[0] not in _FUTEX | {"running"}
    return False


class Later:
    """A call in a thread of its own, for those that wait."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._outcome: object = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()
        until(lambda: waits(os.getpid(), self._thread.native_id), "the call waits")

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self._outcome = call()
        except OSError as error:
            self._outcome = error.errno

    def over(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> object:
        self._thread.join(PATIENCE)
        assert self.over(), "the call did not return"
        return self._outcome


def _mounts() -> dict[str, str]:
    """Types of what is mounted, by place; the last one counts."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {place.replace("\\040", " "): what for _, place, what, *_ in lines}


def is_mounted(folder: Path) -> bool:
    """Also of a mount whose process is gone, at which every other look fails."""
    return str(folder) in _mounts()


def kind(folder: Path) -> str:
    """The type of the file system that is mounted there."""
    return _mounts()[str(folder)]


class Mounted:
    """A process that has mounted a folder."""

    def __init__(self, words: list[str], folder: Path, **environment: str) -> None:
        self.folder = folder
        self._notes = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by clean()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "busway", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._notes,
            env=plain() | environment,
            start_new_session=True,
        )

    @property
    def notes(self) -> str:
        """What it wrote to standard error."""
        self._notes.seek(0)
        return self._notes.read()

    def wait_until_there(self) -> None:
        until(lambda: self.there() or self.process.poll() is not None, "it is mounted")
        assert self.process.poll() is None, self.notes

    def there(self) -> bool:
        """Mounted, and it answers."""
        if not is_mounted(self.folder):
            return False
        try:
            return (self.folder / "fusebus").exists()
        except OSError:
            return False

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def clean(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._notes.close()
        unmount(self.folder)


def unmount(folder: Path) -> None:
    if is_mounted(folder):
        subprocess.run(["fusermount3", "-u", "-z", str(folder)], check=False)


@contextlib.contextmanager
def mounted(verb: str, *words: object, folder: Path | None = None, **environment: str) -> Iterator[Mounted]:
    """`busway VERB DIR WORDS`, answering; leaving ends it."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="busway-mount-")))
        made = Mounted([verb, os.fspath(folder), *map(str, words)], folder, **environment)
        stack.callback(made.clean)
        made.wait_until_there()
        yield made


@contextlib.contextmanager
def serving(address: str) -> Iterator[subprocess.Popen[str]]:
    """`busway serve` at this address, a Unix socket; leaving kills it."""
    command = [*BUSWAY, "serve", "--unix", address.removeprefix("unix:")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            assert "serves" in process.stderr.readline()
            yield process
        finally:
            process.kill()
