"""Restart of a broker: all acknowledged messages and their publishers are found again."""

import asyncio

import busway
from busway.testing import FaultProxy
from tests.support.net import PATIENCE, payloads, until, within
from tests.support.stream_kits import Place


async def test_all_is_there_and_goes_on(lasting: Place) -> None:
    place = lasting
    bus = await place.connect("till")
    await within(bus.publish_many("orders/a", [b"%d" % n for n in range(3000)], durable=True))
    await within(bus.publish("orders/b", b"b", fields={"x": 1}, durable=True))
    before = await place.stored()
    await place.restart()
    after = await place.stored()
    shown = [
        [(m.offset, m.sequence, m.topic, m.payload, m.fields, m.sender, m.time_ns, m.stored_ns) for m in messages]
        for messages in (before, after)
    ]
    assert shown[0] == shown[1]
    assert len(after) == 3001
    more = await within(bus.publish("orders/a", b"more", durable=True))
    assert (more.broker, more.offset, more.sequence) == (before[0].broker, 3001, 3001)


async def test_a_reader_goes_on_where_it_was(lasting: Place) -> None:
    place = lasting
    bus, other = await place.connect(), await place.connect()
    async with other.subscribe("orders/**", since="all") as subscription:
        await within(bus.publish_many("orders/a", [b"%d" % n for n in range(10)], durable=True))
        assert await payloads(subscription, 10) == [b"%d" % n for n in range(10)]
        await place.restart()
        await within(bus.publish_many("orders/a", [b"%d" % n for n in range(10, 20)], durable=True))
        assert await payloads(subscription, 10) == [b"%d" % n for n in range(10, 20)]
        kept = str(subscription.position)
    await within(bus.publish("orders/a", b"20", durable=True))
    assert [message.payload for message in await place.stored(since=kept)] == [b"20"]


async def test_a_long_backlog_is_read_piece_by_piece_by_many(lasting: Place) -> None:
    """Of different sizes and beginnings, to slow readers: more than the broker keeps in memory or in its pipes."""
    place = lasting
    bus = await place.connect()
    sent = [b"%d" % n + b"x" * (n * 37 % 2000) for n in range(12_000)]
    places = await within(bus.publish_many("orders/a", sent, durable=True))
    await place.restart()

    async def read(begin: int) -> None:
        other = await place.connect()
        async with other.subscribe("orders/**", since=places[begin]) as subscription:
            got: list[busway.Message] = []
            while len(got) < len(sent) - begin - 1:
                got += await subscription.take(most=500, timeout=PATIENCE)
                await asyncio.sleep(0)
            assert [message.offset for message in got] == list(range(begin + 1, len(sent)))
            assert [message.payload for message in got] == sent[begin + 1 :]

    await within(asyncio.gather(*(read(begin) for begin in (0, 1, 5000, 11_000))))


async def test_sent_again_after_a_restart_it_is_stored_once(lasting: Place) -> None:
    """The answer is lost together with the broker: the one that comes after it knows the message."""
    place = lasting
    async with FaultProxy(place.address, listen=f"unix:{place.folder / 'proxy'}") as proxy:
        bus = await place.connect(address=proxy.address)
        await within(bus.publish("orders/a", b"0", durable=True))
        (await proxy.link()).stall("down")
        sending = [
            asyncio.ensure_future(bus.publish_many("orders/a", [b"%d" % n for n in range(1, 50)], durable=True)),
            asyncio.ensure_future(bus.publish("orders/b", b"b", durable=True)),
        ]
        await until(lambda: place.stream().safe == 51)
        proxy.refusing = True
        proxy.reset()
        await place.restart()
        proxy.heal()
        many, one = await within(asyncio.gather(*sending))
    assert [position.sequence for position in many] == list(range(2, 51))
    assert one.sequence == 1
    assert sorted(position.offset for position in [*many, one]) == list(range(1, 51))
    stored = {message.offset: message.payload for message in await place.stored()}
    placed = {position.offset: b"%d" % n for n, position in enumerate(many, 1)}
    assert stored == {0: b"0", one.offset: b"b", **placed}


async def test_what_was_removed_for_its_age_stays_removed(lasting: Place) -> None:
    place = lasting
    await place.make("brief", max_age="1h")
    bus = await place.connect()
    await within(bus.publish_many("brief/a", [b"%d" % n for n in range(100)], durable=True))
    await place.trim("brief", "2h", 100)
    await place.restart()
    assert (place.stream("brief").first, place.stream("brief").safe) == (100, 100)
    again = await within(bus.publish("brief/a", b"", durable=True))
    assert (again.offset, again.sequence) == (100, 101)
