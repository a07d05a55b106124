"""Typed channels: values to acknowledge, and payloads that do not fit as dead letters, in both faces."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import msgspec
import pydantic
import pytest

import busway
import busway.sync
from tests.support.net import PATIENCE, eventually


class Order(busway.Protocol, prefix="orders"):
    number: int
    amount: int = 0


@busway.protocol(prefix="orders", encoding="msgpack")
class Packed(msgspec.Struct):
    number: int
    amount: int = 0


@busway.protocol(prefix="orders")
@dataclass
class Data:
    number: int
    amount: int = 0


class Model(pydantic.BaseModel):
    number: int
    amount: int = 0


busway.protocol(Model, prefix="orders")

KINDS = [Order, Packed, Data, Model]


@pytest.fixture
async def bus() -> AsyncIterator[busway.Bus]:
    async with busway.serve() as server, server.connect(name="shop") as bus:
        await bus.create_stream("orders", topics=["orders/**", "other/**"])
        yield bus


@pytest.fixture
def blocking() -> Iterator[busway.sync.Bus]:
    with busway.sync.serve() as server, server.connect(name="shop") as bus:
        bus.create_stream("orders", topics=["orders/**"])
        yield bus


async def done(bus: busway.Bus, name: str, count: int) -> None:
    """Wait until a channel is done with its first messages."""

    async def same() -> bool:
        return (await bus.channel_info("orders", name)).floor == count

    await eventually(same)


def bad(kind: type) -> bytes:
    """A payload whose amount does not fit."""
    value = {"number": 2, "amount": "many"}
    return msgspec.msgpack.encode(value) if kind is Packed else msgspec.json.encode(value)


@pytest.mark.parametrize("kind", KINDS)
async def test_values_and_dead_letters(bus: busway.Bus, kind: type, caplog: pytest.LogCaptureFixture) -> None:
    async with bus.subscribe("dead/**") as dead, bus.channel(kind, "orders", "billing") as channel:
        await bus.publish("eu", kind(number=1, amount=5), durable=True)
        await bus.publish("orders/eu", bad(kind), durable=True)
        await bus.publish("us", kind(number=3), durable=True)
        first = await channel.recv(timeout=PATIENCE)
        topic, value = first
        assert (topic, value, first.message.offset) == ("orders/eu", kind(number=1, amount=5), 0)
        await first.ack()
        third = await channel.recv(timeout=PATIENCE)
        assert third.value == kind(number=3)
        await third.ack()
        letter = await dead.recv(timeout=PATIENCE)
        assert letter.payload == bad(kind)
        assert letter.fields["dead_reason"].startswith("$.amount: "), letter.fields
        assert letter.fields["dead_error"] == "busway.errors.PayloadError"
        assert letter.fields["dead_consumer"] == "shop"
        await done(bus, "billing", 3)
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert lines[0].exc_info is None
    assert "orders/billing" in lines[0].getMessage()
    assert "amount" in lines[0].getMessage()


async def test_the_reason_is_that_of_the_field(bus: busway.Bus) -> None:
    payloads = {
        b'{"number":1,"amount":"x"}': "$.amount: expected int, got str (type Order)",
        b"{}": "$.number: object missing required field number (type Order)",
        b"?": "$: JSON is malformed: invalid character (byte 0) (type Order)",
        b"[]": "$: expected object, got array (type Order)",
    }

    async def bill(delivered: busway.Delivered[Order]) -> None:
        raise AssertionError("no payload fits")

    async with bus.subscribe("dead/**") as dead, bus.channel(Order, "orders", "billing", handler=bill):
        await bus.publish_many("orders", list(payloads), durable=True)
        for payload, reason in payloads.items():
            letter = await dead.recv(timeout=PATIENCE)
            assert (letter.payload, letter.fields["dead_reason"]) == (payload, reason)


async def test_a_dead_letter_is_decoded(bus: busway.Bus) -> None:
    async with bus.channel("orders", "billing", window=0) as channel:
        await bus.publish("eu", Order(number=7), durable=True)
        await bus.publish("orders/eu", bad(Order), durable=True)
        await channel.reject(await channel.take(2, timeout=PATIENCE, whole=True), "no customer")
        good, wrong = await channel.dead()
    assert busway.decode(Order, good) == Order.decode(good) == Order(number=7)
    assert good.position is not None
    assert (good.position.stream, good.position.offset) == ("orders", 0)
    with pytest.raises(busway.PayloadError) as caught:
        busway.decode(Order, wrong)
    assert (caught.value.topic, caught.value.field, caught.value.position) == ("orders/eu", "amount", wrong.position)


@pytest.mark.parametrize("window", [0, 8])
async def test_a_take_that_gets_nothing_names_its_timeout(bus: busway.Bus, window: int) -> None:
    for protocol in ((), (Order,)):
        async with bus.channel(*protocol, "orders", "billing", window=window) as channel:
            with pytest.raises(busway.Timeout, match=r"^nothing to take from 'orders/billing' within 0\.05 s$"):
                await channel.take(2, timeout="50ms")


@pytest.mark.parametrize("window", [0, 8])
def test_so_does_a_blocking_one(blocking: busway.sync.Bus, window: int) -> None:
    for protocol in ((), (Order,)):
        with blocking.channel(*protocol, "orders", "billing", window=window) as channel:
            with pytest.raises(busway.Timeout, match=r"^nothing to take from 'orders/billing' within 0\.05 s$"):
                channel.take(2, timeout="50ms")


async def test_take_batches_and_iteration_leave_out_what_does_not_fit(bus: busway.Bus) -> None:
    good = [Order(number=number) for number in range(6)]
    payloads: list[object] = [value.encode() for value in good]
    payloads[3:3] = [b"bad", b"worse"]
    await bus.publish_many("orders", payloads, durable=True)
    for window in (0, 64):
        name = f"c{window}"
        await bus.create_channel("orders", name, start="first")
        async with bus.channel(Order, "orders", name, window=window) as channel:
            assert (channel.stream, channel.name, channel.window) == ("orders", name, window)
            batch = await channel.take(6, timeout=PATIENCE, whole=True)
            assert [one.value for one in batch] == good
            await channel.ack(batch[:2])
            await channel.nack(batch[2:], delay=0, reason="again")
            async for again in channel.batches(2):
                await channel.extend(again)
                await channel.ack(one.message for one in again)
                if again[-1].value == good[-1]:
                    break
            await done(bus, name, 8)
            with pytest.raises(busway.Timeout):
                await channel.take(1, timeout=0.01)


async def test_a_handler_gets_values_and_never_what_does_not_fit(bus: busway.Bus) -> None:
    both, seen = asyncio.Event(), []
    together = 0

    async def bill(delivered: busway.Delivered[Order]) -> None:
        nonlocal together
        together += 1
        if together == 2:
            both.set()
        await both.wait()  # two at a time
        seen.append(delivered.value.number)
        if delivered.value.number == 2:
            await delivered.reject("no such customer")

    async with (
        bus.subscribe("dead/**") as dead,
        bus.channel(Order, "orders", "billing", handler=bill, concurrency=2) as channel,
    ):
        await bus.publish("orders", b"bad", durable=True)
        for number in (1, 2):
            await bus.publish("", Order(number=number), durable=True)
        letters = [await dead.recv(timeout=PATIENCE) for _ in range(2)]
        assert {letter.payload for letter in letters} == {b"bad", Order(number=2).encode()}
        assert {letter.fields["dead_reason"] for letter in letters} >= {"no such customer"}
        assert sorted(seen) == [1, 2]
        assert channel.closed is False
    await done(bus, "billing", 3)


async def test_only_messages_of_the_protocol_are_delivered(bus: busway.Bus) -> None:
    async with bus.channel(Order, "orders", "billing", topic="eu/*") as channel:
        for topic in ("other/eu/1", "orders/us/1", "orders/eu/1"):
            await bus.publish(topic, Order(number=1).encode(), durable=True)
        assert (await channel.recv(timeout=PATIENCE)).topic == "orders/eu/1"
        assert (await channel.info()).topic == "orders/eu/*"


async def test_wrong_arguments(bus: busway.Bus) -> None:
    for given in [(Order, "orders"), ("orders", "a", "b"), (int, "orders", "a")]:
        with pytest.raises(TypeError):
            bus.channel(*given)


async def test_a_thousand_payloads_that_do_not_fit(bus: busway.Bus) -> None:
    async with bus.subscribe("dead/**") as dead, bus.channel(Order, "orders", "billing") as channel:
        await bus.publish_many("orders", [b"poison"] * 1000, durable=True)
        await bus.publish("", Order(number=7), durable=True)
        assert (await channel.recv(timeout=PATIENCE)).value.number == 7
        for _ in range(1000):
            await dead.recv(timeout=PATIENCE)


def test_the_blocking_face(blocking: busway.sync.Bus) -> None:
    with blocking.subscribe("dead/**") as dead:
        blocking.publish("", Order(number=1), durable=True)
        blocking.publish("orders", b"bad", durable=True)
        blocking.publish("", Order(number=2), durable=True)
        blocking.publish("", Order(number=3), durable=True)
        blocking.create_channel("orders", "billing", start="first")
        with blocking.channel(Order, "orders", "billing") as channel:
            first, second = channel.take(2, timeout=PATIENCE, whole=True)
            assert (first.topic, first.value, second.value) == ("orders", Order(number=1), Order(number=2))
            assert isinstance(first, busway.sync.Delivered)
            channel.ack([first])
            second.extend()
            second.nack(delay=0)
            for delivered in channel:
                delivered.ack()
                if delivered.value.number == 2:
                    break
        letter = dead.recv(timeout=PATIENCE)
        assert (letter.payload, letter.fields["dead_reason"][:2]) == (b"bad", "$:")


def test_the_blocking_handler(blocking: busway.sync.Bus) -> None:
    def bill(delivered: busway.sync.Delivered[Order]) -> None:
        if delivered.value.number == 2:
            delivered.reject("no such customer")

    with (
        blocking.subscribe("dead/**") as dead,
        blocking.channel(Order, "orders", "billing", handler=bill, concurrency=2),
    ):
        blocking.publish("orders", b"bad", durable=True)
        blocking.publish("", Order(number=1), durable=True)
        blocking.publish("", Order(number=2), durable=True)
        letters = [dead.recv(timeout=PATIENCE) for _ in range(2)]
        assert {letter.payload: letter.fields["dead_reason"][:2] for letter in letters} == {
            b"bad": "$:",
            Order(number=2).encode(): "no",
        }
    assert blocking.channel_info("orders", "billing").floor == 3
