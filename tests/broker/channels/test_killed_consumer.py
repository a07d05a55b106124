"""Leases with real processes: a broker, and workers that are killed in the middle of a long job, or never end it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import busway
from tests.support.children import Child, Children
from tests.support.net import PATIENCE, eventually, within

LEASE = 0.5
JOB = 5.0
"""Seconds: ten leases."""

WORKER = """
import asyncio, logging, sys, busway

address, job, limit = sys.argv[1], float(sys.argv[2]), sys.argv[3]
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="log %(message)s")

async def work(message):
    print("begins", message.text, message.deliveries, flush=True)
    await asyncio.sleep(job)
    print("ends", message.text, message.deliveries, flush=True)

async def main():
    async with busway.connect(address) as bus:
        async with bus.channel("jobs", "work", handler=work, concurrency=4, window=4, max_processing=limit):
            print("works", flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def children() -> AsyncIterator[Children]:
    children = Children()
    async with children.stack:
        yield children


@pytest.fixture
async def bus(tmp_path: Path, children: Children) -> AsyncIterator[busway.Bus]:
    server = await children.run(
        *("-m", "busway", "serve", "--unix", tmp_path / "bus", "--data", tmp_path / "data", "--json", "-q")
    )
    json.loads(await server.line())
    async with busway.connect(f"unix:{tmp_path / 'bus'}") as bus:
        await bus.create_stream("jobs", ["jobs/**"])
        await bus.create_channel("jobs", "work", lease=LEASE, max_deliveries=5)
        yield bus


async def worker(children: Children, bus: busway.Bus, job: float = JOB, limit: str = "1h") -> Child:
    child = await children.start(WORKER, bus.url, job, limit)
    await child.says("works")
    return child


async def finished(bus: busway.Bus, count: int) -> busway.ChannelInfo:
    async def done() -> bool:
        return (await bus.channel_info("jobs", "work")).floor == count

    await eventually(done)
    return await bus.channel_info("jobs", "work")


async def test_a_job_of_ten_leases_runs_once(children: Children, bus: busway.Bus) -> None:
    child = await worker(children, bus)
    await bus.publish_many("jobs/a", [b"0", b"1", b"2", b"3"], durable=True)
    lines = [await child.line() for _ in range(8)]
    assert sorted(lines[:4]) == [f"begins {number} 1" for number in range(4)]
    assert sorted(lines[4:]) == [f"ends {number} 1" for number in range(4)]
    info = await finished(bus, 4)
    assert (info.redelivered, info.late, info.dead) == (0, 0, 0)


async def test_a_worker_that_is_killed_costs_one_more_delivery(children: Children, bus: busway.Bus) -> None:
    """It dies while its leases are being renewed, in the middle of the work."""
    child = await worker(children, bus)
    await bus.publish_many("jobs/a", [b"0", b"1", b"2", b"3"], durable=True)
    for _ in range(4):
        await child.line()
    await asyncio.sleep(JOB / 2)
    await child.kill()
    second = await worker(children, bus)
    lines = [await second.line() for _ in range(8)]
    assert sorted(lines) == sorted(f"{what} {number} 2" for what in ("begins", "ends") for number in range(4))
    info = await finished(bus, 4)
    assert (info.redelivered, info.late, info.dead) == (4, 0, 0)


async def test_a_handler_that_never_returns_is_bounded_and_reported(children: Children, bus: busway.Bus) -> None:
    await bus.update_channel("jobs", "work", max_deliveries=2)
    child = await worker(children, bus, job=3600, limit="1s")
    async with bus.subscribe("dead/**") as dead:
        await bus.publish("jobs/a", b"0", durable=True)
        await child.says("begins 0 1")
        assert "longer than max_processing=1 s" in await child.line()
        await child.says("begins 0 2")
        letter = await dead.recv(timeout=PATIENCE)
        assert letter.payload == b"0"
        info = await within(finished(bus, 1))
    assert (info.dead, info.in_flight) == (1, 0)
