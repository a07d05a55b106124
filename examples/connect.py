"""Connect to one server over memory, over a Unix socket and over TCP; all three are on the same bus."""

import tempfile

import busway


async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with busway.serve(f"unix:{folder}/my_bus", "tcp://127.0.0.1:0") as server:
            unix_address, tcp_address = server.addresses
            async with (
                server.connect(name="in memory") as memory_client,
                busway.connect(unix_address, name="over unix") as unix_client,
                busway.connect(tcp_address, name="over tcp") as tcp_client,
                memory_client.subscribe("greetings") as greetings,
            ):
                for client in (memory_client, unix_client, tcp_client):
                    await client.publish("greetings", f"hello from the client {client.name}")
                    print((await greetings.recv(timeout=5)).text)


busway.run(main())
