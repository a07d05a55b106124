"""The document of the older bus with addresses, sentence by sentence: each test quotes the sentence it keeps.

Its sentences on send, post, pin and `.notify` are in test_mbus_kept.py. "Servers connect to each other" is the cluster's and has its
tests there.
"""

from typing import Any

import pytest

import busway
from tests.support.net import Net, arrived, gather, payloads, rest, settle

pytestmark = pytest.mark.both_loops

RELOAD = {"event": "hdb.reload"}


async def test_at_least_one_address_field(net: Net) -> None:
    """ "The publisher must provide at least one address field." The topic is one, so more are not needed."""
    bus = await net.connect()
    for verb in (bus.send, bus.post, bus.pin):
        with pytest.raises(TypeError):
            verb()
    async with bus.subscribe("t") as subscription:
        await bus.publish("t", b"")
        assert [message.fields for message in await gather(subscription, 1)] == [{}]


async def test_fields_can_contain_any_data(net: Net) -> None:
    """ "These fields can contain any data." """
    bus = await net.connect()
    fields = {"text": "é", "raw": b"\0\xff", "none": None, "yes": True, "int": -5, "big": 2**64 - 1, "float": 0.5}
    fields |= {"list": [1, "a", [b"x"]], "map": {"a": {"b": [1]}}, "empty": ""}
    async with bus.subscribe("t") as subscription:
        for verb in (bus.send, bus.post, bus.pin, bus.push):
            await verb("t", b"", fields=fields)
        for message in await gather(subscription, 4):
            assert message.fields == fields
            assert {type(value) for value in message.fields.values()} == {type(value) for value in fields.values()}


async def test_subscribers_select_by_fields(net: Net) -> None:
    """ "Subscribers use these fields to select specific messages." Also among those that were published before."""
    bus, late = await net.connect(), await net.connect()
    async with bus.subscribe("**", where=RELOAD) as subscription:
        for verb in (bus.send, bus.post, bus.pin):
            await verb("t", b"no", fields={"event": "other"})
            await verb("t", b"no")
            await verb("t", verb.__name__, fields=RELOAD)
        await settle(bus)
        assert [message.kind for message in await rest(subscription)] == ["publish", "post", "pin"]
    async with late.subscribe("**", where=RELOAD, notify=True) as subscription:
        assert [message.kind for message in await gather(subscription, 3)] == ["post", "pin", "notify"]


async def test_default_fields(net: Net) -> None:
    """ "An MBus client/server can be configured with default address fields (like region, host), they will be added to each
    message." Those of the server win."""
    await net.serve(fields={"region": "emea", "host": "h1"})
    bus = await net.connect(fields={"asset": "stock", "host": "mine", "proc": "hdb"})
    common = {"asset": "stock", "region": "emea", "host": "h1"}
    async with bus.subscribe("t") as subscription, bus.serve("s", lambda request: request.fields):
        await bus.publish("t", b"", fields={"proc": "own"})
        assert [message.fields for message in await gather(subscription, 1)] == [common | {"proc": "own"}]
        for verb in (bus.send, bus.post, bus.pin, bus.push):
            await verb("t", b"")
        assert [message.fields for message in await gather(subscription, 4)] == [common | {"proc": "hdb"}] * 4
        assert (await bus.request("s")).json() == common | {"proc": "hdb"}
    assert {message.kind: message.fields for message in await bus.kept()} == {
        kind: common | {"proc": "hdb"} for kind in ("post", "pin")
    }


async def test_default_fields_are_selected_by(net: Net) -> None:
    """ "they will be added to each message": rules see them, the server's too."""
    await net.serve(fields={"region": "emea"})
    bus, other = await net.connect(fields={"proc": "hdb"}), await net.connect(fields={"proc": "tp"})
    async with bus.subscribe("t", where={"region": "emea", "proc": "hdb"}) as subscription:
        await other.publish("t", b"no", confirm=True)
        await bus.publish("t", b"yes", confirm=True)
        await settle(bus)
        assert [message.payload for message in await rest(subscription)] == [b"yes"]


@pytest.mark.parametrize("name", [".id", ".ts", ".extra", ".notify", ".mine", "."])
async def test_reserved_names(net: Net, name: str) -> None:
    """ "Names that start with "." are reserved." """
    bus = await net.connect()
    async with bus.subscribe("**") as subscription:
        for verb in (bus.send, bus.post, bus.pin, bus.push, bus.request):
            with pytest.raises(busway.InvalidFields, match="reserved") as caught:
                await verb("t", b"", fields={name: 1})
            assert (caught.value.code, caught.value.name) == (27, name)
        for made in (net.client, lambda fields: busway.serve(fields=fields)):
            with pytest.raises(busway.InvalidFields, match="reserved"):
                made(fields={name: 1})
        await settle(bus)
        assert subscription.received == 0
    assert await bus.kept() == []


async def test_a_subscriber_must_specify_an_address(net: Net) -> None:
    """ "A subscriber must also specify an address. It can be inexact"."""
    bus = await net.connect()
    with pytest.raises(TypeError):
        bus.subscribe()
    async with (
        bus.subscribe("price/eth") as exact,
        bus.subscribe("price/*") as inexact,
        bus.subscribe("price/*", where={"venue": "k*"}) as by_field,
    ):
        await bus.publish("price/eth", b"1", fields={"venue": "krk"})
        await bus.publish("price/btc", b"2", fields={"venue": "bin"})
        await settle(bus)
        got = [[message.payload for message in await rest(one)] for one in (exact, inexact, by_field)]
        assert got == [[b"1"], [b"1", b"2"], [b"1"]]


ABSENT = object()


async def matched(net: Net, rule: Any, values: list[Any]) -> list[Any]:
    """Which of these values of a field match a rule for it, asked of live messages and of kept ones."""
    publisher, subscriber = await net.connect(), await net.connect()
    async with subscriber.subscribe("t", where={"proc": rule}) as live:
        for number, value in enumerate(values):
            await publisher.post("t", b"", fields={"n": number} | ({} if value is ABSENT else {"proc": value}))
        await settle(publisher, subscriber)
        found = [message.fields["proc"] for message in await arrived(live)]
    async with subscriber.subscribe("t", where={"proc": rule}) as late:
        assert [message.fields["proc"] for message in await arrived(late)] == found
    await publisher.close()
    return found


async def test_a_pattern(net: Net) -> None:
    """ "if a field contains a string that contains a "*", then the field is treated as a pattern." """
    values = ["hdb", "hstat", "h", "rdb", "xhdb", "", 5, None, ["hdb"], ABSENT]
    assert await matched(net, "h*", values) == ["hdb", "hstat", "h"]
    assert await matched(net, "*db", values) == ["hdb", "rdb", "xhdb"]
    assert await matched(net, "*", values) == ["hdb", "hstat", "h", "rdb", "xhdb", ""]
    assert await matched(net, "hdb", values) == ["hdb"]


async def test_in(net: Net) -> None:
    """ "if a field contains a list of atoms/strings and the incoming message has an atom/string in this field then "in" is
    used." A list in the message is no atom: it must be equal."""
    values = ["hdb", "rdb", 5, 5.0, "5", True, None, ["hdb"], ["hdb", 5], ABSENT]
    assert await matched(net, ["hdb", 5], values) == ["hdb", 5, ["hdb", 5]]
    assert await matched(net, [None, True, "h*"], values) == [True, None]


async def test_a_function(net: Net) -> None:
    """ "if a field contains a function, the function is called with the incoming value and must return a bool to indicate
    match/no match." """
    asked: list[Any] = []

    def rule(value: Any) -> bool:
        asked.append(value)
        return value in ("hdb", 5)

    values = ["hdb", "rdb", 5, None, ["hdb"], ABSENT]
    assert await matched(net, rule, values) == ["hdb", 5]
    assert asked == values[:-1] * 2  # once for each that came live, once for each that was kept


async def test_a_function_that_fails_is_no_match(net: Net) -> None:
    """ "must return a bool to indicate match/no match": one that raises has said no, and that is told."""
    errors: list[BaseException] = []
    bus = await net.connect(on_error=errors.append)
    async with bus.subscribe("t", where={"n": lambda value: 1 / value > 0}) as subscription:
        for number in (0, 1):
            await bus.publish("t", b"", fields={"n": number})
        assert [message.fields["n"] for message in await gather(subscription, 1)] == [1]
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert bus.errors == 1


async def test_present(net: Net) -> None:
    """ "if a field contains (::), then the field must be present in the incoming message, its value is irrelevant." """
    values = ["hdb", "", 0, False, None, [], {}, ABSENT]
    assert await matched(net, busway.ANY, values) == values[:-1]


RULES = [
    pytest.param("h*", id="pattern"),
    pytest.param(lambda value: value in ("hdb", "hstat"), id="function"),
    pytest.param(["hdb", "hstat"], id="in"),
]


@pytest.mark.parametrize("rule", RULES)
async def test_the_example(net: Net, rule: Any) -> None:
    """ "publisher, set asset,proc as default fields … subscriber - collect reloads from all hdbs", in its three ways."""
    stock = await net.connect(fields={"asset": "stock", "proc": "hdb"})
    forex = await net.connect(fields={"asset": "fx", "proc": "hstat"})
    others = await net.connect(fields={"asset": "fx", "proc": "rdb"}), await net.connect(fields={"proc": "hdb"})
    subscriber = await net.connect()
    where = RELOAD | {"asset": busway.ANY, "proc": rule}
    async with subscriber.subscribe("**", where=where) as subscription:
        for bus in (stock, forex, *others):
            await bus.send("hdb", None, fields=RELOAD)
            await bus.send("hdb", None, fields={"event": "hdb.start"})
        await settle(stock, forex, *others, subscriber)
        got = [message.fields for message in await arrived(subscription)]
    expected = [RELOAD | {"asset": "fx", "proc": "hstat"}, RELOAD | {"asset": "stock", "proc": "hdb"}]
    assert sorted(got, key=lambda fields: fields["asset"]) == expected


async def test_extra_fields_are_ignored(net: Net) -> None:
    """ "If the subscriber provided fewer fields than the publisher, then extra fields will be ignored." """
    bus = await net.connect()
    async with bus.subscribe("t", where={"a": 1}) as subscription, bus.subscribe("t") as without:
        await bus.publish("t", b"x", fields={"a": 1, "b": 2, "c": 3})
        assert await payloads(subscription, 1) == await payloads(without, 1) == [b"x"]


async def test_extra(net: Net) -> None:
    """ "A subscriber can use `.extra` field (function) to change this behaviour." Here it is an argument, and a set of names
    says the same as the usual function."""
    bus = await net.connect()
    async with (
        bus.subscribe("t", where={"event": "reload"}, extra={"instance"}) as names,
        bus.subscribe("t", where={"event": "reload"}, extra=lambda _, names: set(names) <= {"instance"}) as function,
        bus.subscribe("t", where={"event": "reload"}, extra=set()) as none,
    ):
        await bus.publish("t", b"1", fields={"event": "reload"})
        await bus.publish("t", b"2", fields={"event": "reload", "instance": 7})
        await bus.publish("t", b"3", fields={"event": "reload", "typo": 7})
        await settle(bus)
        for subscription, expected in ((names, [b"1", b"2"]), (function, [b"1", b"2"]), (none, [b"1"])):
            assert [message.payload for message in await arrived(subscription)] == expected


async def test_extra_is_called_with_the_message_and_the_names(net: Net) -> None:
    """ "The function will be called with the message and a list of extra fields and must return a bool value - match/no
    match", and the example's "allow only instance field, any other is probably an error"."""
    bus = await net.connect()
    seen: list[tuple[bytes, list[str]]] = []

    def extra(message: busway.Message, names: list[str]) -> bool:
        seen.append((message.payload, names))
        return names == ["instance"]

    async with bus.subscribe("t", where={"event": "reload", "asset": busway.ANY}, extra=extra) as subscription:
        for number, more in enumerate([{"instance": 1}, {}, {"instance": 1, "typo": 2}, {"typo": 2}]):
            await bus.publish("t", str(number), fields={"event": "reload", "asset": "fx"} | more)
        await settle(bus)
        assert [message.payload for message in await arrived(subscription)] == [b"0"]
    assert seen == [(b"0", ["instance"]), (b"1", []), (b"2", ["instance", "typo"]), (b"3", ["typo"])]


async def test_system_fields(net: Net) -> None:
    """ "There are special system fields: `.id` (sender's uid), `.ts` (timestamp)." Any rule can be asked about them."""
    one, reader = await net.connect("one"), await net.connect()
    rules = [
        {".id": "one"},
        {".id": "o*"},
        {".id": ["one"]},
        {".id": busway.ANY},
        {".id": lambda sender: sender == "one"},
    ]
    rules += [{".ts": busway.ANY}, {".ts": busway.expr("value > 0")}, {".ts": lambda time: time > 0}]
    for where in rules:
        async with reader.subscribe("t", where=where) as subscription:
            await one.publish("t", b"x")
            assert await payloads(subscription, 1) == [b"x"]
    async with reader.subscribe("t", where={".ts": lambda time: time < 0}) as never:
        await one.publish("t", b"x", confirm=True)
        await settle(reader)
        assert await arrived(never) == []


async def test_a_sender_without_a_name_has_a_uid_too(net: Net) -> None:
    """ "`.id` (sender's uid)": without a name it is the beginning of its messages' ids."""
    one, two, reader = await net.connect(), await net.connect(), await net.connect()
    async with reader.subscribe("t") as everything:
        await one.publish("t", b"1")
        (message,) = await gather(everything, 1)
    uid = message.id[:16]
    for rule in (uid, lambda sender: sender == uid):
        async with reader.subscribe("t", where={".id": rule}) as subscription:
            await two.publish("t", b"2", confirm=True)
            await one.publish("t", b"1", confirm=True)
            await settle(reader)
            assert [message.payload for message in await arrived(subscription)] == [b"1"]


async def test_system_fields_are_ignored_by_default(net: Net) -> None:
    """ "They are ignored by default but the subscriber can add a filter on them if it wants so (select messages from a
    specific process for example)." Ignored also as extra fields."""
    one, two, reader = await net.connect("one"), await net.connect("two"), await net.connect()
    extra: list[list[str]] = []
    async with (
        reader.subscribe("t", extra=set()) as ignored,
        reader.subscribe("t", extra=lambda _, names: extra.append(names) or True) as called,
        reader.subscribe("t", where={".id": "one"}) as of_one,
    ):
        await one.publish("t", b"1", confirm=True)
        await two.publish("t", b"2", confirm=True)
        await settle(reader)
        for subscription, expected in ((ignored, [b"1", b"2"]), (called, [b"1", b"2"]), (of_one, [b"1"])):
            assert [message.payload for message in await arrived(subscription)] == expected
    assert extra == [[], []]


async def test_msg(net: Net) -> None:
    """ "`msg` field is also ignored because it contains the message's data. Again the subscriber may add a filter for this field
    if it wants." """
    bus = await net.connect()
    async with (
        bus.subscribe("t", extra=set()) as ignored,
        bus.subscribe("t", where={"msg": "up*"}) as pattern,
        bus.subscribe("t", where={"msg": {"a": 1}}) as equal,
        bus.subscribe("t", where={"msg": lambda data: data == b"down"}) as function,
    ):
        for payload in ("up", "upper", "down", {"a": 1}):
            await bus.publish("t", payload)
        await settle(bus)
        assert len(await arrived(ignored)) == 4
        for subscription, expected in ((pattern, [b"up", b"upper"]), (equal, [b'{"a":1}']), (function, [b"down"])):
            assert [message.payload for message in await arrived(subscription)] == expected
