"""Definitions travel between nodes with the names of stores: a stranger at a link learns no URL and no password."""

import asyncio
from pathlib import Path

import busway
from tests.support.net import until


class Recorder:
    """Passes a link on and keeps every byte of it."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.removeprefix("tcp://").rpartition(":")
        self._upstream = host, int(port)
        self.seen = bytearray()

    async def __aenter__(self) -> str:
        self._tasks: list[asyncio.Task[None]] = []
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection(*self._upstream)
        self._tasks += [asyncio.create_task(self._pass(*one)) for one in ((reader, to_there), (there, writer))]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.seen += data
            writer.write(data)
        writer.close()


async def test_no_url_travels_between_nodes(tmp_path: Path) -> None:
    def stores(node: str) -> dict[str, str]:
        return {"billing": f"sqlite:///{tmp_path / node}.sqlite?password=sesame"}

    async with busway.serve("tcp://127.0.0.1:0", name="one", cluster="shop", stores=stores("one")) as one:
        recorder = Recorder(one.addresses[0])
        async with (
            recorder as between,
            busway.serve(
                "unix:" + str(tmp_path / "two"), name="two", cluster="shop", stores=stores("two"), servers=[between]
            ) as two,
            one.connect() as bus,
        ):
            await bus.create_stream("orders", ["orders/**"], store="billing")
            await until(lambda: "orders" in two.streams())
            assert two.streams()["orders"].store == "billing"
    assert b"billing" in recorder.seen
    assert b"sesame" not in recorder.seen
    assert b"sqlite:" not in recorder.seen
