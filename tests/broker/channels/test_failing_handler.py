"""Failing handlers with real processes: a database that is down for a while costs no message."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import busway
from tests.support.children import Children
from tests.support.net import PATIENCE, eventually

DOWN = float(os.environ.get("BUSWAY_DOWN", "3"))
"""Seconds that the database is down. With 20 s it is the same, and takes 36 s: BUSWAY_DOWN=20."""
JOBS = 100

WORKER = """
import asyncio, logging, sys, time, busway

address, down = sys.argv[1], float(sys.argv[2])
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="log %(message)s")
begin = time.monotonic()

async def bill(message):
    if time.monotonic() < begin + down:
        raise ConnectionError("the database is down")
    print("billed", message.text, flush=True)

async def main():
    async with busway.connect(address) as bus:
        async with bus.channel("jobs", "work", handler=bill, concurrency=4):
            print("works", flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def children() -> AsyncIterator[Children]:
    children = Children()
    async with children.stack:
        yield children


async def test_a_database_that_is_down_for_a_while_costs_no_message(children: Children, tmp_path: Path) -> None:
    """With the settings that a channel has by default. Without backoff all five deliveries were used up in a moment."""
    server = await children.run(
        *("-m", "busway", "serve", "--unix", tmp_path / "bus", "--data", tmp_path / "data", "--json", "-q")
    )
    json.loads(await server.line())
    async with busway.connect(f"unix:{tmp_path / 'bus'}") as bus, bus.subscribe("dead/**") as dead:
        await bus.create_stream("jobs", ["jobs/**"])
        await bus.publish_many("jobs/a", [b"%d" % number for number in range(JOBS)], durable=True)
        child = await children.start(WORKER, bus.url, DOWN)
        await child.says("works")
        billed, said = [], []
        while len(billed) < JOBS:
            line = await child.line()
            (billed if line.startswith("billed") else said).append(line)
        assert sorted(billed) == sorted(f"billed {number}" for number in range(JOBS))

        async def done() -> bool:
            return (await bus.channel_info("jobs", "work")).floor == JOBS

        await eventually(done)
        info = await bus.channel_info("jobs", "work")
        assert (info.dead, info.late, info.lag) == (0, 0, 0)
        assert info.redelivered >= JOBS
        assert dead.pending == 0
        assert 1 <= len(said) < 60, "one line for a failure, and after ten a sum; one traceback"


POISON = """
import asyncio, logging, sys, busway

address = sys.argv[1]
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="log %(message)s")

async def work(message):
    if message.text == "poison":
        raise ValueError("it can't be read")

async def main():
    async with busway.connect(address) as bus:
        async with bus.channel("jobs", "work", handler=work, concurrency=4, create=False):
            print("works", flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_thousand_poison_messages_are_dead_letters_and_the_others_are_done(
    children: Children, tmp_path: Path
) -> None:
    server = await children.run(
        *("-m", "busway", "serve", "--unix", tmp_path / "bus", "--data", tmp_path / "data", "--json", "-q")
    )
    json.loads(await server.line())
    async with busway.connect(f"unix:{tmp_path / 'bus'}") as bus:
        await bus.create_stream("jobs", ["jobs/**"])
        await bus.create_channel("jobs", "work", backoff=["20ms", "50ms"], max_deliveries=3)
        await bus.publish_many("jobs/a", [b"poison", b"good"] * 1000, durable=True)
        child = await children.start(POISON, bus.url)
        await child.says("works")

        async def done() -> bool:
            return (await bus.channel_info("jobs", "work")).floor == 2000

        await eventually(done)
        info = await bus.channel_info("jobs", "work")
        assert (info.dead, info.redelivered, info.lag, info.in_flight) == (1000, 2000, 0, 0)
        async with bus.subscribe("dead/**", since="all") as letters:
            seen = {(await letters.recv(timeout=PATIENCE)).fields["dead_offset"] for _ in range(1000)}
        assert seen == set(range(0, 2000, 2))
