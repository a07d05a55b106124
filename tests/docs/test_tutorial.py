"""The tutorial, typed into terminals exactly as it is printed, in the order in which it is printed.

A terminal is a shell process. The word after the language of a block says which one (first, second, third); Python blocks
without a word go to the third, where the tutorial starts Python's prompt. A Python block with the name of a file is saved.
Lines that begin with `$ ` are typed, other lines of a console block and text blocks are what the terminal has to show.

Two things differ from a reader's machine: `make run` has been prepared (its last command is run), and the port is free.
"""

import asyncio
import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.commands import plain

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/tutorial.md"
FENCE = re.compile(r"^```(\w+)(?: ([\w.]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE = 60.0
LEFT = "<end of Python>"
PROMPTS = re.compile(r"^(?:>>> |\.\.\. )+")


class Block(NamedTuple):
    language: str
    where: str
    text: str
    line: int


def blocks(port: int) -> list[Block]:
    text = PAGE.read_text()
    return [
        Block(
            fence[1],
            fence[2] or "third",
            fence[3].replace("127.0.0.1:7420", f"127.0.0.1:{port}"),
            text.count("\n", 0, fence.start()) + 2,
        )
        for fence in FENCE.finditer(text)
    ]


class Terminal:
    """A shell, or the Python that was started in it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._python = False
        self._typed = 0
        self._shown: list[str] = []
        """Lines that were printed and not looked at yet."""

    async def type(self, text: str) -> None:
        self._process.stdin.write(text.encode())
        await self._process.stdin.drain()

    async def command(self, line: str) -> None:
        """Type a command; one that ends has printed everything when this returns."""
        if line == "python -m asyncio":
            self._python = True
            await self.type(f"{line}; echo '{LEFT}'\n")  # Python would read ahead what is typed behind exit()
            await self._end()
        elif re.match(r"\S*busway (serve|sub) ", line):
            await self.type(f"{line}\n")
        else:
            await self.type(f"{line}\n")
            await self._end()

    async def python(self, text: str) -> None:
        assert self._python, "the tutorial has not started Python here"
        await self.type(text)
        if text.splitlines()[-1].startswith(" "):
            await self.type("\n")
        if text.rstrip().endswith("exit()"):
            self._python = False
            await self._until(LEFT)
        else:
            await self._end()

    async def shows(self, expected: list[str]) -> None:
        for line in expected:
            if not self._shown:
                self._shown.append(await self._line())
            assert self._shown.pop(0) == line

    def shows_no_more(self) -> None:
        assert self._shown == []

    async def _end(self) -> None:
        """Everything that is printed before the prompt comes again."""
        self._typed += 1
        mark = f"<end of {self._typed}>"
        await self.type(f"print({mark!r})\n" if self._python else f"echo '{mark}'\n")
        await self._until(mark)

    async def _until(self, mark: str) -> None:
        while (line := await self._line()) != mark:
            if not line.startswith(("asyncio REPL", 'Use "await"', 'Type "help"', "import asyncio", "exiting asyncio")):
                self._shown.append(line)

    async def _line(self) -> str:
        async with asyncio.timeout(PATIENCE):
            while True:
                read = await self._process.stdout.readline()
                assert read, f"the terminal has ended; it had shown {self._shown}"
                line = PROMPTS.sub("", read.decode().rstrip("\n"))
                if line or read == b"\n":
                    return line


@contextlib.asynccontextmanager
async def terminal(folder: Path, environment: dict[str, str]) -> AsyncIterator[Terminal]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *("bash", "--norc"),
        cwd=folder,
        env=environment,
        stdin=pipe,
        stdout=pipe,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield Terminal(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        await process.communicate()


def serving() -> str:
    """What `make run` runs when everything is prepared."""
    words = {name: text for name, text in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    made = subprocess.run(["make", "-n", "run"], cwd=ROOT, env=words, capture_output=True, text=True, check=True)
    found = re.search(r"\S*bin/busway serve [^|;]*", made.stdout)
    assert found is not None, made.stdout
    return found[0].strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def folder(tmp_path):
    """A checkout, as far as the tutorial sees it."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


async def test_tutorial_runs_as_printed(folder):
    port = free_port()
    environment = plain() | {"PATH": "/usr/bin:/bin", "BUSWAY_URL": f"tcp://127.0.0.1:{port}"}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    broker = environment | {"BUSWAY_SERVE_TCP": f"127.0.0.1:{port}"}
    async with (
        terminal(folder, broker) as first,
        terminal(folder, environment) as second,
        terminal(folder, environment) as third,
    ):
        terminals = {"first": first, "second": second, "third": third}
        for block in blocks(port):
            if block.language == "python" and block.where.endswith(".py"):
                (folder / block.where).write_text(block.text)
                continue
            here = terminals[block.where]
            try:
                await play(here, block)
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"{PAGE.name}:{block.line}: {error}") from error
    assert (folder / ".busway").is_dir()


async def play(here: Terminal, block: Block) -> None:
    if block.language == "text":
        await here.shows(block.text.splitlines())
        return
    if block.where == "third":
        here.shows_no_more()  # a text block has told of everything
    if block.language == "python":
        await here.python(block.text)
        return
    assert block.language == "console", block.language
    for line in block.text.splitlines():
        if line == "$ make run":
            await here.command(f"{serving().replace(':15555', ':0')} 2>&1 | grep --line-buffered 'Ctrl-C'")
            await here.shows(["Ctrl-C stops it"])
        elif line.startswith("$ "):
            await here.command(line.removeprefix("$ "))
        else:
            await here.shows([line])


def test_install_comes_first_and_every_command_has_an_environment():
    """A reader who has only a checkout can type every command."""
    seen: set[str] = set()
    for block in blocks(7420):
        for line in block.text.splitlines():
            words = shlex.split(line.removeprefix("$ ")) if line.startswith("$ ") else []
            if words[:1] == ["source"]:
                seen.add(block.where)
            elif words and words[0] != "make":
                assert block.where in seen, f"tutorial.md:{block.line}: {line}"
    assert "$ make run" in blocks(7420)[0].text
