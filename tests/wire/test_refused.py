"""Bytes that break the protocol: their connection gets an error and is closed, and other clients continue."""

import random
import struct
from collections.abc import Iterable
from typing import Any

import pytest

from busway import _core, errors
from tests.support import page, wire
from tests.support.net import Net, payloads
from tests.support.pair import Hub, Raw
from tests.support.vectors import VECTORS, session

# The map of HELLO is read by the Python side of the broker, so these need a server rather than the bare engine.
BY_THE_BROKER = {
    "hello-no-map",
    "hello-empty-map",
    "hello-session-zero",
    "hello-session-text",
    "hello-version-0",
    "hello-no-secret",
    "hello-wrong-secret",
    "hello-short-secret",
}


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize(
    "refusal", [each for each in page.refusals() if each.name not in BY_THE_BROKER], ids=lambda refusal: refusal.name
)
def test_the_engine_refuses(refusal: page.Refusal, size: int) -> None:
    hub = Hub()
    witness = Raw(hub, 1)
    witness.ask(wire.subscribe(1, 1, "**"))
    bad = Raw(hub, 2, hello=refusal.when == "after")
    for at in range(0, len(refusal.data), size):
        bad.send(refusal.data[at : at + size])
    assert hub.failed[bad.conn][0] == refusal.code, hub.failed
    ((kind, said),) = bad.read()
    assert (kind, said[0]) == (wire.CLOSE, refusal.code)
    # What comes after is not looked at any more.
    bad.send(wire.ping(1), wire.hello(5), b"\0" * 100)
    assert bad.read() == []
    hub.disconnect(bad.conn)
    assert witness.read() == []
    assert witness.ask(wire.ping(9)) == [(wire.PONG, 9)]


@pytest.mark.parametrize("refusal", page.refusals(), ids=lambda refusal: refusal.name)
async def test_the_server_refuses(net: Net, refusal: page.Refusal) -> None:
    bus = await net.connect()
    assert net.server is not None
    async with bus.subscribe("**") as subscription:
        client = await wire.RawClient.open(net.server.addresses[0])
        async with client:
            if refusal.when == "after":
                await client.send(wire.greeting(7, "bad"))
                await client.expect(wire.WELCOME)
            await client.send(refusal.data)
            words = await client.last_words()
            assert words is not None
            assert words[0] == refusal.code
            assert words[1], "the reason is empty"
        await bus.publish("still", b"here")
        assert await payloads(subscription, 1) == [b"here"]


def test_every_truncation_waits_for_the_rest() -> None:
    """A frame that isn't complete does nothing, and is handled as soon as it is."""
    for vector in VECTORS.values():
        if vector.way != "→" or vector.name.startswith(("hello", "login", "close")):
            continue
        hub = Hub()
        client = Raw(hub, 5)
        client.ask(
            wire.topic(0, "price/eth"), wire.topic(1, "sum"), wire.subscribe(1, 90, "price/*"), wire.serve(1, 91, "sum")
        )
        for at in range(len(vector.data)):
            client.send(vector.data[at : at + 1])
            if at < len(vector.data) - 1:
                assert client.read() == [], (vector.name, at)
        assert not hub.failed, (vector.name, hub.failed)


def test_every_frame_cut_short_by_its_own_length_is_refused_or_handled() -> None:
    """Each vector with each shorter length in front: a valid frame or a clear error, never anything else."""
    for vector in VECTORS.values():
        if vector.way != "→":
            continue
        for size in range(len(vector.data) - 6):
            hub = Hub()
            witness = Raw(hub, 1)
            client = Raw(hub, 5, hello=not vector.name.startswith("hello"))
            client.send(struct.pack("<I", size + 2) + vector.data[4 : 6 + size])
            if client.conn in hub.failed:
                assert hub.failed[client.conn][0] in {1, 4}
            hub.disconnect(client.conn)
            assert witness.ask(wire.ping(1)) == [(wire.PONG, 1)]


@pytest.mark.parametrize("kind", [kind for kind in range(256) if kind not in page.kinds()])
def test_unknown_kinds_end_the_connection(kind: int) -> None:
    hub = Hub()
    client = Raw(hub, 5)
    client.send(wire.frame(kind, bytes(64)))
    assert hub.failed[client.conn][0] == 1
    made = session(5)
    data = wire.frame(kind, bytes(64))
    with pytest.raises(errors.RemoteProtocolError):
        made.feed(data, len(data))


ALLOWED = {
    wire.PUBLISH: wire.FIELDS | wire.CONFIRM | wire.POST | wire.PIN | wire.UNKEEP | wire.DURABLE | wire.TIMES,
    wire.PUSH: wire.FIELDS,
    wire.REQUEST: wire.FIELDS | wire.GATHER | wire.LOCAL | wire.REMOTE,
    wire.REPLY: wire.FIELDS | wire.ERROR | wire.PARTIAL | wire.END,
    wire.SUBSCRIBE: wire.NO_ECHO
    | wire.WATCH
    | wire.LISTEN
    | wire.SINCE
    | wire.SUBSCRIBE_LOCAL
    | wire.SUBSCRIBE_REMOTE
    | wire.WAIT,
    wire.SERVE: wire.SHARED | wire.ASKS | wire.LOCAL | wire.REMOTE | wire.WAIT,
    wire.HOLD: wire.FULL,
}
SENT = {
    wire.frames(vector.data)[0].kind: vector.data
    for vector in VECTORS.values()
    if vector.way == "→" and not vector.name.startswith("hello")
}


def unknown(kinds: Iterable[int], known: dict[int, int]) -> list[Any]:
    """Every kind with every bit that is no flag of it."""
    return [
        pytest.param(kind, bit, id=f"{wire.NAMES[kind]}-{bit}")
        for kind in kinds
        for bit in range(8)
        if not known.get(kind, 0) & (1 << bit)
    ]


@pytest.mark.parametrize(("kind", "bit"), unknown(SENT, ALLOWED))
def test_unknown_flags_end_the_connection(kind: int, bit: int) -> None:
    hub = Hub()
    client = Raw(hub, 5)
    client.ask(wire.topic(0, "price/eth"), wire.topic(1, "sum"))
    data = bytearray(SENT[kind])
    data[5] |= 1 << bit
    client.send(bytes(data))
    assert hub.failed[client.conn][0] == 1


READ = {wire.frames(vector.data)[0].kind: vector for vector in VECTORS.values() if vector.way == "←"}
KNOWN = {
    wire.REPLY: wire.FIELDS | wire.ERROR | wire.PARTIAL | wire.END,
    wire.DELIVER: 0xFF,
    wire.FLOW: 0x01,
    wire.SERVERS: wire.APART,
    wire.OFFER: wire.FIELDS,
    wire.CALL: wire.FIELDS,
    wire.ASK: wire.FIELDS,
    wire.RECORD: wire.REPLAY | wire.LAST | wire.OF_CHANNEL | wire.KEEP,
    wire.STORED: wire.AGAIN,
}


@pytest.mark.parametrize(("kind", "bit"), unknown(READ, KNOWN))
def test_the_session_refuses_unknown_flags(kind: int, bit: int) -> None:
    made = session(5)
    slots = b"".join(VECTORS[name].data for name in ("topic-eth-down", "sender-bob", "topic-sum-down", "stream"))
    made.feed(slots, len(slots))
    data = bytearray(READ[kind].data)
    data[5] |= 1 << bit
    with pytest.raises(errors.RemoteProtocolError):
        made.feed(bytes(data), len(data))


@pytest.mark.parametrize("kind", READ, ids=lambda kind: wire.NAMES[kind])
def test_the_session_refuses_frames_that_are_too_short(kind: int) -> None:
    """Every shorter frame is either refused or means something; it never crashes and the session stays usable."""
    refused = 0
    for size in range(len(READ[kind].data) - 6):
        made = session(5)
        made.inbox(1, messages=10, bytes=1000, policy=0)
        slots = b"".join(VECTORS[name].data for name in ("topic-eth-down", "sender-bob", "topic-sum-down", "stream"))
        made.feed(slots, len(slots))
        data = struct.pack("<I", size + 2) + READ[kind].data[4 : 6 + size]
        try:
            made.feed(data, len(data))
        except errors.RemoteProtocolError:
            refused += 1
        made.attach(lambda: None)
        made.hello(b"\x80")
        assert written_kind(made) == wire.HELLO
    assert refused or kind in {wire.TOPIC, wire.AWAY}


def written_kind(made: _core.Session) -> int:
    view = made.take()
    assert view is not None
    return bytes(view)[4]


def test_the_session_refuses_a_frame_above_its_limit() -> None:
    made = session(5)
    data = struct.pack("<I", (8 << 20) + (1 << 20))
    with pytest.raises(errors.RemoteProtocolError):
        made.feed(data, len(data))


def test_the_session_refuses_unknown_slots() -> None:
    for name in ("deliver", "call", "offer", "record", "stored", "gap"):
        made = session(5)
        made.inbox(1, messages=10, bytes=1000, policy=0)
        with pytest.raises(errors.RemoteProtocolError):
            made.feed(VECTORS[name].data, len(VECTORS[name].data))


@pytest.mark.parametrize("seed", range(200))
def test_garbage(seed: int) -> None:
    """Random bytes, and good frames with random damage, into the engine and the session."""
    choose = random.Random(seed)
    hub = Hub(frame=4096)
    witness = Raw(hub, 1)
    witness.ask(wire.subscribe(1, 1, "never/published"))
    client = Raw(hub, 5, hello=bool(seed % 4))
    good = [vector.data for vector in VECTORS.values() if not vector.name.startswith("close")]
    made = session(5)
    for _ in range(20):
        data = bytearray(choose.randbytes(choose.randint(1, 60)) if choose.random() < 0.2 else choose.choice(good))
        for _ in range(choose.choice([0, 1, 1, 4])):
            data[choose.randrange(len(data))] = choose.randrange(256)
        client.send(bytes(data))
        try:
            made.feed(bytes(data), len(data))
        except errors.BusError:
            made = session(5)
    if client.conn in hub.failed:
        assert hub.failed[client.conn][0] in {1, 2, 3, 4}
    hub.disconnect(client.conn)
    assert witness.ask(wire.ping(1))[-1] == (wire.PONG, 1)
    after = Raw(hub, 9)
    after.send(wire.topic(0, "never/published"), wire.publish(0, b"now", 1))
    assert [said.payload for kind, said in witness.read() if kind == wire.DELIVER][-1:] == [b"now"]
