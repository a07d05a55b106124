"""Durable publishes without await: each one's result is reported once, also after a lost connection."""

import asyncio

import busway
from busway.client.durable.in_flight import ReportedPublish
from busway.fields import encode_fields
from busway.positions import Position
from busway.testing import FaultProxy
from tests.support.net import until, within


def teller(bus, told):
    """Remembers what it is told, by what each message has as its own."""

    def stored(rows, place):
        told.extend((row[3], place.stream, place.offset + at, place.sequence + at) for at, row in enumerate(rows))

    return bus.feed().reported(stored, lambda row, error: told.append((row[3], error)))


def row(number, fields=b""):
    return "t", b"%d" % number, fields, number


async def test_they_are_told_in_order_before_what_they_cause():
    async with busway.serve() as server, server.connect() as bus, bus.subscribe("t") as got:
        told = []
        tell = teller(bus, told)
        for number in range(100):
            assert tell.begin(row(number, encode_fields({"n": number})))
        for number in range(100):
            message = await within(got.recv())
            assert (message.payload, message.fields) == (b"%d" % number, {"n": number})
        assert told == [(number, "default", number, number + 1) for number in range(100)]


async def test_a_refused_one_is_told():
    async with busway.serve() as server, server.connect() as bus:
        told = []
        await bus.create_stream("s", ["t"], store="memory")
        assert teller(bus, told).begin(row(1))
        await bus.flush()
        assert told == [(1, "s", 0, 1)]
        await bus.close()
        assert not teller(bus, told).begin(row(2))
        assert len(told) == 1


async def test_over_a_lost_connection_each_is_stored_and_told_once():
    async with (
        busway.serve("tcp://127.0.0.1:0") as server,
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address) as bus,
        server.connect() as here,
    ):
        told = []
        (await proxy.link()).stall("down")  # it is stored, but nobody is told
        assert teller(bus, told).begin(row(1))
        stream = await here.stream("default")
        while (await stream.info()).next == 0:
            await asyncio.sleep(0.01)
        proxy.cut()
        await until(lambda: told)
        assert told == [(1, "default", 0, 1)]
        assert (await stream.info()).next == 1


async def test_those_under_way_when_all_ends_are_told():
    async with (
        busway.serve("tcp://127.0.0.1:0") as server,
        FaultProxy(server.addresses[0]) as proxy,
        busway.connect(proxy.address, reconnect=None) as bus,
    ):
        told = []
        (await proxy.link()).stall("up")
        assert teller(bus, told).begin(row(1))
        proxy.cut()
        await until(lambda: told)
        assert isinstance(told[0][1], busway.BusError)


def test_what_is_answered_twice_is_told_once():
    told = []
    telling = ReportedPublish(5, 0, lambda rows, place: told.append(([row[3] for row in rows], place)), None)
    for number in range(6):
        telling.rows.append(row(number))
    telling.end, telling.left = 11, 6
    assert telling.mark(6, 2, Position("b", "s", 10, 20)) == (2, 2)
    assert told == [([1, 2], Position("b", "s", 10, 20))]
    told.clear()
    assert telling.mark(5, 9, Position("b", "s", 9, 19)) == (6, 4)
    assert told == [([number], Position("b", "s", 9 + number, 19 + number)) for number in (0, 3, 4, 5)]
    assert not list(telling.unanswered())


def test_one_that_is_refused_is_told_and_not_sent_again():
    told = []
    telling = ReportedPublish(1, 7, None, lambda row, error: told.append((row[3], error)))
    telling.rows.extend(row(number) for number in range(3))
    assert telling.refuse(2, "why")
    assert not telling.refuse(2, "why")
    assert told == [(1, "why")]
    assert [again.number for again in telling.unanswered()] == [1, 3]
    telling.set_exception("over")
    assert told == [(1, "why"), (0, "over"), (2, "over")]
