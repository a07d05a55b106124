"""Share work: a group of subscribers gets each message once, and a push goes to exactly one or fails."""

import asyncio
from collections import Counter

import busway


async def main():
    async with busway.serve() as server, server.connect() as boss:
        done = Counter()
        all_done = asyncio.Event()

        async def work(worker):
            done[worker] += 1
            if done.total() == 10:
                all_done.set()

        buses = [await server.connect(name=f"worker {number}") for number in (1, 2)]
        # Members of one group share published messages; the handler gets one message at a time.
        workers = [
            await bus.subscribe("jobs/**", group="workers", handler=lambda _, name=bus.name: work(name))
            for bus in buses
        ]
        for number in range(8):
            await boss.publish(f"jobs/resize/{number}")
        for number in range(2):
            await boss.push(f"jobs/mail/{number}")  # returns when a worker has accepted it
        await all_done.wait()
        print("jobs done:", done.total(), "by", len(done), "workers")

        for worker, bus in zip(workers, buses, strict=True):
            await worker.close()
            await bus.close()
        try:
            await boss.push("jobs/mail/3")
        except busway.NoConsumers as error:
            print("nobody took it:", error)


busway.run(main())
