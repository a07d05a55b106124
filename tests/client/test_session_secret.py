"""A session belongs to the client that has its secret: the id of a message is not enough to act as its sender."""

import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import busway
from busway.errors import Code
from busway.settings import Identity
from tests.support import wire
from tests.support.cluster import Cluster
from tests.support.net import Net, until

FORGED = pytest.mark.parametrize(
    "more",
    [{}, {"secret": None}, {"secret": b""}, {"secret": wire.secret(7)}, {"secret": bytes(64)}],
    ids=["missing", "nil", "empty", "of another session", "zeros"],
)


async def known_session(bus: busway.Bus) -> int:
    """The session of a client, as everybody sees it: in the id of one of its messages."""
    async with bus.subscribe("seen") as subscription:
        await bus.publish("seen", b"x")
        return int((await subscription.recv(timeout=60)).id[:16], 16)


async def refused(address: str, session: int, *frames: bytes, **more: Any) -> None:
    """Somebody greets with this session, and is closed for the lack of its secret."""
    async with await wire.RawClient.open(address) as stranger:
        await stranger.send(wire.hello(session, "stranger", **more), *frames)
        code, text = await stranger.expect(wire.CLOSE)
        assert code == Code.SESSION_SECRET
        assert "secret" in text
        assert await stranger.rest() == b""


async def texts(bus: busway.Bus) -> list[str]:
    stream = await bus.stream("default")
    return [message.text async for batch in stream.read() for message in batch]


@FORGED
async def test_a_stranger_does_not_close_the_connection_of_a_session(net: Net, more: dict[str, Any]) -> None:
    server = await net.serve()
    victim = await net.connect("victim")
    events = victim.events()
    session = await known_session(victim)
    before = (await victim.info())["stats"]["refused"]
    await refused(server.addresses[0], session, **more)
    info = await victim.info()
    assert info["stats"]["refused"] == before + 1
    assert server._hub.runtime.ended[server.addresses[0].partition(":")[0], "session_secret"] == 1
    async with victim.subscribe("t") as subscription:
        await victim.publish("t", b"still here")
        assert (await subscription.recv(timeout=60)).payload == b"still here"
    assert victim.state == "connected"
    await victim.close()
    assert [event.kind async for event in events] == ["closed"]


@FORGED
async def test_a_stranger_does_not_store_under_the_next_numbers(net: Net, more: dict[str, Any]) -> None:
    """Messages of the victim with numbers that are taken would be acknowledged, and not stored."""
    server = await net.serve()
    victim = await net.connect("victim")
    await victim.publish("t", "0", durable=True)
    stream = await victim.stream("default")
    (first,) = [message async for batch in stream.read() for message in batch]
    session, number = int(first.id[:16], 16), int(first.id[16:], 16)
    forged = [wire.publish(0, b"forged", number + ahead, flags=wire.DURABLE) for ahead in range(1, 40)]
    await refused(server.addresses[0], session, wire.topic(0, "t"), *forged, **more)
    for number in range(1, 5):
        await victim.publish("t", str(number), durable=True)
    assert await texts(victim) == ["0", "1", "2", "3", "4"]


@FORGED
async def test_a_stranger_does_not_lock_a_client_out(net: Net, more: dict[str, Any]) -> None:
    server = await net.serve()
    identity = Identity(secret=wire.secret(5), generation=1)
    victim = await net.connect("victim", identity=identity)
    await refused(server.addresses[0], await known_session(victim), generation=2**64 - 1, **more)
    assert victim.state == "connected"
    await victim.close()
    again = await net.connect("victim", identity=identity)
    assert again.server["seen"]


async def test_the_secret_holds_after_a_restart(net: Net, tmp_path: Path) -> None:
    """The broker has stored nothing of it."""
    server = await net.serve(data=tmp_path / "data")
    identity = Identity(secret=wire.secret(5))
    victim = await net.connect("victim", identity=identity)
    session = await known_session(victim)
    await victim.publish("t", "before", durable=True)
    await victim.close()
    await server.stop()
    server = await net.serve(data=tmp_path / "data")
    await refused(server.addresses[0], session, secret=wire.secret(7))
    again = await net.connect("victim", identity=identity)
    assert await known_session(again) == session
    assert await texts(again) == ["before"]


async def test_the_secret_holds_at_the_other_nodes() -> None:
    async with AsyncExitStack() as stack:
        cluster = Cluster(stack)
        a, b = await cluster.several(2)
        victim = await cluster.client(a)
        session = await known_session(victim)
        await refused(b.addresses[0], session, secret=wire.secret(7))
        await victim.publish("t", b"x", durable=True)
        moved = await cluster.client(b, identity=Identity(secret=victim._core.secret))
        assert await known_session(moved) == session


async def test_the_secret_is_shown_nowhere(net: Net, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await net.serve(data=tmp_path / "data")
    secret = wire.secret(9)
    bus = await net.connect("client", identity=Identity(secret=secret, generation=3))
    shown = [caplog.text, repr(bus), repr(bus.server)]
    await bus.publish("t", "x", durable=True)
    await bus.pin("p", "x")
    await bus.create_channel("default", "c")
    shown += [
        repr(await bus.info()),
        repr(await bus.streams()),
        repr(await bus.kept("**")),
        repr(await bus.channels("default")),
    ]
    shown += [(await bus.request(f"$bus/{topic}")).text for topic in ("info", "kept", "stream/list")]
    await bus.close()
    shown.append(caplog.text)
    for text in shown:
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text
    files = [file for file in (tmp_path / "data").rglob("*") if file.is_file()]
    assert files
    for file in files:
        assert secret not in file.read_bytes()


async def test_a_client_without_a_secret_is_told_to_be_renewed(net: Net) -> None:
    """A client of an earlier version reads the text of the CLOSE."""
    server = await net.serve()
    async with await wire.RawClient.open(server.addresses[0]) as old:
        await old.send(wire.hello(7, "old"))
        assert await old.expect(wire.CLOSE) == (
            Code.SESSION_SECRET,
            "HELLO with no secret: use a client library of this version of Busway",
        )
    await until(lambda: not server._hub.sessions)
