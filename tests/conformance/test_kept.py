"""Retained messages: publish, post and pin, which subscribers get them, and how they are removed."""

import asyncio

import pytest

import busway
from busway.client.typed.protocol import Protocol
from tests.support.net import PATIENCE, Net, gather, payloads, settle, until, within

pytestmark = pytest.mark.both_loops


class State(Protocol, prefix="state"):
    up: bool


def shown(messages: list[busway.Message]) -> list[tuple[str, str, bytes]]:
    return [(message.kind, message.topic, message.payload) for message in messages]


async def test_send_just_sends_a_message(net: Net) -> None:
    """ "send - just sends a message." """
    bus, late = await net.connect(), await net.connect()
    async with bus.subscribe("t") as subscription:
        await bus.send("t", b"x")
        assert shown(await gather(subscription, 1)) == [("publish", "t", b"x")]
    async with late.subscribe("t", notify=True) as subscription:
        assert shown(await gather(subscription, 1)) == [("notify", "t", b"")]
    assert busway.Bus.send is busway.Bus.publish


async def test_a_post_is_sent_to_all_new_subscribers_while_its_client_is_alive(net: Net) -> None:
    """ "post - message will be saved on the servers while the client is alive and sent to all new subscribers." """
    bus, early, late = await net.connect("hdb"), await net.connect(), await net.connect()
    async with early.subscribe("proc/*") as there:
        await bus.post("proc/hdb", b"up")
        (message,) = await gather(there, 1)
        assert (message.kind, message.payload, message.kept, message.sender) == ("post", b"up", False, "hdb")
        first = message.id, message.time_ns
    for _ in range(2):
        async with late.subscribe("proc/*") as subscription:
            (message,) = await gather(subscription, 1)
            assert (message.kind, message.payload, message.kept, message.sender) == ("post", b"up", True, "hdb")
            assert (message.id, message.time_ns) == first
    await bus.close()
    assert await late.kept() == []
    async with late.subscribe("proc/*", notify=True) as subscription:
        assert shown(await gather(subscription, 1)) == [("notify", "proc/*", b"")]


async def test_a_pin_outlives_its_client(net: Net) -> None:
    """ "pin - like post but the message will never be deleted (it can be updated)." """
    bus, late = await net.connect("manager"), await net.connect("other")
    await bus.pin("config/hdb", b"1")
    await bus.pin("config/hdb", b"0", fields={"other": 1})
    await bus.pin("config/hdb", b"2")
    assert await bus.unpin("config/hdb", fields={"other": 1}) is True
    await bus.close()
    async with late.subscribe("config/**") as subscription:
        (message,) = await gather(subscription, 1)
        assert (message.kind, message.payload, message.kept, message.sender) == ("pin", b"2", True, "manager")
    again = await net.connect("manager")
    assert await late.unpin("config/hdb") is False  # the pin of another name
    await again.pin("config/hdb", b"3")
    assert shown(await late.kept("config/*")) == [("pin", "config/hdb", b"3")]
    assert await again.unpin("config/hdb") is True
    assert await again.unpin("config/hdb") is False
    assert await late.kept() == []


async def test_what_is_kept_comes_in_order_before_live_messages(net: Net) -> None:
    """ "inform the subscriber (via cb) that the subscription is added and pending msgs (if any) are sent." """
    bus, other, late = await net.connect("a"), await net.connect("b"), await net.connect()
    await bus.post("k/1", b"1")
    await other.pin("k/2", b"2")
    await bus.pin("k/3", b"3")
    await other.post("k/1", b"4")
    await bus.post("k/1", b"5")  # takes the first one's place, at the end
    async with late.subscribe("k/*", notify=True) as subscription:
        await bus.publish("k/9", b"live")
        messages = await gather(subscription, 6)
    assert [message.payload for message in messages] == [b"2", b"3", b"4", b"5", b"", b"live"]
    assert [message.kind for message in messages] == ["pin", "pin", "post", "post", "notify", "publish"]
    assert [message.kept for message in messages] == [True] * 4 + [False] * 2


async def test_notify_comes_to_a_handler_too(net: Net) -> None:
    bus, late = await net.connect(), await net.connect()
    await bus.post("k", b"kept")
    seen: list[str] = []
    async with late.subscribe("k", notify=True, where={"n": lambda value: True}, handler=lambda m: seen.append(m.kind)):
        await until(lambda: seen == ["notify"])  # what the rules refuse does not come, the word does
    async with late.subscribe("k", notify=True, handler=lambda m: seen.append(m.kind)):
        await until(lambda: seen == ["notify", "post", "notify"])


async def test_notify_of_a_typed_subscription_has_no_value(net: Net) -> None:
    bus, late = await net.connect(), await net.connect()
    await bus.post("hdb", State(up=True))
    async with late.subscribe(State, "*", notify=True) as states:
        assert (await states.recv(timeout=PATIENCE)) == ("state/hdb", State(up=True))
        topic, value = told = await states.recv(timeout=PATIENCE)
        assert (topic, value, told.message.kind) == ("state/*", None, "notify")


async def test_the_key_of_a_post_is_its_topic_and_fields(net: Net) -> None:
    bus, other = await net.connect(fields={"host": "h"}), await net.connect()
    await bus.post("t", b"1", fields={"a": 1, "b": 2})
    await bus.post("t", b"2", fields={"a": 1})
    await bus.post("/t", b"3", fields={"b": 2, "a": 1})
    await bus.post("u", b"4", fields={"a": 1})
    await other.post("t", b"5", fields={"a": 1, "host": "h"})
    assert [message.payload for message in await other.kept()] == [b"2", b"3", b"4", b"5"]
    assert len(bus._posts) == 3
    assert await bus.unpost("t", fields={"b": 2, "a": 1}) is True
    assert await bus.unpost("t", fields={"b": 2, "a": 1}) is False
    assert await bus.unpost("t") is False
    assert [message.payload for message in await other.kept()] == [b"2", b"4", b"5"]


async def test_kept_asks_by_pattern_and_rules(net: Net) -> None:
    bus, other = await net.connect("a"), await net.connect()
    for number in range(5):
        await bus.post(f"k/{number}", b"%d" % number, fields={"n": number})
    await bus.pin("p", b"pin")

    async def found(pattern: str, where: object = None) -> list[bytes]:
        return [message.payload for message in await other.kept(pattern, where=where)]

    assert await found("**") == [b"0", b"1", b"2", b"3", b"4", b"pin"]
    assert await found("k/*", {"n": [1, 3]}) == [b"1", b"3"]
    assert await found("k/*", {"n": lambda value: value > 2}) == [b"3", b"4"]
    assert await found("re:k/[01]") == [b"0", b"1"]
    assert await found("**", busway.expr('topic == "p"')) == [b"pin"]
    with pytest.raises(busway.InvalidTopic):
        await found("a/**b")
    assert not other._core.subscriptions
    assert other.errors == 0


async def test_kept_gives_nothing_but_what_is_kept(net: Net) -> None:
    bus, busy = await net.connect(), await net.connect()
    await bus.post("k", b"kept")
    over = asyncio.Event()

    async def publish() -> None:
        while not over.is_set():
            await busy.publish_many("k", [b"live"] * 10)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publish())
        for _ in range(100):
            assert [message.payload for message in await bus.kept("k")] == [b"kept"]
        over.set()


async def test_rules_and_echo_hold_for_what_is_kept(net: Net) -> None:
    """ "Subscribers use these fields to select specific messages." Also among those that were published before."""
    bus = await net.connect("a")
    await bus.post("k", b"1", fields={"n": "hdb"})
    await bus.post("k", b"2", fields={"n": "rdb"})
    await bus.post("k", b"3")
    rules: list[tuple[object, list[bytes]]] = [
        ("rdb", [b"2"]),
        ("h*", [b"1"]),
        (["hdb", "tp"], [b"1"]),
        (busway.ANY, [b"1", b"2"]),
        (lambda value: value == "rdb", [b"2"]),
    ]
    for rule, expected in rules:
        async with bus.subscribe("k", where={"n": rule}, notify=True) as chosen:
            assert await payloads(chosen, len(expected) + 1) == [*expected, b""]
    async with bus.subscribe("k", echo=False, notify=True) as no:
        assert [message.kind for message in await gather(no, 1)] == ["notify"]


async def test_who_watches_is_told_of_what_goes(net: Net) -> None:
    watcher, bus = await net.connect(), await net.connect("hdb")
    await bus.post("proc/hdb", b"up", fields={"pid": 1})
    async with (
        watcher.subscribe("proc/*", watch=True) as watching,
        watcher.subscribe("proc/*", watch=True, where={"pid": 1}) as mine,
        watcher.subscribe("proc/*", watch=True, where={"pid": 2}) as other,
        watcher.subscribe("proc/*") as plain,
    ):
        await bus.post("proc/hdb", b"busy", fields={"pid": 1})  # replaced, not withdrawn
        await bus.post("proc/x", b"x")
        await bus.unpost("proc/x")
        await bus.pin("proc/p", b"p")
        await bus.unpin("proc/p")
        await bus.close()
        messages = await gather(watching, 7)
        assert shown(messages) == [
            ("post", "proc/hdb", b"up"),
            ("post", "proc/hdb", b"busy"),
            ("post", "proc/x", b"x"),
            ("withdrawn", "proc/x", b"x"),
            ("pin", "proc/p", b"p"),
            ("withdrawn", "proc/p", b"p"),
            ("withdrawn", "proc/hdb", b"busy"),
        ]
        assert (messages[-1].id, messages[-1].fields, messages[-1].sender) == (messages[1].id, {"pid": 1}, "hdb")
        await settle(watcher)
        assert [message.kind for message in await gather(mine, mine.pending)] == ["post", "post", "withdrawn"]
        assert (plain.received, other.received) == (4, 0)


async def test_who_no_longer_watches_is_forgotten(net: Net) -> None:
    watcher, bus = await net.connect(), await net.connect()
    async with watcher.subscribe("**", watch=True) as stays:
        for _ in range(3):
            async with watcher.subscribe("**", watch=True):
                pass
        assert (await watcher.info())["kept"]["watchers"] == 1
        await bus.post("t", b"x")
        await bus.unpost("t")
        assert [message.kind for message in await gather(stays, 2)] == ["post", "withdrawn"]
    assert (await watcher.info())["kept"]["watchers"] == 0


async def test_a_typed_watch_has_the_value_that_is_gone(net: Net) -> None:
    watcher, bus = await net.connect(), await net.connect()
    async with watcher.subscribe(State, "**", watch=True) as states:
        await bus.post("hdb", State(up=True))
        await bus.close()
        assert [(await states.recv(timeout=PATIENCE)).value for _ in range(2)] == [State(up=True)] * 2


async def test_one_client_cannot_keep_more_than_the_limit(net: Net) -> None:
    await net.serve(kept=3, kept_bytes=1000)
    bus, other = await net.connect(), await net.connect()
    for number in range(3):
        await bus.post(f"k/{number}", b"x")
    with pytest.raises(busway.LimitExceeded) as caught:
        await bus.post("k/3", b"x")
    assert caught.value.code == 33
    await bus.post("k/0", b"y")  # in place of another is no more
    with pytest.raises(busway.LimitExceeded):
        await bus.post("k/0", b"z" * 1000)
    assert await other.kept("k/3") == []
    assert [message.payload for message in await other.kept()] == [b"x", b"x", b"y"]
    assert len(bus._posts) == 3
    await bus.unpost("k/1")
    await bus.post("k/3", b"x")
    await other.post("k/3", b"x")


@pytest.mark.parametrize("topic", ["$bus/x", "a/**b", "a\0"])
async def test_what_cannot_be_kept_is_refused(net: Net, topic: str) -> None:
    bus = await net.connect()
    for call in (bus.post, bus.pin, bus.unpost, bus.unpin):
        with pytest.raises(busway.Rejected):
            await call(topic)
    assert len(bus._posts) == 0
    assert bus.state == "connected"


async def test_posts_of_many_at_once_have_one_outcome_each(net: Net) -> None:
    bus, other = await net.connect(), await net.connect()
    await asyncio.gather(*(bus.post(f"k/{number % 10}", str(number)) for number in range(500)))
    assert sorted(int(message.text) for message in await other.kept()) == list(range(490, 500))
    assert await asyncio.gather(*(bus.unpost(f"k/{number % 10}") for number in range(20))) == [True] * 10 + [False] * 10
    assert await other.kept() == []
    assert not bus._posts._by_key


async def test_a_cancelled_post_is_posted_or_not_but_known(net: Net) -> None:
    """What left is answered all the same: the client knows what it posted, and can take it back."""
    bus, other = await net.connect(), await net.connect()
    posting = asyncio.ensure_future(bus.post("k", b"x"))
    await asyncio.sleep(0)
    posting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await posting
    await settle(bus)
    assert [message.payload for message in await other.kept()] == [b"x"]
    assert len(bus._posts) == 1
    assert await bus.unpost("k")


async def test_a_closed_bus_keeps_nothing(net: Net) -> None:
    bus = await net.connect()
    await bus.close()
    for call in (
        lambda: bus.post("t"),
        lambda: bus.pin("t"),
        lambda: bus.unpost("t"),
        lambda: bus.unpin("t"),
        bus.kept,
    ):
        with pytest.raises(busway.Closed):
            await within(call())


async def test_payloads_of_posts_may_be_anything(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("**") as subscription:
        await bus.post("a", "text")
        await bus.pin("b", {"x": 1})
        await bus.post("c")
        await bus.post("hdb", State(up=False))
        assert await payloads(subscription, 4) == [b"text", b'{"x":1}', b"", b'{"up":false}']
