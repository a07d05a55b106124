"""Channels over several nodes: one consumer of the whole cluster gets each message, wherever it was stored."""

import asyncio
from contextlib import suppress

import pytest

import busway
from tests.support.cluster import Cluster
from tests.support.cluster_channels import drained
from tests.support.cluster_streams import some
from tests.support.net import eventually, until


def place(message):
    return message.broker, message.offset


async def test_a_consumer_gets_the_messages_of_all_nodes(three):
    servers, clients = three
    for number, client in enumerate(clients):
        await some(client, f"jobs/{number}", 0, 50)
    async with clients[2].channel("jobs", "work", window=8) as jobs:
        got = []
        async with asyncio.timeout(60):
            while len(got) < 150:
                message = await jobs.recv()
                got.append(message)
                await message.ack()
        assert len({place(message) for message in got}) == 150
        for number, server in enumerate(servers):
            mine = [int(message.payload) for message in got if message.broker == server.guid]
            assert mine == list(range(50)), number
        # And what comes while it is there.
        await some(clients[0], "jobs/0", 50, 5)
        await some(clients[1], "jobs/1", 50, 5)
        for _ in range(10):
            await (await jobs.recv(60)).ack()
        await drained(*servers)


@pytest.mark.parametrize("window", [1, 2, 5])
async def test_it_never_has_more_than_its_window(three, window):
    _, clients = three
    for number, client in enumerate(clients):
        await some(client, f"jobs/{number}", 0, 20)
    async with clients[1].channel("jobs", "work", window=window) as jobs:
        held, got = [], set()
        async with asyncio.timeout(60):
            while len(got) < 60:
                message = await jobs.recv()
                got.add(place(message))
                held.append(message)
                assert len(held) + jobs.pending <= window
                if len(held) == window or (not jobs.pending and len(got) > 60 - window):
                    await held.pop(0).ack()


async def test_consumers_of_several_nodes_share(three):
    servers, clients = three
    got = [[], [], []]

    async def work(number):
        async with clients[number].channel("jobs", "work", window=4) as jobs:
            async for message in jobs:
                got[number].append(place(message))
                await message.ack()

    workers = [asyncio.create_task(work(number)) for number in range(3)]
    try:
        for number, client in enumerate(clients):
            await some(client, f"jobs/{number}", 0, 100)
        await drained(*servers)
        everything = [one for some in got for one in some]
        assert len(everything) == len(set(everything)) == 300
        assert all(got)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def test_what_was_not_acknowledged_is_for_another_node_s_consumer(three):
    servers, clients = three
    await some(clients[0], "jobs/0", 0, 10)
    async with clients[1].channel("jobs", "work", window=10) as first:
        taken = [await first.recv(60) for _ in range(10)]
        await taken[0].ack()
    async with clients[2].channel("jobs", "work", window=10) as second:
        again = [await second.recv(60) for _ in range(9)]
        assert [int(message.payload) for message in again] == list(range(1, 10))
        assert {message.deliveries for message in again} == {2}
        await second.ack(again)
    await drained(*servers)


async def test_what_waits_for_a_stuck_program_is_for_another_node_s_consumer(three):
    servers, clients = three
    for number, client in enumerate(clients):
        await some(client, f"jobs/{number}", 0, 4)
    settings = {"lease": 0.4, "max_processing": 0.8, "window": 16}
    async with clients[1].channel("jobs", "work", **settings) as stuck:
        await (await stuck.recv(60)).ack()
        async with clients[2].channel("jobs", "work", **settings) as healthy:
            got = [await healthy.recv(60) for _ in range(11)]
            assert {message.deliveries for message in got} == {1}
            await healthy.ack(got)
        await some(clients[0], "jobs/0", 4, 2)
        for _ in range(2):
            await (await stuck.recv(60)).ack()
        await drained(*servers)


async def test_a_message_given_back_comes_again_and_dies_where_it_is_stored(three):
    servers, clients = three
    await clients[0].create_channel("jobs", "work", max_deliveries=2)
    await some(clients[0], "jobs/0", 0, 1)
    async with clients[1].subscribe("dead/**", since="all") as dead:
        async with clients[1].channel("jobs", "work", window=2) as jobs:
            for times in (1, 2):
                message = await jobs.recv(60)
                assert message.deliveries == times
                await message.nack()
            buried = await dead.recv(60)
            assert buried.payload == b"0"
            assert buried.fields["dead_offset"] == 0
            assert buried.broker == servers[0].guid


async def test_a_consumer_of_another_node_that_is_lost_twice(three):
    servers, clients = three
    await clients[0].create_channel("jobs", "work", backoff="1h")
    await some(clients[0], "jobs/0", 0, 1)
    for times in (1, 2):
        other = await busway.connect(servers[1].addresses[0], reconnect=None)
        channel = await other.channel("jobs", "work", window=1)
        assert (await channel.recv(60)).deliveries == times
        other._core.connection.transport.abort()

        async def back() -> bool:
            info = await clients[0].channel_info("jobs", "work")
            return (info.in_flight, info.consumers) == (0, 0)

        await eventually(back)
    assert (await clients[0].channel_info("jobs", "work")).waiting == 1
    async with clients[2].channel("jobs", "work", window=0) as jobs:
        with pytest.raises(busway.Timeout):
            await jobs.take(1, timeout=0.1)


async def test_taking_from_all_nodes(three):
    servers, clients = three
    for number, client in enumerate(clients):
        await some(client, f"jobs/{number}", 0, 10)
    async with clients[2].channel("jobs", "work", window=0) as jobs:

        async def seated():
            consumers = [
                one["consumers"]
                for server in servers
                for one in server._hub.channels.figures(server._hub.streams.by_name["jobs"].number)
            ]
            return consumers == [1, 1, 1]

        await eventually(seated)
        batch = await jobs.take(30, 20, whole=True)
        assert len({place(message) for message in batch}) == 30
        await jobs.ack(batch)
        waiting = asyncio.create_task(jobs.take(5, 20))
        await some(clients[0], "jobs/0", 10, 1)
        one = await waiting
        assert [message.payload for message in one] == [b"10"]
        await jobs.ack(one)
        with pytest.raises(busway.Timeout):
            await jobs.take(1, 0.05)
        # One that is called off leaves nothing behind.
        waiting = asyncio.create_task(jobs.take(5, 20))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await some(clients[1], "jobs/1", 10, 1)
        assert [message.payload for message in await jobs.take(5, 20)] == [b"10"]


async def test_a_node_that_goes_and_comes_back(cluster: Cluster, tmp_path):
    a = await cluster.start(data=tmp_path / "a")
    b = await cluster.start(a)
    await cluster.whole()
    here, there = await cluster.client(a), await cluster.client(b)
    await here.create_stream("jobs", topics=["jobs/**"])
    await some(here, "jobs/0", 0, 20)
    async with there.channel("jobs", "work", window=4) as jobs:
        got = []
        for _ in range(10):
            got.append(message := await jobs.recv(60))
            await message.ack()
        await a.stop()
        await some(there, "jobs/1", 0, 5)
        for _ in range(5):
            message = await jobs.recv(60)
            while message.broker != b.guid:  # handed out before the other one went
                message = await jobs.recv(60)
            await message.ack()
        again = await cluster.start(b, data=tmp_path / "a")
        left = set()
        while len(left) < 10:
            message = await jobs.recv(60)
            assert message.broker == a.guid == again.guid
            try:
                await message.ack()
            except busway.BusError:
                continue  # it was handed out before
            left.add(int(message.payload))
        assert left == set(range(10, 20))


async def test_an_exclusive_channel_has_one_consumer_in_the_cluster(three):
    servers, clients = three
    async with clients[0].channel("jobs", "alone", exclusive=True):

        async def seated():
            numbers = [(one, one._hub.streams.by_name["jobs"].number) for one in servers]
            parts = [one._hub.channels.figures(number) for one, number in numbers]
            return all(part and part[0]["consumers"] for part in parts)

        await eventually(seated)
        with pytest.raises(busway.Rejected, match="exclusive"):
            await clients[1].channel("jobs", "alone", exclusive=True)


async def test_late_acknowledgements_are_told(three):
    _, clients = three
    await clients[0].create_channel("jobs", "work", lease=0.2, max_deliveries=0)
    await some(clients[0], "jobs/0", 0, 1)
    async with (
        clients[1].channel("jobs", "work", window=1, max_processing=0) as first,
        clients[2].channel("jobs", "work", max_processing=0) as second,
    ):
        one = await first.recv(60)
        done = False
        while not done:  # the time of this one may be over, too, before it is acknowledged
            again = await second.recv(60)
            assert place(one) == place(again)
            with suppress(busway.AckLate):
                await again.ack()
                done = True
        with pytest.raises(busway.AckLate):
            await one.ack()


async def test_a_lease_that_ends_at_another_node_makes_room(three):
    """A consumer that forgets a message gets it again, and more; its window is not full for ever."""
    servers, clients = three
    await clients[0].create_channel("jobs", "work", lease=0.2, max_deliveries=0)
    await some(clients[0], "jobs/0", 0, 3)
    async with clients[1].channel("jobs", "work", window=1, max_processing=0) as jobs:
        assert (await jobs.recv(60)).payload == b"0"
        async with asyncio.timeout(60):
            done = set()
            while len(done) < 3:
                message = await jobs.recv()
                try:
                    await message.ack()
                except busway.AckLate:
                    continue
                done.add(message.payload)
        await drained(*servers)


async def test_leases_of_other_nodes_messages_are_renewed(three):
    servers, clients = three
    await clients[0].create_channel("jobs", "work", lease=0.5)
    for number, client in enumerate(clients):
        await some(client, f"jobs/{number}", 10 * number, 2)
    async with clients[1].channel("jobs", "work", window=10) as jobs:
        got = [await jobs.recv(60) for _ in range(6)]
        assert len({message.broker for message in got}) == 3
        await asyncio.sleep(3)
        await jobs.ack(got)
        await drained(*servers)
    assert (await clients[0].channel_info("jobs", "work")).redelivered == 0


async def test_a_take_that_waits_gets_what_a_node_has_that_comes_later(cluster: Cluster):
    a = await cluster.start()
    here = await cluster.client(a)
    await here.create_stream("jobs", topics=["jobs/**"])
    async with here.channel("jobs", "work", window=0) as jobs:
        waiting = asyncio.create_task(jobs.take(1, 20))
        await here.flush()
        b = await cluster.start(a)
        await cluster.whole()
        await some(await cluster.client(b), "jobs/0", 7, 1)
        assert [message.payload for message in await waiting] == [b"7"]


async def test_an_acknowledgement_does_not_look_through_all_that_waits(three):
    """Or one message of another node would cost as much as the window is large."""
    servers, clients = three
    await some(clients[0], "jobs/0", 0, 30)
    async with clients[1].channel("jobs", "work", window=30) as jobs:
        await (await jobs.recv(60)).ack()
        await until(lambda: jobs.received == 30)
        assert jobs.pending == 29
        for _ in range(3):
            message = await jobs.recv(60)
            taken = jobs._reader._ready, len(jobs._reader._inbox)
            await message.ack()
            assert (jobs._reader._ready, len(jobs._reader._inbox)) == taken
        assert jobs.pending == 26
        for _ in range(26):
            await (await jobs.recv(60)).ack()
        await drained(*servers)
