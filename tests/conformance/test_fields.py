"""Fields: the address of a message beside its topic, from the caller, the client and the server."""

import asyncio
import enum
from typing import Any

import pytest

import busway
from busway.client.typed.protocol import Protocol
from tests.support.net import PATIENCE, Net, gather, settle

pytestmark = pytest.mark.both_loops


class Venue(enum.StrEnum):
    KRAKEN = "krk"


class Tick(Protocol, prefix="tick"):
    price: float


async def test_these_fields_can_contain_any_data(net: Net) -> None:
    """ "The publisher must provide at least one address field. These fields can contain any data." """
    bus = await net.connect("feed")
    fields: dict[str, Any] = {
        "text": "ü",
        "int": -(2**63),
        "big": 2**64 - 1,
        "float": 0.5,
        "yes": True,
        "none": None,
        "bytes": b"\xff\0",
        "list": [1, "a", b"b", [None]],
        "map": {"deep": {"er": [1]}},
        "enum": Venue.KRAKEN,
    }
    async with bus.subscribe("t") as subscription:
        for verb in (bus.publish, bus.post, bus.pin, bus.push):
            await verb("t", b"x", fields=fields)
        messages = await gather(subscription, 4)
    for message in messages:
        assert message.fields == fields
        assert type(message.fields["int"]) is int
        assert type(message.fields["yes"]) is bool
        assert (message.payload, message.sender) == (b"x", "feed")
    assert [message.kind for message in messages] == ["publish", "post", "pin", "push"]


async def test_without_fields_there_are_none(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        await bus.publish("t", b"x")
        await bus.publish("t", b"x", fields={})
        assert [message.fields for message in await gather(subscription, 2)] == [{}, {}]


@pytest.mark.parametrize("more", [{"n": 1}, None], ids=["own", "default"])
async def test_every_way_out_has_fields(net: Net, more: dict[str, Any] | None) -> None:
    """ "An MBus client/server can be configured with default address fields (like region, host), they will be added to each message." """
    server, bus = await net.connect(), await net.connect(fields={"asset": "fx"})
    asked: list[dict[str, Any]] = []
    async with (
        server.subscribe("t") as subscription,
        server.subscribe("tick/**") as ticks,
        server.serve("s", lambda message: asked.append(message.fields)),
    ):
        await bus.publish("t", b"1", fields=more)
        await bus.send("t", b"2", fields=more)
        assert await bus.publish("t", b"3", fields=more, confirm=True) == 1
        assert await bus.publish_many("t", [b"4", "5", {"n": 6}], fields=more) == 3
        assert await bus.publish_many([("t", b"7"), ("t", 8)], fields=more) == 2
        await bus.push("t", b"9", fields=more)
        await bus.post("t", b"10", fields=more)
        await bus.pin("t", b"11", fields=more)
        await bus.request("s", b"", fields=more)
        await bus.request("s", {"n": 1}, fields=more)
        await bus.request_all("s", b"", fields=more)
        await bus.publish("eur", Tick(price=1.0), fields=more)
        messages = await gather(subscription, 11)
        expected = {"asset": "fx"} | (more or {})
        assert [message.fields for message in [*messages, *await gather(ticks, 1)]] == [expected] * 12
        assert asked == [expected] * 3
        assert sorted(message.kind for message in messages) == ["pin", "post", *["publish"] * 8, "push"]


async def test_default_fields_of_the_client_are_added_to_each_message(net: Net) -> None:
    """ "An MBus client/server can be configured with default address fields (like region, host), they will be added to each message." """
    server, bus = await net.connect(), await net.connect(fields={"region": "emea", "proc": "hdb"})
    seen: list[dict[str, Any]] = []
    async with server.subscribe("t") as subscription, server.serve("s", lambda message: seen.append(message.fields)):
        await bus.publish("t", b"1")
        await bus.publish("t", b"2", confirm=True)
        await bus.publish("t", {"3": 3})
        await bus.publish_many("t", [b"4", 5])
        await bus.push("t", b"6")
        await bus.post("t", b"7")
        await bus.request("s")
        assert (await bus.request_all("s"))[0].payload == b""
        seen += [message.fields for message in await gather(subscription, 7)]
    assert seen == [{"region": "emea", "proc": "hdb"}] * 9


async def test_a_message_s_own_fields_stand_over_the_client_s(net: Net) -> None:
    bus = await net.connect(fields={"region": "emea", "proc": "hdb"})
    async with bus.subscribe("t") as subscription:
        await bus.publish("t", b"1", fields={"proc": "rdb", "event": "reload"})
        await bus.publish("t", b"2")
        one, two = await gather(subscription, 2)
    assert one.fields == {"region": "emea", "proc": "rdb", "event": "reload"}
    assert two.fields == {"region": "emea", "proc": "hdb"}


async def test_fields_of_the_server_stand_over_the_others_and_rules_see_them(net: Net) -> None:
    await net.serve(fields={"region": "emea", "host": "h1"})
    bus, other = await net.connect(fields={"host": "mine", "proc": "hdb"}), await net.connect(fields={"proc": "tp"})
    expected = {"region": "emea", "host": "h1", "proc": "hdb"}
    async with (
        bus.subscribe("t", where={"region": "emea", "proc": "hdb"}) as subscription,
        bus.serve("s", lambda request: request.fields),
    ):
        for verb in (bus.publish, bus.post, bus.pin, bus.push):
            await verb("t", b"")
        assert [message.fields for message in await gather(subscription, 4)] == [expected] * 4
        assert (await bus.request("s")).json() == expected
        await other.publish("t", b"", confirm=True)
        await settle(bus)
        assert subscription.pending == 0
    assert [message.fields for message in await bus.kept(where={"region": "emea"})] == [expected] * 2


async def test_the_fields_given_to_connect_are_its_own(net: Net) -> None:
    fields = {"region": "emea"}
    bus = await net.connect(fields=fields)
    fields["region"] = "apac"
    async with bus.subscribe("t") as subscription:
        await bus.publish("t", b"1")
        await bus.publish("t", b"2", fields={"n": 1})
        assert [message.fields["region"] for message in await gather(subscription, 2)] == ["emea", "emea"]


async def test_fields_are_a_dict(net: Net) -> None:
    bus = await net.connect()
    for wrong in (["a"], "a", 7, ()):
        with pytest.raises(TypeError, match="fields must be a dict"):
            await bus.publish("t", b"", fields=wrong)
        with pytest.raises(TypeError, match="fields must be a dict"):
            net.client(fields=wrong)


async def test_each_reader_of_a_message_s_fields_sees_the_same(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        await bus.publish("t", b"", fields={"x": 1})
        (message,) = await gather(subscription, 1)
        assert message.fields is message.fields


async def test_nobody_gets_around_the_server_s_fields_by_many_of_his_own(net: Net) -> None:
    await net.serve(fields={"region": "emea", "host": "h1"})
    bus = await net.connect()
    many = {f"f{number}": number for number in range(254)} | {"region": "us"}
    events = bus.events()
    async with bus.subscribe("t") as subscription, bus.serve("s", lambda message: b""):
        await bus.publish("t", b"", fields=many)
        async with asyncio.timeout(PATIENCE):
            event = await anext(events)
        assert (event.kind, type(event.error)) == ("rejected", busway.InvalidFields)
        for call in (
            bus.push("t", b"", fields=many),
            bus.request("s", b"", fields=many),
            bus.post("t", b"", fields=many),
        ):
            with pytest.raises(busway.InvalidFields):
                await call
        await settle(bus)
        assert subscription.received == 0


def test_a_server_whose_fields_are_larger_than_a_message_s_may_be() -> None:
    with pytest.raises(ValueError, match=r"fields have .* bytes"):
        busway.serve(fields={"region": "e" * 70_000})
