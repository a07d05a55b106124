"""Services of the broker with pages: connections, streams, channels, services and topics, on a running broker."""

import asyncio

import msgspec
import pytest

import busway


@pytest.fixture
async def server():
    async with busway.serve(name="here") as made:
        yield made


@pytest.fixture
async def bus(server):
    async with server.connect(name="operator") as made:
        yield made


async def ask(bus, service, **question):
    return (await bus.request(service, msgspec.json.encode(question))).json()


async def test_rates_have_the_figures_of_the_broker_and_of_its_streams_and_channels(bus):
    await bus.create_stream("orders", topics=["orders/**"])
    await bus.create_channel("orders", "billing")
    for number in range(7):
        await bus.publish(f"orders/{number}", b"", durable=True)

    async def lag():
        found = await ask(bus, "$bus/rates", figures=["channel/orders/billing/lag", "stream/orders/end"])
        return {name: values[-1] if values else None for name, values in found["figures"].items()}

    async with asyncio.timeout(10):
        while await lag() != {"channel/orders/billing/lag": 7, "stream/orders/end": 7}:
            await asyncio.sleep(0.05)
    found = await ask(bus, "$bus/rates")
    assert {"messages_received", "memory", "cpu_seconds"} <= found["figures"].keys()
    assert found["figures"]["memory"][-1] > 1_000_000
    assert "channel/orders/billing/lag" in found["names"]
    assert len(found["times"]) == len(found["figures"]["messages_received"])
    next_number = found["first"] + len(found["times"])
    assert (await ask(bus, "$bus/rates", since=next_number + 5))["times"] == []


async def test_rates_refuse_what_they_do_not_know(bus):
    with pytest.raises(busway.BusError, match="unknown field"):
        await ask(bus, "$bus/rates", until=3)


async def test_connections_come_in_pages_in_an_order(server, bus):
    async with server.connect(name="zoe") as zoe, server.connect(name="anna") as anna:
        await zoe.publish("t", b"")
        await anna.flush()
        for _ in range(20):
            await zoe.publish("t", b"")
        await zoe.flush()
        found = await ask(bus, "$bus/connections", search="o", order="messages_received", most=1)
        assert (found["total"], [one["name"] for one in found["connections"]]) == (2, ["zoe"])
        rest = await ask(bus, "$bus/connections", search="o", order="messages_received", skip=1)
        assert [one["name"] for one in rest["connections"]] == ["operator"]
        assert [one["name"] for one in (await ask(bus, "$bus/connections"))["connections"]] == [
            "operator",
            "zoe",
            "anna",
        ]
        with pytest.raises(busway.BusError, match="there is no figure 'beauty'"):
            await ask(bus, "$bus/connections", order="beauty")


async def test_an_operator_disconnects_a_client(server, bus):
    async with server.connect(name="zoe", reconnect=None) as zoe:
        (client,) = (await ask(bus, "$bus/connections", search="zoe"))["connections"]
        with pytest.raises(busway.BusError, match="has the name 'zoe', not 'anna'"):
            await ask(bus, "$bus/connections/close", client=client["client"], name="anna")
        await ask(bus, "$bus/connections/close", client=client["client"], name="zoe")
        async with asyncio.timeout(5):
            while zoe.state != "closed":
                await asyncio.sleep(0.01)
        with pytest.raises(busway.BusError, match="there is no client"):
            await ask(bus, "$bus/connections/close", client=client["client"], name="zoe")


async def test_streams_come_in_pages_in_an_order(bus):
    for name, count in (("big", 5), ("small", 1)):
        await bus.create_stream(name, topics=[f"{name}/**"])
        for _ in range(count):
            await bus.publish(f"{name}/t", b"x" * 100, durable=True)
    await bus.create_channel("big", "reader")
    found = await ask(bus, "$bus/stream/list", order="bytes", most=2, channels=False)
    assert ([one["name"] for one in found["streams"]], found["total"]) == (["big", "small"], 3)
    assert found["streams"][0]["channels"] == []
    assert [one["name"] for one in (await ask(bus, "$bus/stream/list", search="SMALL"))["streams"]] == ["small"]
    assert len((await ask(bus, "$bus/stream/list"))["streams"][1]["channels"]) == 1


async def test_channels_of_all_streams_come_in_pages_in_an_order(bus):
    for name, count in (("one", 1), ("two", 3)):
        await bus.create_stream(name, topics=[f"{name}/**"])
        await bus.create_channel(name, f"reads-{name}")
        for _ in range(count):
            await bus.publish(f"{name}/t", b"", durable=True)
    found = await ask(bus, "$bus/channel/list", order="lag")
    assert [(one["name"], one["lag"]) for one in found["channels"]] == [("reads-two", 3), ("reads-one", 1)]
    found = await ask(bus, "$bus/channel/list", order="lag", skip=1, most=5, search="reads")
    assert ([one["name"] for one in found["channels"]], found["total"]) == (["reads-one"], 2)


async def test_one_channel_has_its_consumers(server, bus):
    await bus.create_stream("orders", topics=["orders/**"])
    for _ in range(3):
        await bus.publish("orders/t", b"", durable=True)
    async with server.connect(name="worker") as worker, worker.channel("orders", "billing", window=2) as channel:
        await channel.recv(5)
        (found,) = (await ask(bus, "$bus/channel/list", stream="orders", channel="billing"))["channels"]
        (consumer,) = found["clients"]
        assert (consumer["name"], consumer["window"], consumer["in_flight"]) == ("worker", 2, 2)


async def test_topics_come_as_levels_with_counts(server, bus):
    async with server.connect(name="feed") as feed, feed.subscribe("price/**", group="risk"):
        for number in range(30):
            await feed.publish(f"price/{'abc'[number % 3]}/eur", b"")
        await feed.publish("price", b"")
        await feed.pin("config/limits", b"1")
        await feed.flush()
        top = {row["segment"]: row for row in (await ask(bus, "$bus/topics"))["branches"]}
        assert (top["price"]["topics"], top["price"]["messages"], top["price"]["leaf"]) == (4, 31, True)
        assert top["config"]["kept"] == 1
        assert not any(name.startswith("$") for name in top)
        below = await ask(bus, "$bus/topics", path="price", begins="b")
        assert [(row["segment"], row["messages"]) for row in below["branches"]] == [("b", 10)]
        page = await ask(bus, "$bus/topics", path="price", order="messages", skip=1, most=1)
        assert ([row["segment"] for row in page["branches"]], page["total"]) == (["b"], 3)
        users = await ask(bus, "$bus/topic", topic="price/a/eur")
        assert [one["name"] for one in users["publishers"]] == ["feed"]
        assert [(one["name"], one["group"]) for one in users["subscriptions"]] == [("feed", "risk")]
        assert users["messages"] == 10
        with pytest.raises(busway.BusError, match="wildcard"):
            await ask(bus, "$bus/topic", topic="price/*")


async def test_a_blocked_publish_counts_once(server, bus):
    """A publish that waits for a slow consumer is processed again."""
    async with server.connect(name="feed") as feed, server.connect(name="slow") as slow:
        async with slow.subscribe("t", limit=4, policy="block") as messages:
            publishing = asyncio.create_task(feed.publish_many("t", [b"x"] * 2000))
            for _ in range(2000):
                await messages.recv(10)
            await publishing
        await feed.flush()
        (row,) = [one for one in (await ask(bus, "$bus/topics"))["branches"] if one["segment"] == "t"]
        assert row["messages"] == 2000


async def test_retained_topics_that_nobody_uses_now_are_listed(server, bus):
    async with server.connect(name="gone") as gone:
        await gone.pin("left/behind", b"1")
    (row,) = [one for one in (await ask(bus, "$bus/topics"))["branches"] if one["segment"] == "left"]
    assert row["kept"] == 1


async def test_services_have_their_providers(server, bus):
    async with (
        server.connect(name="one") as one,
        server.connect(name="two") as two,
        one.serve("sum", lambda _: b"3", shared=True),
        two.serve("sum", lambda _: b"3", shared=True),
        two.serve("alone", lambda _: b"4"),
    ):
        await bus.request("sum", b"")
        found = await ask(bus, "$bus/services")
        services = {service["topic"]: service for service in found["services"]}
        assert (services["sum"]["shared"], services["sum"]["calls"]) == (True, 1)
        assert {provider["name"] for provider in services["sum"]["providers"]} == {"one", "two"}
        assert [provider["name"] for provider in services["alone"]["providers"]] == ["two"]
        assert (await ask(bus, "$bus/services", search="alo"))["total"] == 1
