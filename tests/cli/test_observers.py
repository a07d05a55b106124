"""Commands that only watch messages: publishers do not wait for them, and they report missed messages."""

import asyncio
import os
import re
import signal

import pytest

from tests.cli.conftest import PATIENCE
from tests.support.flow import record_stops
from tests.support.net import until

BATCH = ["." * 1000] * 1000
MOST = 80
"""Batches: 80 MB, more than the sockets, the broker's outbox and the queue of the command hold together."""


@pytest.fixture
async def unread(shell):
    """Starts a command whose stdout nobody reads; its process, and the end of the pipe that could be read."""
    reading = []

    async def start(*words):
        ours, theirs = os.pipe()
        reading.append(ours)
        command = await shell.start(*words, stdout=theirs)
        os.close(theirs)
        await command.ready()
        return command, ours

    yield start
    for one in reading:
        os.close(one)


async def publish_much(bus, *, durable=False):
    async with asyncio.timeout(PATIENCE):
        for _ in range(MOST):
            await bus.publish_many("log/a", BATCH, durable=durable)
        await bus.flush(PATIENCE)


async def test_a_sub_that_nobody_reads_does_not_slow_a_publisher(unread, bus):
    await unread("sub", "**")
    stops = record_stops(bus)
    await publish_much(bus)
    assert stops == []


@pytest.mark.parametrize("words", [("--policy", "block"), ("--group", "workers")])
async def test_a_sub_that_is_to_miss_nothing_slows_a_publisher(unread, bus, words):
    await unread("sub", "**", *words)
    stops = record_stops(bus)
    publishing = asyncio.ensure_future(publish_much(bus))
    await until(lambda: True in stops)
    publishing.cancel()


@pytest.mark.parametrize("words", [("sub", "log/**", "--since", "all"), ("replay", "default", "--follow")])
async def test_an_unread_command_with_a_stream_falls_behind_and_misses_nothing(unread, bus, words):
    command, reading = await unread(*words, "--format", "{offset}")
    stops = record_stops(bus)
    await publish_much(bus, durable=True)
    assert stops == []
    last = MOST * len(BATCH) - 1
    seen = await asyncio.to_thread(read_until, reading, last)
    assert seen == list(range(last + 1))
    assert "missed" not in (await command.end(signal.SIGINT)).notes


def read_until(pipe: int, last: int) -> list[int]:
    text = b""
    while not text.endswith(b"\n%d\n" % last):
        more = os.read(pipe, 1 << 20)
        assert more
        text += more
    return [int(line) for line in text.split()]


async def test_sub_reports_at_its_end_how_much_it_missed(unread, bus):
    command, reading = await unread("sub", "**", "--format", "{topic} {missed}")
    await publish_much(bus)
    await bus.publish("log/last", "")
    lines = asyncio.ensure_future(asyncio.to_thread(read_lines, reading))
    async with asyncio.timeout(PATIENCE):
        seen = await lines
    assert len(seen) + sum(seen) == MOST * len(BATCH) + 1
    assert sum(seen) > 0
    notes = (await command.end(signal.SIGINT)).notes.splitlines()
    before = [int(number) for line in notes for number in re.findall(r"^missed (\d+) messages? before", line)]
    assert sum(before) == sum(seen)
    assert notes[-1].startswith(f"missed {sum(seen)} messages in total: ")


def read_lines(pipe: int) -> list[int]:
    """What each message says of those missed before it, up to the one on log/last."""
    text = b""
    while b"log/last" not in text or not text.endswith(b"\n"):
        more = os.read(pipe, 1 << 20)
        assert more
        text += more
    return [int(line.split()[1]) for line in text.splitlines()]
