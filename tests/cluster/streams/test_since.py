"""Stored messages over several nodes: whoever subscribes with `since` gets those of all, once and in order, wherever it is."""

import asyncio

import busway
from tests.support.cluster import Cluster
from tests.support.cluster_streams import numbers, some, take
from tests.support.net import eventually
from tests.support.stored import row


async def test_a_new_subscriber_gets_the_history_of_all_nodes(cluster: Cluster):
    a, b, c = await cluster.several(3)
    for server, topic in ((a, "log/a"), (b, "log/b"), (c, "log/c")):
        await some(await cluster.client(server), topic, 0, 50)
    reader = await cluster.client(c)
    async with reader.subscribe("log/**", since="all") as history:
        got = await take(history, 150)
        for topic in ("log/a", "log/b", "log/c"):
            assert numbers(got, topic) == list(range(50))
        assert {message.broker for message in got} == {a.guid, b.guid, c.guid}
        last = [message.topic for message in got if message.last]
        assert sorted(last) == ["log/a", "log/b", "log/c"]
        # And from there on what comes, without gap or repeat.
        await some(await cluster.client(a), "log/a", 50, 20)
        assert numbers(await take(history, 20)) == list(range(50, 70))


async def test_only_what_is_asked_for_is_given(cluster: Cluster):
    a, b = await cluster.several(2)
    publisher = await cluster.client(a)
    for number in range(200):
        await publisher.publish(f"log/{number % 10}", str(number).encode(), durable=True, fields={"odd": number % 2})
    reader = await cluster.client(b)
    async with reader.subscribe("log/*", where={"odd": 1}, since="all") as odd:
        assert numbers(await take(odd, 100)) == list(range(1, 200, 2))
    async with reader.subscribe("log/3", since="all") as three:
        assert numbers(await take(three, 20)) == list(range(3, 200, 10))


async def test_since_new_and_since_a_time(cluster: Cluster):
    a, b = await cluster.several(2)
    publisher = await cluster.client(a)
    await some(publisher, "log/a", 0, 10)
    reader = await cluster.client(b)
    async with reader.subscribe("log/**", since="new") as news, reader.subscribe("log/**", since="1h") as hour:
        assert numbers(await take(hour, 10)) == list(range(10))

        async def begun():
            return any(broker == a.guid for broker, _ in news.position)

        await eventually(begun)
        await some(publisher, "log/a", 10, 5)
        assert numbers(await take(news, 5)) == list(range(10, 15))
        assert numbers(await take(hour, 5)) == list(range(10, 15))


async def test_nothing_is_lost_or_twice_while_others_publish(cluster: Cluster):
    a, b = await cluster.several(2)
    publisher, reader = await cluster.client(a), await cluster.client(b)
    await some(publisher, "log/a", 0, 100)

    async def go_on():
        for number in range(100, 3000):
            await publisher.publish("log/a", str(number).encode(), durable=True)

    busy = asyncio.create_task(go_on())
    try:
        for _ in range(5):
            async with reader.subscribe("log/**", since="all") as history:
                got = numbers(await take(history, 400))
                assert got == list(range(400))
        async with reader.subscribe("log/**", since="all") as history:
            assert numbers(await take(history, 3000)) == list(range(3000))
    finally:
        await busy


async def test_what_is_stored_while_a_link_is_down_comes_when_it_is_back(cluster: Cluster):
    a, b = await cluster.several(2)
    publisher, reader = await cluster.client(a), await cluster.client(b)
    async with reader.subscribe("log/**", since="all") as history:
        await some(publisher, "log/a", 0, 10)
        assert numbers(await take(history, 10)) == list(range(10))
        for round_ in range(1, 4):
            for session in list(b._hub.sessions.values()):
                if session.node:
                    session.abort()
            await some(publisher, "log/a", 10 * round_, 10)
            assert numbers(await take(history, 10)) == list(range(10 * round_, 10 * round_ + 10))


async def test_a_node_that_comes_later_has_a_history_too(cluster: Cluster, tmp_path):
    first = await cluster.start()
    reader = await cluster.client(first)
    async with (
        reader.subscribe("log/**", since="all") as history,
        reader.subscribe("log/**", since="new") as news,
    ):
        async with busway.serve("tcp://127.0.0.1:0", data=tmp_path / "other") as alone, alone.connect() as publisher:
            await some(publisher, "log/other", 0, 10)
        other = await cluster.start(first, data=tmp_path / "other")
        assert numbers(await take(history, 10)) == list(range(10))
        await some(await cluster.client(other), "log/other", 10, 5)
        assert numbers(await take(history, 5)) == list(range(10, 15))
        # It was stored when this one was there already; nobody had told it.
        assert numbers(await take(news, 15)) == list(range(15))


async def test_a_client_goes_on_at_another_broker(cluster: Cluster):
    a, b, c = await cluster.several(3)
    publishers = [await cluster.client(server) for server in (a, b, c)]
    urls = [b.addresses[0], c.addresses[0]]
    reader = await cluster.stack.enter_async_context(busway.connect(urls[0], urls[1], reconnect=(0.01, 0.05), jitter=0))
    async with reader.subscribe("log/**", since="all") as history:
        for number, publisher in enumerate(publishers):
            await some(publisher, f"log/{number}", 0, 10)
        got = await take(history, 30)
        await b.stop()
        for number in (0, 2):
            await some(publishers[number], f"log/{number}", 10, 10)
        got += await take(history, 20)
        assert reader.url != urls[0]
        assert numbers(got, "log/0") == numbers(got, "log/2") == list(range(20))
        assert numbers(got, "log/1") == list(range(10))


async def test_a_slow_reader_of_another_node_misses_nothing(cluster: Cluster):
    a, b = await cluster.several(2)
    publisher, reader = await cluster.client(a), await cluster.client(b)
    async with reader.subscribe("log/**", since="all", limit=10) as history:
        async with asyncio.TaskGroup() as group:
            for number in range(2000):
                group.create_task(publisher.publish("log/a", str(number).encode() * 1, durable=True))
        assert numbers(await take(history, 2000)) == list(range(2000))


async def test_what_is_too_long_for_a_node_is_told_and_the_rest_comes(cluster: Cluster):
    a = await cluster.start()
    b = await cluster.start(a, settings=busway.Settings(frame=64 * 1024))
    await cluster.whole()
    publisher = await cluster.client(a)
    await some(publisher, "log/a", 0, 5)
    for _ in range(2):
        await publisher.publish("log/a", b"9" * 2_000_000, durable=True)
    await some(publisher, "log/a", 5, 5)
    reader = await cluster.client(b)
    async with reader.subscribe("log/**", since="all") as history:
        assert numbers(await take(history, 10)) == list(range(10))
        assert history.lost == 2
    assert b._hub.peers.members.members.linked


async def test_plain_messages_pass_a_backlog(cluster: Cluster):
    a, b = await cluster.several(2)
    publisher, reader = await cluster.client(a), await cluster.client(b)
    await some(publisher, "log/a", 0, 20)
    async with reader.subscribe("log/**", since="all", limit=5) as history:
        await eventually(lambda: _reaches(publisher))
        got = [message async for message in _until(history, b"plain")]
        assert numbers([message for message in got if message.payload != b"?"]) == list(range(20))


async def _reaches(publisher):
    return await publisher.publish("log/x", b"plain", confirm=True) == 1


async def _until(subscription, last):
    seen = 0
    async with asyncio.timeout(60):
        while seen < 21:
            message = await subscription.recv()
            seen += 1
            if message.payload != last:
                yield message


async def test_what_becomes_safe_while_it_is_read_comes_once(cluster: Cluster):
    """The disk does not wait for whoever reads: what it has written meanwhile is in the answer, and does not come live as well."""
    a, b = await cluster.several(2)
    publisher, reader = await cluster.client(a), await cluster.client(b)
    await some(publisher, "log/a", 0, 3)
    stream = a._hub.streams.by_name["default"]
    read = stream.read

    def late(*given):
        stream.read = read
        stream.log.append([row("log/a", b"3", session=7, number=1)], 0)
        stream.log.flush()
        return read(*given)

    stream.read = late
    async with reader.subscribe("log/**", since="all") as history:
        got = await take(history, 4)
        a._hub.runtime.handle(a._hub.engine.commit(stream.number))  # as when the disk says that it has written
        await some(publisher, "log/a", 4, 1)
        got += await take(history, 1)
    assert numbers(got) == [0, 1, 2, 3, 4]


async def test_a_bucket_that_is_lost_is_told_at_other_nodes_too(cluster: Cluster, tmp_path):
    """Whose topics were in it nobody knows."""
    a = await cluster.start(data=tmp_path / "a")
    bus = await cluster.client(a)
    await bus.create_stream("orders", ["orders/**"], max_bytes=512 << 10)
    for number in range(40):
        await bus.publish("orders/1", bytes(10_000) + str(number).encode(), durable=True)
    await bus.close()
    await a.stop()
    folder = tmp_path / "a" / "streams" / "orders" / "log"
    bases = sorted(int(file.stem) for file in folder.glob("*.log"))
    for end in (".log", ".idx"):
        (folder / f"{bases[2]:020}{end}").unlink()
    lost = bases[3] - bases[2]
    cluster.servers.remove(a)
    a = await cluster.start(data=tmp_path / "a")
    b = await cluster.start(a)
    await cluster.whole()
    for server in (a, b):
        bus = await cluster.client(server)
        events = bus.events()
        async with bus.subscribe("orders/*", since="all") as orders:
            got = [await orders.recv(timeout=60) for _ in range(40 - lost)]
            assert [message.offset for message in got] == [*range(bases[2]), *range(bases[3], 40)]
            async for event in events:
                if event.kind == "gap":
                    assert event.count == lost, server
                    break
