"""Dead letters of a cluster: each node stores those of its own messages; every node lists them and sends them back."""

import pytest

import busway
from tests.support.cluster import Cluster
from tests.support.cluster_streams import some
from tests.support.net import eventually

EACH = 20


@pytest.fixture
async def dead(cluster: Cluster):
    """Three nodes, each with dead letters of its own messages."""
    servers = await cluster.several(3)
    clients = [await cluster.client(server) for server in servers]
    await clients[0].create_stream("jobs", topics=["jobs/**"])
    for number, client in enumerate(clients):
        await some(client, f"jobs/{number}", 0, EACH)
    async with clients[1].channel("jobs", "work", window=100) as jobs:
        for _ in range(3 * EACH):
            await (await jobs.recv(60)).reject("poison")

    async def all_dead() -> bool:
        return (await clients[0].channel_info("jobs", "work")).dead == 3 * EACH

    await eventually(all_dead)
    return servers, clients


def places(letters):
    return {(one.part, one.offset) for one in letters}


async def test_any_node_lists_them_and_sends_them_back(dead):
    servers, clients = dead
    letters = await clients[2].dead_letters("jobs", "work")
    assert places(letters) == {(server.guid, offset) for server in servers for offset in range(EACH)}
    assert len(letters) == 3 * EACH
    some_of_them = [one for one in letters if one.offset < 5]
    assert (await clients[0].redrive_channel("jobs", "work", some_of_them)).redriven == 15
    result = await clients[1].redrive_channel("jobs", "work")
    assert (result.redriven, result.before, result.gone, result.left) == (3 * EACH - 15, 15, 0, 0)
    assert await clients[2].dead_letters("jobs", "work") == []
    async with clients[2].channel("jobs", "work", window=10) as jobs:
        seen = []
        for _ in range(3 * EACH):
            message = await jobs.recv(60)
            seen.append((message.broker, message.offset))
            await message.ack()
    assert len(set(seen)) == 3 * EACH
    assert (await clients[0].channel_info("jobs", "work")).lag == 0


async def test_those_of_a_node_that_is_gone_stay(dead):
    servers, clients = dead
    letters = await clients[0].dead_letters("jobs", "work")
    await servers[2].stop()

    async def known() -> bool:
        return bool((await clients[0].channel_info("jobs", "work")).unreached)

    await eventually(known)
    here = [one for one in letters if one.part != servers[2].guid]
    assert places(await clients[0].dead_letters("jobs", "work")) == places(here)
    result = await clients[0].redrive_channel("jobs", "work", letters)
    assert (result.redriven, result.left) == (2 * EACH, EACH)
    assert result.unreached
    assert (await clients[0].redrive_channel("jobs", "work")).before == 2 * EACH


async def test_letters_in_the_default_stream_are_found_too():
    """Where earlier brokers have stored them."""
    async with busway.serve() as server, server.connect() as bus:
        await bus.create_stream("dead", ["graves/**"])  # so that they go to `default`
        await bus.create_stream("jobs", ["jobs/**"])
        await some(bus, "jobs/0", 0, 3)
        async with bus.channel("jobs", "work") as jobs:
            for _ in range(3):
                await (await jobs.recv(60)).reject("poison")

            async def found() -> bool:
                return len(await jobs.dead()) == 3

            await eventually(found)
            assert (await jobs.redrive()).redriven == 3
            assert [int((await jobs.recv(60)).payload) for _ in range(3)] == [0, 1, 2]
