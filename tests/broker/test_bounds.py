"""The broker's memory is limited in bytes, also with clients that don't read or answer, for every kind of message."""

import asyncio
import contextlib

from tests.support import wire
from tests.support.net import Net, within
from tests.support.process import memory

OUTBOX = 1 << 20
SIZE = 64 << 10
COUNT = 2000  # 125 MiB if nothing bounds it
BOUND = 40 << 20


async def flood(raw: wire.RawClient, *frames: bytes) -> None:
    """Send for as long as the broker takes it; being slowed down or closed is what should happen."""
    with contextlib.suppress(TimeoutError, ConnectionError):
        for frame in frames:
            async with asyncio.timeout(0.2):
                await raw.send(frame)


async def deaf(net: Net, session: int, *frames: bytes) -> wire.RawClient:
    """A client that has sent these frames, got as many results, and reads no more."""
    assert net.server is not None
    raw = await wire.RawClient.welcomed(net.server.addresses[0], session)
    net.stack.callback(raw.abort)
    for frame in frames:
        await raw.send(frame)
        assert (await raw.expect(wire.RESULT)).code == 0
    raw.writer.transport.pause_reading()
    return raw


async def check(net: Net, before: int) -> None:
    assert net.server is not None
    assert memory() - before < BOUND
    assert net.server.stats()["outbox_bytes"] < BOUND
    async with net.client() as bus:
        assert await within(bus.publish("alive", b"", confirm=True)) == 0


async def test_pushes_to_a_consumer_that_never_reads(net: Net) -> None:
    await net.serve(outbox=OUTBOX, stall=0.02)
    await deaf(net, 7, wire.subscribe(1, 1, "t"))
    pusher = await deaf(net, 8)
    frames = [wire.push(0, b"x" * SIZE, number) for number in range(1, COUNT)]
    before = memory()
    await flood(pusher, wire.topic(0, "t"), *frames)
    await check(net, before)


async def test_pushes_to_a_consumer_that_reads_and_never_answers(net: Net) -> None:
    server = await net.serve(outbox=OUTBOX, stall=0.02)
    consumer = await wire.RawClient.welcomed(server.addresses[0], 7)
    net.stack.callback(consumer.abort)
    await consumer.send(wire.subscribe(1, 1, "t"))
    await consumer.expect(wire.RESULT)

    async def read() -> None:
        while await consumer.reader.read(1 << 20):
            pass

    reading = asyncio.ensure_future(read())
    pusher = await deaf(net, 8)
    frames = [wire.push(0, b"x" * SIZE, number) for number in range(1, COUNT)]
    before = memory()
    await flood(pusher, wire.topic(0, "t"), *frames)
    try:
        assert server.stats()["pending"] * SIZE < BOUND
        await check(net, before)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_requests_to_a_service_that_never_reads(net: Net) -> None:
    await net.serve(outbox=OUTBOX, stall=0.02)
    await deaf(net, 7, wire.serve(1, 1, "t"))
    asker = await deaf(net, 8)
    frames = [wire.request(0, b"x" * SIZE, number) for number in range(1, COUNT)]
    before = memory()
    await flood(asker, wire.topic(0, "t"), *frames)
    await check(net, before)


async def test_replies_to_a_requester_that_never_reads(net: Net) -> None:
    await net.serve(outbox=OUTBOX, stall=0.02)
    service = await net.connect()
    async with service.serve("t", lambda message: b"x" * SIZE):
        asker = await deaf(net, 8)
        before = memory()
        await flood(asker, wire.topic(0, "t"), *(wire.request(0, b"", number) for number in range(1, COUNT)))
        await check(net, before)
        assert service.state == "connected"


async def test_information_for_a_client_that_never_reads(net: Net) -> None:
    await net.serve(outbox=OUTBOX, stall=0.02)
    asker = await deaf(net, 8)
    before = memory()
    frames = [wire.request(0, b"", number) for number in range(1, 20 * COUNT)]
    await flood(asker, wire.topic(0, "$bus/info"), *frames)
    await check(net, before)


async def test_publishes_to_many_who_never_read(net: Net) -> None:
    """Each has an outbox of its own, and not more."""
    await net.serve(outbox=OUTBOX, stall=0.02)
    for index in range(10):
        await deaf(net, 100 + index, wire.subscribe(1, 1, "t", policy=index % 3))
    bus = await net.connect()
    before = memory()
    for _ in range(COUNT // 4):
        await bus.publish("t", b"x" * SIZE)
    await bus.flush()
    assert net.server is not None
    assert net.server.stats()["outbox_bytes"] <= 10 * (OUTBOX + 4 * SIZE)
    assert memory() - before < 10 * 2 * OUTBOX + BOUND


async def test_frames_that_never_end(net: Net) -> None:
    """Many connections that each announce a large frame and send half of it hold what they sent, no more."""
    server = await net.serve()
    before = memory()
    for index in range(50):
        raw = await wire.RawClient.welcomed(server.addresses[0], 100 + index)
        net.stack.callback(raw.abort)
        await raw.send((8_000_000).to_bytes(4, "little"), bytes([wire.PUBLISH, 0]), b"x" * 10_000)
    await check(net, before)
