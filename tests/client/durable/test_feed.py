"""Durable publishes without await: each one's result is reported once, also after a lost connection."""

import asyncio

import busway
from busway.client.durable.in_flight import NO_TIMES, InFlight
from busway.fields import encode_fields
from busway.positions import Position
from busway.testing import FaultProxy
from tests.support.net import until, within


class Results:
    """A report that keeps the result of each message with the object of its row."""

    def __init__(self):
        self.told = []

    def stored(self, batch, begin, end, position):
        for index in range(begin, end):
            place = position.after(index - begin)
            self.told.append((batch.items[index][5], place.stream, place.offset, place.sequence))

    def refused(self, batch, index, error):
        self.told.append((batch.items[index][5], error))


def begin(bus, results, number, fields=b""):
    return bus.feed().begin(results, row("t", b"%d" % number, number, fields))


def row(topic, payload, own, fields=b""):
    return topic, payload, fields, NO_TIMES, 7, own


async def test_they_are_told_in_order_before_what_they_cause():
    async with busway.serve() as server, server.connect() as bus, bus.subscribe("t") as got:
        results = Results()
        for number in range(100):
            assert begin(bus, results, number, encode_fields({"n": number}))
        for number in range(100):
            message = await within(got.recv())
            assert (message.payload, message.fields) == (b"%d" % number, {"n": number})
        assert results.told == [(number, "default", number, number + 1) for number in range(100)]


async def test_without_a_connection_nothing_is_sent():
    async with busway.serve() as server, server.connect() as bus:
        results = Results()
        await bus.create_stream("s", ["t"], store="memory")
        assert begin(bus, results, 1)
        await bus.flush()
        assert results.told == [(1, "s", 0, 1)]
        await bus.close()
        assert not begin(bus, results, 2)
        assert len(results.told) == 1


async def test_a_refused_one_is_reported():
    async with busway.serve() as server, server.connect() as bus:
        results = Results()
        for number, topic in enumerate(["t", "t/*", "t"]):
            assert bus.feed().begin(results, row(topic, b"x", number))
        await until(lambda: len(results.told) == 3)
        assert [one[0] for one in results.told if isinstance(one[1], busway.BusError)] == [1]


async def test_one_that_waits_for_room_is_stored_behind_the_earlier_ones():
    async with (
        busway.serve("tcp://127.0.0.1:0") as server,
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address) as bus,
    ):
        results = Results()
        link = await proxy.link()
        link.stall("up")
        number = 0
        while begin(bus, results, number):
            number += 1
        feed = bus.feed()
        later = asyncio.ensure_future(feed.begin_later(results, row("t", b"later", "later")))
        await asyncio.sleep(0)
        assert not later.done()
        proxy.cut()
        await within(later)
        await until(lambda: len(results.told) == number + 1)
        assert [one[2] for one in results.told] == list(range(number + 1))
        assert results.told[-1][0] == "later"


async def test_over_a_lost_connection_each_is_stored_and_reported_once():
    async with (
        busway.serve("tcp://127.0.0.1:0") as server,
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address) as bus,
        server.connect() as here,
    ):
        results = Results()
        (await proxy.link()).stall("down")  # it is stored, but the client gets no answer
        assert begin(bus, results, 1)
        stream = await here.stream("default")
        while (await stream.info()).next == 0:
            await asyncio.sleep(0.01)
        proxy.cut()
        await until(lambda: results.told)
        assert results.told == [(1, "default", 0, 1)]
        assert (await stream.info()).next == 1


async def test_those_in_flight_at_the_end_are_reported():
    async with (
        busway.serve("tcp://127.0.0.1:0") as server,
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=None) as bus,
    ):
        results = Results()
        (await proxy.link()).stall("up")
        assert begin(bus, results, 1)
        proxy.cut()
        await until(lambda: results.told)
        assert isinstance(results.told[0][1], busway.BusError)


def batch(first, count, results):
    return InFlight(first, results, [row("t", b"%d" % number, number) for number in range(count)], count)


def test_what_is_answered_twice_is_reported_once():
    results = Results()
    made = batch(5, 6, results)
    assert made.stored(6, 2, Position("b", "s", 10, 20)) == 2
    assert results.told == [(1, "s", 10, 20), (2, "s", 11, 21)]
    results.told.clear()
    assert made.stored(6, 1, Position("b", "s", 10, 20)) == 1
    assert made.stored(5, 9, Position("b", "s", 9, 19)) == 6
    assert results.told == [(number, "s", 9 + number, 19 + number) for number in (0, 3, 4, 5)]
    assert (made.left, made.unanswered()) == (0, [])


def test_one_that_is_refused_is_reported_and_not_sent_again():
    results = Results()
    made = batch(1, 3, results)
    assert made.refused(2, "why")
    assert not made.refused(2, "why")
    assert results.told == [(1, "why")]
    assert (made.left, made.unanswered()) == (2, [1, 3])
    assert made.row(3) == ("t", b"2", b"", NO_TIMES, 7, 2)


def test_payloads_of_one_topic_have_its_fields():
    made = InFlight(5, Results(), [b"x", "y"], 2, ("t", b"", b"f", (1, 2), 7))
    assert [made.row(number) for number in made.unanswered()] == [
        ("t", b"x", b"f", (1, 2), 7),
        ("t", "y", b"f", (1, 2), 7),
    ]
