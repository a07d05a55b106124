"""Cancelling an await at any point loses nothing and mixes nothing up."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import busway
from tests.support.net import PATIENCE, Net, payloads, rest, settle

pytestmark = pytest.mark.both_loops(every=True)

TURNS = 12
"""An operation is cancelled after 0, 1, 2, ... turns of the loop; more than any of them takes to be under way."""


async def cancelled_after(turns: int, operation: Callable[[], Awaitable[Any]]) -> Any:
    """Run the operation and cancel it after so many turns; its result if it was quicker, else None."""

    async def run() -> Any:
        return await operation()

    task = asyncio.ensure_future(run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def test_recv(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    async with bus.subscribe("t") as subscription:
        got: list[bytes] = []
        for turns in range(TURNS):
            for number in range(3):
                receiving = asyncio.ensure_future(cancelled_after(turns, subscription.recv))
                await other.publish("t", f"{turns} {number}")
                message = await receiving
                if message is not None:
                    got.append(message.payload)
        await settle(other, bus)
        got += [message.payload for message in await rest(subscription)]
    assert got == [f"{turns} {number}".encode() for turns in range(TURNS) for number in range(3)]


async def test_recv_with_timeout_that_fires_as_the_message_comes(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    async with bus.subscribe("t") as subscription:
        got: list[bytes] = []
        for number in range(100):
            await other.publish("t", str(number))
            try:
                got.append((await subscription.recv(timeout=0.0001 * (number % 10))).payload)
            except busway.Timeout:
                pass
        await settle(other, bus)
        got += [message.payload for message in await rest(subscription)]
    assert got == [b"%d" % number for number in range(100)]


async def test_batches(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    async with bus.subscribe("t") as subscription:
        got: list[bytes] = []

        async def one_batch() -> list[busway.Message]:
            async for batch in subscription.batches():
                return batch
            return []

        for turns in range(TURNS):
            receiving = asyncio.ensure_future(cancelled_after(turns, one_batch))
            await other.publish_many("t", [f"{turns} {number}" for number in range(3)])
            got += [message.payload for message in await receiving or []]
        await settle(other, bus)
        got += [message.payload for message in await rest(subscription)]
    assert got == [f"{turns} {number}".encode() for turns in range(TURNS) for number in range(3)]


async def test_publish(net: Net) -> None:
    """A cancelled publish either happened once or not at all, and the ones after it are as they should be."""
    bus, other = await net.connect(), await net.connect()
    async with other.subscribe("t") as subscription:
        for turns in range(TURNS):
            await cancelled_after(turns, lambda turns=turns: bus.publish("t", f"cancelled {turns}"))  # type: ignore[misc]
            await cancelled_after(turns, lambda turns=turns: bus.publish("t", f"cancelled {turns}", confirm=True))  # type: ignore[misc]
            assert await bus.publish("t", f"sure {turns}", confirm=True) == 1
        await settle(bus, other)
        got = [message.text for message in await rest(subscription)]
    assert [text for text in got if text.startswith("sure")] == [f"sure {turns}" for turns in range(TURNS)]
    for turns in range(TURNS):
        assert got.count(f"cancelled {turns}") <= 2
    positions = [got.index(text) for text in got]
    assert positions == sorted(positions)


async def test_publish_under_back_pressure(net: Net) -> None:
    """Cancelled while it waits for room: what was taken arrives in order and whole, the rest does not arrive."""
    bus, other = await net.connect(), await net.connect()
    payload = b"x" * 4096
    async with other.subscribe("t") as subscription:
        total = 0
        for turns in range(TURNS):
            taken = await cancelled_after(turns, lambda: bus.publish_many("t", [payload] * 500))
            assert taken in (None, 500)
            total += taken or 0
        await bus.publish("t", b"end")
        got = []
        while (message := await subscription.recv(timeout=PATIENCE)).payload != b"end":
            got.append(message.payload)
    assert set(got) <= {payload}
    assert total <= len(got) <= 500 * TURNS


async def test_request(net: Net) -> None:
    """Replies to cancelled requests never reach another one."""
    server, client = await net.connect(), await net.connect()

    async def handler(message: busway.Message) -> bytes:
        await asyncio.sleep(0)
        return b"re " + message.payload

    async with server.serve("t", handler):
        for turns in range(TURNS * 2):
            cancelled = await cancelled_after(turns, lambda turns=turns: client.request("t", f"c{turns}"))  # type: ignore[misc]
            assert cancelled is None or cancelled.text == f"re c{turns}"
            assert (await client.request("t", f"s{turns}")).text == f"re s{turns}"
    with pytest.raises(busway.NoResponders):
        await client.request("t")


async def test_push(net: Net) -> None:
    pusher, consumer = await net.connect(), await net.connect()
    async with consumer.subscribe("t") as subscription:
        for turns in range(TURNS):
            await cancelled_after(turns, lambda turns=turns: pusher.push("t", f"c{turns}"))  # type: ignore[misc]
            await pusher.push("t", f"s{turns}")
        await settle(pusher, consumer)
        got = [message.text for message in await rest(subscription)]
    assert [text for text in got if text[0] == "s"] == [f"s{turns}" for turns in range(TURNS)]
    assert len(set(got)) == len(got)


async def test_subscribe_and_unsubscribe(net: Net) -> None:
    """A cancelled subscribe leaves nothing behind at the broker; a finished one works."""
    bus, other = await net.connect(), await net.connect()

    async def in_and_out() -> None:
        async with bus.subscribe("t"):
            pass

    for turns in range(TURNS):
        await cancelled_after(turns, in_and_out)
        await cancelled_after(turns, lambda: enter(bus))
        await settle(bus)
        assert await other.publish("t", b"", confirm=True) == 0, f"left behind after {turns} turns"
    async with bus.subscribe("t") as subscription:
        assert await other.publish("t", b"x", confirm=True) == 1
        assert await payloads(subscription, 1) == [b"x"]


async def enter(bus: busway.Bus) -> None:
    subscription = await bus.subscribe("t")
    try:
        await asyncio.sleep(0)
    finally:
        await asyncio.shield(asyncio.ensure_future(subscription.close()))


async def test_serve(net: Net) -> None:
    """A cancelled serve leaves the topic free."""
    bus, other = await net.connect(), await net.connect()

    async def in_and_out() -> None:
        async with bus.serve("t", lambda message: b"old"):
            pass

    for turns in range(TURNS):
        await cancelled_after(turns, in_and_out)
        await settle(bus)
        async with other.serve("t", lambda message: b"new"):
            assert (await bus.request("t")).payload == b"new"


async def test_close_and_drain(net: Net) -> None:
    """A cancelled close still ends in a closed client when it is closed again, and the server forgets it."""
    watcher = await net.connect()
    for turns in range(TURNS):
        bus = await net.client()
        subscription = await bus.subscribe("t")
        await cancelled_after(turns, bus.close)
        await bus.close()
        assert bus.state == "closed"
        assert subscription.closed
        await settle(watcher)
        assert await watcher.publish("t", b"", confirm=True) == 0
