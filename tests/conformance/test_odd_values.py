"""Values at the edge: each is taken as it is or refused with a clear error, and the connection stays."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import busway
from tests.support.net import Net, gather, payloads

pytestmark = pytest.mark.both_loops


async def works(bus: busway.Bus) -> None:
    async with bus.subscribe("works") as subscription:
        await bus.publish("works", b"yes")
        assert await payloads(subscription, 1) == [b"yes"]


async def test_views_of_all_kinds(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        for view in (memoryview(b"abcdef")[::2], memoryview(bytearray(b"ace")), memoryview(b"ace").cast("B")):
            await bus.publish("t", view)
            assert await bus.publish("t", view, confirm=True) == 1
            await bus.publish_many("t", [view])
            assert await payloads(subscription, 3) == [b"ace"] * 3


async def test_a_buffer_that_is_changed_after_its_publish(net: Net) -> None:
    """The bytes are taken when publish() is called."""
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        data = bytearray(b"before")
        await bus.publish("t", data)
        data[:] = b"after!"
        assert await payloads(subscription, 1) == [b"before"]


@pytest.mark.parametrize(
    "payload", ["\ud800", object(), {1: object()}, {"a": {2j}}], ids=["surrogate", "object", "key", "complex"]
)
async def test_payloads_that_cannot_be_encoded(net: Net, payload: Any) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: bus.publish("t", payload),
            lambda: bus.publish("t", payload, confirm=True),
            lambda: bus.publish_many("t", [payload]),
            lambda: bus.push("t", payload),
            lambda: bus.request("t", payload),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r".+"):
                await call()
        await works(bus)
        assert subscription.pending == 0


@pytest.mark.parametrize("topic", ["\ud800", b"bytes", 5, None])
async def test_topics_that_are_no_text(net: Net, topic: Any) -> None:
    bus = await net.connect()
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: bus.publish(topic, b""),
        lambda: bus.publish(topic, b"", confirm=True),
        lambda: bus.publish_many(topic, [b""]),
        lambda: bus.push(topic),
        lambda: bus.request(topic),
        lambda: bus.subscribe(topic),
        lambda: bus.serve(topic),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError)):
            await call()
    await works(bus)


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"limit": -1}, {"limit_bytes": 0}, {"concurrency": 0}, {"policy": "whatever"}], ids=str
)
async def test_options_that_make_no_sense(net: Net, options: dict[str, Any]) -> None:
    bus = await net.connect()
    with pytest.raises(ValueError, match=r"limit|concurrency|policy"):
        await bus.subscribe("t", handler=lambda message: None, **options)
    await works(bus)


@pytest.mark.parametrize("timeout", [0, -1, 1e-9])
async def test_time_limits_that_are_over_at_once(net: Net, timeout: float) -> None:
    bus = await net.connect()
    async with bus.serve("t"):
        with pytest.raises(busway.Timeout):
            await bus.request("t", timeout=timeout)
    await works(bus)


async def test_payloads_that_are_no_text_or_no_json(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        await bus.publish("t", b"\xff{")
        (message,) = await gather(subscription, 1)
        with pytest.raises(ValueError, match=r".+"):
            _ = message.text
        with pytest.raises(ValueError, match=r".+"):
            message.json()
        assert message.payload == b"\xff{"


async def test_messages_are_immutable_and_describe_themselves(net: Net) -> None:
    bus = await net.connect("me")
    async with bus.subscribe("a/b") as subscription:
        await bus.publish("a/b", b"x")
        (message,) = await gather(subscription, 1)
        with pytest.raises(AttributeError):
            message.payload = b"y"  # type: ignore[misc]
        assert "a/b" in repr(message)


async def test_names_of_clients(net: Net) -> None:
    await net.serve()
    for name in ("", "ü" * 50, "with space/and*star", "x" * 255):
        async with net.client(name=name) as bus, bus.subscribe("t") as subscription:
            await bus.publish("t", b"")
            (message,) = await gather(subscription, 1)
            assert message.sender == name
    with pytest.raises((ValueError, busway.BusError)):
        await net.client(name="x" * 10_000, reconnect=None)
