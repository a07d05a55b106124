"""Send, post and pin: messages for late subscribers, the mark behind the retained ones, and withdrawals."""

import tempfile

import busway


async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with busway.serve(data=folder) as server, server.connect(name="monitor") as monitor:
            hdb = await server.connect(name="hdb", fields={"proc": "hdb"})
            await hdb.send("state", "starting")  # for current subscribers: there are none
            await hdb.post("state", "started")  # retained while this client is connected
            await hdb.post("state", "ready")  # the same topic and fields: replaces the last
            await hdb.pin("schema", "trade(time, sym, price)")  # retained until it is unpinned

            # Retained messages come first, then the notification. With `watch` withdrawals come, too.
            async with monitor.subscribe("**", where={"proc": busway.ANY}, notify=True, watch=True) as world:
                async for message in world:
                    if message.kind == "notify":
                        print("that was everything")
                        break
                    print(f"kept: {message.kind} {message.topic}: {message.text}")

                await hdb.post("state", "busy")
                print("live:", (await world.recv(timeout=5)).text)

                await hdb.close()
                message = await world.recv(timeout=5)
                print(f"{message.kind}: {message.topic} of {message.sender}")

        # Another server on the same folder: the post has ended with its client, the pin is still retained.
        async with busway.serve(data=folder) as server, server.connect(name="hdb", fields={"proc": "hdb"}) as hdb:
            for message in await hdb.kept():
                print(f"after a restart: {message.kind} {message.topic}: {message.text}")
            print("unpinned:", await hdb.unpin("schema"))
            print("left:", len(await hdb.kept()))


busway.run(main())
