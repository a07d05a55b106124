"""The document of the older bus with addresses, sentence by sentence: each test quotes the sentence it keeps.

"Servers connect to each other" is the cluster's and has its tests there.
"""

import asyncio

import pytest

import busway
from tests.support.net import PATIENCE, Net, gather, payloads, rest, settle, until

pytestmark = pytest.mark.both_loops


async def test_send(net: Net) -> None:
    """ "send - just sends a message." """
    bus, late = await net.connect(), await net.connect()
    async with bus.subscribe("t") as here:
        await bus.send("t", b"x", fields={"event": "hdb.reload"})
        assert [message.kind for message in await gather(here, 1)] == ["publish"]
    async with late.subscribe("t") as after:
        await settle(bus, late)
        assert after.pending == 0


async def test_post(net: Net) -> None:
    """ "post - message will be saved on the servers while the client is alive and sent to all new subscribers." """
    await net.serve(grace=0.05)
    poster, late = await net.connect("tp"), await net.connect()
    async with poster.subscribe("t") as now:
        await poster.post("t", b"up", fields={"proc": "tp"})
        (live,) = await gather(now, 1)
        assert (live.kind, live.kept) == ("post", False)
    for _ in range(2):
        async with late.subscribe("t") as after:
            (message,) = await gather(after, 1)
            assert (message.kind, message.kept, message.payload, message.sender) == ("post", True, b"up", "tp")
            assert message.fields == {"proc": "tp"}
    await poster.close()
    async with late.subscribe("t") as after:
        await settle(late)
        assert after.pending == 0


async def test_pin(net: Net) -> None:
    """ "pin - like post but the message will never be deleted (it can be updated)." """
    await net.serve(grace=0.0)
    manager, late = await net.connect("manager"), await net.connect()
    await manager.pin("config", b"1", fields={"process": "hdb"})
    await manager.pin("config", b"2", fields={"process": "tp"})
    await manager.pin("config", b"3", fields={"process": "hdb"})
    await manager.close()
    await settle(late)
    async with late.subscribe("config") as after:
        got = await gather(after, 2)
        assert [(message.payload, message.kind) for message in got] == [(b"2", "pin"), (b"3", "pin")]


async def test_fields_can_contain_any_data(net: Net) -> None:
    """ "The publisher must provide at least one address field. These fields can contain any data." The topic is one always."""
    bus = await net.connect()
    fields = {"text": "é", "raw": b"\0\xff", "none": None, "yes": True, "int": -5, "big": 2**64 - 1, "float": 0.5}
    fields |= {"list": [1, "a", [b"x"]], "map": {"a": {"b": [1]}}}
    async with bus.subscribe("t") as subscription:
        await bus.publish("t", b"", fields=fields)
        await bus.publish("t", b"")
        assert [message.fields for message in await gather(subscription, 2)] == [fields, {}]


async def test_subscribers_select_by_fields(net: Net) -> None:
    """ "Subscribers use these fields to select specific messages." """
    bus = await net.connect()
    async with bus.subscribe("**", where={"event": "hdb.reload"}) as subscription:
        await bus.publish("t", b"no", fields={"event": "other"})
        await bus.publish("t", b"no")
        await bus.publish("t", b"yes", fields={"event": "hdb.reload"})
        assert await payloads(subscription, 1) == [b"yes"]


async def test_default_fields(net: Net) -> None:
    """ "An MBus client/server can be configured with default address fields (like region, host), they will be added to each
    message." Those of the server win."""
    server = await net.serve(fields={"region": "emea", "host": "h1"})
    assert server is not None
    bus = await net.connect(fields={"asset": "stock", "host": "mine", "proc": "hdb"})
    async with bus.subscribe("t") as subscription, bus.serve("s", lambda request: request.fields):
        await bus.publish("t", b"")
        await bus.publish("t", b"", fields={"proc": "own"})
        await bus.push("t", b"")
        common = {"asset": "stock", "region": "emea", "host": "h1"}
        got = [message.fields for message in await gather(subscription, 3)]
        assert got == [common | {"proc": "hdb"}, common | {"proc": "own"}, common | {"proc": "hdb"}]
        assert (await bus.request("s")).json() == common | {"proc": "hdb"}


async def test_reserved_names(net: Net) -> None:
    """ "Names that start with "." are reserved." """
    bus = await net.connect()
    for call in (
        lambda: bus.publish("t", b"", fields={".id": "me"}),
        lambda: bus.post("t", b"", fields={".x": 1}),
        lambda: bus.push("t", b"", fields={".x": 1}),
        lambda: bus.request("t", b"", fields={".x": 1}),
    ):
        with pytest.raises(busway.InvalidFields, match=r"\.") as caught:
            await call()
        assert caught.value.code == 27


RULES = [
    pytest.param("h*", ["hdb", "hstat"], id="pattern"),
    pytest.param(["hdb", "hstat"], ["hdb", "hstat"], id="in"),
    pytest.param(lambda value: value in ("hdb", "hstat"), ["hdb", "hstat"], id="function"),
    pytest.param(busway.ANY, ["hdb", "hstat", "rdb", 5], id="present"),
    pytest.param("hdb", ["hdb"], id="equal"),
]


@pytest.mark.parametrize(("rule", "expected"), RULES)
async def test_rules(net: Net, rule: object, expected: list[object]) -> None:
    """ "if a field contains a string that contains a "*", then the field is treated as a pattern. · if a field contains a list of
    atoms/strings and the incoming message has an atom/string in this field then "in" is used. · if a field contains a function,
    the function is called with the incoming value and must return a bool to indicate match/no match. · if a field contains
    (::), then the field must be present in the incoming message, its value is irrelevant." """
    publisher, subscriber = await net.connect(), await net.connect()
    where = {"event": "hdb.reload", "asset": busway.ANY, "proc": rule}
    async with subscriber.subscribe("**", where=where) as subscription:
        for proc in ("hdb", "hstat", "rdb", 5):
            await publisher.send("proc", b"", fields={"event": "hdb.reload", "asset": "fx", "proc": proc})
        await publisher.send("proc", b"", fields={"event": "hdb.reload", "proc": "hdb"})
        await publisher.send("proc", b"", fields={"event": "hdb.reload", "asset": "fx"})
        await publisher.send("proc", b"", fields={"event": "other", "asset": "fx", "proc": "hdb"})
        await settle(publisher, subscriber)
        assert [message.fields["proc"] for message in await rest(subscription)] == expected
        assert subscription.missed == 0


async def test_a_list_of_the_message_is_no_atom(net: Net) -> None:
    """ "… and the incoming message has an atom/string in this field then "in" is used": a list must be equal."""
    bus = await net.connect()
    async with bus.subscribe("t", where={"proc": ["a", "b"]}) as subscription:
        for proc in (["a"], ["a", "b"], "b"):
            await bus.publish("t", b"", fields={"proc": proc})
        await settle(bus)
        assert [message.fields["proc"] for message in await rest(subscription)] == [["a", "b"], "b"]


async def test_a_function_that_fails_is_no_match(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t", where={"n": lambda value: 1 / value > 0}) as subscription:
        for number in (0, 1):
            await bus.publish("t", b"", fields={"n": number})
        assert [message.fields["n"] for message in await gather(subscription, 1)] == [1]
    assert bus.errors == 1


async def test_extra_fields_are_ignored(net: Net) -> None:
    """ "If the subscriber provided fewer fields than the publisher, then extra fields will be ignored." """
    bus = await net.connect()
    async with bus.subscribe("t", where={"a": 1}) as subscription:
        await bus.publish("t", b"x", fields={"a": 1, "b": 2, "c": 3})
        assert await payloads(subscription, 1) == [b"x"]


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({"instance"}, id="names"),
        pytest.param(lambda _message, names: set(names) <= {"instance"}, id="function"),
    ],
)
async def test_extra(net: Net, extra: object) -> None:
    """ "A subscriber can use `.extra` field (function) to change this behaviour. The function will be called with the message
    and a list of extra fields and must return a bool value - match/no match" """
    bus = await net.connect()
    async with bus.subscribe("t", where={"event": "reload"}, extra=extra) as subscription:
        await bus.publish("t", b"1", fields={"event": "reload"})
        await bus.publish("t", b"2", fields={"event": "reload", "instance": 7})
        await bus.publish("t", b"3", fields={"event": "reload", "typo": 7})
        await settle(bus)
        assert [message.payload for message in await rest(subscription)] == [b"1", b"2"]


async def test_extra_is_called_with_the_message_and_the_names(net: Net) -> None:
    bus = await net.connect()
    seen: list[tuple[bytes, list[str]]] = []

    def extra(message: busway.Message, names: list[str]) -> bool:
        seen.append((message.payload, sorted(names)))
        return True

    async with bus.subscribe("t", where={"a": 1}, extra=extra) as subscription:
        await bus.publish("t", b"x", fields={"a": 1, "c": 3, "b": 2})
        await gather(subscription, 1)
    assert seen == [(b"x", ["b", "c"])]


async def test_system_fields(net: Net) -> None:
    """ "There are special system fields: `.id` (sender's uid), `.ts` (timestamp). They are ignored by default but the subscriber
    can add a filter on them if it wants so (select messages from a specific process for example)." """
    one, two, reader = await net.connect("one"), await net.connect("two"), await net.connect()
    async with (
        reader.subscribe("t", extra=set()) as ignored,
        reader.subscribe("t", where={".id": "one"}) as by_sender,
        reader.subscribe("t", where={".id": "o*", ".ts": busway.expr("value > 0")}) as by_both,
        reader.subscribe("t", where={".ts": lambda ts: ts < 0}) as by_time,
    ):
        await one.publish("t", b"1")
        await two.publish("t", b"2")
        await settle(one, two, reader)
        assert sorted(message.payload for message in await rest(ignored)) == [b"1", b"2"]
        assert [message.payload for message in await rest(by_sender)] == [b"1"]
        assert [message.payload for message in await rest(by_both)] == [b"1"]
        assert by_time.pending == 0 or await rest(by_time) == []


async def test_msg(net: Net) -> None:
    """ "`msg` field is also ignored because it contains the message's data. Again the subscriber may add a filter for this field
    if it wants." """
    bus = await net.connect()
    async with (
        bus.subscribe("t", extra=set()) as all_of_them,
        bus.subscribe("t", where={"msg": "up*"}) as pattern,
        bus.subscribe("t", where={"msg": {"a": 1}}) as equal,
    ):
        for payload in ("up", "upper", "down", {"a": 1}):
            await bus.publish("t", payload)
        await settle(bus)
        assert len(await rest(all_of_them)) == 4
        assert [message.payload for message in await rest(pattern)] == [b"up", b"upper"]
        assert [message.json() for message in await rest(equal)] == [{"a": 1}]


async def test_notify(net: Net) -> None:
    """ "`.notify` - inform the subscriber (via `cb`) that the subscription is added and pending msgs (if any) are sent." """
    poster, reader = await net.connect(), await net.connect()
    for number in range(3):
        await poster.post("state", str(number), fields={"process": number})
    kinds: list[str] = []
    done = asyncio.Event()

    def handle(message: busway.Message) -> None:
        kinds.append(message.kind)
        if len(kinds) == 5:
            done.set()

    async with reader.subscribe("state", notify=True, handler=handle):
        await poster.publish("state", b"live")
        async with asyncio.timeout(PATIENCE):
            await done.wait()
    assert kinds == ["post", "post", "post", "notify", "publish"]
    async with reader.subscribe("nothing/here", notify=True) as empty:
        assert [message.kind for message in await gather(empty, 1)] == ["notify"]


async def test_posts_are_replaced_by_their_key(net: Net) -> None:
    """Two senders never overwrite each other; the same one does, if topic and fields are equal, and goes to the end."""
    one, two, late = await net.connect("one"), await net.connect("two"), await net.connect()
    await one.post("t", b"1", fields={"a": 1})
    await two.post("t", b"2", fields={"a": 1})
    await one.post("t", b"3", fields={"a": 2})
    await one.post("t", b"4", fields={"a": 1})
    async with late.subscribe("t") as after:
        assert await payloads(after, 3) == [b"2", b"3", b"4"]


async def test_a_publisher_receives_its_own_message(net: Net) -> None:
    bus = await net.connect()
    async with bus.subscribe("t", where={"a": 1}) as subscription:
        await bus.send("t", b"x", fields={"a": 1})
        assert await payloads(subscription, 1) == [b"x"]


async def test_a_withdrawal_can_be_watched(net: Net) -> None:
    await net.serve(grace=0.05)
    poster, reader = await net.connect("hdb"), await net.connect()
    async with reader.subscribe("proc/*", watch=True) as watching, reader.subscribe("proc/*") as plain:
        await poster.post("proc/hdb", b"up", fields={"pid": 1})
        await gather(watching, 1)
        assert poster._core.connection is not None
        await poster.close()
        (gone,) = await gather(watching, 1)
        assert (gone.kind, gone.topic, gone.sender, gone.fields) == ("withdrawn", "proc/hdb", "hdb", {"pid": 1})
        assert len(await rest(plain)) == 1


async def test_posts_survive_a_short_reconnect_of_their_publisher(net: Net) -> None:
    server = await net.serve(grace=PATIENCE)
    poster, reader = await net.connect("hdb"), await net.connect()
    events = poster.events()
    async with reader.subscribe("proc/*", watch=True) as watching:
        await poster.post("proc/hdb", b"up")
        await gather(watching, 1)
        assert poster._core.connection is not None
        poster._core.connection.transport.abort()
        async with asyncio.timeout(PATIENCE):
            while (await anext(events)).kind != "resumed":
                pass
        await settle(poster, reader)
        assert watching.pending == 0  # neither withdrawn nor sent again
        async with reader.subscribe("proc/*") as late:
            assert await payloads(late, 1) == [b"up"]
        await until(lambda: server.stats()["connections"] == 2, reader.flush)
