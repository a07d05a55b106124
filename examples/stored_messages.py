"""A stream: messages that outlive the broker, a reader that continues at its position, and a read of all messages."""

import tempfile

import busway


async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with busway.serve(data=folder) as server, server.connect(name="shop") as shop:
            await shop.create_stream("orders", ["orders/**"], safety="synced", max_age="7d")
            for number in range(1, 4):
                position = await shop.publish("orders/eu", {"id": number}, durable=True)
            print("stored:", position.stream, position.offset, position.sequence)

            # The first reader takes two messages and remembers its position.
            async with shop.subscribe("orders/*", since="all") as orders:
                for _ in range(2):
                    print("billing:", (await orders.recv(timeout=5)).json())
                reached = str(orders.position)

        # Another server on the same folder: all messages are still stored.
        async with busway.serve(data=folder) as server, server.connect(name="shop") as shop:
            async with shop.subscribe("orders/*", since=reached) as orders:
                print("billing goes on:", (await orders.recv(timeout=5)).json())
                await shop.publish("orders/us", {"id": 4}, durable=True)
                print("and is live:", (await orders.recv(timeout=5)).json())

            stream = await shop.stream("orders")
            async for messages in stream.read(topic="orders/eu"):
                print("of europe:", [message.json()["id"] for message in messages])
            for topic in await stream.topics():
                print("holds:", topic.topic, topic.messages)
            print("removed:", (await shop.remove_stream("orders")).count)


busway.run(main())
