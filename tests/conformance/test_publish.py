"""Publish and subscribe: which subscribers get a message, how often, and in which order."""

import asyncio

import pytest

import busway
from tests.support.model import matches
from tests.support.net import PATIENCE, Net, gather, payloads, rest, settle, until

pytestmark = pytest.mark.both_loops


async def test_a_subscriber_gets_what_is_published_after_it_entered(net: Net) -> None:
    alice, bob = await net.connect("alice"), await net.connect("bob")
    async with alice.subscribe("price/eth") as prices:
        await bob.publish("price/eth", b"3012.5")
        message = await prices.recv(timeout=PATIENCE)
    assert (message.topic, message.payload, message.sender, message.kind) == ("price/eth", b"3012.5", "bob", "publish")
    assert message.text == "3012.5"
    assert message.json() == 3012.5
    assert len(message.id) == 32
    assert message.time.tzinfo is not None
    assert abs(message.time.timestamp() - message.time_ns / 1e9) < 1e-3


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("lobby/alice", "lobby/alice", True),
        ("lobby/*", "lobby/alice", True),
        ("*/alice", "lobby/alice", True),
        ("**", "lobby/alice", True),
        ("lobby/**", "lobby", True),
        ("lobby/*", "lobby", False),
        ("lobby/alice", "*/alice", True),
        ("lobby/*", "*/alice", True),
        ("lobby/bob", "*/alice", False),
        ("a/**/d", "a/**/c/d", True),
        ("re:lob.*", "lobby/alice", True),
        ("re:lob", "lobby/alice", False),
        ("re:(lobby|hall)/[a-c]+", "hall/abc", True),
        ("re:(lobby|hall)/[a-c]+", "hall/abcd", False),
        ("re:lobby/a.*", "*/alice", True),
        ("re:lobby/b.*", "*/alice", False),
        ("re:.*", "**", True),
        ("", "", True),
        ("**", "", True),
        ("*", "", False),
        ("/lobby/alice", "lobby/alice", True),
        ("lobby/alice", "/lobby/alice", True),
        ("preço/*", "preço/€", True),
    ],
)
async def test_wildcards_on_both_sides(net: Net, pattern: str, topic: str, expected: bool) -> None:
    bus = await net.connect()
    async with bus.subscribe(pattern) as subscription, bus.subscribe("the/end") as end:
        count = await bus.publish(topic, b"x", confirm=True)
        await bus.publish("the/end", b"")
        await end.recv(timeout=PATIENCE)
        others = 1 if matches("the/end", topic) else 0
        assert count == (1 if expected or others else 0)
        got = [message for message in await rest(subscription) if message.payload == b"x"]
        assert [message.topic for message in got] == ([topic.removeprefix("/")] if expected else [])


async def test_order_is_kept_per_publisher_and_topic(net: Net) -> None:
    receiver, first, second = await net.connect(), await net.connect("first"), await net.connect("second")
    async with receiver.subscribe("n/*") as numbers:

        async def publish(bus: busway.Bus) -> None:
            for number in range(2000):
                await bus.publish(f"n/{number % 3}", str(number))

        await asyncio.gather(publish(first), publish(second))
        got = await gather(numbers, 4000)
    for sender in ("first", "second"):
        for topic in ("n/0", "n/1", "n/2"):
            series = [int(message.payload) for message in got if message.sender == sender and message.topic == topic]
            assert series == sorted(series)
            assert len(series) == len(range(int(topic[-1]), 2000, 3))


async def test_a_publisher_gets_its_own_message_unless_it_says_no_echo(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    async with bus.subscribe("t") as echoed, bus.subscribe("t", echo=False) as silent:
        assert await bus.publish("t", b"mine", confirm=True) == 1
        assert await other.publish("t", b"theirs", confirm=True) == 1
        assert await payloads(echoed, 2) == [b"mine", b"theirs"]
        assert await payloads(silent, 1) == [b"theirs"]
        await settle(bus, other)
        assert (echoed.pending, silent.pending) == (0, 0)


async def test_confirm_without_echo_counts_nobody(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t", echo=False):
        assert await bus.publish("t", b"", confirm=True) == 0


async def test_one_copy_per_connection_and_each_subscription_sees_it(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    assert net.server is not None
    async with (
        bus.subscribe("a/b") as exact,
        bus.subscribe("a/*") as star,
        bus.subscribe("**") as everything,
        bus.subscribe("re:a/.") as regular,
        other.subscribe("a/**") as foreign,
    ):
        before = net.server.stats()["messages_delivered"]
        assert await other.publish("a/b", b"once", confirm=True) == 2
        for subscription in (exact, star, everything, regular, foreign):
            assert await payloads(subscription, 1) == [b"once"]
        await settle(bus, other)
        assert [each.pending for each in (exact, star, everything, regular, foreign)] == [0] * 5
        assert net.server.stats()["messages_delivered"] - before == 2


async def test_confirm_counts_receiving_connections(net: Net) -> None:
    buses = [await net.connect() for _ in range(4)]
    assert await buses[0].publish("t", b"", confirm=True) == 0
    async with buses[1].subscribe("t"):
        assert await buses[0].publish("t", b"", confirm=True) == 1
        async with buses[2].subscribe("*"), buses[2].subscribe("**"), buses[3].subscribe("u"):
            assert await buses[0].publish("t", b"", confirm=True) == 2
            assert await buses[0].publish("**", b"", confirm=True) == 3
    assert await buses[0].publish("t", b"", confirm=True) == 0


async def test_publish_many_both_forms(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    async with other.subscribe("m/**") as subscription:
        assert await bus.publish_many("m", [b"%d" % number for number in range(3000)]) == 3000
        pairs = [(f"m/{number % 7}", str(number)) for number in range(3000)]
        assert await bus.publish_many(pairs) == 3000
        assert await bus.publish_many("m", []) == 0
        got = await gather(subscription, 6000)
        assert [int(message.payload) for message in got] == list(range(3000)) * 2
        assert [message.topic for message in got] == ["m"] * 3000 + [topic for topic, _ in pairs]
        await settle(bus, other)
        assert subscription.pending == 0


async def test_publish_many_takes_any_iterable(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("m") as subscription:
        assert await bus.publish_many("m", (str(number) for number in range(5))) == 5
        assert await bus.publish_many(("m", str(number)) for number in range(5)) == 5
        assert await payloads(subscription, 10) == [b"0", b"1", b"2", b"3", b"4"] * 2


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"bytes", b"bytes"),
        (bytearray(b"array"), b"array"),
        (memoryview(b"view"), b"view"),
        ("tëxt", "tëxt".encode()),
        ("", b""),
        (b"", b""),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (7, b"7"),
        (None, b"null"),
        (b"\0" * 300_000, b"\0" * 300_000),
    ],
    ids=["bytes", "bytearray", "memoryview", "str", "empty-str", "empty", "object", "int", "none", "large"],
)
async def test_payloads(net: Net, payload: object, expected: bytes) -> None:
    bus = await net.connect()
    async with bus.subscribe("p") as subscription:
        await bus.publish("p", payload)
        await bus.publish_many("p", [payload, payload])
        assert await bus.publish("p", payload, confirm=True) == 1
        assert await payloads(subscription, 4) == [expected] * 4


async def test_recv_times_out_and_loses_nothing(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        with pytest.raises(busway.Timeout):
            await subscription.recv(timeout=0.01)
        with pytest.raises(TimeoutError):
            await subscription.recv(timeout=0)
        await bus.publish("t", b"later")
        assert (await subscription.recv(timeout=PATIENCE)).payload == b"later"


async def test_async_for_ends_with_the_subscription(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        await bus.publish_many("t", [b"0", b"1", b"2"])
        got = []
        async for message in subscription:
            got.append(message.payload)
            if len(got) == 3:
                await subscription.close()
    assert got == [b"0", b"1", b"2"]


async def test_batches(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        await bus.publish_many("t", [str(number) for number in range(1000)])
        got: list[bytes] = []
        async for batch in subscription.batches(most=64):
            assert 1 <= len(batch) <= 64
            got += [message.payload for message in batch]
            if len(got) == 1000:
                break
        assert got == [b"%d" % number for number in range(1000)]


async def test_a_handler_runs_with_the_concurrency_it_asked_for(net: Net) -> None:
    bus = await net.connect()
    running, most, handled, gate = 0, 0, asyncio.Event(), asyncio.Semaphore(0)
    count = 0

    async def handler(message: busway.Message) -> None:
        nonlocal running, most, count
        running += 1
        most = max(most, running)
        await gate.acquire()
        running -= 1
        count += 1
        if count == 12:
            handled.set()

    async with bus.subscribe("work", handler=handler, concurrency=3):
        await bus.publish_many("work", [b"x"] * 12)
        await until(lambda: running == 3)
        await settle(bus)
        assert running == 3
        for _ in range(12):
            gate.release()
        async with asyncio.timeout(PATIENCE):
            await handled.wait()
    assert most == 3


async def test_a_handler_with_concurrency_one_keeps_the_order(net: Net) -> None:
    bus = await net.connect()
    seen: list[int] = []
    done = asyncio.Event()

    async def handler(message: busway.Message) -> None:
        await asyncio.sleep(0)
        seen.append(int(message.payload))
        if len(seen) == 100:
            done.set()

    async with bus.subscribe("work", handler=handler):
        await bus.publish_many("work", [str(number) for number in range(100)])
        async with asyncio.timeout(PATIENCE):
            await done.wait()
    assert seen == list(range(100))


async def test_a_raising_handler_is_reported_and_the_next_message_still_comes(net: Net) -> None:
    errors: list[BaseException] = []
    bus = await net.connect(on_error=errors.append)
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    def handler(message: busway.Message) -> None:
        if message.payload == b"bad":
            raise ZeroDivisionError("by design")
        seen.put_nowait(message.payload)

    async with bus.subscribe("work", handler=handler):
        await bus.publish_many("work", [b"bad", b"good"])
        async with asyncio.timeout(PATIENCE):
            assert await seen.get() == b"good"
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_unsubscribing_one_of_two_identical_keeps_the_other(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as kept:
        async with bus.subscribe("t") as left:
            await bus.publish("t", b"both")
            assert await payloads(left, 1) == await payloads(kept, 1) == [b"both"]
        assert await bus.publish("t", b"one", confirm=True) == 1
        assert await payloads(kept, 1) == [b"one"]
        assert left.pending == 0
    assert await bus.publish("t", b"none", confirm=True) == 0


async def test_publishing_to_everything_harms_nobody(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    async with other.subscribe("x") as x, other.serve("service", lambda message: b"alive"):
        for topic in ("**", "*", "*/kill", "bus/kill", "**/*"):
            await bus.publish(topic, b"boom")
        await settle(bus, other)
        assert await payloads(x, 3) == [b"boom"] * 3  # **, * and **/*
        assert (await bus.request("service")).payload == b"alive"
        assert (await bus.info())["guid"] == bus.server["guid"]


@pytest.mark.parametrize("topic", ["a//b", "a/", "a*", "***", "a/\0", "//a", "a\nb"])
async def test_invalid_topics_are_refused_with_a_clear_error(net: Net, topic: str) -> None:
    bus = await net.connect()
    with pytest.raises(busway.InvalidTopic) as caught:
        await bus.publish(topic, b"")
    assert isinstance(caught.value, ValueError)
    with pytest.raises(busway.InvalidTopic):
        await bus.publish_many(topic, [b""])
    with pytest.raises(busway.InvalidTopic):
        await bus.push(topic)
    with pytest.raises(busway.InvalidTopic):
        await bus.request(topic)
    with pytest.raises(busway.InvalidTopic):
        async with bus.subscribe(topic):
            pass
    with pytest.raises(busway.InvalidTopic):
        async with bus.serve(topic, lambda message: b""):
            pass
    assert await bus.publish("still/here", b"", confirm=True) == 0


@pytest.mark.parametrize("pattern", ["re:(", "re:[a", "re:*", "re:(?=a)", "re:(a)\\1", "re:" + "(a{100}){100}{100}"])
async def test_invalid_regular_expressions_are_refused(net: Net, pattern: str) -> None:
    bus = await net.connect()
    with pytest.raises(busway.InvalidPattern) as caught:
        async with bus.subscribe(pattern):
            pass
    assert caught.value.code == 21
    assert caught.value.reason
    assert await bus.publish("still/here", b"", confirm=True) == 0


async def test_topics_of_the_broker_are_for_requests_only(net: Net) -> None:
    bus = await net.connect()
    topic = "$bus/info"
    assert (await bus.request(topic)).json()["guid"] == bus.server["guid"]
    for mine in (topic, "$bus/mine", "/$bus/mine", "$bus"):
        for publish in (
            lambda mine=mine: bus.publish(mine, b""),
            lambda mine=mine: bus.publish(mine, {"a": 1}),
            lambda mine=mine: bus.publish(mine, b"", confirm=True),
            lambda mine=mine: bus.publish_many(mine, [b""]),
            lambda mine=mine: bus.publish_many([(mine, b"")]),
            lambda mine=mine: bus.push(mine, b""),
        ):
            with pytest.raises(busway.Forbidden, match="belongs to the broker") as caught:
                await publish()
            assert caught.value.code == 24
    with pytest.raises(busway.Forbidden):
        async with bus.serve("$bus/mine", lambda message: b""):
            pass
    for free in ("$busy", "$bus2/x", "a/$bus"):
        assert await bus.publish(free, b"", confirm=True) == 0
    assert (await bus.request(topic)).json()["guid"] == bus.server["guid"]


@pytest.mark.parametrize("payload", [b"bytes", "text", {"an": "object"}])
async def test_a_publish_can_be_a_task(net: Net, payload: object) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        assert await asyncio.create_task(bus.publish("t", payload)) is None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bus.publish("t", payload))
            confirmed = tasks.create_task(bus.publish("t", payload, confirm=True))
        assert confirmed.result() == 1
        await asyncio.gather(bus.publish("t", payload), bus.publish("t", payload))
        await asyncio.wait_for(bus.publish("t", payload), 60)
        await asyncio.ensure_future(bus.publish("t", payload))
        task = asyncio.tasks._PyTask(bus.publish("t", payload), loop=asyncio.get_running_loop())  # the one without C
        assert "publish" in repr(task) or "Done" in repr(task)
        await task
        assert len(await payloads(subscription, 8)) == 8


async def test_a_publish_that_is_cancelled_before_its_turn_has_gone_out(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t") as subscription:
        task = asyncio.create_task(bus.publish("t", b"gone"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await payloads(subscription, 1) == [b"gone"]
