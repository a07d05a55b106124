"""Start a bus that listens on a Unix socket, on TCP and in memory, then stop it."""

import tempfile

import busway


async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with busway.serve(f"unix:{folder}/my_bus", "tcp://127.0.0.1:0") as server:
            # The server now accepts connections on the two addresses, and over memory through server.connect().
            for address in server.addresses:
                print("listening on", address.replace(folder, "."))
        # The server has stopped; before, it delivered the waiting messages.
        print("stopped")


busway.run(main())
