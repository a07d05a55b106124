"""A slow consumer chooses its policy: this one gets the newest messages and the number of missed ones."""

import busway


async def main():
    async with (
        busway.serve() as server,
        server.connect() as feed,
        server.connect() as reader,
        # At most 100 messages wait here; with one more, the oldest is dropped.
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
