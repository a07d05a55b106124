"""A verb that sends for a while shows on a terminal how far it is."""

import asyncio
import os
import pty
import sys

import pytest

from tests.cli.conftest import PATIENCE


async def on_a_terminal(shell, *arguments, stdin=b""):
    """What a command writes to stderr if that is a terminal."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "busway", *map(str, arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=theirs,
        env=shell.environment | {"TERM": "xterm"},
    )
    os.close(theirs)
    shown = asyncio.create_task(asyncio.to_thread(_all, ours))
    async with asyncio.timeout(PATIENCE):
        await process.communicate(stdin)
        text = await shown
    os.close(ours)
    assert process.returncode == 0
    return text.decode()


def _all(terminal):
    read = b""
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:  # the command has ended
            return read
        if not chunk:
            return read
        read += chunk


async def test_pub_shows_how_far_it_is(shell, bus):
    shown = await on_a_terminal(shell, "pub", "t", "x", "--count", 5, "--rate", 50)
    assert "5 of 5" in shown
    assert "/s" in shown


async def test_pub_shows_lines_from_a_pipe_that_are_paced(shell, bus):
    shown = await on_a_terminal(shell, "pub", "t", "--lines", "--rate", 100, stdin=b"a\nb\n")
    assert "2 messages" in shown


async def test_push_shows_how_far_it_is(shell, bus):
    async with bus.subscribe("t"):
        assert "3 of 3" in await on_a_terminal(shell, "push", "t", "x", "--count", 3)


@pytest.mark.parametrize("more", [["--json"], ["--quiet"], ["-q"]])
async def test_nothing_is_shown_to_programs_or_if_not_wanted(shell, bus, more):
    assert await on_a_terminal(shell, "pub", "t", "x", "--count", 5, "--rate", 50, *more) == ""


async def test_nothing_is_shown_for_one_message_or_off_a_terminal(shell, bus):
    assert await on_a_terminal(shell, "pub", "t", "x") == ""
    assert (await shell.run("pub", "t", "x", "--count", 5, "--rate", 50)).notes == ""
