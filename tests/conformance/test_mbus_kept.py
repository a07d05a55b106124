"""The document of the older bus with addresses on send, post, pin and `.notify`: each test quotes the sentence it keeps.

The last ones keep what the document leaves to be understood.
"""

import asyncio

import pytest

import busway
from tests.support.net import PATIENCE, Net, gather, payloads, rest, settle, until

pytestmark = pytest.mark.both_loops

RELOAD = {"event": "hdb.reload"}


async def test_send_post_and_pin_publish(net: Net) -> None:
    """ "A publisher calls one of `send`, `post`, `pin` functions to publish a message." """
    bus, there = await net.connect(), await net.connect()
    async with there.subscribe("t") as subscription:
        for verb in (bus.send, bus.post, bus.pin):
            await verb("t", verb.__name__, fields=RELOAD)
        got = await gather(subscription, 3)
        assert [(one.kind, one.fields, one.kept) for one in got] == [
            (kind, RELOAD, False) for kind in ("publish", "post", "pin")
        ]


async def test_send(net: Net) -> None:
    """ "send - just sends a message." """
    bus, late = await net.connect(), await net.connect()
    async with bus.subscribe("t") as here:
        await bus.send("t", b"x", fields=RELOAD)
        assert [message.kind for message in await gather(here, 1)] == ["publish"]
    async with late.subscribe("t", notify=True) as after:
        assert [message.kind for message in await gather(after, 1)] == ["notify"]


async def test_post(net: Net) -> None:
    """ "post - message will be saved on the servers while the client is alive and sent to all new subscribers." """
    poster, late = await net.connect("tp"), await net.connect()
    await poster.post("t", b"up", fields={"proc": "tp"})
    for _ in range(2):
        async with late.subscribe("t") as after:
            (message,) = await gather(after, 1)
            assert (message.kind, message.kept, message.payload, message.sender) == ("post", True, b"up", "tp")
            assert message.fields == {"proc": "tp"}
    await poster.close()
    async with late.subscribe("t", notify=True) as after:
        assert [message.kind for message in await gather(after, 1)] == ["notify"]


async def test_pin(net: Net) -> None:
    """ "pin - like post but the message will never be deleted (it can be updated)." """
    await net.serve(grace=0.0)
    manager, late = await net.connect("manager"), await net.connect()
    await manager.pin("config", b"1", fields={"process": "hdb"})
    await manager.pin("config", b"2", fields={"process": "tp"})
    await manager.pin("config", b"3", fields={"process": "hdb"})
    await manager.close()
    for _ in range(2):
        async with late.subscribe("config") as after:
            got = await gather(after, 2)
            assert [(message.payload, message.kind) for message in got] == [(b"2", "pin"), (b"3", "pin")]
            assert after.pending == 0


async def test_notify(net: Net) -> None:
    """ "`.notify` - inform the subscriber (via `cb`) that the subscription is added and pending msgs (if any) are sent." """
    poster, reader = await net.connect(), await net.connect()
    for number in range(3):
        await poster.post("state", str(number), fields={"process": number})
    kinds: list[str] = []
    done = asyncio.Event()

    def handle(message: busway.Message) -> None:
        kinds.append(message.kind)
        if message.kind == "publish":
            done.set()

    async with reader.subscribe("state", notify=True, handler=handle):
        await poster.publish("state", b"live")
        async with asyncio.timeout(PATIENCE):
            await done.wait()
    assert kinds == ["post", "post", "post", "notify", "publish"]
    async with reader.subscribe("nothing/here", notify=True) as empty, reader.subscribe("state") as unasked:
        assert [message.kind for message in await gather(empty, 1)] == ["notify"]
        assert [message.kind for message in await gather(unasked, unasked.pending)] == ["post"] * 3


async def test_posts_are_replaced_by_their_key(net: Net) -> None:
    """Two senders never overwrite each other; the same one does, if topic and fields are equal, and goes to the end."""
    one, two, late = await net.connect("one"), await net.connect("two"), await net.connect()
    await one.post("t", b"1", fields={"a": 1})
    await two.post("t", b"2", fields={"a": 1})
    await one.post("t", b"3", fields={"a": 2})
    await one.post("t", b"4", fields={"a": 1})
    async with late.subscribe("t") as after:
        assert await payloads(after, 3) == [b"2", b"3", b"4"]


async def test_a_publisher_receives_its_own_message(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t", where={"a": 1}) as subscription:
        await bus.send("t", b"x", fields={"a": 1})
        assert await payloads(subscription, 1) == [b"x"]


async def test_a_withdrawal_can_be_watched(net: Net) -> None:
    await net.serve(grace=0.05)
    poster, reader = await net.connect("hdb"), await net.connect()
    async with reader.subscribe("proc/*", watch=True) as watching, reader.subscribe("proc/*") as plain:
        await poster.post("proc/hdb", b"up", fields={"pid": 1})
        await gather(watching, 1)
        assert poster._core.connection is not None
        await poster.close()
        (gone,) = await gather(watching, 1)
        assert (gone.kind, gone.topic, gone.sender, gone.fields) == ("withdrawn", "proc/hdb", "hdb", {"pid": 1})
        assert len(await rest(plain)) == 1


async def test_posts_survive_a_short_reconnect_of_their_publisher(net: Net) -> None:
    server = await net.serve(grace=PATIENCE)
    poster, reader = await net.connect("hdb"), await net.connect()
    events = poster.events()
    async with reader.subscribe("proc/*", watch=True) as watching:
        await poster.post("proc/hdb", b"up")
        await gather(watching, 1)
        assert poster._core.connection is not None
        poster._core.connection.transport.abort()
        async with asyncio.timeout(PATIENCE):
            while (await anext(events)).kind != "resumed":
                pass
        await settle(poster, reader)
        assert watching.pending == 0  # neither withdrawn nor sent again
        async with reader.subscribe("proc/*") as late:
            assert await payloads(late, 1) == [b"up"]
        await until(lambda: server.stats()["connections"] == 2, reader.flush)
