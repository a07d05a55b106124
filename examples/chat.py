"""Topic matching: a chat whose messages are published to <room>/<user>, with wildcards on both sides."""

import asyncio

import busway

PATTERNS = {
    "alice in the lobby": "lobby/alice",
    "everybody in the lobby": "lobby/*",
    "alice in all rooms": "*/alice",
    "everything": "**",
}


async def main():
    async with busway.serve() as server, server.connect() as alice, server.connect() as carol, server.connect() as bob:
        subscriptions = {name: await bob.subscribe(pattern) for name, pattern in PATTERNS.items()}

        await alice.publish("lobby/alice", "hello lobby")
        await carol.publish("lobby/carol", "hello alice")
        await alice.publish("kitchen/alice", "who is here?")
        await alice.publish("*/alice", "I am leaving")  # to subscribers of alice in all rooms
        await asyncio.gather(alice.flush(), carol.flush())

        for name, subscription in subscriptions.items():
            print(f"{name} ({PATTERNS[name]})")
            async for message in subscription:
                print(f"  {message.topic}: {message.text}")
                if not subscription.pending:
                    break


busway.run(main())
