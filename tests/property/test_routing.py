"""The whole engine against a naive model: random clients, subscriptions, groups and publishes, no socket and no clock."""

import functools
import random
import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support import model, regular, wire
from tests.support.pair import Hub, Raw
from tests.support.strength import examples

SEGMENTS = ["a", "b", "*", "**"]
topics = st.lists(st.sampled_from(SEGMENTS), max_size=4).map("/".join)
groups = st.sampled_from(["", "", "red", "blue"])
clients = st.integers(0, 2)


class Routing(RuleBasedStateMachine):
    """Three clients; every publish is compared with who should get it."""

    @initialize(slots=st.sampled_from([2, 3, 65536]))
    def begin(self, slots: int) -> None:
        self.hub = Hub(topics=slots, senders=slots)
        self.slots = slots
        self.clients = [Raw(self.hub, session=index + 1, name=f"c{index}") for index in range(3)]
        self.subs: dict[tuple[int, int], tuple[str, str, bool]] = {}  # (client, id) -> (pattern, group, echo)
        self.number = 0
        self.next_slot = 0

    def next(self) -> int:
        self.number += 1
        return self.number

    @rule(client=clients, sub=st.integers(1, 4), pattern=topics, group=groups, echo=st.booleans())
    def subscribe(self, client: int, sub: int, pattern: str, group: str, echo: bool) -> None:
        number = self.next()
        flags = 0 if echo else wire.NO_ECHO
        answer = self.clients[client].ask(wire.subscribe(sub, number, pattern, group=group, flags=flags))
        taken = (client, sub) in self.subs
        assert [(kind, said.code, said.number) for kind, said in answer] == [(wire.RESULT, 31 if taken else 0, number)]
        self.subs.setdefault((client, sub), (pattern, group, echo))

    @rule(client=clients, sub=st.integers(1, 4))
    def unsubscribe(self, client: int, sub: int) -> None:
        number = self.next()
        answer = self.clients[client].ask(wire.unsubscribe(sub, number))
        known = self.subs.pop((client, sub), None) is not None
        assert [(kind, said.code, said.number) for kind, said in answer] == [(wire.RESULT, 0 if known else 32, number)]

    @rule(client=clients, name=st.sampled_from(["c", "d"]))
    def reconnect(self, client: int, name: str) -> None:
        self.hub.disconnect(self.clients[client].conn)
        self.clients[client] = Raw(self.hub, session=client + 1, name=f"{name}{client}")
        self.subs = {key: value for key, value in self.subs.items() if key[0] != client}

    @rule(client=clients, topic=topics)
    def publish(self, client: int, topic: str) -> None:
        number = self.next()
        slot = self.next_slot = (self.next_slot + 1) % self.slots
        sender = self.clients[client]
        sender.send(
            wire.topic(slot, topic), wire.publish(slot, topic.encode(), number, flags=wire.CONFIRM, time=number)
        )
        matching = {
            key: value
            for key, value in self.subs.items()
            if model.matches(value[0], topic) and (value[2] or key[0] != client)
        }
        alone = {key for key, value in matching.items() if not value[1]}
        members = {group: {key for key, value in matching.items() if value[1] == group} for group in ("red", "blue")}
        got: list[tuple[int, int]] = []
        receivers = 0
        confirmed = None
        for index, each in enumerate(self.clients):
            copies = 0
            for kind, said in each.read():
                if kind == wire.RESULT:
                    assert index == client
                    confirmed = said
                    continue
                assert kind == wire.DELIVER
                copies += 1
                assert (said.topic, said.payload, said.number, said.time) == (topic, topic.encode(), number, number)
                assert said.sender == (client + 1, sender.name)
                got += [(index, sub) for sub in said.ids]
            assert copies <= 1
            receivers += copies
        assert len(set(got)) == len(got)
        assert {key for key in got if not self.subs[key][1]} == alone
        for group, candidates in members.items():
            chosen = [key for key in got if self.subs[key][1] == group]
            assert len(chosen) == min(1, len(candidates))
            assert set(chosen) <= candidates
        assert confirmed is not None
        assert (confirmed.code, confirmed.number, confirmed.value) == (0, number, receivers)

    @rule(client=clients, topic=topics)
    def push(self, client: int, topic: str) -> None:
        """Offered to each candidate once while they refuse; nobody left: NO_CONSUMER."""
        number = self.next()
        pusher = self.clients[client]
        pusher.send(wire.topic(0, topic), wire.push(0, b"p", number))
        candidates = {key for key, value in self.subs.items() if model.matches(value[0], topic)}
        candidates = {key for key in candidates if self.subs[key][2] or key[0] != client}
        offered: set[int] = set()
        results = []
        while True:
            offers = []
            for index, each in enumerate(self.clients):
                for kind, said in each.read():
                    if kind == wire.RESULT:
                        assert index == client
                        results.append(said)
                    else:
                        assert kind == wire.OFFER
                        assert (said.topic, said.payload) == (topic, b"p")
                        offers.append((index, said))
            if not offers:
                break
            ((index, offer),) = offers
            assert index not in offered
            assert (index, offer.ids[0]) in candidates
            offered.add(index)
            self.clients[index].send(wire.accept(offer.extra, code=46))
        assert offered == {index for index, _ in candidates}
        assert [(result.code, result.number) for result in results] == [(44, number)]

    @invariant()
    def nobody_was_thrown_out(self) -> None:
        if hasattr(self, "hub"):
            assert not self.hub.failed
            assert not self.hub.closed


Routing.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRouting = Routing.TestCase


def test_a_large_random_index_agrees_with_the_model() -> None:
    """Thousands of subscriptions that come and go, so that the index splits, merges and forgets its cache."""
    choose = random.Random(11)
    hub = Hub()
    client, publisher = Raw(hub, 1), Raw(hub, 2)
    subs: dict[int, str] = {}

    def pattern() -> str:
        return "/".join(
            choose.choices(["a", "b", "c", "d", "e", "*", "**"], weights=[4, 4, 4, 4, 4, 2, 1], k=choose.randint(1, 5))
        )

    for step in range(6000):
        number = step + 1
        if subs and choose.random() < 0.3:
            sub = choose.choice(list(subs))
            del subs[sub]
            client.send(wire.unsubscribe(sub, number))
        else:
            subs[step + 1] = pattern()
            client.send(wire.subscribe(step + 1, number, subs[step + 1]))
        assert [said.code for _, said in client.read()] == [0]
        if step % 12 == 0:
            topic = pattern()
            publisher.send(wire.topic(0, topic), wire.publish(0, b"", number))
            ids = [sub for delivery in client.deliveries() for sub in delivery.ids]
            assert sorted(ids) == sorted(sub for sub, each in subs.items() if model.matches(each, topic)), topic


PIECES: list[tuple[str, regular.Language]] = [
    ("a", regular.letters("a")),
    ("b", regular.letters("b")),
    ("/", regular.letters("/")),
    ("/", regular.letters("/")),
    (".", regular.letters("abz/")),
    (".*", regular.star(regular.letters("abz/"))),
    ("[^a/]", regular.letters("bz")),
    ("a?", regular.alt(regular.EPSILON, regular.letters("a"))),
    ("(a|b/a)", regular.alt(regular.letters("a"), regular.seq(regular.letters("b"), regular.seq(regular.letters("/"), regular.letters("a"))))),
]  # fmt: skip


def test_expressions_that_come_and_go_agree_with_the_model() -> None:
    """Hundreds of regular expressions, some of them twice, against plain topics and those with wildcards."""
    choose = random.Random(26)
    hub = Hub()
    client, publisher = Raw(hub, 1), Raw(hub, 2)
    subs: dict[int, tuple[str, regular.Language]] = {}
    plain = wild = 0
    for step in range(1, 1501):
        if len(subs) > 100 or (subs and choose.random() < 0.3):
            sub = choose.choice(list(subs))
            del subs[sub]
            client.send(wire.unsubscribe(sub, step))
        else:
            pieces = choose.choices(PIECES, k=choose.randint(0, 5))
            language = functools.reduce(
                lambda last, piece: regular.seq(piece[1], last), reversed(pieces), regular.EPSILON
            )
            subs[step] = "".join(text for text, _ in pieces), language
            client.send(wire.subscribe(step, step, f"re:{subs[step][0]}"))
        assert [said.code for _, said in client.read()] == [0]
        if step % 10 == 0:
            segments = choose.choices(
                ["a", "b", "ab", "z", "*", "**"], weights=[4, 4, 2, 1, 2, 2], k=choose.randint(0, 4)
            )
            topic = "/".join(segments)
            publisher.send(wire.topic(0, topic), wire.publish(0, b"", step))
            ids = [sub for delivery in client.deliveries() for sub in delivery.ids]
            expected = [sub for sub, (_, language) in subs.items() if regular.meets_pattern(language, segments)]
            assert sorted(ids) == sorted(expected), topic
            if "*" in topic:
                wild += len(expected)
            else:
                plain += len(expected)
                assert expected == [sub for sub, (text, _) in subs.items() if re.fullmatch(text, topic)]
    assert min(plain, wild) > 100  # the sample says something about both


def test_a_topic_that_meets_too_many_places_of_the_tree_is_refused() -> None:
    """Many `**` on the publisher's side against many patterns: each meets each."""
    hub = Hub()
    subscriber, publisher = Raw(hub, 1), Raw(hub, 2)
    for number in range(20_000):
        subscriber.send(wire.subscribe(number, number + 1, f"a/{number}/b/**"))
    subscriber.read()
    assert [one.code for _, one in publisher.ask(wire.topic(0, "**/" * 100 + "x"), wire.push(0, b"", 1))] == [29]
    assert [
        one.code for _, one in publisher.ask(wire.topic(1, "a/7/b/c"), wire.publish(1, b"", 2, flags=wire.CONFIRM))
    ] == [0]
    assert [
        one.value for _, one in publisher.ask(wire.topic(2, "**"), wire.publish(2, b"", 3, flags=wire.CONFIRM))
    ] == [1]


def test_much_work_is_done_in_turns() -> None:
    """Making expressions, and comparing topics with them, lets other connections in between."""
    hub = Hub()
    client, publisher = Raw(hub, 1), Raw(hub, 2)
    hard = regular.hard(60)
    client.send(*(wire.subscribe(number, number, pattern) for number, pattern in enumerate(hard, start=1)))
    assert [said.code for _, said in client.read()] == [0] * 60
    assert hub.yields == [client.conn] * 60
    client.ask(wire.subscribe(61, 61, hard[0]))  # known already: no work
    assert len(hub.yields) == 60
    publisher.send(
        *(wire.topic(slot, f"{regular.HARDEST}{slot}") for slot in range(3)),
        *(wire.publish(number % 3, b"", number) for number in range(12)),
        wire.ping(7),
    )
    assert hub.yields[60:] == [publisher.conn] * 3  # once for each topic, the answer is kept
    said = publisher.read()
    assert [(kind, one.code, one.number) for kind, one in said[:-1]] == [(wire.RESULT, 29, each) for each in range(12)]
    assert said[-1] == (wire.PONG, 7)
    client.ask(wire.unsubscribe(61, 62))
    publisher.send(wire.publish(0, b"", 13))  # interest has changed: looked at anew
    assert [one.code for _, one in publisher.read()] == [29]
    assert len(hub.yields) == 64


def test_the_cache_of_a_topic_forgets_what_changed() -> None:
    """The same topic again and again, while interest in it changes in every way between the publishes."""
    hub = Hub()
    client, other, publisher = Raw(hub, 1), Raw(hub, 2), Raw(hub, 3)
    publisher.send(wire.topic(5, "a/b"))

    def receivers() -> tuple[list[int], list[int]]:
        publisher.send(wire.publish(5, b"", 1))
        first, second = ([sub for one in each.deliveries() for sub in one.ids] for each in (client, other))
        return sorted(first), sorted(second)

    assert receivers() == ([], [])
    for sub, pattern in enumerate(["a/b", "a/*", "**", "re:a/.", "*/b", "a/**/b"], start=1):
        client.ask(wire.subscribe(sub, 1, pattern))
        assert receivers() == (list(range(1, sub + 1)), [])
    other.ask(wire.subscribe(1, 1, "re:.*b"))
    assert receivers() == ([1, 2, 3, 4, 5, 6], [1])
    client.ask(wire.unsubscribe(4, 1), wire.unsubscribe(1, 1))
    assert receivers() == ([2, 3, 5, 6], [1])
    hub.disconnect(client.conn)
    publisher.send(wire.publish(5, b"", 1))
    assert [one.ids for one in other.deliveries()] == [(1,)]
    other.ask(wire.unsubscribe(1, 1))
    publisher.send(wire.publish(5, b"", 1))
    assert other.deliveries() == []


@pytest.mark.parametrize("size", [2, 3, 7])
def test_groups_share_evenly(size: int) -> None:
    hub = Hub()
    members = [Raw(hub, session=index + 1) for index in range(size)]
    publisher = Raw(hub, 100)
    for each in members:
        each.ask(wire.subscribe(1, 1, "jobs/*", group="g"))
    publisher.send(*(wire.topic(slot, f"jobs/{slot}") for slot in range(5)))
    publisher.send(*(wire.publish(number % 5, b"%d" % number, number) for number in range(size * 100)))
    shares = [each.deliveries() for each in members]
    assert sorted(int(one.payload) for share in shares for one in share) == list(range(size * 100))
    assert all(50 <= len(share) <= 200 for share in shares), [len(share) for share in shares]


def test_pushes_are_shared_evenly() -> None:
    hub = Hub()
    consumers = [Raw(hub, session=index + 1) for index in range(4)]
    pusher = Raw(hub, 100)
    for each in consumers:
        each.ask(wire.subscribe(1, 1, "jobs"))
    pusher.send(wire.topic(0, "jobs"))
    counts: Counter[int] = Counter()
    for number in range(1, 201):
        pusher.send(wire.push(0, b"", number))
        for index, each in enumerate(consumers):
            for kind, said in each.read():
                assert kind == wire.OFFER
                counts[index] += 1
                each.send(wire.accept(said.extra))
        assert [(said.code, said.number) for _, said in pusher.read()] == [(0, number)]
    assert set(counts) == {0, 1, 2, 3}
    assert max(counts.values()) <= 100
