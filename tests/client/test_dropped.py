"""Subscriptions, channels and services that the program drops without closing them end, and Python warns of it."""

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import busway
import busway.sync
from tests.support.connection_events import abort
from tests.support.flow import record_stops
from tests.support.net import PATIENCE, Net, eventually, gather, until, within


class Tick(busway.Protocol, prefix="tick"):
    number: int


class Question(busway.Protocol[int], prefix="question"):
    number: int


def drop(parts: list[Any]) -> None:
    parts.clear()
    gc.collect()


KINDS: list[Any] = [
    pytest.param(lambda bus: bus.subscribe("a/**"), "subscription of 'a/", id="subscription"),
    pytest.param(lambda bus: bus.subscribe("a/**", where={"x": bool}), "subscription of 'a/", id="local rules"),
    pytest.param(lambda bus: bus.subscribe(Tick, "*"), "subscription of 'tick/", id="typed subscription"),
    pytest.param(lambda bus: bus.serve("sum"), "service of 'sum'", id="service"),
    pytest.param(lambda bus: bus.serve(Question, "a"), "service of 'question/a'", id="typed service"),
    pytest.param(lambda bus: bus.channel("default", "c"), "channel of 'default/c'", id="channel"),
]


async def registered(bus: busway.Bus) -> int:
    stats = (await bus.info())["stats"]
    channels = await bus.channels("default")
    return int(stats["subscriptions"] + stats["services"] + sum(one.consumers for one in channels))


@pytest.mark.parametrize(("make", "text"), KINDS)
async def test_a_dropped_one_warns_and_ends_at_the_broker(
    net: Net, make: Callable[[busway.Bus], Any], text: str
) -> None:
    bus, other = await net.connect(), await net.connect()
    parts = [await make(bus)]
    assert await registered(other) == 1
    with pytest.warns(ResourceWarning, match=text):
        drop(parts)

    async def gone() -> bool:
        return await registered(other) == 0

    await eventually(gone)
    assert not bus._core.registrants()
    assert not bus._core.held


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("make", "text"), KINDS)
async def test_a_closed_one_does_not_warn(net: Net, make: Callable[[busway.Bus], Any], text: str) -> None:
    del text
    bus = await net.connect()
    async with make(bus):
        pass
    kept = await make(bus)
    await kept.close()
    del kept
    last = await make(bus)
    await bus.close()
    del last
    gc.collect()  # a warning would be an error here


async def test_publishers_go_on_when_a_full_subscription_is_dropped(net: Net) -> None:
    await net.serve(patience=3600, stall=3600)
    publisher, reader = await net.connect(), await net.connect()
    stops = record_stops(publisher)
    parts = [await reader.subscribe("t", limit=10, patience=3600)]

    async def publish() -> None:
        while True:
            await publisher.publish_many("t", [b"x"] * 10)
            await asyncio.sleep(0)

    publishing = asyncio.ensure_future(publish())
    await until(lambda: stops == [True])
    with pytest.warns(ResourceWarning):
        drop(parts)
    await until(lambda: stops == [True, False])
    publishing.cancel()


async def test_another_thread_may_drop_it(net: Net) -> None:
    server = await net.serve()
    bus = await net.connect()
    parts = [await bus.subscribe("t")]
    assert server.stats()["subscriptions"] == 1
    with pytest.warns(ResourceWarning):
        await asyncio.to_thread(drop, parts)
    await until(lambda: server.stats()["subscriptions"] == 0)


async def test_a_lost_connection_does_not_bring_it_back(net: Net) -> None:
    server = await net.serve()
    bus = await net.connect(reconnect=[0.0])
    kept, parts = await bus.subscribe("kept"), [await bus.subscribe("dropped")]
    events = bus.events()
    abort(bus)
    assert (await anext(events)).kind == "lost"
    with pytest.warns(ResourceWarning):
        drop(parts)
    assert (await anext(events)).kind == "resumed"
    await until(lambda: server.stats()["subscriptions"] == 1)
    await bus.publish("kept", b"x")
    assert len(await gather(kept, 1)) == 1
    await kept.close()


async def test_one_with_a_handler_lives_without_a_reference(net: Net) -> None:
    bus = await net.connect()
    seen: asyncio.Queue[busway.Message] = asyncio.Queue()
    await bus.subscribe("t", handler=seen.put)
    await bus.serve("sum", lambda message: sum(message.json()))
    await bus.channel("default", "c", topic="t", handler=seen.put)
    gc.collect()
    await bus.publish("t", b"x", durable=True)
    assert {(await within(seen.get())).offset for _ in range(2)} == {0}
    assert (await bus.request("sum", [1, 2])).json() == 3


@pytest.mark.parametrize("how", ["recv", "iterate", "take"])
async def test_one_that_a_task_waits_for_lives_without_a_reference(net: Net, how: str) -> None:
    bus = await net.connect()
    seen: list[bytes] = []
    waiting = asyncio.Event()

    async def consume() -> None:
        async with bus.subscribe("t") as subscription:
            waiting.set()
            if how == "recv":
                seen.append((await subscription.recv()).payload)
            elif how == "take":
                seen.extend(message.payload for message in await subscription.take())
            else:
                async for message in subscription:
                    seen.append(message.payload)
                    break

    asyncio.create_task(consume())  # noqa: RUF006, nothing else refers to it
    await waiting.wait()
    await asyncio.sleep(0)
    gc.collect()
    await bus.publish("t", b"x")
    await until(lambda: seen == [b"x"])


@pytest.mark.parametrize("how", ["iterate", "batches"])
async def test_an_iterator_keeps_its_subscription_alive(net: Net, how: str) -> None:
    bus = await net.connect()
    seen: list[str] = []
    subscription = await bus.subscribe("t")
    messages = subscription.batches(1) if how == "batches" else aiter(subscription)
    await bus.publish("t", "0")
    seen.append(str(await within(anext(messages))))
    del subscription
    gc.collect()
    await bus.publish("t", "1")
    seen.append(str(await within(anext(messages))))
    assert len(seen) == 2


async def test_requests_that_a_dropped_service_has_not_taken_fail(net: Net) -> None:
    asker, bus = await net.connect(), await net.connect()
    parts = [await bus.serve("slow")]
    asking = asyncio.ensure_future(asker.request("slow", timeout=PATIENCE))
    await until(lambda: parts[0]._queue)
    with pytest.warns(ResourceWarning):
        drop(parts)
    with pytest.raises(busway.ServiceGone):
        await within(asking)


async def test_messages_of_a_dropped_channel_go_to_others(net: Net) -> None:
    one, other = await net.connect(), await net.connect()
    for number in range(10):
        await one.publish("t", str(number), durable=True)
    parts = [await one.channel("default", "c", topic="t", lease=3600)]
    taken = await parts[0].recv(timeout=PATIENCE)
    assert taken.channel is parts[0]
    with pytest.warns(ResourceWarning):
        drop(parts)
    assert taken.channel is None
    with pytest.raises(busway.Rejected, match="dropped without being closed"):
        await taken.ack()
    async with other.channel("default", "c") as jobs:
        assert {message.text for message in await gather(jobs, 10)} == set("0123456789")


def test_the_blocking_face_warns_and_ends_too() -> None:
    with busway.sync.serve() as server, server.connect() as bus, server.connect() as other:
        bus.publish("t", b"x", durable=True)
        parts: list[Any] = [bus.channel("default", "c", topic="t", lease=3600), bus.subscribe("t"), bus.serve("sum")]
        assert parts[0].recv(PATIENCE).channel is parts[0]
        handled = threading.Event()
        bus.subscribe("h", handler=lambda message: handled.set())
        with pytest.warns(ResourceWarning) as caught:
            drop(parts)
        assert len(caught) == 3
        with other.channel("default", "c") as jobs:
            assert jobs.recv(PATIENCE).payload == b"x"
        while server.stats()["services"] or server.stats()["subscriptions"] > 1:
            other.flush()
        other.publish("h", b"")
        assert handled.wait(PATIENCE)
