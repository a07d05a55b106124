"""Publish a typed message and receive it: the HelloProtocol of the T2 document."""

import busway


# A protocol is a message type and a prefix. The prefix should be unique among the protocols of your bus.
class HelloProtocol(busway.Protocol, prefix="hello"):
    text: str


async def main():
    async with (
        busway.serve() as server,
        server.connect() as client_1,
        server.connect() as client_2,
        # Subscribe to the HelloProtocol messages published on topics that match "alice".
        client_1.subscribe(HelloProtocol, "alice") as subscription,
    ):
        # Publish one to all subscriptions whose topic matches "alice".
        await client_2.publish("alice", HelloProtocol(text="Hello Alice"))

        topic, message = await subscription.recv(timeout=5)
        print(f"{topic}: {message.text}")
    # The subscription has ended with its block.


busway.run(main())
