"""Slow consumers: memory stays limited, other clients continue, and missed messages are counted exactly.

A client is made to stand still (`held`) by its transport no longer reading: all that the broker has for it piles up there. A
consumer that doesn't take what its client has is another thing: the client goes on and says so to the broker.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

import busway
from tests.support.connection_events import abort, next_event
from tests.support.net import PATIENCE, Net, gather, rest, settle, until

pytestmark = pytest.mark.both_loops(every=True)

SIZE = 32 << 10
COUNT = 1200  # 37 MiB: more than the sockets, the read buffers and the outbox together take
OUTBOX = 1 << 20


def payload(number: int) -> bytes:
    return number.to_bytes(4, "little").ljust(SIZE, b".")


def numbers(messages: list[busway.Message]) -> list[int]:
    return [int.from_bytes(message.payload[:4], "little") for message in messages]


@asynccontextmanager
async def held(bus: busway.Bus):
    """The bus reads nothing from its connection, until the yielded function is called."""
    connection = bus._core.connection
    assert connection is not None
    connection.transport.pause_reading()
    yield connection.transport.resume_reading


async def publish_all(publisher: busway.Bus, topic: str = "t") -> None:
    for number in range(COUNT):
        await publisher.publish(topic, payload(number))
    await publisher.flush(timeout=PATIENCE)


def told(messages: list[busway.Message]) -> int:
    return sum(message.missed for message in messages)


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_new", "block"])
async def test_received_and_missed_make_all(net: Net, policy: busway.Policy) -> None:
    server = await net.serve(outbox=OUTBOX, stall=0.3)
    slow, publisher, quick = await net.connect("slow"), await net.connect(), await net.connect()
    async with (
        slow.subscribe("t", policy=policy, limit_bytes=1 << 30) as subscription,
        quick.subscribe("t", limit_bytes=1 << 30) as others,
        held(slow) as release,
    ):
        await publish_all(publisher)
        assert numbers(await gather(others, COUNT)) == list(range(COUNT))
        assert others.missed == 0
        assert server.stats()["outbox_bytes"] <= OUTBOX + 4 * SIZE
        assert server.stats()["messages_dropped"] > 0
        release()
        await slow.flush(timeout=PATIENCE)
        got = await rest(subscription)
        assert numbers(got) == sorted(numbers(got))
        assert len(got) + subscription.missed == COUNT
        assert subscription.missed > 0
        assert subscription.received == len(got)
        if policy == "drop_oldest":
            assert numbers(got)[-1] == COUNT - 1
        if policy == "drop_new":
            assert numbers(got)[0] == 0
        # It is told in band, before the message that comes after the hole; a hole at the end is told with the next message.
        await publisher.publish("t", payload(COUNT))
        (last,) = await gather(subscription, 1)
        assert numbers([last]) == [COUNT]
        assert told(got) + last.missed == subscription.missed
        if policy != "drop_new":
            previous = -1
            for message, number in zip(got, numbers(got), strict=True):
                assert message.missed == number - previous - 1
                previous = number
        # And from here on it is a consumer like any other.
        await publisher.publish_many("t", [payload(number) for number in range(10)])
        assert numbers(await gather(subscription, 10)) == list(range(10))


async def test_disconnect(net: Net) -> None:
    await net.serve(outbox=OUTBOX, stall=0.3)
    slow, publisher, quick = await net.connect("slow", reconnect=None), await net.connect(), await net.connect()
    async with quick.subscribe("t", limit_bytes=1 << 30) as others:
        subscription = await slow.subscribe("t", policy="disconnect", limit_bytes=1 << 30)
        async with held(slow) as release:
            await publish_all(publisher)
            assert numbers(await gather(others, COUNT)) == list(range(COUNT))
            release()
            got = []
            with pytest.raises(busway.SlowConsumer) as caught:
                async with asyncio.timeout(PATIENCE):
                    while True:
                        got.append(await subscription.recv())
            assert caught.value.code == 7
            assert numbers(got) == list(range(len(got)))
            assert len(got) < COUNT
            assert slow.state == "closed"
        await settle(publisher)
        assert await publisher.publish("t", b"\0\0\0\0", confirm=True) == 1


async def test_after_a_disconnect_the_other_subscriptions_come_back(net: Net) -> None:
    """The subscription that asked for it has visibly ended; what else the client has is live again."""
    await net.serve(outbox=OUTBOX, stall=0.3)
    slow, publisher = await net.connect("slow"), await net.connect()
    events = slow.events()
    async with slow.subscribe("u") as other:
        subscription = await slow.subscribe("t", policy="disconnect", limit_bytes=1 << 30)
        async with held(slow) as release:
            await publish_all(publisher)
            release()
            kinds: list[str] = []
            async with asyncio.timeout(PATIENCE):
                while "resumed" not in kinds:
                    kinds.append((await anext(events)).kind)
            assert kinds.index("lost") < kinds.index("resumed")
            assert await publisher.publish("u", b"back", confirm=True) == 1
            assert [message.payload for message in await gather(other, 1)] == [b"back"]
            with pytest.raises(busway.SlowConsumer):
                async with asyncio.timeout(PATIENCE):
                    while True:
                        await subscription.recv()
            assert await publisher.publish("t", b"", confirm=True) == 0


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_new"])
async def test_a_full_inbox_of_the_client_drops_by_policy(net: Net, policy: busway.Policy) -> None:
    slow, publisher = await net.connect(), await net.connect()
    async with slow.subscribe("t", policy=policy, limit=10) as subscription:
        await publisher.publish_many("t", [str(number) for number in range(1000)])
        await settle(publisher, slow)
        got = await rest(subscription)
        expected = range(990, 1000) if policy == "drop_oldest" else range(10)
        assert [int(message.payload) for message in got] == list(expected)
        assert (subscription.missed, subscription.received) == (990, 10)
        if policy == "drop_oldest":
            assert got[0].missed == 990


@pytest.mark.parametrize("policy", ["block", "disconnect"])
async def test_a_burst_above_a_small_limit_is_not_dropped(net: Net, policy: busway.Policy) -> None:
    """Neither policy lets the client drop: it tells the broker, which does what the policy says with what comes after."""
    slow, publisher = await net.connect(), await net.connect()
    async with slow.subscribe("t", policy=policy, limit=10) as subscription:
        await publisher.publish_many("t", [str(number) for number in range(1000)])
        await publisher.flush()
        assert [int(message.payload) for message in await gather(subscription, 1000)] == list(range(1000))
        assert (subscription.missed, subscription.received) == (0, 1000)


async def test_block_holds_the_publisher_back_and_loses_nothing(net: Net) -> None:
    """A consumer that is slow but not stuck: the publisher waits for it, memory stays bounded, nothing is dropped."""
    server = await net.serve(outbox=OUTBOX, stall=60)
    slow, publisher = await net.connect(), await net.connect()
    async with slow.subscribe("t", limit=8) as subscription:
        published = 0

        async def publish() -> None:
            nonlocal published
            for number in range(COUNT):
                await publisher.publish("t", payload(number))
                published = number + 1

        publishing = asyncio.ensure_future(publish())
        received = 0
        while received < COUNT:
            (message,) = await gather(subscription, 1)
            assert numbers([message]) == [received]
            received += 1
            assert server.stats()["outbox_bytes"] <= OUTBOX + 4 * SIZE
        await publishing
        assert (subscription.missed, published) == (0, COUNT)


async def test_a_stuck_consumer_does_not_stop_other_traffic_of_the_publisher(net: Net) -> None:
    """After the stall time the stuck one is passed over; the publisher's other topics never had to do with it."""
    await net.serve(outbox=OUTBOX, stall=0.3)
    slow, publisher, quick = await net.connect(), await net.connect(), await net.connect()
    async with (
        slow.subscribe("t", limit_bytes=1 << 30) as stuck,
        quick.subscribe("u", limit_bytes=1 << 30) as others,
        quick.serve("s", lambda message: b"ok"),
        held(slow) as release,
    ):
        for number in range(COUNT):
            await publisher.publish("t", payload(number))
            if number % 100 == 0:
                await publisher.publish("u", payload(number))
                assert (await publisher.request("s", timeout=PATIENCE)).payload == b"ok"
        assert numbers(await gather(others, COUNT // 100)) == list(range(0, COUNT, 100))
        release()
        await settle(publisher, slow)
        assert len(await rest(stuck)) + stuck.missed == COUNT


async def test_missed_messages_are_an_event(net: Net) -> None:
    slow, publisher = await net.connect(), await net.connect()
    events = slow.events()
    async with slow.subscribe("t", policy="drop_new", limit=1):
        await publisher.publish_many("t", [b""] * 5)
        await next_event(events, "missed")


async def test_a_full_subscription_does_not_hold_up_the_rest_of_its_connection(net: Net) -> None:
    await net.serve(stall=60)
    both, publisher = await net.connect(), await net.connect()
    async with (
        both.subscribe("full", limit=10, patience=PATIENCE) as full,
        both.subscribe("other") as other,
        both.serve("s", lambda message: b"ok"),
    ):
        await publisher.publish_many("full", [b""] * 20)
        await settle(publisher, both)
        assert full.full
        await publisher.publish_many("other", [str(number) for number in range(100)])
        assert [int(message.payload) for message in await gather(other, 100)] == list(range(100))
        assert (await publisher.request("s", timeout=PATIENCE)).payload == b"ok"
        assert full.pending == 20


async def test_publishers_wait_for_a_full_subscription_and_go_on_when_it_has_room(net: Net) -> None:
    server = await net.serve(stall=60)
    slow, publisher, other = await net.connect(), await net.connect(), await net.connect()
    async with slow.subscribe("full", limit=10, patience=PATIENCE) as full, other.subscribe("free") as free:
        await publisher.publish_many("full", [b"0"] * 20)
        await settle(publisher, slow)
        assert server.stats()["slow_consumers"] == 1
        await publisher.publish("full", b"1")
        await publisher.publish("free", b"2")
        assert (await other.info())["stats"]["slow_consumers"] == 1
        assert (full.pending, free.pending) == (20, 0)
        assert [message.payload for message in await gather(full, 21)] == [b"0"] * 20 + [b"1"]
        assert [message.payload for message in await gather(free, 1)] == [b"2"]
        assert full.missed == 0
        await settle(slow)
        assert server.stats()["slow_consumers"] == 0


async def test_a_consumer_that_asks_for_each_message_misses_nothing(net: Net) -> None:
    """Its answers come through the connection that its messages wait on."""
    await net.serve(stall=0.3)
    worker, publisher = await net.connect(), await net.connect()
    count = 3000

    async def work(message: busway.Message) -> None:
        await worker.request("s", message.payload, timeout=PATIENCE)
        done.append(int(message.payload))

    done: list[int] = []
    async with (
        publisher.serve("s", lambda message: message.payload),
        worker.subscribe("t", limit=50, handler=work) as subscription,
    ):
        await publisher.publish_many("t", [str(number) for number in range(count)])
        async with asyncio.timeout(PATIENCE):
            while len(done) < count:
                await worker.flush(timeout=PATIENCE)
        assert done == list(range(count))
        assert subscription.missed == 0


async def test_a_consumer_that_takes_less_than_the_stall_time_allows_is_waited_for(net: Net) -> None:
    """One message at a time, each after more than the stall time: slow, and yet not stuck."""
    await net.serve(stall=0.25)
    slow, publisher = await net.connect(), await net.connect()
    async with slow.subscribe("t", limit=2) as subscription:
        await publisher.publish_many("t", [str(number) for number in range(4)])
        await settle(publisher, slow)
        publishing = asyncio.ensure_future(publisher.publish_many("t", [str(number) for number in range(4, 8)]))
        taken = []
        for _ in range(8):
            taken += [int(message.payload) for message in await gather(subscription, 1)]
            await asyncio.sleep(0.3)  # the work that makes it slow
        await publishing
        assert taken == list(range(8))
        assert subscription.missed == 0


async def test_a_consumer_that_takes_nothing_loses_its_patience_and_hears_of_it(net: Net) -> None:
    """Nobody takes: publishers go on after the patience and the stall time, and what is dropped is told exactly."""
    server = await net.serve(stall=0.1)
    slow, publisher, quick = await net.connect(), await net.connect(), await net.connect()
    async with (
        slow.subscribe("t", limit=10, patience=0) as stuck,
        quick.subscribe("t") as others,
    ):
        await publisher.publish_many("t", [b"0"] * 10)
        await settle(publisher, slow)
        for number in range(100):
            await publisher.publish("t", str(number))
        await publisher.flush(timeout=PATIENCE)
        assert len(await gather(others, 110)) == 110
        await settle(publisher, slow)
        assert server.stats()["messages_dropped"] == stuck.missed > 0
        got = await gather(stuck, 110 - stuck.missed)
        assert len(got) + stuck.missed == 110
        await settle(slow)
        await publisher.publish("t", b"again")
        (message,) = await gather(stuck, 1)
        assert (message.payload, message.missed) == (b"again", stuck.missed)


async def test_a_full_subscription_with_the_policy_disconnect_ends_visibly(net: Net) -> None:
    await net.serve()
    slow, publisher = await net.connect(reconnect=None), await net.connect()
    subscription = await slow.subscribe("t", policy="disconnect", limit=10)
    await publisher.publish_many("t", [b""] * 10)
    await settle(publisher, slow)
    await publisher.publish("t", b"one too many")
    assert len(await gather(subscription, 10)) == 10
    with pytest.raises(busway.SlowConsumer):
        await subscription.recv(timeout=PATIENCE)


async def test_after_a_reconnect_a_full_subscription_is_still_held(net: Net) -> None:
    server = await net.serve(stall=60)
    slow, publisher = await net.connect(), await net.connect()
    events = slow.events()
    async with slow.subscribe("t", limit=10, patience=PATIENCE) as full:
        await publisher.publish_many("t", [b""] * 10)
        await settle(publisher, slow)
        abort(slow)
        await next_event(events, "resumed")
        await settle(slow)
        assert server.stats()["slow_consumers"] == 1
        await publisher.publish("t", b"waits")
        await gather(full, 10)
        assert [message.payload for message in await gather(full, 1)] == [b"waits"]


async def test_back_pressure_passes_through_a_relay(net: Net) -> None:
    """Source, relay, slow sink: the source is slowed down to the sink, and all of them miss nothing."""
    await net.serve(stall=0.25)
    source, relay, sink = await net.connect(), await net.connect(), await net.connect()
    count = 150
    got: list[int] = []
    all_there = asyncio.Event()

    async def slowly(message: busway.Message) -> None:
        await asyncio.sleep(0.005)  # the work that makes it slow
        got.append(int(message.payload))
        if len(got) == count:
            all_there.set()

    async with (
        sink.subscribe("out", limit=5, handler=slowly) as last,
        relay.subscribe("in", limit=5, handler=lambda message: relay.publish("out", message.payload)) as middle,
    ):
        for number in range(count):
            await source.publish("in", str(number))
        async with asyncio.timeout(PATIENCE):
            await all_there.wait()
        assert got == list(range(count))
        assert (middle.missed, last.missed) == (0, 0)


async def test_only_the_publishes_of_a_publisher_wait(net: Net) -> None:
    """Its services answer, its requests and subscriptions go on, and it can leave."""
    await net.serve(stall=60)
    slow, publisher, other = await net.connect(), await net.connect(), await net.connect()
    async with (
        slow.subscribe("full", limit=5, patience=PATIENCE) as full,
        other.serve("theirs", lambda message: b"ok"),
        publisher.serve("mine", lambda message: b"ok"),
    ):
        await publisher.publish_many("full", [b""] * 5)
        await settle(publisher, slow)
        many = asyncio.ensure_future(publisher.publish_many("full", [bytes(64 << 10)] * 20))
        await until(lambda: publisher._core.connection and publisher._core.connection.stopped)
        assert (await other.request("mine", timeout=PATIENCE)).payload == b"ok"
        assert (await publisher.request("theirs", timeout=PATIENCE)).payload == b"ok"
        async with publisher.subscribe("new") as new:
            await other.publish("new", b"x")
            assert [message.payload for message in await gather(new, 1)] == [b"x"]
        publishing = asyncio.ensure_future(publisher.publish("full", b"waits here"))
        confirmed = asyncio.ensure_future(publisher.publish("full", b"and here", confirm=True))
        await settle(other)
        assert not publishing.done()
        assert not confirmed.done()
        got = [message.payload for message in await gather(full, 27)]
        assert sorted(got, key=len) == [b""] * 5 + [b"and here", b"waits here"] + [bytes(64 << 10)] * 20
        assert await many == 20
        await publishing
        assert await confirmed == 1


async def test_a_handler_may_publish_to_its_own_full_subscription(net: Net) -> None:
    await net.serve(stall=0.25)
    bus = await net.connect()
    done = asyncio.Event()
    seen = 0

    async def again(message: busway.Message) -> None:
        nonlocal seen
        seen += 1
        if seen < 300:
            await bus.publish("t", b"")
        elif seen == 320:
            done.set()

    async with bus.subscribe("t", limit=5, handler=again) as subscription:
        for _ in range(21):
            await bus.publish("t", b"")
        async with asyncio.timeout(PATIENCE):
            await done.wait()
        assert subscription.missed == 0


async def test_no_echo_means_no_waiting_for_oneself(net: Net) -> None:
    await net.serve(stall=60)
    one, two = await net.connect(), await net.connect()
    async with one.subscribe("chat", echo=False, limit=5, patience=PATIENCE) as mine:
        await two.publish_many("chat", [b""] * 5)
        await settle(two, one)
        assert await one.publish("chat", b"mine", confirm=True) == 0
        assert (mine.pending, mine.missed) == (5, 0)


async def test_a_group_waits_although_the_publisher_is_a_member_without_echo(net: Net) -> None:
    await net.serve(stall=60)
    publisher, worker = await net.connect(), await net.connect()
    async with (
        publisher.subscribe("jobs", group="g", echo=False),
        worker.subscribe("jobs", group="g", limit=5, patience=PATIENCE) as jobs,
    ):
        await publisher.publish_many("jobs", [str(number) for number in range(30)])
        assert [int(message.payload) for message in await gather(jobs, 30)] == list(range(30))
        assert jobs.missed == 0


async def test_a_server_that_stops_delivers_what_held_publishers_have_sent(net: Net) -> None:
    server = await net.serve(stall=60, drain=PATIENCE)
    slow, publisher = await net.connect(reconnect=None), await net.connect(reconnect=None)
    subscription = await slow.subscribe("t", limit=5, patience=PATIENCE)
    await publisher.publish_many("t", [str(number) for number in range(30)])
    stopping = asyncio.ensure_future(server.stop())
    got = [int(message.payload) for message in await gather(subscription, 30)]
    assert got == list(range(30))
    await stopping


async def test_the_broker_bounds_the_patience_of_a_subscription(net: Net) -> None:
    await net.serve(stall=60, patience=0.2)
    stuck, publisher, quick = await net.connect(), await net.connect(), await net.connect()
    async with stuck.subscribe("t", limit=5, patience=1e6) as never, quick.subscribe("t") as others:
        await publisher.publish_many("t", [b""] * 5)
        await settle(publisher, stuck)
        await publisher.publish_many("t", [b""] * 5)
        assert len(await gather(others, 10)) == 10
        await settle(publisher, stuck)
        assert never.missed + never.pending == 10
        assert never.missed > 0
