"""A broker process killed while it stores: acknowledged messages are there, all others are there completely or not at
all.
"""

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from busway.broker.streams.stores import ChannelEntry, Store
from tests.support.store_kits import DatabaseKit, everything


@contextlib.asynccontextmanager
async def child(kit: DatabaseKit, where: str) -> AsyncIterator[asyncio.subprocess.Process]:
    url = f"sqlite:///{kit.url}" if isinstance(kit.url, Path) else kit.url
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.store_process", url, where), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    said = (await process.stdout.readline()).decode().strip()
    assert said, "the child ended"
    return said


async def check_whole(store: Store, acknowledged: int) -> None:
    assert store.next >= acknowledged
    records = await everything(store, most_bytes=1 << 20)
    assert [record.offset for record in records] == list(range(store.next))
    sequences: dict[str, int] = {}
    for record in records:
        assert record.sequence == sequences.get(record.topic, 0) + 1
        sequences[record.topic] = record.sequence
    assert await store.sequences() == sequences
    usage = await store.usage()
    assert (usage.bytes, usage.count) == (sum(record.size for record in records), store.next)
    assert sum(run.count for run in await store.publishers(0)) == store.next


async def test_a_broker_killed_at_any_moment_leaves_what_was_acknowledged(kit: DatabaseKit) -> None:
    for _ in range(4):
        async with child(kit, "anywhere") as process:
            for _ in range(random.randrange(1, 30)):
                acknowledged = int(await line(process))
            await asyncio.sleep(random.uniform(0, 0.01))  # where it is killed is left to chance
            process.kill()
            await process.wait()
            assert process.stdout is not None
            if rest := (await process.stdout.read()).decode().split():
                acknowledged = int(rest[-1])
        store = await kit.open()
        await check_whole(store, acknowledged)
        [entry] = await store.load_channels()
        assert entry in [ChannelEntry("billing", "next", b"%d" % at) for at in range(acknowledged, store.next + 1)]
        await kit.close()


async def test_a_broker_killed_inside_a_transaction_leaves_nothing_of_it(kit: DatabaseKit) -> None:
    async with child(kit, "inside") as process:
        acknowledged = 0
        while (said := await line(process)) != "inside":
            acknowledged = int(said)
        process.kill()
    store = await kit.open()
    assert store.next == acknowledged > 0
    await check_whole(store, acknowledged)
