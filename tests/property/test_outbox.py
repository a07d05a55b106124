"""Full outboxes, without sockets and clock: each dropped message is reported at its place, and no other is missing."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st

from tests.support import page, wire
from tests.support.pair import Hub, Raw
from tests.support.strength import examples

BLOCK, DROP_OLDEST, DROP_NEW, DISCONNECT = range(4)


class Stream:
    """Follows what one connection reads: for each subscription either the next message comes or its absence is told."""

    def __init__(self, client: Raw, subs: list[int]) -> None:
        self.client = client
        self.next = dict.fromkeys(subs, 0)
        self.received = dict.fromkeys(subs, 0)
        self.missed = dict.fromkeys(subs, 0)

    def read(self) -> None:
        for kind, said in self.client.read():
            if kind == wire.MISSED:
                sub, count = said
                assert count > 0
                self.next[sub] += count
                self.missed[sub] += count
            elif kind == wire.DELIVER:
                number = int(said.payload.split(b".")[0])
                for sub in said.ids:
                    assert number == self.next[sub], f"subscription {sub}"
                    self.next[sub] += 1
                    self.received[sub] += 1
            else:
                assert kind in (wire.PONG, wire.RESULT)


@given(
    policies=st.lists(st.sampled_from([BLOCK, DROP_OLDEST, DROP_NEW]), min_size=1, max_size=4),
    turns=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 700), st.booleans()), min_size=1, max_size=12),
)
@settings(max_examples=examples(300), deadline=None)
def test_received_and_missed_make_all_in_order(policies: list[int], turns: list[tuple[int, int, bool]]) -> None:
    """Bursts of some messages of some size, with the receiver's transport open or full in between."""
    hub = Hub(outbox=8192, stall_ms=50)
    receiver, publisher, witness = Raw(hub, 1), Raw(hub, 2), Raw(hub, 3)
    subs = list(range(1, len(policies) + 1))
    for sub, policy in zip(subs, policies, strict=True):
        receiver.ask(wire.subscribe(sub, sub, "t", policy=policy))
    witness.ask(wire.subscribe(9, 1, "t", policy=DROP_NEW))
    publisher.send(wire.topic(0, "t"))
    stream, seen = Stream(receiver, subs), Stream(witness, [9])
    now = published = 0
    for count, size, writable in turns:
        hub.writing(receiver.conn, writable)
        for _ in range(count):
            publisher.send(wire.publish(0, b"%d." % published + b"x" * size, published + 1))
            published += 1
            if hub.waits(publisher.conn):
                now = stalled(hub, now)
            assert hub.engine.pending(receiver.conn) <= 8192 + 2 * 800 + 100 * len(subs)
        stream.read()
        seen.read()
    hub.writing(receiver.conn, True)
    assert not hub.paused
    publisher.send(wire.publish(0, b"%d.last" % published, published + 1))
    stream.read()
    seen.read()
    for sub in subs:
        assert stream.received[sub] + stream.missed[sub] == published + 1, f"subscription {sub}"
    assert (seen.received, seen.missed) == ({9: published + 1}, {9: 0})
    assert not hub.failed


def stalled(hub: Hub, now: int) -> int:
    """Let more than the stall time pass."""
    for _ in range(4):
        now += 40
        hub.tick(now)
    assert not hub.paused, "a publisher is blocked by a stuck consumer after the stall time"
    return now


def full(hub: Hub, policy: int) -> Iterator[tuple[Raw, Raw]]:
    receiver, publisher = Raw(hub, 1), Raw(hub, 2)
    receiver.ask(wire.subscribe(2, 1, "t", policy=policy))
    publisher.send(wire.topic(0, "t"))
    hub.writing(receiver.conn, False)
    yield receiver, publisher


def test_missed_is_written_as_on_the_page() -> None:
    hub = Hub(outbox=4096)
    ((receiver, publisher),) = full(hub, DROP_NEW)
    sent = 0
    while hub.engine.stats()["messages_dropped"] < 1000:
        sent += 1
        publisher.send(wire.publish(0, b"x" * 100, sent))
    hub.writing(receiver.conn, True)
    data = hub.take(receiver.conn)
    assert page.vectors()["missed"].data in data
    assert [got.kind for got in wire.frames(data)].count(wire.DELIVER) == sent - 1000


@pytest.mark.parametrize("outbox", [4096, 64 << 10, 1 << 20])
@pytest.mark.parametrize("policy", [DROP_OLDEST, DROP_NEW])
def test_drop_oldest_keeps_the_newest_and_drop_new_the_oldest(policy: int, outbox: int) -> None:
    hub = Hub(outbox=outbox)
    ((receiver, publisher),) = full(hub, policy)
    size = outbox // 40
    for number in range(1, 201):
        publisher.send(wire.publish(0, b"." * size, number))
    hub.writing(receiver.conn, True)
    got = [said.number for kind, said in receiver.read() if kind == wire.DELIVER]
    assert got == list(range(200 - len(got) + 1, 201) if policy == DROP_OLDEST else range(1, len(got) + 1))
    assert 10 < len(got) < 60


@pytest.mark.parametrize("seed", range(20))
def test_messages_that_may_be_dropped_between_ones_that_may_not(seed: int) -> None:
    """One subscription blocks on some topics, another one drops the oldest of all: each is told of its own holes, in place."""
    choose = random.Random(seed)
    hub = Hub(outbox=512 << 10, stall_ms=20)
    receiver, publisher = Raw(hub, 1), Raw(hub, 2)
    receiver.ask(wire.subscribe(1, 1, "a", policy=BLOCK), wire.subscribe(2, 2, "*", policy=DROP_OLDEST))
    publisher.send(wire.topic(0, "a"), wire.topic(1, "b"))
    numbers = {1: 0, 2: 0}
    expected = {1: 0, 2: 0}
    now = 0

    def read() -> None:
        for kind, said in receiver.read():
            if kind == wire.MISSED:
                expected[said[0]] += said[1]
            elif kind == wire.DELIVER:
                own = dict(zip((1, 2), map(int, said.payload.split(b".")[:2]), strict=True))
                for sub in said.ids:
                    assert own[sub] == expected[sub], f"subscription {sub}"
                    expected[sub] += 1

    for _ in range(6):
        hub.writing(receiver.conn, False)
        for _ in range(choose.randint(50, 500)):
            slot = int(choose.random() < 0.8)
            payload = b"%d.%d." % (numbers[1], numbers[2]) + b"." * choose.randint(0, 4000)
            publisher.send(wire.publish(slot, payload, 1))
            numbers[2] += 1
            numbers[1] += slot == 0
            if hub.waits(publisher.conn):
                now = stalled(hub, now)
        assert hub.engine.pending(receiver.conn) <= (512 << 10) + 10_000
        hub.writing(receiver.conn, True)
        read()
    assert expected == numbers


def test_disconnect_ends_exactly_this_connection() -> None:
    hub = Hub(outbox=4096)
    ((receiver, publisher),) = full(hub, DISCONNECT)
    for number in range(1, 201):
        publisher.send(wire.publish(0, b"." * 100, number))
    assert hub.failed == {receiver.conn: hub.failed[receiver.conn]}
    assert hub.failed[receiver.conn][0] == 7
    publisher.send(wire.publish(0, b"", 999, flags=wire.CONFIRM))
    assert [said.value for kind, said in publisher.read() if kind == wire.RESULT] == [0]
    hub.writing(receiver.conn, True)
    got = receiver.read()
    assert [kind for kind, _ in got][-1] == wire.CLOSE
    assert [said.number for kind, said in got if kind == wire.DELIVER] == list(range(1, len(got)))


def test_block_holds_back_who_publishes_there_and_nobody_else() -> None:
    hub = Hub(outbox=4096, stall_ms=1000)
    ((receiver, publisher),) = full(hub, BLOCK)
    other = Raw(hub, 3)
    other.send(wire.topic(0, "u"))
    sent = 0
    while not hub.waits(publisher.conn):
        sent += 1
        publisher.send(wire.publish(0, b"%d." % (sent - 1) + b"." * 100, sent))
        assert sent < 1000
    publisher.send(wire.publish(0, b"%d." % sent, sent + 1), wire.ping(5), wire.request(0, b"", 99))
    assert publisher.read() == []  # for a moment nothing of it is read
    other.send(wire.publish(0, b"", 1), wire.ping(6))
    assert other.read() == [(wire.PONG, 6)]
    hub.tick(10)
    hub.tick(30)
    # It lasts: its publishes wait, and what stands for their end; everything else of it goes on.
    assert not hub.paused
    assert [(kind, one.number) for kind, one in publisher.read()] == [(wire.REPLY, 99)]
    hub.tick(900)
    assert hub.engine.waiting() == [publisher.conn]
    hub.writing(receiver.conn, True)
    assert hub.engine.waiting() == []
    assert publisher.read() == [(wire.PONG, 5)]
    assert hub.engine.stats()["aside_bytes"] == 0
    stream = Stream(receiver, [2])
    stream.read()
    assert (stream.received, stream.missed) == ({2: sent + 1}, {2: 0})


def test_a_client_that_goes_on_publishing_is_told_to_stop_and_then_not_read_any_more() -> None:
    limit = 4 << 20
    hub = Hub(outbox=4096, stall_ms=10**9)
    ((receiver, publisher),) = full(hub, BLOCK)
    sent, told = 0, 0
    while not hub.waits(publisher.conn):
        sent += 1
        publisher.send(wire.publish(0, b"%d." % (sent - 1) + b"." * 100, sent))
    hub.tick(10)
    hub.tick(30)
    while publisher.conn not in hub.paused:
        sent += 1
        publisher.send(wire.publish(0, b"%d." % (sent - 1) + b"." * 10_000, sent))
        told += [kind for kind, _ in publisher.read()].count(wire.FLOW)
        assert sent < 1000
    assert told == 1
    assert limit < hub.engine.stats()["aside_bytes"] < limit + 22_000
    hub.writing(receiver.conn, True)
    assert not hub.paused
    assert publisher.read() == [(wire.FLOW, b"\0\0")]
    stream = Stream(receiver, [2])
    stream.read()
    assert (stream.received, stream.missed) == ({2: sent}, {2: 0})


def test_what_is_set_aside_keeps_the_topic_it_was_sent_to() -> None:
    hub = Hub(outbox=4096, stall_ms=10**9)
    ((receiver, publisher),) = full(hub, BLOCK)
    receiver.send(wire.subscribe(9, 9, "late", policy=2))
    while not hub.waits(publisher.conn):
        publisher.send(wire.publish(0, b"." * 100, 1))
    publisher.send(wire.publish(0, b"old", 2), wire.topic(0, "late"), wire.publish(0, b"new", 3))
    hub.writing(receiver.conn, True)
    got = [
        (said.topic, said.payload) for kind, said in receiver.read() if kind == wire.DELIVER and said.number in (2, 3)
    ]
    assert got == [("t", b"old"), ("late", b"new")]


def test_what_a_connection_that_ends_had_set_aside_is_counted_as_dropped() -> None:
    hub = Hub(outbox=4096, stall_ms=10**9)
    ((_, publisher),) = full(hub, BLOCK)
    while not hub.waits(publisher.conn):
        publisher.send(wire.publish(0, b"." * 100, 1))
    hub.tick(10)
    hub.tick(30)
    before = hub.engine.stats()["messages_dropped"]
    publisher.send(wire.publish(0, b"", 2), wire.publish(0, b"", 3))
    hub.disconnect(publisher.conn)
    assert hub.engine.stats()["messages_dropped"] == before + 3
    assert hub.engine.stats()["aside_bytes"] == 0


def test_a_blocked_publisher_is_released_when_the_consumer_goes() -> None:
    hub = Hub(outbox=4096, stall_ms=10**9)
    ((receiver, publisher),) = full(hub, BLOCK)
    while not hub.waits(publisher.conn):
        publisher.send(wire.publish(0, b"." * 100, 1))
    publisher.send(wire.ping(5))
    hub.disconnect(receiver.conn)
    assert not hub.paused
    assert publisher.read() == [(wire.PONG, 5)]


def test_a_blocked_publisher_is_released_when_the_subscription_ends() -> None:
    hub = Hub(outbox=4096, stall_ms=10**9)
    ((receiver, publisher),) = full(hub, BLOCK)
    while not hub.waits(publisher.conn):
        publisher.send(wire.publish(0, b"." * 100, 1))
    receiver.send(wire.unsubscribe(2, 9))
    publisher.send(wire.ping(5))
    hub.writing(receiver.conn, True)
    assert publisher.read() == [(wire.PONG, 5)]


@pytest.mark.parametrize("seed", range(5))
def test_many_consumers_with_all_policies(seed: int) -> None:
    """Six consumers that are stopped and let go at random, two publishers, everything accounted for in the end."""
    choose = random.Random(seed)
    hub = Hub(outbox=4096, stall_ms=20)
    consumers = [Raw(hub, 10 + index) for index in range(6)]
    streams = []
    for index, consumer in enumerate(consumers):
        consumer.ask(wire.subscribe(1, 1, "t", policy=index % 3))
        streams.append(Stream(consumer, [1]))
    publisher = Raw(hub, 2)
    publisher.send(wire.topic(0, "t"))
    now = published = 0
    for _ in range(300):
        hub.writing(choose.choice(consumers).conn, choose.random() < 0.5)
        for _ in range(choose.randint(1, 10)):
            publisher.send(wire.publish(0, b"%d." % published + b"." * choose.randint(0, 400), published))
            published += 1
            if hub.waits(publisher.conn):
                now = stalled(hub, now)
        choose.choice(streams).read()
    for consumer, stream in zip(consumers, streams, strict=True):
        hub.writing(consumer.conn, True)
        publisher.send(wire.ping(1))
        stream.read()
        assert stream.received[1] + stream.missed[1] == published
        assert stream.received[1] > 0
    assert sum(stream.missed[1] for stream in streams) == hub.engine.stats()["messages_dropped"] > 0
