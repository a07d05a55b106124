"""Clients that misbehave: each gets a clear end, and the others never notice."""

import asyncio
import random
from collections import Counter

import pytest

import busway
from busway.broker.channels.frames import join_of
from busway.broker.streams.replay import _Since
from busway.errors import Code
from tests.support import regular, wire
from tests.support.net import PATIENCE, Net, eventually, gather, payloads, settle, until
from tests.support.process import memory


async def alive(net: Net) -> None:
    """The server still serves newcomers, and has forgotten everybody else."""
    server = net.server
    assert server is not None
    async with net.client() as bus, bus.subscribe("alive") as subscription, bus.serve("s", lambda message: b"yes"):
        await bus.publish("alive", b"x")
        assert await payloads(subscription, 1) == [b"x"]
        assert (await bus.request("s")).payload == b"yes"
    assert server.stats()["errors"] == 0


async def test_one_that_connects_and_says_nothing(net: Net) -> None:
    server = await net.serve(handshake=0.05)
    async with await wire.RawClient.open(server.addresses[0]) as raw:
        words = await raw.last_words()
        assert words is not None
        assert words[0] == 4
    await alive(net)


async def test_one_that_says_half_a_hello(net: Net) -> None:
    server = await net.serve(handshake=0.05)
    whole = wire.greeting(7, "x")
    for size in range(1, len(whole)):
        async with await wire.RawClient.open(server.addresses[0]) as raw:
            await raw.send(whole[:size])
            words = await raw.last_words()
            assert words is not None
            assert words[0] == 4
    await alive(net)


async def test_one_that_never_reads(net: Net) -> None:
    """Its outbox fills and stays within its limit; everybody else gets everything."""
    outbox = 256 << 10
    server = await net.serve(outbox=outbox, stall=0.02)
    stuck = await wire.RawClient.welcomed(server.addresses[0], 7, "stuck")
    await stuck.send(wire.subscribe(1, 1, "t"))
    await stuck.expect(wire.RESULT)
    stuck.writer.transport.pause_reading()
    publisher, reader = await net.connect(), await net.connect()
    payload, count = b"x" * 16384, 1000
    async with reader.subscribe("t", limit_bytes=1 << 30) as subscription:
        most = 0
        for number in range(count):
            await publisher.publish("t", number.to_bytes(4, "big") + payload)
            most = max(most, server.stats()["outbox_bytes"])
        got = await gather(subscription, count)
        assert [int.from_bytes(message.payload[:4], "big") for message in got] == list(range(count))
        assert subscription.missed == 0
        # One more message than the limit may be there, for each of the two receivers.
        assert most <= 2 * (outbox + 2 * len(payload))
        assert server.stats()["messages_dropped"] > 0
    stuck.writer.transport.resume_reading()
    received = missed = 0
    while received + missed < count:
        frame = await stuck.frame()
        if stuck.slots.learn(frame):
            continue
        if frame.kind == wire.DELIVER:
            received += 1
        elif frame.kind == wire.MISSED:
            sub, many = stuck.slots.read(frame)
            assert sub == 1
            missed += many
    assert received + missed == count
    await stuck.leave()
    await alive(net)


async def test_one_that_asks_and_never_reads_the_answers(net: Net) -> None:
    """Answers can't be dropped, so who asks without reading is no longer read; memory stays bounded."""
    server = await net.serve(outbox=64 << 10, stall=0.02, heartbeat=0.2)
    raw = await wire.RawClient.welcomed(server.addresses[0], 7, "asker")
    raw.writer.transport.pause_reading()
    most = 0

    async def flood() -> None:
        number = 0
        while True:
            number += 1
            await raw.send(*(wire.unsubscribe(1, number * 1000 + i) for i in range(1000)))

    flooding = asyncio.ensure_future(flood())
    try:
        async with asyncio.timeout(1):
            while not flooding.done():
                most = max(most, server.stats()["outbox_bytes"])
                await asyncio.sleep(0)
    except TimeoutError:
        pass
    finally:
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        raw.abort()
    assert most <= 4 << 20
    await alive(net)


async def test_a_million_subscriptions_are_refused_at_the_limit(net: Net) -> None:
    limit = 2000
    server = await net.serve(subscriptions=limit)
    witness = await net.connect()
    raw = await wire.RawClient.welcomed(server.addresses[0], 7, "greedy", timeout=60)
    total, step = 1_000_000, 10_000
    codes: Counter[int] = Counter()
    before = memory()
    async with witness.subscribe("quiet") as subscription:
        for begin in range(0, total, step):
            await raw.send(*(wire.subscribe(sub, sub, f"s/{sub}/*") for sub in range(begin + 1, begin + step + 1)))
            left, answers = b"", 0
            while answers < step:
                # Read in bulk: the frames are alike, only their codes matter.
                async with asyncio.timeout(PATIENCE):
                    chunk = await raw.reader.read(1 << 20)
                frames, left = wire.split(left + chunk)
                codes.update(frame.rest[0] for frame in frames if frame.kind == wire.RESULT)
                answers = codes.total() - begin
            if begin % 100_000 == 0:
                assert server.stats()["subscriptions"] == limit + 1
                await witness.publish("quiet", b"still here")
        assert codes == {0: limit, 30: total - limit}
        assert len(await gather(subscription, 10)) == 10
    assert memory() - before < 64 << 20
    await raw.leave()
    await until(lambda: server.stats()["subscriptions"] == 0)
    await alive(net)


async def test_regular_expressions_do_not_keep_the_others_waiting(net: Net) -> None:
    """Expressions and topics chosen to be much work, all sent at once: others are served in between."""
    server = await net.serve()
    witness = await net.connect()
    raw = await wire.RawClient.welcomed(server.addresses[0], 7, "hard")

    async def between(frames: list[bytes], figure: str) -> None:
        before = server.stats()[figure]
        await raw.send(*frames)
        await until(lambda: server.stats()[figure] > before)
        await witness.flush()
        assert server.stats()[figure] - before < len(frames)
        for _ in frames:
            await raw.expect(wire.RESULT)

    hard = regular.hard(60)
    await between([wire.subscribe(sub, sub, pattern) for sub, pattern in enumerate(hard, start=1)], "subscriptions")
    await raw.send(*(wire.topic(slot, f"{regular.HARDEST}{slot}") for slot in range(20)))
    await between([wire.publish(slot, b"", slot) for slot in range(20)], "messages_rejected")
    await raw.leave()
    await alive(net)


async def test_a_million_topics_do_not_stay(net: Net) -> None:
    """Topics that nobody uses any more are forgotten by the broker."""
    server = await net.serve(topics=100)
    before = server.stats()["topics"]
    async with await wire.RawClient.welcomed(server.addresses[0], 7) as raw:
        for begin in range(0, 200_000, 1000):
            frames = []
            for number in range(begin, begin + 1000):
                frames += [wire.topic(number % 100, f"t/{number}"), wire.publish(number % 100, b"", number)]
            await raw.send(*frames, wire.ping(begin))
            assert await raw.expect(wire.PONG) == begin
        assert server.stats()["topics"] <= before + 100
    await until(lambda: server.stats()["topics"] == before)


@pytest.mark.parametrize("seed", range(30))
async def test_random_bytes(net: Net, seed: int) -> None:
    choose = random.Random(seed)
    server = await net.serve()
    witness = await net.connect()
    async with witness.subscribe("quiet") as subscription:
        for _ in range(10):
            raw = await wire.RawClient.open(server.addresses[0])
            if choose.random() < 0.7:
                await raw.send(wire.greeting(choose.getrandbits(60) + 1, "random"))
            try:
                for _ in range(10):
                    await raw.send(choose.randbytes(choose.randint(1, 3000)))
            except ConnectionError:
                pass  # closed already, which is right
            if choose.random() < 0.5:
                raw.abort()
            else:
                await raw.leave()
        await witness.publish("quiet", b"x")
        assert (await subscription.recv(timeout=PATIENCE)).payload == b"x"
    await alive(net)


@pytest.mark.parametrize("how", ["leave", "abort"])
async def test_sockets_closed_at_every_byte(net: Net, how: str) -> None:
    """A client that ends after each byte of a busy exchange; in the end nothing of it is left."""
    server = await net.serve()
    witness = await net.connect()
    script = (
        wire.greeting(7, "short-lived")
        + wire.subscribe(1, 1, "t/*")
        + wire.serve(1, 2, "service")
        + wire.topic(0, "t/x")
        + wire.publish(0, b"payload", 3, flags=wire.CONFIRM)
        + wire.topic(1, "service")
        + wire.request(1, b"q", 4)
        + wire.push(0, b"job", 5)
        + wire.unsubscribe(1, 6)
        + wire.ping(7)
        + wire.close(9, "bye")
    )
    async with witness.subscribe("t/*"), witness.serve("other", lambda message: b"x"):
        for size in range(len(script) + 1):
            raw = await wire.RawClient.open(server.addresses[0])
            await raw.send(script[:size])
            if how == "leave":
                await raw.leave()
            else:
                raw.abort()

        async def alone() -> bool:
            stats = server.stats()
            return (stats["connections"], stats["subscriptions"], stats["services"], stats["pending"]) == (1, 1, 1, 0)

        await eventually(alone)
    await alive(net)


async def test_requests_to_a_service_that_dies_are_answered_though_its_socket_was_reset(net: Net) -> None:
    server = await net.serve()
    bus = await net.connect()
    for _ in range(20):
        raw = await wire.RawClient.welcomed(server.addresses[0], 7)
        await raw.send(wire.serve(1, 1, "t"))
        await raw.expect(wire.RESULT)
        asking = [asyncio.ensure_future(bus.request("t", timeout=None)) for _ in range(5)]
        await raw.expect(wire.CALL)
        raw.abort()
        for each in asking:
            with pytest.raises((busway.ServiceGone, busway.NoResponders)):
                await each


async def test_a_connection_flood_is_refused_at_the_limit(net: Net) -> None:
    server = await net.serve(connections=10)
    bus = await net.connect()
    raws = [await wire.RawClient.open(server.addresses[0]) for _ in range(50)]
    refused = 0
    for raw in raws[9:]:
        words = await raw.last_words()
        assert words is not None
        assert words[0] == 10
        refused += 1
    assert refused == 41
    assert await bus.publish("t", b"", confirm=True) == 0
    for raw in raws:
        await raw.leave()
    await until(lambda: server.stats()["connections"] == 1)
    await alive(net)


async def test_same_numbers_again_and_again(net: Net) -> None:
    """A client that uses one number for everything gets an answer to each, or an end; nobody else does."""
    server = await net.serve()
    other = await net.connect()
    async with other.serve("s", lambda message: b"x"), await wire.RawClient.welcomed(server.addresses[0], 7) as raw:
        await raw.send(wire.topic(0, "s"), wire.request(0, b"", 5))
        assert (await raw.expect(wire.REPLY)).number == 5
        await raw.send(wire.request(0, b"", 5))
        assert (await raw.expect(wire.REPLY)).number == 5
    await settle(other)
    await alive(net)


async def test_a_call_that_is_accepted_and_an_offer_that_is_replied_to(net: Net) -> None:
    """The wrong kind of answer ends that client; who asked hears it, and the push goes to somebody else."""
    server = await net.serve()
    bus = await net.connect()
    async with await wire.RawClient.welcomed(server.addresses[0], 7) as raw:
        await raw.send(wire.serve(1, 1, "t"))
        await raw.expect(wire.RESULT)
        asking = asyncio.ensure_future(bus.request("t", timeout=None))
        await raw.send(wire.accept((await raw.expect(wire.CALL)).extra))
        assert (await raw.last_words() or (0,))[0] == 1
        with pytest.raises(busway.ServiceGone):
            await asking
    async with await wire.RawClient.welcomed(server.addresses[0], 8) as raw:
        await raw.send(wire.subscribe(1, 1, "t"))
        await raw.expect(wire.RESULT)
        pushing = asyncio.ensure_future(bus.push("t", b"x", timeout=None))
        offer = await raw.expect(wire.OFFER)
        async with bus.subscribe("t") as second:
            await raw.send(wire.reply(offer.extra, b"no"))
            assert (await raw.last_words() or (0,))[0] == 1
            await pushing
            assert await payloads(second, 1) == [b"x"]
    assert server.stats()["pending"] == 0
    await alive(net)


async def test_a_question_that_is_nested_too_deep_is_refused(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    """Who asks hears why, and goes on."""
    await net.serve()
    bus = await net.connect()
    deep = b'{"name":"default","more":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for topic in ("$bus/info", "$bus/kept", "$bus/stream/list", "$bus/channel/list", "$bus/stored"):
        with pytest.raises(busway.ServiceError) as refused:
            await bus.request(topic, deep)
        assert refused.value.code == Code.HANDLER_ERROR
    assert not [record for record in caplog.records if record.exc_info]
    await alive(net)


def test_places_and_channels_that_are_nested_too_deep_are_refused() -> None:
    deep = b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(busway.InvalidRule, match="since"):
        _Since(b"\x92\xa3all" + deep)
    with pytest.raises(busway.Rejected, match="CHANNEL"):
        join_of(b"\x81\xa4more" + deep)
