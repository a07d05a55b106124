"""A server stops and comes back: the client reports each event, and restores its subscription."""

import busway


async def main():
    server = await busway.serve("tcp://127.0.0.1:0", name="first").start()
    address = server.addresses[0]
    async with busway.connect(address, reconnect=[0.0, 0.05, 0.2], offline=busway.Buffer()) as bus:
        events = bus.events()
        subscription = await bus.subscribe("news")

        await server.stop()
        async for event in events:
            print("event:", event.kind)
            if event.kind == "lost":
                break

        # Buffered without a server, sent after the reconnect. With offline="fail" this would raise Disconnected.
        await bus.publish("news", "written while offline")

        async with busway.serve(address, name="second"):
            async for event in events:
                print("event:", event.kind)
                if event.kind == "resumed":
                    break
            print("server:", bus.server["name"])
            print((await subscription.recv(timeout=5)).text)


busway.run(main())
