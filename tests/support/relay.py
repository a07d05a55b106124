"""A relay in front of a PostgreSQL server, which loses a connection at the worst moments."""

import asyncio
from typing import Literal, Self

Loss = Literal["commit", "answer"]


class Relay:
    """Lets connections through until told otherwise.

    `lose`: at the next COMMIT the client loses its connection, either before the server got it or before the client heard of
    it. `hold`: the server's end stays open then, as after a cut of the network. `refuse`: nobody gets through.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.lose: Loss | None = None
        self.hold = False
        self.refuse = False
        self.lost = asyncio.Event()
        self.knocked = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[asyncio.StreamWriter] = []
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for writer in self._held:
            writer.close()
        await asyncio.gather(*self._tasks)

    def cut(self) -> None:
        """End the connections there are."""
        for writer in self._open:
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        if self.refuse:
            self.knocked.set()
            writer.close()
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._open |= {writer, server_writer}
        back = asyncio.ensure_future(self._back(server_reader, writer))
        held = False
        while chunk := await self._read(reader):
            lose = self.lose if b"COMMIT" in chunk else None
            if lose:
                back.cancel()
                await asyncio.gather(back, return_exceptions=True)
                self.lose = None
                if lose == "answer":
                    server_writer.write(chunk)
                    await server_reader.read(1)  # so it has been committed
                held = self.hold
                break
            server_writer.write(chunk)
        writer.close()
        self._open -= {writer, server_writer}
        if held:
            self._held.append(server_writer)
        else:
            server_writer.close()
        await asyncio.gather(back, return_exceptions=True)
        if not reader.at_eof():
            self.lost.set()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await self._read(reader):
            writer.write(chunk)
        writer.close()

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.read(1 << 16)
        except ConnectionError:
            return b""
