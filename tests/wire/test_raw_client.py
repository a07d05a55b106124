"""A client that knows only docs/protocol.md talks to a real server, and with real clients through it."""

import asyncio
import struct

import pytest

import busway
from busway.fields import encode_fields
from tests.support import page, wire
from tests.support.net import PATIENCE, Net, payloads


@pytest.fixture
async def address(net: Net) -> str:
    server = await net.serve()
    return server.addresses[0]


async def test_welcome_has_all_the_keys_of_the_page(net: Net, address: str) -> None:
    async with await wire.RawClient.welcomed(address, 7, "raw") as raw:
        assert raw.version == 1
        assert set(raw.welcome) >= {
            "name",
            "guid",
            "client",
            "agent",
            "heartbeat",
            "limits",
            "servers",
            "grace",
            "provider_timeout",
        }
        assert len(bytes.fromhex(raw.welcome["guid"])) == 16
        assert raw.welcome["client"] >= 1
        assert isinstance(raw.welcome["heartbeat"], float)
        assert set(raw.welcome["limits"]) == {
            "frame", "topic", "fields", "subscriptions", "expressions", "outbox", "topics", "senders", "pending",
            "kept", "kept_bytes",
        }  # fmt: skip


async def test_a_newer_client_gets_our_version(address: str) -> None:
    async with await wire.RawClient.open(address) as raw:
        await raw.send(wire.greeting(7, "raw", version=99, future={"unknown": [1, 2]}))
        version, _ = await raw.expect(wire.WELCOME)
        assert version == 1


async def test_both_ways_with_a_real_client(net: Net, address: str) -> None:
    bus = await net.connect("real")
    async with await wire.RawClient.welcomed(address, 0xABCD, "raw") as raw:
        await raw.send(wire.subscribe(1, 1, "to/raw"))
        assert (await raw.expect(wire.RESULT)).code == 0
        await bus.publish("to/raw", b"hello")
        got = await raw.expect(wire.DELIVER)
        assert (got.ids, got.topic, got.payload) == ((1,), "to/raw", b"hello")
        assert got.sender is not None
        assert got.sender[1] == "real"
        async with bus.subscribe("to/*") as subscription:
            await raw.send(wire.topic(9, "to/real"), wire.publish(9, b"back", 2, flags=wire.CONFIRM, time=123))
            result = await raw.expect(wire.RESULT)
            assert (result.code, result.number, result.value) == (0, 2, 1)
            message = await subscription.recv(timeout=PATIENCE)
            assert (message.topic, message.payload, message.sender) == ("to/real", b"back", "raw")
            assert (message.id, message.time_ns) == (f"{wire.session(0xABCD):016x}{2:016x}", 123)


async def test_requests_both_ways(net: Net, address: str) -> None:
    bus = await net.connect()
    async with await wire.RawClient.welcomed(address, 7, "raw") as raw:
        await raw.send(wire.serve(4, 1, "raw/service"))
        assert (await raw.expect(wire.RESULT)).code == 0
        asking = asyncio.ensure_future(bus.request("raw/service", b"q", timeout=PATIENCE))
        call = await raw.expect(wire.CALL)
        assert (call.ids, call.topic, call.payload) == ((4,), "raw/service", b"q")
        await raw.send(wire.reply(call.extra, b"a"))
        assert (await asking).payload == b"a"
        async with bus.serve("real/service", lambda message: message.payload[::-1]):
            await raw.send(wire.topic(1, "real/service"), wire.request(1, b"abc", 5, aux=10_000))
            reply = await raw.expect(wire.REPLY)
            assert (reply.code, reply.number, reply.payload) == (0, 5, b"cba")
        await raw.send(wire.request(1, b"abc", 6))
        reply = await raw.expect(wire.REPLY)
        assert (reply.code, reply.number) == (40, 6)


async def test_a_refusing_and_a_dying_consumer_pass_the_push_on(net: Net, address: str) -> None:
    """Three raw consumers refuse, die, refuse with another code; the real client takes it in the end."""
    pusher, taker = await net.connect(), await net.connect()
    raws = [await wire.RawClient.welcomed(address, 100 + number) for number in range(3)]
    for raw in raws:
        await raw.send(wire.subscribe(1, 1, "jobs"))
        await raw.expect(wire.RESULT)

    async def refuse(raw: wire.RawClient, code: int) -> None:
        while True:
            offer = await raw.expect(wire.OFFER)
            await raw.send(wire.accept(offer.extra, code))

    async def die(raw: wire.RawClient) -> None:
        await raw.expect(wire.OFFER)
        raw.abort()

    async with taker.subscribe("jobs") as jobs:
        acting = [asyncio.ensure_future(act) for act in (refuse(raws[0], 46), die(raws[1]), refuse(raws[2], 1))]
        for number in range(12):  # every rotation of the candidates happens
            await pusher.push("jobs", str(number), timeout=PATIENCE)
        assert await payloads(jobs, 12) == [b"%d" % number for number in range(12)]
        assert acting[1].done()
        await jobs.close()
        with pytest.raises(busway.NoConsumers):
            await pusher.push("jobs", b"nobody", timeout=PATIENCE)
    for task in acting:
        task.cancel()
    await asyncio.gather(*acting, return_exceptions=True)
    for raw in raws:
        await raw.leave()


async def test_a_consumer_that_never_answers_an_offer_times_out_for_the_pusher_only(net: Net, address: str) -> None:
    pusher = await net.connect()
    async with await wire.RawClient.welcomed(address, 7) as raw:
        await raw.send(wire.subscribe(1, 1, "jobs"))
        await raw.expect(wire.RESULT)
        with pytest.raises(busway.Timeout):
            await pusher.push("jobs", b"1", timeout=0.05)
        first = await raw.expect(wire.OFFER)
        await raw.send(wire.accept(first.extra))  # too late, harmless
        pushing = asyncio.ensure_future(pusher.push("jobs", b"2", timeout=PATIENCE))
        second = await raw.expect(wire.OFFER)
        assert second.payload == b"2"
        await raw.send(wire.accept(second.extra))
        await pushing


async def test_a_stranger_cannot_answer_for_the_service(net: Net, address: str) -> None:
    """A REPLY or ACCEPT from a connection that wasn't asked changes nothing."""
    client, server = await net.connect(), await net.connect()
    async with server.serve("t") as service, await wire.RawClient.welcomed(address, 7) as stranger:
        asking = asyncio.ensure_future(client.request("t", timeout=PATIENCE))
        request = await service.recv(timeout=PATIENCE)
        await stranger.send(*(wire.reply(call, b"forged") for call in range(20)))
        await stranger.send(*(wire.accept(offer) for offer in range(20)), wire.ping(3))
        assert await stranger.expect(wire.PONG) == 3
        await request.reply(b"true")
        assert (await asking).payload == b"true"


async def test_a_session_is_taken_over(address: str) -> None:
    async with await wire.RawClient.welcomed(address, 7, "old") as old:
        await old.send(wire.subscribe(1, 1, "t"))
        await old.expect(wire.RESULT)
        async with await wire.RawClient.welcomed(address, 7, "new") as new:
            assert (await old.expect(wire.CLOSE))[0] == 8
            assert await old.rest() == b""
            await new.send(wire.topic(0, "t"), wire.publish(0, b"", 1, flags=wire.CONFIRM))
            assert (await new.expect(wire.RESULT)).value == 0  # the old one's subscription went with it
            await new.send(wire.subscribe(1, 2, "t"), wire.publish(0, b"x", 3))
            assert (await new.expect(wire.RESULT)).code == 0
            assert (await new.expect(wire.DELIVER)).payload == b"x"


async def test_messages_that_are_refused_are_told_unasked(address: str) -> None:
    """A plain PUBLISH gets no answer, unless it is refused; and the connection survives."""
    async with await wire.RawClient.welcomed(address, 7) as raw:
        for number, (text, code) in enumerate(
            [("a//b", 20), ("x" * 1025, 22), ("$bus/info", 24), ("a/b*", 20)], start=1
        ):
            await raw.send(wire.topic(3, text), wire.publish(3, b"", number))
            result = await raw.expect(wire.RESULT)
            assert (result.code, result.number) == (code, number)
            assert result.text
        await raw.send(wire.topic(3, "t"), wire.publish(3, b"x", 50, fields=b"\x80" + b"\xc0" * 65536))
        assert (await raw.expect(wire.RESULT)).code == 25
        await raw.send(wire.ping(1))
        assert await raw.expect(wire.PONG) == 1


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (wire.subscribe(1, 5, "a//b"), 20),
        (wire.subscribe(1, 5, "re:("), 21),
        (wire.subscribe(1, 5, "re:[01]*1[01]{99}"), 21),
        (wire.subscribe(1, 5, "x" * 1025), 22),
        (wire.serve(1, 5, "a//b"), 20),
        (wire.serve(1, 5, "a/*"), 23),
        (wire.serve(1, 5, "x" * 1025), 22),
        (wire.serve(1, 5, "$bus/info"), 24),
        (wire.subscribe(1, 5, "a", policy=4), 46),
        (wire.subscribe(1, 5, "a", rules=b"\x81"), 26),
        (wire.subscribe(1, 5, "a", group="g" * 1025), 22),
        (wire.unsubscribe(1, 5), 32),
        (wire.unserve(1, 5), 32),
    ],
)
async def test_refused_with_a_result(address: str, frame: bytes, code: int) -> None:
    async with await wire.RawClient.welcomed(address, 7) as raw:
        await raw.send(frame)
        result = await raw.expect(wire.RESULT)
        assert (result.code, result.number) == (code, 5)
        assert result.text
        await raw.send(wire.subscribe(1, 6, "a"), wire.subscribe(1, 7, "b"))
        assert (await raw.expect(wire.RESULT)).code == 0
        assert (await raw.expect(wire.RESULT)).code == 31


async def test_the_exchange_of_the_page_over_a_socket(address: str) -> None:
    """The clients' half of the page's exchange, byte for byte, and the same answers (slots and numbers may differ)."""
    clients = {"alice": await wire.RawClient.open(address), "bob": await wire.RawClient.open(address)}
    vectors = page.vectors()
    pages = {name: wire.Reader() for name in clients}
    for step in page.exchange():
        client = clients[step.client]
        if step.way == "→":
            await client.send(*(vectors[name].data for name in step.frames))
            continue
        for name in step.frames:
            (expected,) = wire.frames(vectors[name].data)
            if pages[step.client].learn(expected):
                continue
            said = pages[step.client].read(expected)
            got = await client.expect(expected.kind)
            if expected.kind == wire.WELCOME:
                assert got[0] == said[0]
            elif vectors[name].text_free:
                assert got[:2] == said[:2]
            elif expected.kind in (wire.CALL, wire.OFFER):
                assert got._replace(extra=0, ids=()) == said._replace(extra=0, ids=())
            else:
                assert got == said
    assert await clients["bob"].rest() == b""
    for client in clients.values():
        await client.leave()


async def test_pong_comes_at_its_place_in_the_order(address: str) -> None:
    async with await wire.RawClient.welcomed(address, 7) as raw:
        await raw.send(wire.subscribe(1, 1, "t"))
        await raw.expect(wire.RESULT)
        await raw.send(wire.topic(0, "t"))
        for number in range(50):
            await raw.send(wire.publish(0, b"%d" % number, number), wire.ping(number))
        for number in range(50):
            assert (await raw.expect(wire.DELIVER)).payload == b"%d" % number
            assert await raw.expect(wire.PONG) == number


async def test_a_reply_with_all_the_fields_there_may_be_has_no_room_for_a_name(net: Net, address: str) -> None:
    bus = await net.connect()
    fields = encode_fields({f"f{number}": number for number in range(255)})
    async with await wire.RawClient.welcomed(address, 7, "raw") as raw:
        await raw.send(wire.serve(1, 1, "t"))
        await raw.expect(wire.RESULT)
        asking = asyncio.ensure_future(bus.request_all("t", timeout=PATIENCE))
        call = await raw.expect(wire.CALL)
        body = struct.pack("<HQI", 0, call.extra, len(fields)) + fields + b"1"
        await raw.send(wire.frame(wire.REPLY, body, wire.FIELDS))
        (reply,) = await asking
        assert (reply.text, len(reply.fields)) == ("1", 255)


async def test_a_close_of_the_client_ends_its_service_at_once(net: Net, address: str) -> None:
    bus = await net.connect()
    async with await wire.RawClient.welcomed(address, 7) as raw:
        await raw.send(wire.serve(1, 1, "t"))
        await raw.expect(wire.RESULT)
        asking = asyncio.ensure_future(bus.request("t", timeout=None))
        await raw.expect(wire.CALL)
        await raw.send(wire.close(9, "bye"))
        with pytest.raises(busway.ServiceGone):
            await asking
        assert await raw.rest() == b""


async def test_more_ids_than_one_frame_holds(net: Net, address: str) -> None:
    """65,535 ids fit in one DELIVER; the rest comes in another one, each id once."""
    async with await wire.RawClient.welcomed(address, 7, timeout=60) as raw:
        count = 70_000
        for begin in range(1, count + 1, 1000):
            await raw.send(*(wire.subscribe(sub, sub, "t") for sub in range(begin, begin + 1000)))
            for _ in range(1000):
                assert (await raw.expect(wire.RESULT)).code == 0
        await raw.send(wire.topic(0, "t"), wire.publish(0, b"x", 1, flags=wire.CONFIRM))
        ids: list[int] = []
        while len(ids) < count:
            got = await raw.expect(wire.DELIVER)
            assert got.payload == b"x"
            ids += got.ids
        assert sorted(ids) == list(range(1, count + 1))
        assert (await raw.expect(wire.RESULT)).value == 1


async def test_a_request_may_use_up_its_time_at_the_broker(net: Net, address: str) -> None:
    """The time limit that a REQUEST tells is passed over harmlessly: the requester itself gives up and says CANCEL."""
    server = await net.connect()
    async with server.serve("t") as service, await wire.RawClient.welcomed(address, 7) as raw:
        await raw.send(wire.topic(0, "t"), wire.request(0, b"1", 1, aux=1))
        request = await service.recv(timeout=PATIENCE)
        await raw.send(wire.cancel(1), wire.ping(1))
        assert await raw.expect(wire.PONG) == 1
        await request.reply(b"late")
        await server.flush()
        await raw.send(wire.request(0, b"2", 2))
        await (await service.recv(timeout=PATIENCE)).reply(b"ok")
        reply = await raw.expect(wire.REPLY)
        assert (reply.number, reply.payload) == (2, b"ok")
