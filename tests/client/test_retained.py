"""Retained messages and lost connections: posts are restored once, before `resumed`; pins stay at the broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import busway
from busway.testing import FaultProxy, stall
from tests.support.connection_events import lose, next_event, restore
from tests.support.net import PATIENCE, Net, gather, payloads, settle, within


async def seen(bus: busway.Bus, pattern: str = "**") -> list[tuple[str, bytes]]:
    return [(message.topic, message.payload) for message in await bus.kept(pattern)]


async def test_posts_outlive_a_short_loss_unnoticed(net: Net) -> None:
    server = await net.serve()
    witness = await net.connect()
    async with (
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, name="hdb", reconnect=(0,)) as bus,
        witness.subscribe("**", watch=True) as watching,
    ):
        events = bus.events()
        await bus.post("a", b"1", fields={"x": 1})
        await bus.post("b", b"2")
        before = [(message.id, message.time_ns) for message in await gather(watching, 2)]
        proxy.reset()
        await next_event(events, "resumed")
        kept = await witness.kept()
        assert [(message.id, message.time_ns) for message in kept] == before
        await settle(witness, bus)
        assert watching.received == 2  # neither withdrawn nor published again
        await bus.post("a", b"3", fields={"x": 1})
        assert await seen(witness) == [("b", b"2"), ("a", b"3")]


async def test_posts_are_back_before_resumed_is_told_and_after_subscriptions(net: Net) -> None:
    """A new server knows nothing: everything comes from the client, in order."""
    first = await busway.serve("tcp://127.0.0.1:0").start()
    address = first.addresses[0]
    async with busway.connect(address, reconnect=(0, 0.005), name="hdb") as bus:
        events = bus.events()
        async with bus.subscribe("**") as own, bus.serve("s", lambda message: b"", shared=True):
            for number in range(20):
                await bus.post(f"k/{number}", str(number))
            await bus.post("k/0", b"again")
            await bus.unpost("k/7")
            await bus.pin("pin", b"")
            await bus.publish("plain", b"")
            times = {message.payload: message.time_ns for message in await gather(own, 23)}
            await first.stop()
            await next_event(events, "lost")
            first = await busway.serve(address).start()
            assert (await next_event(events, "resumed")).error is None
            expected = [str(number).encode() for number in range(1, 20) if number != 7] + [b"again"]
            async with busway.connect(address) as witness:
                again = await witness.kept()
                assert [message.payload for message in again] == expected
                assert all(message.time_ns == times[message.payload] for message in again)
            await settle(bus)
            assert own.pending == 0  # it has seen them all
    await first.stop()


async def test_a_loss_beyond_the_grace_withdraws_until_the_client_is_back(net: Net) -> None:
    server = await net.serve(grace=0)
    witness = await net.connect()
    async with (
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=(0,)) as bus,
        witness.subscribe("k", watch=True) as watching,
    ):
        events = bus.events()
        await bus.post("k", b"1")
        proxy.refusing = True
        proxy.cut()
        assert [message.kind for message in await gather(watching, 2)] == ["post", "withdrawn"]
        assert await seen(witness) == []
        await restore(proxy, events)
        assert await seen(witness) == [("k", b"1")]
        assert [message.kind for message in await gather(watching, 1)] == ["post"]


async def test_a_post_whose_answer_was_lost_has_one_outcome(net: Net) -> None:
    """Sent, maybe kept, not answered: the call goes on waiting, and the post is not published twice."""
    server = await net.serve()
    witness = await net.connect()
    async with (
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=(0,)) as bus,
        witness.subscribe("**", watch=True) as watching,
    ):
        events = bus.events()
        await bus.post("k", b"0")
        await bus.post("old", b"0")
        (await proxy.link()).stall("down")
        posting = asyncio.ensure_future(bus.post("k", b"1"))
        new = asyncio.ensure_future(bus.post("new", b"1"))
        gone = asyncio.ensure_future(bus.unpost("old"))
        shown = [(message.kind, message.topic, message.payload) for message in await gather(watching, 5)]
        assert shown[2:] == [("post", "k", b"1"), ("post", "new", b"1"), ("withdrawn", "old", b"0")]
        assert not posting.done()
        proxy.cut()
        await next_event(events, "resumed")
        await within(asyncio.gather(posting, new, gone))
        assert await seen(witness) == [("k", b"1"), ("new", b"1")]
        await settle(witness, bus)
        assert watching.received == 5
        assert len(bus._posts) == 2


async def test_a_post_that_never_reached_the_broker_is_sent_again(net: Net) -> None:
    server = await net.serve()
    witness = await net.connect()
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        await bus.post("k", b"0")
        (await proxy.link()).stall("up")
        posting = asyncio.ensure_future(bus.post("k", b"1"))
        gone = asyncio.ensure_future(bus.unpost("none"))
        await asyncio.sleep(0)
        proxy.cut()
        await next_event(events, "resumed")
        await within(posting)
        assert await within(gone) is False
        assert await seen(witness) == [("k", b"1")]


async def test_without_a_connection_nothing_is_posted_and_all_is_remembered(net: Net) -> None:
    server = await net.serve()
    witness = await net.connect()
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        await bus.post("k", b"0")
        await lose(proxy, events)
        for call in (
            lambda: bus.post("k", b"1"),
            lambda: bus.unpost("k"),
            lambda: bus.pin("p"),
            lambda: bus.unpin("p"),
        ):
            with pytest.raises(busway.Disconnected):
                await within(call())
        with pytest.raises(busway.Disconnected):
            await within(bus.kept())
        await restore(proxy, events)
        assert await seen(witness) == [("k", b"0")]


@pytest.mark.parametrize(
    ("limit", "posts", "refused"),
    [
        ({"kept": 1}, {"a": b"1", "b": b"2", "c": b"3"}, ["b", "c"]),
        ({"frame": 2048}, {"large": b"x" * 4096, "small": b"x"}, ["large"]),
    ],
    ids=["count", "size"],
)
async def test_posts_that_the_next_server_refuses_are_told(
    limit: dict[str, int], posts: dict[str, bytes], refused: list[str]
) -> None:
    async with (
        busway.serve("tcp://127.0.0.1:0") as first,
        busway.serve("tcp://127.0.0.1:0", settings=busway.Settings(**limit)) as second,
        FaultProxy(first.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=(0,)) as bus,
        second.connect() as witness,
    ):
        events = bus.events()
        for topic, payload in posts.items():
            await bus.post(topic, payload)
        proxy.upstream = second.addresses[0]
        proxy.cut()
        told = [await next_event(events, "rejected") for _ in refused]
        assert [(event.topic, type(event.error)) for event in told] == [
            (topic, busway.LimitExceeded) for topic in refused
        ]
        await next_event(events, "resumed")
        assert await seen(witness) == [(topic, posts[topic]) for topic in posts if topic not in refused]
        assert len(bus._posts) == len(posts) - len(refused)


async def test_a_refused_update_leaves_what_was_posted_before(net: Net) -> None:
    server = await net.serve(kept_bytes=100, grace=0)
    witness = await net.connect()
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        await bus.post("k", b"1")
        with pytest.raises(busway.LimitExceeded):
            await bus.post("k", b"2" * 200)
        assert await seen(witness) == [("k", b"1")]
        proxy.cut()
        await next_event(events, "resumed")
        assert await seen(witness) == [("k", b"1")]


@pytest.mark.parametrize("how", ["close", "lost"])
async def test_whoever_waits_hears_of_the_end(net: Net, how: str) -> None:
    server = await net.serve()
    async with FaultProxy(server.addresses[0]) as proxy:
        bus = await busway.connect(proxy.address, reconnect=None, drain=0.05)
        (await proxy.link()).stall("down")
        posting = asyncio.ensure_future(bus.post("k", b"1"))
        await asyncio.sleep(0)
        if how == "close":
            await bus.close()
        else:
            proxy.cut()
        with pytest.raises(busway.Closed):
            await within(posting)
        await bus.close()


async def test_what_was_seen_of_kept_messages_is_not_repeated_to_a_subscriber_that_comes_back(net: Net) -> None:
    server = await net.serve(grace=0.2)
    poster = await net.connect("poster")
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        await poster.post("k/1", b"1")
        await poster.post("k/2", b"2")
        async with bus.subscribe("k/*", watch=True, notify=True) as subscription:
            assert [message.kind for message in await gather(subscription, 3)] == ["post", "post", "notify"]
            await lose(proxy, events)
            await poster.unpost("k/1")
            await poster.post("k/3", b"3")
            await restore(proxy, events)
            messages = await gather(subscription, 3)
            assert [(message.kind, message.topic) for message in messages] == [
                ("post", "k/3"),
                ("notify", "k/*"),
                ("withdrawn", "k/1"),
            ]
            assert not messages[2].kept


async def test_what_was_withdrawn_meanwhile_is_told_also_while_posts_are_still_being_put_back(net: Net) -> None:
    """Without a time of grace it is sure at once, before the client has told the broker all that it has to."""
    server = await net.serve(grace=0)
    poster = await net.connect("poster")
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        await poster.post("k/1", b"1")
        await bus.post("mine", b"")
        async with bus.subscribe("k/*", watch=True) as subscription:
            assert [message.kind for message in await gather(subscription, 1)] == ["post"]
            await lose(proxy, events)
            await poster.unpost("k/1")
            await restore(proxy, events)
            assert [(message.kind, message.topic) for message in await gather(subscription, 1)] == [
                ("withdrawn", "k/1")
            ]


async def test_a_doubt_of_an_earlier_connection_is_none_of_the_next(net: Net) -> None:
    """What the first connection did not hand over again is not gone while the second is still handing over."""
    grace = 0.3
    server = await net.serve(grace=grace)
    poster = await net.connect("poster")
    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        await poster.post("k/1", b"1")
        await poster.post("k/2", b"2")
        async with bus.subscribe("k/*", watch=True) as subscription:
            await gather(subscription, 2)
            await lose(proxy, events)
            await poster.unpost("k/1")
            proxy.refusing = False
            await next_event(events, "resumed")  # with a doubt about k/1
            proxy.plan(stall("down", frame=1))  # it is greeted, and then hears nothing
            proxy.cut()
            await asyncio.sleep(2 * grace)
            proxy.heal()
            await next_event(events, "resumed")
            await poster.post("k/3", b"3")
            shown = [(message.kind, message.topic) for message in await gather(subscription, 2)]
            assert sorted(shown) == [("post", "k/3"), ("withdrawn", "k/1")]


async def test_a_restarted_broker_tells_no_false_deaths(tmp_path: Path) -> None:
    """Who posts comes back a little later than who watches: nobody died."""
    address, settings = f"unix:{tmp_path / 'bus'}", busway.Settings(grace=30.0)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        first = await enter(busway.serve(address, settings=settings))
        proxy = await enter(FaultProxy(address))
        watcher = await enter(busway.connect(address, reconnect=(0.01,), drain=0))
        poster = await enter(busway.connect(proxy.address, name="p", reconnect=(0.01,), drain=0))
        await poster.post("proc/p", b"up")
        seen, back = watcher.events(), poster.events()
        states = await enter(watcher.subscribe("proc/*", watch=True, notify=True))
        assert [message.kind for message in await gather(states, 2)] == ["post", "notify"]
        proxy.refusing = True
        await first.stop(0)
        await enter(busway.serve(address, settings=settings))
        await next_event(seen, "resumed")
        assert (await within(states.recv())).kind == "notify"
        proxy.refusing = False
        await next_event(back, "resumed")
        await poster.post("proc/q", b"up")
        assert [(message.kind, message.topic) for message in await gather(states, 1)] == [("post", "proc/q")]


async def test_a_broker_that_has_lost_the_last_of_two_is_believed(tmp_path: Path) -> None:
    """It was given back an older copy of its data: what was known is gone, and what it had replaced is kept again."""
    data = tmp_path / "data"
    address, settings = f"unix:{tmp_path / 'bus'}", busway.Settings(grace=0)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        broker = await enter(busway.serve(address, data=data, settings=settings))
        watcher = await enter(busway.connect(address, reconnect=(0.01,), drain=0))
        plain = await enter(watcher.subscribe("k"))
        watching = await enter(watcher.subscribe("k", watch=True))
        events = watcher.events()
        async with busway.connect(address, name="p") as pinner:
            await pinner.pin("k", b"1")
            older = (data / "pins.log").read_bytes()
            await pinner.pin("k", b"2")
        assert await payloads(watching, 2) == await payloads(plain, 2) == [b"1", b"2"]
        await broker.stop(0)
        (data / "pins.log").write_bytes(older)
        await enter(busway.serve(address, data=data, settings=settings))
        await next_event(events, "resumed")
        shown = [(message.kind, message.payload) for message in await gather(watching, 2)]
        assert shown == [("withdrawn", b"2"), ("pin", b"1")]
        assert await payloads(plain, 1) == [b"1"]
        async with busway.connect(address, name="p") as pinner:
            await pinner.unpin("k")
        assert [(message.kind, message.payload) for message in await gather(watching, 1)] == [("withdrawn", b"1")]


async def test_rules_flags_and_asks_are_restored(net: Net) -> None:
    server = await net.serve()
    witness = await net.connect("witness")
    asked: list[bytes] = []

    def ask(message: busway.Message) -> bool:
        asked.append(message.payload)
        return message.payload == b"mine"

    async with FaultProxy(server.addresses[0]) as proxy, busway.connect(proxy.address, reconnect=(0,)) as bus:
        events = bus.events()
        async with (
            bus.subscribe("t", where={"n": 1}) as ruled,
            bus.subscribe("**", listen=True) as listening,
            bus.subscribe("k", watch=True) as watching,
            bus.serve("s", lambda message: b"one", shared=True, ask=ask),
            witness.serve("s", lambda message: b"two", shared=True, ask=lambda message: True),
            witness.serve("x", lambda message: b""),
        ):
            proxy.reset()
            await next_event(events, "resumed")
            await witness.publish("t", b"no", fields={"n": 2})
            await witness.publish("t", b"yes", fields={"n": 1})
            assert await payloads(ruled, 1) == [b"yes"]
            await witness.request("x", b"copied")
            kinds = {message.kind: message.payload for message in await gather(listening, 3)}
            assert kinds["request"] == b"copied"
            await witness.post("k", b"")
            await witness.unpost("k")
            assert [message.kind for message in await gather(watching, 2)] == ["post", "withdrawn"]
            assert (await witness.request("s", b"other")).payload == b"two"
            assert asked == [b"other"]


async def test_buffered_publishes_keep_their_fields(net: Net) -> None:
    server = await net.serve()
    witness = await net.connect()
    buffer = busway.Buffer(bytes=1000, age=60)
    async with (
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=(0,), offline=buffer, fields={"host": "h"}) as bus,
        witness.subscribe("t") as subscription,
    ):
        events = bus.events()
        await lose(proxy, events)
        await bus.publish("t", b"1", fields={"n": 1})
        await bus.publish("t", b"2")
        await bus.publish_many("t", [b"3", 4], fields={"n": 3})
        with pytest.raises(busway.LimitExceeded):  # fields count
            await bus.publish("t", b"", fields={"n": "x" * 1000})
        await restore(proxy, events)
        got = [(message.payload, message.fields) for message in await gather(subscription, 4)]
        many: list[Any] = [(b"3", {"host": "h", "n": 3}), (b"4", {"host": "h", "n": 3})]
        assert got == [(b"1", {"host": "h", "n": 1}), (b"2", {"host": "h"}), *many]


async def test_a_service_that_streams_stops_when_its_connection_is_lost(net: Net) -> None:
    server = await net.serve()
    client = await net.connect()
    ended = asyncio.Event()
    errors: list[BaseException] = []

    async def endless(message: busway.Message) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0)
        finally:
            ended.set()

    async with (
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=(0,), on_error=errors.append, name="endless") as bus,
        bus.serve("s", endless, shared=True),
    ):
        events = bus.events()
        replies = client.request_many("s", timeout=None, each=PATIENCE)
        assert (await within(anext(replies))).payload == b"x"
        proxy.reset()
        await within(ended.wait())
        async with asyncio.timeout(PATIENCE):
            assert {reply.payload async for reply in replies} == {b"x"}
        assert [(failed.sender, type(failed.error)) for failed in replies.failed] == [("endless", busway.ServiceGone)]
        await next_event(events, "resumed")
    assert errors == []
