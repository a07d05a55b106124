"""Listeners: subscriptions that see copies of pushes and requests and never count as consumer or provider."""

import pytest

import busway
from tests.support.net import PATIENCE, Net, gather, settle

pytestmark = pytest.mark.both_loops


async def test_a_listener_sees_publishes_pushes_and_requests(net: Net) -> None:
    """ "Subscribers especiais que escutam multiplos eventos baseados em wildcards": `/scada/digital/*` hears `/scada/digital/d1`."""
    ear, bus = await net.connect(), await net.connect("plc")
    async with (
        ear.subscribe("/scada/digital/*", listen=True) as listening,
        ear.subscribe("re:scada/.*", listen=True) as by_expression,
        bus.subscribe("scada/digital/d1") as consumer,
        bus.serve("scada/digital/abc", lambda message: b"reply"),
        bus.serve("scada/digital/shared", lambda message: b"reply", shared=True),
    ):
        await bus.publish("scada/digital/d1", b"1")
        await bus.push("scada/digital/d1", b"2", fields={"n": 2})
        await bus.request("scada/digital/abc", b"3")
        await bus.request("scada/digital/shared", b"4")
        expected = [("publish", b"1"), ("push", b"2"), ("request", b"3"), ("request", b"4")]
        for subscription in (listening, by_expression):
            messages = await gather(subscription, 4)
            assert [(message.kind, message.payload) for message in messages] == expected
            assert {message.sender for message in messages} == {"plc"}
            assert messages[1].fields == {"n": 2}
        assert [message.payload for message in await gather(consumer, 2)] == [b"1", b"2"]
        await settle(bus, ear)
        assert listening.pending == by_expression.pending == consumer.pending == 0


async def test_a_listener_is_neither_consumer_nor_provider(net: Net) -> None:
    ear, bus = await net.connect(), await net.connect()
    async with ear.subscribe("**", listen=True) as listening, ear.subscribe("**", listen=True, group="g"):
        with pytest.raises(busway.NoConsumers):
            await bus.push("jobs", b"1")
        with pytest.raises(busway.NoResponders):
            await bus.request("service", b"", timeout=None)
        with pytest.raises(busway.NoResponders):
            await bus.request_all("service", b"", timeout=None)
        await settle(bus, ear)
        copies = await gather(listening, 3)
        assert sorted(message.kind for message in copies) == ["push", "request", "request"]


async def test_without_listen_there_are_no_copies(net: Net) -> None:
    ear, bus = await net.connect(), await net.connect()
    async with ear.subscribe("s") as plain, bus.serve("s", lambda message: b""):
        await bus.request("s")
        await settle(bus, ear)
        assert plain.received == 0


async def test_rules_and_echo_hold_for_copies(net: Net) -> None:
    ear, bus = await net.connect("ear"), await net.connect("bus")
    async with (
        ear.subscribe("s", listen=True, where={"n": 1}) as by_rule,
        ear.subscribe("s", listen=True, where={"n": lambda value: value == 1}) as by_predicate,
        ear.subscribe("s", listen=True, echo=False) as others,
        bus.serve("s", lambda message: b""),
    ):
        for number in (1, 2):
            await bus.request("s", fields={"n": number})
        await ear.request("s")
        assert (await by_predicate.recv(timeout=PATIENCE)).fields == {"n": 1}
        assert (await by_rule.recv(timeout=PATIENCE)).fields == {"n": 1}
        await settle(bus, ear)
        assert by_rule.received == 1
        assert {message.sender for message in await gather(others, 2)} == {"bus"}
        assert others.pending == 0
        with pytest.raises(busway.Timeout):
            await by_predicate.recv(timeout=0.01)


async def test_one_of_a_group_of_listeners_gets_the_copy(net: Net) -> None:
    one, two, bus = await net.connect(), await net.connect(), await net.connect()
    async with (
        one.subscribe("s", listen=True, group="g") as first,
        two.subscribe("s", listen=True, group="g") as second,
        bus.serve("s", lambda message: b""),
    ):
        for _ in range(10):
            await bus.request("s")
        await settle(bus, one, two)
        assert first.received + second.received == 10


async def test_a_listener_gets_one_copy_of_a_request_that_several_answer(net: Net) -> None:
    ear, one, two = await net.connect(), await net.connect(), await net.connect()
    async with (
        ear.subscribe("s", listen=True) as listening,
        one.serve("s", lambda message: b"1", shared=True, ask=lambda message: True),
        two.serve("s", lambda message: b"2", shared=True),
    ):
        assert len(await ear.request_all("s", b"x")) == 2
        await settle(ear)
        assert [message.payload for message in await gather(listening, listening.pending)] == [b"x"]
