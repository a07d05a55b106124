"""Dead letters: the recorded deliveries, and rejected messages."""

import socket
import time

import pytest

import busway
from tests.support.channels import STREAM, TOPIC, nothing, shown, some, stream
from tests.support.net import PATIENCE, Net, gather

pytestmark = pytest.mark.both_loops


class DatabaseDown(Exception):  # noqa: N818, named as users do
    pass


async def test_a_dead_letter_records_the_exception_and_the_consumer(net: Net) -> None:
    before = time.time_ns()
    bus, worker = await stream(net, 1), await net.connect(name="worker-7")

    async def handle(message: busway.Message) -> None:
        raise DatabaseDown(f"no route to {message.payload.decode()}")

    async with (
        bus.subscribe("dead/**") as dead,
        worker.channel(STREAM, "c", max_deliveries=2, handler=handle),
    ):
        (letter,) = await gather(dead, 1)
    fields = letter.fields
    assert fields["dead_reason"] == "no route to 0"
    assert fields["dead_error"] == f"{DatabaseDown.__module__}.DatabaseDown"
    assert fields["dead_traceback"].splitlines()[-1].endswith("DatabaseDown: no route to 0")
    assert "in handle" in fields["dead_traceback"]
    assert len(fields["dead_traceback"].splitlines()) <= 10
    assert (fields["dead_consumer"], fields["dead_host"]) == ("worker-7", socket.gethostname())
    assert (fields["dead_deliveries"], fields["dead_offset"]) == (2, 0)
    assert before < fields["dead_first"] <= fields["dead_last"] <= fields["dead_time"] <= time.time_ns()
    assert len(fields["dead_broker"]) == 32


async def test_the_reason_of_the_last_nack_is_recorded(net: Net) -> None:
    bus = await stream(net, 2)
    async with bus.subscribe("dead/**") as dead, bus.channel(STREAM, "c", max_deliveries=2) as channel:
        first, second = await some(channel, 2)
        await first.nack(delay=0, reason="first try")
        await (await channel.recv(timeout=PATIENCE)).nack(0, "second try")
        (letter,) = await gather(dead, 1)
        assert letter.fields["dead_reason"] == "second try"
        assert "dead_error" not in letter.fields
        await second.ack()


async def test_a_nack_without_a_reason_records_its_consumer(net: Net) -> None:
    bus = await stream(net, 1)
    async with bus.channel(STREAM, "c", max_deliveries=1) as channel:
        (message,) = await some(channel, 1)
        await message.nack()
        (letter,) = await channel.dead()
        assert (letter.reason, letter.consumer, letter.host) == ("", "maker", socket.gethostname())


async def test_a_long_reason_is_cut(net: Net) -> None:
    bus = await stream(net, 2)
    async with bus.subscribe("dead/**") as dead, bus.channel(STREAM, "c") as channel:
        first, second = await some(channel, 2)
        await channel.reject([first, second], "é" * 10_000)
        for letter in await gather(dead, 2):
            assert letter.fields["dead_reason"] == "é" * 1023 + "…"


async def test_a_rejected_message_is_a_dead_letter_at_once(net: Net) -> None:
    bus = await stream(net, 3)
    async with bus.subscribe("dead/**") as dead, bus.channel(STREAM, "c", max_deliveries=0) as channel:
        first, second, third = await some(channel, 3)
        await second.reject("no such customer")
        (letter,) = await gather(dead, 1)
        assert (letter.payload, letter.fields["dead_reason"]) == (b"1", "no such customer")
        assert (letter.fields["dead_deliveries"], letter.fields["dead_topic"]) == (1, TOPIC)
        await channel.ack([first, third])
        await shown(bus, floor=3, dead=1)
        assert await nothing(bus, channel)
        with pytest.raises(busway.AckLate):
            await second.reject("once more")


async def test_a_handler_rejects_by_raising(net: Net) -> None:
    bus = await stream(net, 10)
    seen: list[int] = []

    async def handle(message: busway.Message) -> None:
        seen.append(int(message.payload))
        if seen[-1] % 3 == 0:
            raise busway.Reject(f"{seen[-1]} is a multiple of 3")

    async with bus.subscribe("dead/**") as dead, bus.channel(STREAM, "c", handler=handle):
        letters = await gather(dead, 4)
        await shown(bus, floor=10, dead=4)
    assert sorted(seen) == list(range(10)), "each was delivered once"
    assert {one.fields["dead_reason"] for one in letters} == {f"{n} is a multiple of 3" for n in (0, 3, 6, 9)}
    assert {one.fields["dead_error"] for one in letters} == {"busway.errors.Reject"}


async def test_the_broker_gives_the_reason_of_consumers_that_do_not(net: Net) -> None:
    bus, one, two = await stream(net, 1), await net.connect(name="one"), await net.connect(name="two")
    async with bus.subscribe("dead/**") as dead:
        async with one.channel(STREAM, "c", lease=0.05, max_deliveries=1, max_processing=0.05) as channel:
            await channel.recv(timeout=PATIENCE)
            (letter,) = await gather(dead, 1)
            assert letter.fields["dead_reason"] == "its lease of 0.05 s ended before its consumer acknowledged"
            assert letter.fields["dead_consumer"] == "one"
        channel = await two.channel(STREAM, "d", max_deliveries=1)
        await channel.recv(timeout=PATIENCE)
        await two.close()
        (letter,) = await gather(dead, 1)
        assert "its connection was lost" in letter.fields["dead_reason"]
        assert letter.fields["dead_consumer"] == "two"


async def test_reasons_that_are_none(net: Net) -> None:
    bus = await stream(net, 1)
    async with bus.channel(STREAM, "c") as channel:
        (message,) = await some(channel, 1)
        for call in (lambda: message.nack(reason=5), lambda: message.reject(None), lambda: message.reject(b"no")):
            with pytest.raises(TypeError):
                call()
        with pytest.raises(TypeError):
            message.nack(1, "a", "b")
        with pytest.raises(ValueError, match="delay"):
            message.nack(delay=-1)
        await message.reject("\ud800 can't be sent")
        await shown(bus, dead=1)


async def test_a_letter_that_dies_again_tells_of_its_last_death(net: Net) -> None:
    bus = await stream(net, 1)
    async with bus.channel(STREAM, "c") as channel, bus.subscribe("late") as late:
        (message,) = await some(channel, 1)
        await message.nack(0, "x")
        await (await channel.recv(timeout=PATIENCE)).reject("unknown customer")
        await shown(bus, dead=1)
        async with bus.channel("dead", "d", dead_letter="late") as undertaker:
            (letter,) = await some(undertaker, 1)
            await letter.reject("unknown letter")
            (again,) = await gather(late, 1)
    assert (again.fields["dead_times"], again.fields["dead_reason"]) == (2, "unknown letter")
    assert (again.fields["dead_stream"], again.fields["dead_deliveries"]) == ("dead", 1)
