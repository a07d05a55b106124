"""The file systems that are measured: the C one, compiled where it is needed, and `busway fusebus` and `busway mount`."""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from benchmarks.peers.process import LIFE, PATIENCE, Process, ProcessError

from .plan import Pairs, Trips

SOURCE = Path(__file__).parent / "plain.c"
_LOOK = 0.02


def compile_plain(folder: Path) -> Path:
    """The C file system as a program in this folder."""
    for tool in ("cc", "pkg-config"):
        if shutil.which(tool) is None:
            _missing(f"{tool} is not there")
    asked = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=False)  # noqa: S607, from the PATH
    if asked.returncode:
        _missing("pkg-config does not know fuse3")
    program = folder / "plain"
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", str(SOURCE), "-o", str(program)]
    made = subprocess.run([*command, *asked.stdout.split()], capture_output=True, text=True, check=False)
    if made.returncode:
        raise ProcessError(f"{SOURCE.name} does not compile:\n{made.stderr}")
    return program


def _missing(what: str) -> NoReturn:
    raise ProcessError(f"the C file system needs a C compiler, pkg-config and the headers of libfuse3: {what}")


class Mounted(Process):
    """A process that has mounted a folder; leaving the context unmounts it."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.place = folder / f"{name}-mount"
        self.place.mkdir()
        super().__init__(name, [*command, str(self.place)], folder)

    def wait_until_mounted(self) -> None:
        end = time.monotonic() + PATIENCE
        while not self.place.is_mount():
            if not self.alive() or time.monotonic() > end:
                self.fail("did not mount its folder")
            time.sleep(_LOOK)

    def __exit__(self, *error: object) -> None:
        self.send_signal(signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        while self.alive() and time.monotonic() < end:
            time.sleep(_LOOK)
        super().__exit__(*error)
        if self.place.is_mount():
            subprocess.run(["fusermount3", "-u", "-z", str(self.place)], check=False)  # noqa: S607, from the PATH


class Stage:
    """A folder, and the processes that are running."""

    def __init__(self, folder: Path, crew: contextlib.ExitStack) -> None:
        self.folder = folder
        self._crew = crew

    def mount(self, name: str, *words: str) -> Mounted:
        """Mount one of both by its name; a bus with other words than `fusebus`."""
        command = (
            [str(compile_plain(self.folder))]
            if name == "plain"
            else [sys.executable, "-m", "busway", *(words or ("fusebus",))]
        )
        made = self._crew.enter_context(Mounted(name, command, self.folder))
        made.wait_until_mounted()
        return made

    def bus(self) -> str:
        """Start a bus that listens on a Unix socket; its address."""
        socket = f"unix:{self.folder}/bus"
        command = [sys.executable, "-m", "busway", "serve", "--quiet", "--json", "--for", LIFE, "--unix", socket[5:]]
        self._crew.enter_context(Process("bus", command, self.folder)).hear("addresses", PATIENCE)
        return socket

    def run(self, module: str, plan: Pairs | Trips, seconds: float) -> list[dict[str, float]]:
        """Have a process measure, for about so many seconds."""
        command = [sys.executable, "-m", f"benchmarks.fuse.{module}", msgspec.json.encode(plan).decode()]
        with Process(module, command, self.folder) as process:
            found: Any = process.hear("rounds", seconds + PATIENCE)["rounds"]
            return list(found)


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """Leaving ends every process and unmounts every folder."""
    with contextlib.ExitStack() as crew:
        folder = Path(crew.enter_context(tempfile.TemporaryDirectory(prefix="busway-fuse-")))
        yield Stage(folder, crew)
