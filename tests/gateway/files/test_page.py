"""The page about the bus as files: its Python blocks and commands run in a real mount, in their order."""

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import busway
from tests.support.doc_blocks import Block, blocks, run_block
from tests.support.mounts import PATIENCE, mounted

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "files.md"
PLACE = "/tmp/bus"


class Shell:
    """A bash that is told one command after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, commands: list[str]) -> str:
        """What they print, errors too."""
        end = "--- that was all ---"
        self._process.stdin.write("\n".join([*commands, f"echo '{end}'", ""]).encode())
        printed = ""
        async with asyncio.timeout(PATIENCE):
            while not printed.endswith(end + "\n"):
                line = await self._process.stdout.readline()
                assert line, f"the shell has ended: {printed}"
                printed += line.decode()
        return printed.removesuffix(end + "\n")


@pytest.fixture
async def shell():
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "bash", "--norc", stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    yield Shell(process)
    process.kill()
    await process.communicate()


@pytest.fixture(scope="module")
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def place(port: int) -> Iterator[str]:
    with mounted("mount", "--tcp", f"127.0.0.1:{port}") as made:
        yield str(made.folder)


async def test_the_page(shell: Shell, port: int, place: str) -> None:
    namespace: dict[str, Any] = {"__name__": "docs"}
    try:
        assert await steps_of(blocks(PAGE), shell, port, place, namespace) > 30
    finally:
        for one in namespace.values():
            if isinstance(one, busway.Bus):
                await one.close()


async def steps_of(found: list[Block], shell: Shell, port: int, place: str, namespace: dict[str, Any]) -> int:
    """Take them all; how many there were."""
    steps = 0
    for at, (language, text, line, follows) in enumerate(found):
        block = Block(language, text.replace(PLACE, place), line, follows)
        if language == "python":
            async with asyncio.timeout(PATIENCE):
                printed = await run_block(block, PAGE, namespace, f"tcp://127.0.0.1:{port}")
            if found[at + 1].language == "text" and found[at + 1].follows:
                assert printed.strip() == found[at + 1].text.strip(), f"{PAGE.name}:{line} prints something else"
            steps += 1
        elif language == "console":
            lines = block.text.splitlines()
            commands = [one.removeprefix("$ ") for one in lines if one.startswith("$ ")]
            expected = [one for one in lines if not one.startswith("$ ")]
            assert (await shell.run(commands)).splitlines() == expected, f"{PAGE.name}:{line} prints something else"
            steps += len(commands)
    return steps


def test_every_flag_of_the_limits_is_there_with_its_default() -> None:
    """What the table says is what `busway mount --help` says."""
    from busway.gateway.files.config import Mount

    defaults = Mount()
    rows = re.findall(r"^\| (`--[^|]+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    units = {"KiB": 1024, "MiB": 1 << 20, "s": 1}
    seen = 0
    for flags, values in rows:
        for flag, value in zip(re.findall(r"--([a-z-]+)", flags), re.split(r", (?!\d{3})", values), strict=True):
            number, _, unit = value.strip().partition(" ")
            assert getattr(defaults, flag.replace("-", "_")) == int(number.replace(",", "")) * units.get(unit, 1), flag
            seen += 1
    assert seen == 11
