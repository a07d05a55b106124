"""The machine behind the two files: which reader gets which message, against a model of ten lines."""

import errno
import random
import re
import struct

import pytest
from hypothesis import given, settings, strategies as st

from busway.gateway.files.config import Mount
from busway.gateway.files.fusebus.exchange import Exchange
from tests.support.fusebus_client import META, padded, parse, refused
from tests.support.strength import examples

NAMES = ["A", "B", "AB", "a/b"]
PATTERNS = ["A", "B", ".*", "A.*", "a/b", "nobody", "B|AB"]


class Model:
    """What the document says, as slowly as can be: everything that was published, and what each client has received."""

    def __init__(self, kept):
        self.kept, self.log, self.received, self.subscriptions = kept, [], {}, {}

    def wants(self, client, channel):
        return any(re.fullmatch(one, NAMES[channel]) for one in self.subscriptions[client].values())

    def unread(self, client):
        first = max(0, len(self.log) - self.kept)
        return [
            (serno, channel, payload)
            for serno, (channel, payload) in enumerate(self.log)
            if serno >= first and serno not in self.received[client] and self.wants(client, channel)
        ]


@pytest.mark.parametrize("kept", [3, 12, 1000])
@pytest.mark.parametrize("seed", range(40))
def test_as_the_model(kept, seed):
    """Long runs in which clients come back to what they gave up, which short ones hardly ever do."""
    chance = random.Random(seed)
    exchange, model = Exchange(Mount(messages=kept)), Model(kept)
    exchange.register(NAMES)
    clients = {one: exchange.open() for one in range(3)}
    for one in clients:
        model.received[one], model.subscriptions[one] = set(), {}
    for _ in range(400):
        who = chance.randrange(3)
        match chance.choices(["publish", "subscribe", "unsubscribe", "read", "reopen"], [40, 15, 12, 30, 1])[0]:
            case "publish":
                channel, payload = chance.randrange(len(NAMES)), bytes(chance.randrange(40))
                serno, _ = exchange.publish(channel, 0, payload)
                assert serno == len(model.log)
                model.log.append((channel, payload))
            case "subscribe":
                pattern = chance.choice(PATTERNS)
                number = exchange.subscribe(clients[who], pattern.encode(), 1000)
                assert number == next(n for n in range(1000) if n not in model.subscriptions[who])
                model.subscriptions[who][number] = pattern
            case "unsubscribe":
                number = chance.randrange(4)
                if number in model.subscriptions[who]:
                    exchange.unsubscribe(clients[who], number)
                    del model.subscriptions[who][number]
                else:
                    with refused(errno.ENOENT):
                        exchange.unsubscribe(clients[who], number)
            case "reopen":
                exchange.close(clients[who])
                clients[who] = exchange.open()
                model.received[who], model.subscriptions[who] = set(), {}
            case "read":
                read(exchange, model, clients, who, chance.choice([30, 60, 100, 200, 4096]))
        for one, client in clients.items():
            assert exchange.ready(client) == bool(model.unread(one))
    for one, client in clients.items():
        read(exchange, model, clients, one, 1 << 20)
        for number in list(model.subscriptions[one]):
            exchange.unsubscribe(client, number)
    exchange.waiting.update(clients.values())
    assert [set(exchange.publish(channel, 0, b"")[1]) for channel in range(len(NAMES))] == [set()] * len(NAMES)


def read(exchange, model, clients, who, size):
    unread = model.unread(who)
    before, unread = clients[who].refused, list(unread)
    while unread and 40 + len(unread[0][2]) > size:
        if size < 40 or before is None or before[0] != unread[0][0] or size > before[1]:
            with refused(errno.EMSGSIZE):
                exchange.take(clients[who], size, 1 << 30)
            return
        model.received[who].add(unread.pop(0)[0])  # it is skipped
    if unread and 40 + padded(len(unread[0][2])) > size:  # without the padding that does not fit
        (block,) = exchange.take(clients[who], size, 1 << 30)
        assert len(block) == size
        assert block[40 : 40 + len(unread[0][2])] == unread[0][2]
        model.received[who].add(unread[0][0])
        return
    got = parse(b"".join(exchange.take(clients[who], size, 1 << 30)))
    expected = []
    for serno, channel, payload in unread:
        size -= 40 + -(-len(payload) // 16) * 16
        if size < 0:
            break
        expected.append((serno, channel, payload))
        model.received[who].add(serno)
    assert [(one.serno, one.channel, one.data) for one in got] == expected


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=64),
            st.tuples(st.integers(0, 3) | st.integers(0, 2**64 - 1), st.binary(max_size=40)).map(
                lambda pair: struct.pack("=Q", pair[0]) + pair[1]
            ),
        ),
        max_size=30,
    )
)
def test_garbage_is_refused_or_taken_but_never_more(writes):
    exchange = Exchange(Mount(subscriptions=4))
    exchange.register(["A", "B"])
    client = exchange.open()
    for write in writes:
        try:
            told, channel = exchange.write(client, write)
        except OSError as error:
            assert error.errno in {errno.EINVAL, errno.ENOENT, errno.ENXIO, errno.EMSGSIZE, errno.ENOSPC}
        else:
            assert 0 <= told <= len(write)
            assert channel in {-1, 0, 1}
    exchange.close(client)
    assert not exchange.clients


def test_what_a_client_misses_is_counted_for_it():
    exchange = Exchange(Mount(messages=4))
    exchange.register(["A", "B"])
    slow, other = exchange.open(), exchange.open()
    exchange.subscribe(slow, b"A", 100)
    exchange.subscribe(other, b"B", 100)
    for _ in range(10):
        exchange.publish(0, 0, b"x")
    assert (slow.lost, other.lost, exchange.lost) == (6, 0, 6)
    assert [one.serno for one in parse(b"".join(exchange.take(slow, 4096, 1 << 30)))] == [6, 7, 8, 9]


def test_bytes_are_limited_too():
    exchange = Exchange(Mount(bytes=2048, max_message=1016))
    exchange.register(["A"])
    for _ in range(10):
        exchange.publish(0, 0, b"x" * 1000)
    assert exchange.store.next - exchange.store.oldest == 2
    assert exchange.store.used == 2 * 1008
    assert sum(len(block) - META.size for _, block in exchange.store.records.values()) == exchange.store.used


def test_numbers_of_clients_are_the_lowest_that_are_free():
    exchange = Exchange(Mount(clients=3))
    first, second, third = exchange.open(), exchange.open(), exchange.open()
    with refused(errno.ENFILE):
        exchange.open()
    exchange.close(second)
    exchange.close(first)
    assert [exchange.open().number, exchange.open().number, third.number] == [0, 1, 2]


def test_a_channel_can_be_named_that_is_no_regular_expression():
    exchange = Exchange(Mount())
    client = exchange.open()
    with refused(errno.EINVAL):
        exchange.subscribe(client, b"a(b", 100)
    exchange.register(["a(b", "a.b", "aXb"])
    exchange.subscribe(client, b"a(b", 100)
    assert client.channels == {0}
    exchange.subscribe(client, b"a.b", 100)
    assert client.channels == {0, 1, 2}


def test_settings_that_can_not_be():
    with pytest.raises(ValueError, match="max_message"):
        Mount(max_message=5 << 20)
    with pytest.raises(ValueError, match="mode"):
        Mount(mode=0o1777)
    with pytest.raises(ValueError, match="channels"):
        Mount(channels=0)
    assert Mount().permissions == 0o600
    assert Mount(allow_other=True).permissions == 0o666
    assert Mount(mode=0o640).folder_permissions == 0o750
