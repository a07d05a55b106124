"""Subscriptions with rules: the index of the engine against evaluating every rule of every subscription."""

import random
from typing import Any

import pytest

from busway import _core
from busway.fields import ANY, compile_where, encode_fields, expr
from tests.support import wire
from tests.support.pair import Hub, Raw

NAMES = ["a", "b", "c"]
VALUES: list[Any] = [1, 1.0, True, "x", "xy", b"x", None, [1, "x"], {"k": 1}]
RULES: list[Any] = [*VALUES[:7], "x*", [1, "x"], {1, "xy"}, ANY, expr("value == 1"), expr("a == 'x'")]


def where_of(choose: random.Random) -> dict[str, Any]:
    return {name: choose.choice(RULES) for name in choose.sample(NAMES, choose.randint(0, 3))}


def fields_of(choose: random.Random) -> dict[str, Any]:
    return {name: choose.choice(VALUES) for name in choose.sample(NAMES, choose.randint(0, 3))}


@pytest.mark.parametrize("seed", range(20))
def test_alone_and_in_groups(seed: int) -> None:
    """Each subscription whose rules hold gets it, of each group one whose rules hold; nobody else."""
    choose = random.Random(seed)
    hub = Hub()
    publisher = Raw(hub, 99)
    clients = [Raw(hub, number) for number in range(1, 5)]
    slots = {}
    for slot, topic in enumerate(["t/1", "t/2", "t/*"]):
        publisher.send(wire.topic(slot, topic))
        slots[topic] = slot
    subs: dict[tuple[int, int], tuple[str, str, _core.Selection]] = {}
    for number in range(1, 121):
        act = choose.random()
        if act < 0.4:
            where, client = where_of(choose), choose.randrange(4)
            pattern, group = choose.choice(["t/1", "t/*", "re:t/.", "**"]), choose.choice(["", "", "g", "h"])
            rules = compile_where(where).wire if where else b""
            assert [
                one.code
                for _, one in clients[client].ask(wire.subscribe(number, number, pattern, group=group, rules=rules))
            ] == [0]
            subs[client, number] = (pattern, group, _core.Selection(pattern, rules))
        elif act < 0.5 and subs:
            client, sub = choose.choice(list(subs))
            del subs[client, sub]
            clients[client].ask(wire.unsubscribe(sub, number))
        else:
            fields, topic = encode_fields(fields_of(choose)), choose.choice(list(slots))
            publisher.send(wire.publish(slots[topic], b"p", number, fields=fields))
            want = {key for key, (_, _, chosen) in subs.items() if chosen.matches(topic, fields, b"p")}
            got = {(i, sub) for i, client in enumerate(clients) for one in client.deliveries() for sub in one.ids}
            alone = {key for key in want if not subs[key][1]}
            assert {key for key in got if not subs[key][1]} == alone
            for group in ("g", "h"):
                members = {key for key in want if subs[key][1] == group}
                picked = {key for key in got if subs[key][1] == group}
                assert picked <= members
                assert len(picked) == min(1, len(members))
    assert len(subs) > 10


def test_a_push_goes_to_one_whose_rules_hold_and_listeners_get_copies() -> None:
    hub = Hub()
    pusher, consumer, other, listener = (Raw(hub, number) for number in range(1, 5))
    wants = lambda value: compile_where({"a": value}).wire  # noqa: E731
    consumer.ask(wire.subscribe(1, 1, "jobs", rules=wants(1)))
    other.ask(wire.subscribe(1, 1, "jobs", rules=wants(2)))
    listener.ask(wire.subscribe(1, 1, "**", rules=wants(1), flags=wire.LISTEN))
    pusher.send(wire.topic(0, "jobs"), wire.push(0, b"x", 1, fields=encode_fields({"a": 1})))
    (offer,) = [one for kind, one in consumer.read() if kind == wire.OFFER]
    assert other.read() == []
    assert [kind for kind, _ in listener.read() if kind not in (wire.TOPIC, wire.SENDER)] == [wire.DELIVER]
    consumer.send(wire.accept(offer.extra))
    assert [one.code for _, one in pusher.read()] == [0]
    pusher.send(wire.push(0, b"x", 2, fields=encode_fields({"a": 3})))
    assert [one.code for _, one in pusher.read()] == [44]
    assert listener.read() == []


def test_listeners_never_count_as_providers_or_consumers() -> None:
    hub = Hub()
    asker, listener = Raw(hub, 1), Raw(hub, 2)
    listener.ask(wire.subscribe(1, 1, "**", flags=wire.LISTEN))
    assert [one.code for _, one in asker.ask(wire.topic(0, "jobs"), wire.push(0, b"", 1))] == [44]
    assert [one.code for kind, one in asker.ask(wire.request(0, b"", 2))] == [40]
    kinds = [kind for kind, _ in listener.read()]
    assert kinds.count(wire.DELIVER) == 2  # whoever gets the original, and if nobody does


def test_fields_of_the_server_win() -> None:
    hub = Hub(defaults=encode_fields({"region": "emea", "host": "a"}))
    publisher, subscriber = Raw(hub, 1), Raw(hub, 2)
    rules = compile_where({"region": "emea"}).wire
    subscriber.ask(wire.subscribe(1, 1, "t", rules=rules))
    publisher.send(
        wire.topic(0, "t"),
        wire.publish(0, b"1", 1),
        wire.publish(0, b"2", 2, fields=encode_fields({"region": "x", "own": 1})),
    )
    got = subscriber.deliveries()
    assert [one.payload for one in got] == [b"1", b"2"]
