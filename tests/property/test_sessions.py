"""Native sessions against the native engine, without sockets: received messages equal the published ones, for all
slots.
"""

import random

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from busway import _core, errors
from tests.support import model, wire
from tests.support.pair import Client, Hub
from tests.support.strength import examples

topics = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=3).map("/".join)
patterns = st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=3).map("/".join)


class Sessions(RuleBasedStateMachine):
    """A publisher and a subscriber; the subscriber's inboxes are compared with the model after every step."""

    @initialize(slots=st.sampled_from([1, 2, 5, 65536]))
    def begin(self, slots: int) -> None:
        self.hub = Hub(topics=slots, senders=slots)
        self.publisher, self.subscriber = Client(self.hub, 1, "publisher"), Client(self.hub, 2, "subscriber")
        self.inboxes: dict[int, tuple[str, _core.Inbox]] = {}
        self.expected: dict[int, list[tuple[str, bytes]]] = {}
        self.ids = self.number = 0

    @rule(pattern=patterns)
    def subscribe(self, pattern: str) -> None:
        self.ids += 1
        session = self.subscriber.session
        inbox = session.inbox(self.ids, messages=10_000, bytes=1 << 30, policy=0)
        number = session.subscribe(self.ids, pattern)
        assert self.subscriber.pump() == [(_core.EVENT_RESULT, number, 0, 0, "")]
        self.inboxes[self.ids] = pattern, inbox
        self.expected[self.ids] = []

    @rule(choice=st.randoms(use_true_random=False))
    def unsubscribe(self, choice: random.Random) -> None:
        if not self.inboxes:
            return
        sub = choice.choice(sorted(self.inboxes))
        number = self.subscriber.session.unsubscribe(sub)
        assert self.subscriber.pump() == [(_core.EVENT_RESULT, number, 0, 0, "")]
        self.subscriber.session.forget(sub)
        del self.inboxes[sub], self.expected[sub]

    @rule(several=st.lists(topics, min_size=1, max_size=12))
    def publish(self, several: list[str]) -> None:
        for topic in several:
            assert self.publisher.session.publish(topic, self.payload(topic)) is not None
        self.arrives()

    @rule(topic=topics, count=st.integers(0, 20))
    def publish_many(self, topic: str, count: int) -> None:
        payloads = [self.payload(topic) for _ in range(count)]
        assert self.publisher.session.publish_many(topic, payloads, 0)[0] == count
        self.arrives()

    @rule(several=st.lists(topics, min_size=1, max_size=5))
    def send(self, several: list[str]) -> None:
        for topic in several:
            self.publisher.session.send(wire.PUBLISH, topic, self.payload(topic))
        self.arrives()

    @rule()
    def publisher_comes_back(self) -> None:
        self.hub.disconnect(self.publisher.conn)
        self.publisher.join()

    @rule()
    def subscriber_comes_back(self) -> None:
        self.hub.disconnect(self.subscriber.conn)
        self.subscriber.join()
        numbers = [self.subscriber.session.subscribe(sub, pattern) for sub, (pattern, _) in self.inboxes.items()]
        assert self.subscriber.pump() == [(_core.EVENT_RESULT, number, 0, 0, "") for number in numbers]

    def payload(self, topic: str) -> bytes:
        self.number += 1
        for sub, (pattern, _) in self.inboxes.items():
            if model.matches(pattern, topic):
                self.expected[sub].append((topic, b"%d" % self.number))
        return b"%d" % self.number

    def arrives(self) -> None:
        assert self.publisher.pump() == []
        ready = {event[1] for event in self.subscriber.pump()}
        for sub, (_, inbox) in self.inboxes.items():
            got = inbox.take(10_000)
            assert [(message.topic, message.payload) for message in got] == self.expected[sub]
            assert {message.sender for message in got} <= {"publisher"}
            assert (sub in ready) == bool(got)
            assert inbox.missed == 0
            self.expected[sub].clear()


Sessions.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSessions = Sessions.TestCase


def test_publish_takes_no_more_than_the_gathering_allows() -> None:
    hub = Hub()
    client = Client(hub, 1)
    client.session = _core.Session(1, gather=1000)
    client.join()
    taken = 0
    while client.session.publish("t", b"x" * 100) is not None:
        taken += 1
    assert 5 <= taken <= 12
    assert client.session.publish_many("t", [b"x"] * 10, 0)[0] == 0
    client.pump()
    assert client.session.publish("t", b"x") is not None


def test_publish_waits_while_the_transport_is_full_or_absent() -> None:
    hub = Hub()
    client = Client(hub, 1)
    client.session.writable(False)
    assert client.session.publish("t", b"x") is None
    assert client.session.publish_many("t", [b"x", b"y"], 0)[0] == 0
    client.session.writable(True)
    assert client.session.publish("t", b"x") is not None
    client.session.attach(None)
    assert client.session.publish("t", b"x") is None
    assert client.session.waiting == 0


def test_on_output_is_called_when_output_begins_to_wait_and_not_again() -> None:
    calls: list[int] = []
    session = _core.Session(1)
    session.attach(lambda: calls.append(1))
    session.open(frame=1 << 20, topic=100, fields=100, topics=100)
    for _ in range(5):
        assert session.publish("t", b"x") is not None
    assert len(calls) == 1
    assert session.take() is not None
    assert session.take() is None
    session.ping(1)
    assert len(calls) == 2


@pytest.mark.parametrize("kind", [wire.PUBLISH, wire.PUSH, wire.REQUEST])
def test_what_does_not_fit_is_refused_before_it_is_written(kind: int) -> None:
    session = _core.Session(1)
    session.attach(lambda: None)
    session.open(frame=1024, topic=20, fields=100, topics=100)
    for topic, payload, error in (
        ("t", b"x" * 1024, errors.LimitExceeded),
        ("t" * 21, b"", errors.LimitExceeded),
        ("a//b", b"", errors.InvalidTopic),
    ):
        with pytest.raises(error):
            session.send(kind, topic, payload)
        with pytest.raises(error):
            session.publish(topic, payload)
    assert [got.kind for got in wire.frames(bytes(session.take() or b""))] in ([], [wire.TOPIC])
    session.send(kind, "t", b"x" * (1024 - 32))
    assert len(session.take() or b"") in (1024, 1024 + 13)


@pytest.mark.parametrize("policy", range(4))
def test_inboxes_drop_by_their_policy_and_count(policy: int) -> None:
    hub = Hub()
    publisher, subscriber = Client(hub, 1), Client(hub, 2)
    inbox = subscriber.session.inbox(1, messages=10, bytes=1 << 20, policy=policy)
    subscriber.session.subscribe(1, "t", policy=policy)
    subscriber.pump()
    publisher.session.publish_many("t", [b"%d" % number for number in range(100)], 0)
    publisher.pump()
    subscriber.pump()
    got = [int(message.payload) for message in inbox.take(1000)]
    if policy in (0, 3):
        assert got == list(range(100))  # kept, and reading stops
    else:
        assert got == (list(range(90, 100)) if policy == 1 else list(range(10)))
    assert (inbox.received, inbox.missed) == (len(got), 100 - len(got))
    assert inbox.bytes == 0


def test_an_inbox_is_full_from_its_limit_until_it_is_half_empty() -> None:
    hub = Hub()
    publisher, subscriber = Client(hub, 1), Client(hub, 2)
    inbox = subscriber.session.inbox(1, messages=10, bytes=1 << 20, policy=0)
    subscriber.session.subscribe(1, "t")
    subscriber.pump()
    states, told = [], []
    for number in range(12):
        publisher.session.publish("t", b"%d" % number)
        publisher.pump()
        told += [event for event in subscriber.pump() if event[0] == _core.EVENT_FULL]
        states.append(inbox.full)
    assert states == [False] * 9 + [True] * 3
    assert told == [(_core.EVENT_FULL, 1)]
    while inbox.full:
        inbox.take(1)
    assert len(inbox) == 5
    publisher.session.publish_many("t", [b""] * 5, 0)
    publisher.pump()
    assert (_core.EVENT_FULL, 1) in subscriber.pump()
    assert inbox.full


def test_messages_before_a_broken_frame_are_still_announced() -> None:
    """They are in their inbox, so the next connection must wake whoever waits for them."""
    hub = Hub()
    publisher, subscriber = Client(hub, 1), Client(hub, 2)
    inbox = subscriber.session.inbox(1, messages=10, bytes=1 << 20, policy=0)
    subscriber.session.subscribe(1, "t")
    subscriber.pump()
    publisher.session.publish("t", b"x")
    publisher.pump()
    data = hub.take(subscriber.conn) + wire.frame(0x7F)
    with pytest.raises(errors.RemoteProtocolError):
        subscriber.session.feed(data, len(data))
    assert len(inbox) == 1
    conn = hub.connect()
    subscriber.session.attach(lambda: None)
    subscriber.conn = conn
    subscriber.session.hello(b"\x82\xa7session\x02\xa4name\xa0")
    assert (_core.EVENT_READY, 1) in subscriber.pump()
