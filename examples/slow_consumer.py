"""A consumer that can't keep up chooses what happens: here it keeps the newest messages and is told what it missed."""

import busway


async def main():
    async with (
        busway.serve() as server,
        server.connect() as feed,
        server.connect() as reader,
        # At most 100 messages wait here; when one more comes, the oldest goes.
        reader.subscribe("ticks", policy="drop_oldest", limit=100) as ticks,
    ):
        for number in range(1000):
            await feed.publish("ticks", str(number))
        await feed.flush()
        await reader.flush()

        message = await ticks.recv(timeout=5)
        print("first message that is left:", message.text)
        print("missed before it:", message.missed)
        print("still waiting:", ticks.pending)


busway.run(main())
