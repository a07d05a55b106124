"""Nodes with different limits: a message that is too long for a node is not sent to it, and that is reported."""

import asyncio

import pytest

import busway
from tests.support.cluster import has, served, until
from tests.support.net import eventually

LONG = b"x" * (1 << 20)


@pytest.fixture
async def pair(cluster, caplog):
    """Clients of a node that takes long messages and of one that takes short ones only; at the end the link is the same."""
    a = await cluster.start()
    b = await cluster.start(a, settings=busway.Settings(frame=65_536, topic=100, fields=4096))
    await cluster.whole()
    assert "node-1" in caplog.text
    assert "accepts messages up to 65536 bytes, this node up to 8388608: longer ones are not sent to it" in caplog.text
    links = {server: [conn for conn, one in server._hub.sessions.items() if one.node] for server in (a, b)}
    yield a, b, await cluster.client(a, name="near"), await cluster.client(b, name="far")
    for server, conns in links.items():
        assert [conn for conn, one in server._hub.sessions.items() if one.node] == conns
        assert server.stats()["faults"] == 0


async def test_a_long_message_is_missed_and_the_others_come(pair):
    _a, _b, near, far = pair
    async with far.subscribe("t", wait="cluster") as inbox, near.subscribe("t") as here:
        for payload in (b"1", LONG, b"2", LONG, b"end"):
            await near.publish("t", payload)
        assert [one.payload for one in await until(inbox)] == [b"1", b"2"]
        assert inbox.missed == 2
        assert len(await until(here)) == 4


async def test_a_long_push_goes_to_who_takes_it_or_is_an_error(pair):
    _a, _b, near, far = pair
    async with far.subscribe("jobs", wait="cluster") as jobs:
        with pytest.raises(busway.LimitExceeded, match="so long a message"):
            await near.push("jobs", LONG)
        async with near.subscribe("jobs", echo=True) as here:
            await near.push("jobs", LONG)
            assert (await here.recv(timeout=60)).payload == LONG
        await near.push("jobs", b"short")
        assert (await jobs.recv(timeout=60)).payload == b"short"


@pytest.mark.parametrize("shared", [False, True])
async def test_long_requests_and_replies_are_errors(pair, shared):
    a, b, near, far = pair
    async with (
        far.serve("short", lambda message: b"yes", shared=shared, wait="cluster"),
        near.serve("long", lambda message: LONG, shared=shared, wait="cluster"),
    ):
        await served(a, "short", int(shared))
        await served(b, "long", int(shared))
        with pytest.raises(busway.LimitExceeded, match="bytes"):
            await near.request("short", LONG, timeout=60)
        assert (await near.request("short", b"", timeout=60)).payload == b"yes"
        assert (await near.request("long", b"", timeout=60)).payload == LONG
        with pytest.raises(busway.LimitExceeded, match="takes 65536"):
            await far.request("long", b"", timeout=60)
        replies = await far.request_all("long", timeout=60) if shared else None
        if replies is not None:
            assert (list(replies), [one.sender for one in replies.failed]) == ([], ["node-0"])


async def test_a_long_pin_is_not_known_there_and_takes_the_place_of_a_short_one(pair):
    _a, _b, near, far = pair
    await near.pin("config", b"short")
    await has(far, "config", b"short")
    await near.pin("config", LONG)
    await has(far, "config")
    await has(near, "config", LONG)
    await near.pin("config", b"again")
    await has(far, "config", b"again")


async def test_a_node_that_comes_later_is_spared_long_pins(cluster):
    a = await cluster.start()
    near = await cluster.client(a)
    for number in range(3):
        await near.pin(f"config/{number}", LONG if number == 1 else b"short")
    b = await cluster.start(a, settings=busway.Settings(frame=65_536))
    await cluster.whole()
    far = await cluster.client(b)

    async def there():
        return [one.topic for one in await far.kept("config/*")] == ["config/0", "config/2"]

    await eventually(there)
    await asyncio.gather(*(has(near, f"config/{number}", LONG if number == 1 else b"short") for number in range(3)))


async def test_long_topics_and_patterns_of_one_node_are_known_at_the_other(pair):
    _a, _b, near, far = pair
    topic = "a/" + "b" * 500
    async with near.subscribe(topic, wait="cluster"), far.subscribe("a/*", wait="cluster") as inbox:
        await near.publish(topic, b"x")
        assert (await inbox.recv(timeout=60)).topic == topic
        with pytest.raises(busway.LimitExceeded):
            await far.publish(topic, b"x")
