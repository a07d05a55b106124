"""The server that the JSON door is measured against: `python -m benchmarks.gateway.echo PORT`, which sends back what it gets."""

import asyncio
import sys

import uvloop
from websockets.asyncio.server import ServerConnection, serve


async def echo(socket: ServerConnection) -> None:
    async for message in socket:
        await socket.send(message)


async def main(port: int) -> None:
    async with serve(echo, "127.0.0.1", port, compression=None):
        print('{"addresses":[]}', flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
