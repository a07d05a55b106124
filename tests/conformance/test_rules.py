"""Rules of subscriptions: those that the broker evaluates, and those that only the client can."""

import re
from typing import Any

import pytest

import busway
from tests.support.net import PATIENCE, Net, arrived, gather, payloads, settle, until

pytestmark = pytest.mark.both_loops

RELOAD = {"event": "hdb.reload"}


async def events(net: Net) -> tuple[busway.Bus, busway.Bus, busway.Bus]:
    """The processes of the document's example: two that reload, and one that is neither."""
    return (
        await net.connect("one", fields={"asset": "stock", "proc": "hdb"}),
        await net.connect("two", fields={"asset": "fx", "proc": "hstat"}),
        await net.connect("three", fields={"asset": "fx", "proc": "rdb"}),
    )


async def matched(net: Net, where: Any, sent: list[dict[str, Any]], **more: Any) -> list[int]:
    """Which of these fields match a rule."""
    bus, publisher = await net.connect(), await net.connect("feed")
    async with bus.subscribe("t", where=where, **more) as subscription:
        for number, fields in enumerate(sent):
            await publisher.publish("t", str(number), fields=fields)
        await settle(publisher, bus)
        return [int(message.text) for message in await arrived(subscription)]


async def test_a_string_with_a_star_is_a_pattern(net: Net) -> None:
    """ "if a field contains a string that contains a "*", then the field is treated as a pattern." """
    sent = [{"proc": "hdb"}, {"proc": "hstat"}, {"proc": "rdb"}, {"proc": 7}, {}, {"proc": ""}, {"proc": "h*"}]
    assert await matched(net, {"proc": "h*"}, sent) == [0, 1, 6]
    assert await matched(net, {"proc": "?db"}, sent) == [0, 2]
    assert await matched(net, {"proc": "*"}, sent) == [0, 1, 2, 5, 6]


async def test_a_list_is_one_of(net: Net) -> None:
    """ "if a field contains a list of atoms/strings and the incoming message has an atom/string in this field then "in" is used."
    A list in the message is no atom: it must be equal. A pattern in a list is a plain string."""
    sent = [{"proc": "hdb"}, {"proc": "hstat"}, {"proc": "rdb"}, {"proc": 1}, {"proc": True}, {"proc": 1.0}, {}]
    sent += [{"proc": ["hdb", "hstat"]}, {"proc": ["hdb"]}]
    assert await matched(net, {"proc": ["hdb", "hstat"]}, sent) == [0, 1, 7]
    assert await matched(net, {"proc": ["h*", True]}, sent) == [4]
    assert await matched(net, {"proc": {"rdb", 1}}, sent) == [2, 3]
    assert await matched(net, {"proc": []}, sent) == []


async def test_a_function_is_called_with_the_value(net: Net) -> None:
    """ "if a field contains a function, the function is called with the incoming value and must return a bool to indicate match/no match." """
    seen: list[object] = []

    def takes(value: object) -> bool:
        seen.append(value)
        return value in ("hdb", "hstat")

    sent = [{"proc": "hdb"}, {"proc": "rdb"}, {"proc": [1, "a"]}, {"other": 1}, {"proc": "hstat"}]
    assert await matched(net, {"proc": takes}, sent) == [0, 4]
    # The broker was asked for presence: the one without the field never came.
    assert seen == ["hdb", "rdb", [1, "a"], "hstat"]


async def test_any_must_be_present(net: Net) -> None:
    """ "if a field contains (::), then the field must be present in the incoming message, its value is irrelevant." """
    sent = [{"asset": "fx"}, {"asset": None}, {"asset": []}, {"other": 1}, {}]
    assert await matched(net, {"asset": busway.ANY}, sent) == [0, 1, 2]


async def test_anything_else_is_equal_with_its_type(net: Net) -> None:
    sent = [{"x": 1}, {"x": "1"}, {"x": 1.0}, {"x": True}, {"x": b"1"}, {"x": None}, {"x": [1]}]
    for place, fields in enumerate(sent[:-1]):
        assert await matched(net, fields, sent) == [place]


async def test_a_regular_expression_and_an_expression(net: Net) -> None:
    sent = [{"x": "abc", "n": 5}, {"x": "ab", "n": 50}, {"n": 7}]
    assert await matched(net, {"x": re.compile("ab.")}, sent) == [0]
    assert await matched(net, {"n": busway.expr("value > 6")}, sent) == [1, 2]
    assert await matched(net, busway.expr('"x" in fields && fields.n > 6'), sent) == [1]


async def test_the_example_of_the_document(net: Net) -> None:
    """ "subscriber - collect reloads from all hdbs", in its three ways of saying it."""
    one, two, three = await events(net)
    bus = await net.connect()
    rules: list[Any] = ["h*", lambda value: value in ("hdb", "hstat"), ["hdb", "hstat"]]
    for rule in rules:
        where = {"event": "hdb.reload", "asset": busway.ANY, "proc": rule}
        async with bus.subscribe("events", where=where) as subscription:
            for publisher in (one, two, three):
                await publisher.send("events", b"", fields=RELOAD)
            await one.send("events", b"", fields={"event": "hdb.start"})
            await settle(one, two, three, bus)
            assert sorted(message.sender for message in await arrived(subscription)) == ["one", "two"]


async def test_all_rules_must_hold(net: Net) -> None:
    sent = [{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 2, "b": 2}, {"a": 1}]
    assert await matched(net, {"a": 1, "b": 2}, sent) == [0]
    assert await matched(net, {"a": 1, "b": lambda value: value == 2}, sent) == [0]
    assert await matched(net, {"a": lambda value: value == 1, "b": lambda value: value == 3}, sent) == [1]


async def test_extra_fields_are_ignored(net: Net) -> None:
    """ "If the subscriber provided fewer fields than the publisher, then extra fields will be ignored." """
    assert await matched(net, {"a": 1}, [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {"b": 1}]) == [0, 1]


async def test_extra_is_called_with_the_message_and_the_extra_fields(net: Net) -> None:
    """ "A subscriber can use .extra field (function) to change this behaviour. The function will be called with the message and
    a list of extra fields and must return a bool value - match/no match" """
    seen: list[tuple[bytes, list[str]]] = []

    def extra(message: busway.Message, names: list[str]) -> bool:
        seen.append((message.payload, sorted(names)))
        return names == ["instance"]  # allow only instance field, any other is probably an error

    sent = [{"a": 1}, {"a": 1, "instance": 2}, {"a": 1, "instance": 2, "c": 3}, {"b": 1}]
    assert await matched(net, {"a": 1}, sent, extra=extra) == [1]
    assert seen[:3] == [(b"0", []), (b"1", ["instance"]), (b"2", ["c", "instance"])]
    assert await matched(net, {"a": 1}, sent, extra={"instance"}) == [0, 1]
    assert await matched(net, {"a": 1}, sent, extra=set()) == [0]
    assert await matched(net, None, [{}, {"a": 1}, {"a": 1, "b": 2}], extra={"a"}) == [0, 1]


async def test_the_sender_may_be_named_in_rules(net: Net) -> None:
    """ "There are special system fields: .id (sender's uid), .ts (timestamp). They are ignored by default but the subscriber can
    add a filter on them if it wants so (select messages from a specific process for example)." """
    one, two, bus = await net.connect("one"), await net.connect("two"), await net.connect()
    rules: list[Any] = ["one", ["one", "x"], "on?", lambda value: value == "one"]
    for rule in rules:
        async with bus.subscribe("t", where={".id": rule}, extra=set()) as subscription:
            await one.publish("t", b"1")
            await two.publish("t", b"2")
            await settle(one, two, bus)
            assert [message.sender for message in await arrived(subscription)] == ["one"]


async def test_a_sender_without_a_name_is_known_by_the_beginning_of_its_ids(net: Net) -> None:
    one, two, reader = await net.connect(), await net.connect(), await net.connect()
    async with reader.subscribe("t") as everything:
        await one.publish("t", b"1")
        uid = (await gather(everything, 1))[0].id[:16]
    for rule in (uid, lambda sender: sender == uid):
        async with reader.subscribe("t", where={".id": rule}) as subscription:
            await two.publish("t", b"2", confirm=True)
            await one.publish("t", b"1", confirm=True)
            await settle(reader)
            assert [message.payload for message in await arrived(subscription)] == [b"1"]


async def test_the_time_may_be_named_in_rules(net: Net) -> None:
    bus = await net.connect()
    times: list[int] = []

    def late(value: int) -> bool:
        times.append(value)
        return True

    async with (
        bus.subscribe("t", where={".ts": late}) as all_of_them,
        bus.subscribe("t", where={".ts": busway.expr("value > 4000000000000000000")}) as in_a_century,
        bus.subscribe("t", where={".ts": busway.expr("value > 0")}) as since_1970,
        bus.subscribe("t", where={".ts": busway.ANY}) as at_any_time,
    ):
        await bus.publish("t", b"")
        (message,) = await gather(all_of_them, 1)
        await settle(bus)
        assert times == [message.time_ns]
        assert (in_a_century.received, since_1970.received, at_any_time.received) == (0, 1, 1)


async def test_the_payload_may_be_named_in_rules(net: Net) -> None:
    """ "msg field is also ignored because it contains the message's data. Again the subscriber may add a filter for this field if
    it wants." """
    sent = [{"a": 1}] * 3
    assert await matched(net, {"msg": "1"}, sent) == [1]
    assert await matched(net, {"msg": ["0", "2"]}, sent) == [0, 2]
    assert await matched(net, {"msg": lambda value: value == b"2"}, sent, extra={"a"}) == [2]
    bus = await net.connect()
    async with (
        bus.subscribe("t", where={"msg": "up*"}) as pattern,
        bus.subscribe("t", where={"msg": {"a": 1}}) as equal,
    ):
        for payload in ("up", "upper", "down", {"a": 1}):
            await bus.publish("t", payload)
        await settle(bus)
        assert await payloads(pattern, pattern.pending) == [b"up", b"upper"]
        assert await payloads(equal, equal.pending) == [b'{"a":1}']


async def test_a_predicate_that_raises_is_no_match_and_is_reported(net: Net) -> None:
    errors: list[BaseException] = []
    bus, publisher = await net.connect(on_error=errors.append), await net.connect()

    def picky(value: int) -> bool:
        return 1 / value > 0

    def odd(message: busway.Message, names: list[str]) -> bool:
        raise LookupError(names)

    heard = bus.events()
    await publisher.post("t", b"kept", fields={"n": 0})
    async with (
        bus.subscribe("t", where={"n": picky}) as subscription,
        bus.subscribe("t", where={"n": 5}, extra=odd) as never,
        bus.subscribe("t") as plain,
    ):
        for number in (1, 0, 2):
            await publisher.publish("t", str(number), fields={"n": number})
        await publisher.publish("t", b"", fields={"n": 5, "m": 1})
        assert await payloads(subscription, 3) == [b"1", b"2", b""]
        with pytest.raises(busway.Timeout):
            await never.recv(timeout=0.01)
        assert await payloads(plain, 5) == [b"kept", b"1", b"0", b"2", b""]
        assert [type(error) for error in errors] == [ZeroDivisionError, ZeroDivisionError, LookupError]
        assert bus.errors == 3
        assert (subscription.missed, never.missed) == (0, 0)
        told = [await anext(heard) for _ in range(3)]
        assert [(event.kind, event.topic) for event in told] == [("error", "t")] * 3
        assert bus.state == "connected"


async def test_every_way_of_taking_asks_the_predicate(net: Net) -> None:
    bus = await net.connect()
    even = {"n": lambda value: value % 2 == 0}
    handled: list[int] = []

    def handler(message: busway.Message) -> None:
        handled.append(message.fields["n"])

    async with (
        bus.subscribe("t", where=even, handler=handler),
        bus.subscribe("t", where=even) as received,
        bus.subscribe("t", where=even) as taken,
        bus.subscribe("t", where=even) as batched,
        bus.subscribe("t", where=even) as iterated,
    ):
        for number in range(5000):
            await bus.publish("t", b"", fields={"n": number})
        expected = list(range(0, 5000, 2))
        assert [message.fields["n"] for message in await gather(received, 2500)] == expected
        found: list[int] = []
        while len(found) < 2500:
            found += [message.fields["n"] for message in await taken.take(100, timeout=PATIENCE)]
        assert found == expected
        found = []
        async for batch in batched.batches(700):
            found += [message.fields["n"] for message in batch]
            if len(found) == 2500:
                break
        assert found == expected
        found = []
        async for message in iterated:
            found.append(message.fields["n"])
            if len(found) == 2500:
                break
        assert found == expected
        await until(lambda: len(handled) == 2500)
        assert handled == expected


async def test_what_a_predicate_refuses_makes_room(net: Net) -> None:
    """A subscription whose predicate takes nothing is no slow consumer: publishers are not held up by it."""
    bus, publisher = await net.connect(), await net.connect()
    async with bus.subscribe("t", where={"n": lambda value: value < 0}, limit=10, handler=lambda message: None) as none:
        for number in range(1000):
            await publisher.publish("t", b"", fields={"n": number})
        await settle(publisher, bus)
        await until(lambda: none.pending == 0)
        assert not bus._core.flow_control
        assert (none.received, none.missed) == (1000, 0)


@pytest.mark.parametrize("rules", [{"where": {"n": lambda value: True}}, {"extra": lambda message, names: True}])
async def test_a_callable_in_a_group_is_refused(net: Net, rules: dict[str, Any]) -> None:
    bus = await net.connect()
    with pytest.raises(busway.InvalidRule, match=r"busway\.expr"):
        bus.subscribe("t", group="g", **rules)
    async with bus.subscribe("t", group="g", where={"n": busway.expr("value > 1")}, extra={"n"}) as subscription:
        await bus.publish("t", b"no", fields={"n": 1})
        await bus.publish("t", b"no", fields={"n": 2, "m": 2})
        await bus.publish("t", b"yes", fields={"n": 2})
        assert await payloads(subscription, 1) == [b"yes"]


async def test_a_coroutine_function_is_no_predicate(net: Net) -> None:
    bus = await net.connect()

    async def later(value: object) -> bool:
        return True

    with pytest.raises(busway.InvalidRule, match="coroutine"):
        bus.subscribe("t", where={"n": later})


async def test_group_members_share_only_what_matches(net: Net) -> None:
    one, two, publisher = await net.connect(), await net.connect(), await net.connect()
    async with (
        one.subscribe("t", group="g", where={"venue": "krk"}) as kraken,
        two.subscribe("t", group="g", where={"venue": "bin"}) as binance,
    ):
        for number in range(20):
            await publisher.publish("t", b"", fields={"venue": "krk" if number % 4 else "bin"})
        await settle(publisher, one, two)
        assert (kraken.received, binance.received) == (15, 5)


async def test_a_push_goes_to_one_whose_rules_match(net: Net) -> None:
    one, two, publisher = await net.connect(), await net.connect(), await net.connect()
    async with (
        one.subscribe("jobs", where={"kind": "cpu"}) as cpu,
        two.subscribe("jobs", where={"kind": ["gpu", "tpu"]}) as gpu,
    ):
        for kind in ("cpu", "gpu", "tpu"):
            await publisher.push("jobs", kind, fields={"kind": kind})
        with pytest.raises(busway.NoConsumers):
            await publisher.push("jobs", b"", fields={"kind": "none"})
        assert await payloads(cpu, 1) == [b"cpu"]
        assert await payloads(gpu, 2) == [b"gpu", b"tpu"]


async def test_no_push_is_lost_to_a_predicate(net: Net) -> None:
    """Only the client could ask it, when the push was taken already: so it takes none, and hears of none."""
    bus, publisher = await net.connect(), await net.connect()
    async with bus.subscribe("jobs", where={"kind": lambda value: value == "cpu"}) as picky:
        with pytest.raises(busway.NoConsumers):
            await publisher.push("jobs", b"", fields={"kind": "gpu"})
        with pytest.raises(busway.NoConsumers):
            await publisher.push("jobs", b"", fields={"kind": "cpu"})
        await publisher.publish("jobs", b"published", fields={"kind": "cpu"})
        assert await payloads(picky, 1) == [b"published"]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ({"n": busway.expr("value >")}, "'n'|\"n\"|column|position|1:"),
        ({"n": re.compile("(?=x)")}, "lookaround"),
        ({"n": object()}, "object"),
        ({7: 1}, "name of a field must be a str"),
        ("n == 1", "busway.expr"),
    ],
)
async def test_rules_that_cannot_be_asked_are_refused_at_once(net: Net, where: Any, text: str) -> None:
    bus = await net.connect()
    with pytest.raises(busway.InvalidRule, match=text):
        bus.subscribe("t", where=where)
    with pytest.raises(busway.InvalidRule):
        await bus.kept("t", where=where)
    assert bus.state == "connected"
