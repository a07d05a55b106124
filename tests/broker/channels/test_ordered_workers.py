"""Order with real processes: four workers share a channel with order_by, fail at random, and one of them is killed."""

import json
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import busway
from tests.support.children import Children
from tests.support.net import eventually

TOPICS, EACH = 6, 15

WORKER = """
import asyncio, logging, os, random, sys, busway

address, diary, seed = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND), int(sys.argv[3])
logging.disable()
chance = random.Random(seed)

def write(what, message):
    os.write(diary, f"{seed} {what} {message.topic} {message.text}\\n".encode())

async def work(message):
    write("begins", message)
    await asyncio.sleep(chance.random() * 0.02)
    if chance.random() < 0.15:
        write("fails", message)
        raise RuntimeError("by chance")
    write("ends", message)

async def main():
    async with busway.connect(address) as bus:
        async with bus.channel("jobs", "work", handler=work, concurrency=8, create=False):
            print("works", flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def children() -> AsyncIterator[Children]:
    children = Children()
    async with children.stack:
        yield children


async def test_the_order_per_topic_holds(children: Children, tmp_path: Path) -> None:
    server = await children.run(
        *("-m", "busway", "serve", "--unix", tmp_path / "bus", "--data", tmp_path / "data", "--json", "-q")
    )
    json.loads(await server.line())
    diary = tmp_path / "diary"
    diary.touch()
    async with busway.connect(f"unix:{tmp_path / 'bus'}") as bus:
        await bus.create_stream("jobs", ["jobs/**"])
        await bus.create_channel("jobs", "work", order_by="topic", backoff=["20ms", "50ms"], max_deliveries=0)
        workers = [await children.start(WORKER, bus.url, diary, seed) for seed in range(4)]
        for worker in workers:
            await worker.says("works")
        for number in range(EACH):
            for topic in range(TOPICS):
                await bus.publish(f"jobs/{topic}", str(number), durable=True)

        async def half() -> bool:
            lines = diary.read_text().splitlines()
            mine = [line for line in lines if line.startswith("0 ")]
            return len(lines) > TOPICS * EACH and len(mine) % 2 == 1  # it is at work on something

        await eventually(half)
        await workers[0].kill()

        async def done() -> bool:
            return (await bus.channel_info("jobs", "work")).floor == TOPICS * EACH

        await eventually(done)
        assert (await bus.channel_info("jobs", "work")).dead == 0
    check(diary.read_text().splitlines(), killed="0")


def check(lines: list[str], killed: str) -> None:
    """Of each topic one message at a time, each until it is done; only what the killed worker had may come twice."""
    at_work: dict[str, tuple[str, int]] = {}
    last: dict[str, tuple[str, int]] = defaultdict(lambda: ("", -1))
    for line in lines:
        worker, what, topic, text = line.split()
        number = int(text)
        if what == "begins":
            if topic in at_work:
                assert at_work.pop(topic) == (killed, number), f"two at a time: {line}"
            assert number == last[topic][1] + 1 or last[topic] == (killed, number), f"out of order: {line}"
            at_work[topic] = worker, number
        else:
            assert at_work.pop(topic) == (worker, number), line
            if what == "ends":
                last[topic] = worker, number
    assert {topic: number for topic, (_, number) in last.items()} == {f"jobs/{n}": EACH - 1 for n in range(TOPICS)}
