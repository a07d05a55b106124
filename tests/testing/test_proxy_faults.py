"""The fault network itself: faults happen exactly at their place."""

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest

from busway.testing import Fault, FaultProxy, cut, garble, reset, stall
from busway.testing.proxy_faults import Flow
from tests.support import wire
from tests.support.net import within

FRAMES = [wire.ping(number) for number in range(5)] + [wire.close(9, "long enough to be cut"), wire.frame(0x06)]
STREAM = b"".join(FRAMES)


def pieces(flow: Flow, size: int = 1 << 20) -> tuple[bytes, list[tuple[int, Fault]]]:
    """What passes before the first fault that ends it, and the faults with the number of bytes passed by then."""
    out, faults = b"", []
    for at in range(0, len(STREAM), size):
        for step in flow.feed(STREAM[at : at + size]):
            if isinstance(step, Fault):
                faults.append((len(out), step))
            else:
                out += step
    return out, faults


@pytest.mark.parametrize("size", [1, 3, 14, 1 << 20])
def test_a_place_in_bytes(size: int) -> None:
    for place in range(1, len(STREAM)):
        fault = cut("up", byte=place)
        out, faults = pieces(Flow([fault]), size)
        assert out == STREAM
        assert faults == [(place, fault)]


@pytest.mark.parametrize("size", [1, 3, 14, 1 << 20])
def test_a_place_in_frames(size: int) -> None:
    edges = list(wire.boundaries(STREAM))
    for place in range(1, len(FRAMES) + 1):
        fault = cut("up", frame=place)
        flow = Flow([fault])
        _, faults = pieces(flow, size)
        assert faults == [(edges[place], fault)]
        assert (flow.frames, flow.bytes) == (len(FRAMES), len(STREAM))


def test_the_beginning_is_a_place() -> None:
    assert Flow([cut("up", byte=0), cut("up", frame=0)]).due() == [cut("up", byte=0), cut("up", frame=0)]


def test_several_faults_in_order() -> None:
    first, second = stall("up", byte=3), cut("up", frame=1)
    assert pieces(Flow([second, first]))[1] == [(3, first), (14, second)]


def test_garbling_turns_over_exactly_these_bytes() -> None:
    out, faults = pieces(Flow([garble("up", byte=5, size=3), garble("up", frame=2)]))
    assert faults == []
    expected = bytearray(STREAM)
    for at in (5, 6, 7, 28):
        expected[at] ^= 0xFF
    assert out == bytes(expected)


def test_chunks_are_small() -> None:
    steps = list(Flow(chunk=5).feed(STREAM))
    assert b"".join(step for step in steps if isinstance(step, bytes)) == STREAM
    assert {len(step) for step in steps if isinstance(step, bytes)} <= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("places", [{}, {"byte": 1, "frame": 1}, {"byte": -1}, {"frame": 1, "size": 0}])
def test_a_fault_needs_one_place(places: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="byte"):
        Fault("cut", "up", **places)


@pytest.fixture
async def echo() -> AsyncIterator[str]:
    """A server that sends back what it gets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_bytes_pass_both_ways(echo: str) -> None:
    async with FaultProxy(echo, chunk=7) as proxy, await wire.RawClient.open(proxy.address) as client:
        await client.send(STREAM)
        assert await within(client.reader.readexactly(len(STREAM))) == STREAM
        link = await proxy.link()
        assert (link.up.frames, link.down.frames) == (len(FRAMES), len(FRAMES))


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_cut_passes_exactly_so_much(echo: str, way: str) -> None:
    async with FaultProxy(echo) as proxy:
        for place in (0, 1, 13, 14, 15, 40):
            proxy.plan(cut(way, byte=place))  # type: ignore[arg-type]
            async with await wire.RawClient.open(proxy.address) as client:
                await client.send(STREAM)
                got = await client.rest()
                if way == "down":
                    assert got == STREAM[:place]
                else:
                    assert STREAM[:place].startswith(got)
            link = proxy.links[-1]
            assert (link.up if way == "up" else link.down).bytes == place
        async with await wire.RawClient.open(proxy.address) as client:  # no plan: nothing happens
            await client.send(STREAM)
            assert await within(client.reader.readexactly(len(STREAM))) == STREAM


async def test_a_reset_is_one(echo: str) -> None:
    async with FaultProxy(echo) as proxy:
        proxy.plan(reset("down", frame=1))
        client = await wire.RawClient.open(proxy.address)
        await client.send(STREAM)
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(60):
                while await client.reader.read(100):
                    pass
        client.abort()


async def test_a_stall_keeps_the_connection_and_can_be_released(echo: str) -> None:
    async with FaultProxy(echo) as proxy, await wire.RawClient.open(proxy.address) as client:
        link = await proxy.link()
        link.stall("down")
        await client.send(STREAM)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.reader.read(1)
        link.release("down")
        assert await within(client.reader.readexactly(len(STREAM))) == STREAM


async def test_refusing(echo: str) -> None:
    async with FaultProxy(echo) as proxy:
        proxy.refusing = True
        async with await wire.RawClient.open(proxy.address) as client:
            assert await client.rest() == b""
        assert proxy.links == []


async def test_nobody_upstream() -> None:
    async with FaultProxy("tcp://127.0.0.1:1") as proxy, await wire.RawClient.open(proxy.address) as client:
        assert await client.rest() == b""


async def test_leaving_ends_everything(echo: str) -> None:
    async with FaultProxy(echo) as proxy:
        client = await wire.RawClient.open(proxy.address)
        await client.send(struct.pack("<I", 1000))
        await proxy.link()
    assert await client.rest() in (b"", struct.pack("<I", 1000))
    await client.leave()
