"""A stream's note, and the lists of a server's streams and services."""

import pytest

import busway


async def test_a_note_is_stored(tmp_path):
    async with busway.serve(data=tmp_path) as server, server.connect() as bus:
        made = await bus.create_stream("orders", ["orders/**"], note="of the shop")
        assert (await made.info()).note == "of the shop"
        await bus.update_stream("orders", note="zażółć")
        with pytest.raises(ValueError, match="note"):
            await bus.update_stream("orders", note=7)
        with pytest.raises(ValueError, match="note"):
            await bus.create_stream("long", ["long"], note="x" * (1 << 21))
    async with busway.serve(data=tmp_path) as server:
        assert server.streams()["orders"].note == "zażółć"


async def test_what_a_server_tells_of_streams():
    async with busway.serve() as server, server.connect() as bus:
        before = server.stream_changes.count
        assert (set(server.streams()), server.stream_of("orders/1")) == ({"default"}, None)
        await bus.create_stream("orders", ["orders/**"])
        assert server.stream_changes.count > before
        assert server.stream_of("orders/1").name == "orders"
        assert server.stream_of("order") is None
        await bus.remove_stream("orders")
        assert server.stream_of("orders/1") is None


async def test_what_a_server_tells_of_services():
    async with busway.serve() as server, server.connect() as bus:
        async with bus.serve("a", print), bus.serve("b/c", print, shared=True):
            assert server.services() == ["a", "b/c"]
        assert server.services() == []
