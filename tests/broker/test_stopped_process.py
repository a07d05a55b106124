"""A subscriber process stopped by a signal under load: bounded memory, others unharmed, and exact counts afterwards."""

import asyncio
import signal
import sys

from tests.support.net import PATIENCE, Net, gather, until, within

PROGRAM = """
import asyncio, sys, busway

async def main():
    async with busway.connect(sys.argv[1], name="stopped") as bus, bus.subscribe("t", policy=sys.argv[2]) as subscription:
        print("ready", flush=True)
        received = told = 0
        async for message in subscription:
            told += message.missed
            if message.payload == b"end":
                break
            received += 1
        print(received, subscription.missed, told, flush=True)

asyncio.run(main())
"""


async def run(net: Net, policy: str) -> None:
    outbox, size, count = 1 << 20, 8192, 4000
    server = await net.serve(outbox=outbox, stall=0.05)
    publisher, quick = await net.connect(), await net.connect()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, server.addresses[0], policy, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await within(child.stdout.readline()) == b"ready\n"
    async with quick.subscribe("t", limit_bytes=1 << 30) as subscription:
        child.send_signal(signal.SIGSTOP)
        try:
            for number in range(count):
                await publisher.publish("t", number.to_bytes(4, "big").ljust(size, b"."))
            got = await gather(subscription, count)
            assert [int.from_bytes(message.payload[:4], "big") for message in got] == list(range(count))
            assert server.stats()["messages_dropped"] > 0
            assert server.stats()["outbox_bytes"] <= outbox + 4 * size
        finally:
            child.send_signal(signal.SIGCONT)
        await until(lambda: server.stats()["outbox_bytes"] == 0)
        await publisher.publish("t", b"end")
        received, missed, told = map(int, (await within(child.stdout.readline())).split())
    assert received + missed == count
    assert told == missed > 0
    async with asyncio.timeout(PATIENCE):
        assert await child.wait() == 0


async def test_block(net: Net) -> None:
    await run(net, "block")


async def test_drop_oldest(net: Net) -> None:
    await run(net, "drop_oldest")


async def test_drop_new(net: Net) -> None:
    await run(net, "drop_new")
