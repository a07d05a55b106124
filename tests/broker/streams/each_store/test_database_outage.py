"""A database that goes and comes back under a broker: clear errors, nothing acknowledged is lost, nothing is stored twice."""

import asyncio
import logging
import random
from pathlib import Path

import pytest

import busway
from busway.errors import StoreFailed
from busway.positions import Position
from busway.streams import Safety
from tests.support.net import gather, payloads, settle, until, within
from tests.support.postgres import Postgres
from tests.support.relay import Loss, Relay
from tests.support.stream_kits import Place, stores_again, vanish


async def test_publishes_are_refused_and_taken_again_when_it_is_back(far: Place, relay: Relay) -> None:
    bus, other = await far.connect(), await far.connect()
    async with other.subscribe("orders/**", since="all") as subscription:
        for n in range(3):
            await within(bus.publish("orders/a", b"%d" % n, durable=True))
        vanish(relay)
        for _ in range(3):
            with pytest.raises(
                StoreFailed, match=r"could not be stored: the database postgresql://.+ (is gone|can't be opened)"
            ):
                await within(bus.publish("orders/a", b"lost", durable=True))
        # The broker goes on: other streams, messages that are not stored, what is in memory.
        assert (await within(bus.publish("other", b"", durable=True))).stream == "default"
        await bus.publish("orders/a", b"plain")
        assert await payloads(subscription, 4) == [b"0", b"1", b"2", b"plain"]
        relay.refuse = False
        again = await stores_again(bus, b"3")
        assert (again.offset, again.sequence) == (3, 4)
        assert await payloads(subscription, 1) == [b"3"]
    assert [message.payload for message in await far.stored()] == [b"0", b"1", b"2", b"3"]


async def test_readers_wait_until_it_is_back(far: Place, relay: Relay, caplog: pytest.LogCaptureFixture) -> None:
    bus = await far.connect()
    await within(bus.publish_many("orders/a", [b"%d" % n + b"x" * 200 for n in range(5000)], durable=True))
    await far.restart()  # so that the broker has none of it in memory
    other = await far.connect()
    vanish(relay)
    with pytest.raises(StoreFailed):
        await within(bus.publish("orders/a", b"lost", durable=True))
    with caplog.at_level(logging.WARNING):
        async with (
            other.subscribe("orders/**", since="all") as subscription,
            other.subscribe("orders/**", since="1h") as recent,
        ):
            await settle(other)
            relay.refuse = False
            for one in (subscription, recent):
                got = await gather(one, 5000)
                assert [message.offset for message in got] == list(range(5000))
                assert got[-1].last
            await stores_again(bus, b"live")
            for one in (subscription, recent):
                assert await payloads(one, 1) == [b"live"]
    assert sum("can't be read" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("loss", ["commit", "answer"])
async def test_what_nobody_knows_is_answered_when_it_is_known(far: Place, relay: Relay, loss: Loss) -> None:
    """The connection is lost at a COMMIT: that message waits; those behind it are refused, not kept waiting."""
    bus, other = await far.connect(), await far.connect()
    await within(bus.publish("orders/a", b"0", durable=True))
    relay.lose, relay.refuse = loss, True
    unknown = asyncio.ensure_future(bus.publish("orders/a", b"1", durable=True))
    await within(relay.knocked.wait())
    with pytest.raises(StoreFailed, match=r"is gone|can't be opened"):
        await within(other.publish("orders/a", b"behind", durable=True))
    assert not unknown.done()
    relay.refuse = False
    place = await within(unknown)
    assert (place.offset, place.sequence) == (1, 2)
    after = await stores_again(other, b"2")
    assert (after.offset, after.sequence) == (2, 3)
    assert [message.payload for message in await far.stored()] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("loss", ["commit", "answer"])
async def test_of_many_at_once_exactly_those_are_acknowledged_that_are_stored(
    far: Place, relay: Relay, loss: Loss
) -> None:
    """More than one transaction: the first is in doubt for a while, what lies behind it is refused."""
    bus = await far.connect()
    relay.lose, relay.refuse = loss, True
    sending = [asyncio.create_task(bus.publish("orders/a", b"%d" % n + b"x" * 1000, durable=True)) for n in range(4000)]
    await within(asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED))
    relay.refuse = False
    outcomes = await within(asyncio.gather(*sending, return_exceptions=True))
    places = {n: one for n, one in enumerate(outcomes) if isinstance(one, Position)}
    assert 0 < len(places) < 4000
    assert {type(one) for one in outcomes} == {Position, StoreFailed}
    stored = {message.offset: message.payload for message in await far.stored()}
    assert stored == {place.offset: b"%d" % n + b"x" * 1000 for n, place in places.items()}


@pytest.mark.parametrize("loss", ["commit", "answer"])
async def test_a_client_that_leaves_in_doubt_troubles_nobody(far: Place, relay: Relay, loss: Loss) -> None:
    relay.lose, relay.refuse = loss, True
    async with busway.connect(far.address, drain=0) as bus:
        leaving = asyncio.create_task(bus.publish("orders/a", b"0", durable=True))
        await within(relay.knocked.wait())
    with pytest.raises(busway.BusError):
        await within(leaving)
    relay.refuse = False
    await until(lambda: far.stream().safe == 1)
    assert [message.payload for message in await far.stored()] == [b"0"]
    assert far.server.stats()["errors"] == 0


async def test_a_broker_that_ends_in_doubt_leaves_no_doubt(far: Place, relay: Relay) -> None:
    bus = await far.connect()
    await within(bus.publish("orders/a", b"0", durable=True))
    relay.lose, relay.refuse = "answer", True
    unknown = asyncio.ensure_future(bus.publish("orders/a", b"1", durable=True))
    await within(relay.knocked.wait())
    await far.stop()
    relay.refuse = False
    await far.start()
    place = await within(unknown)
    assert (place.offset, place.sequence) == (1, 2)
    assert [message.payload for message in await far.stored()] == [b"0", b"1"]


@pytest.mark.parametrize("safety", ["synced", "written"])
async def test_a_server_that_is_killed_again_and_again(postgres: Postgres, tmp_path: Path, safety: Safety) -> None:
    """It forgets what was not to be synced, though it was answered; the broker still knows it."""
    async with Place("postgresql", tmp_path, postgres.url(postgres.schema())) as place:
        await place.make(safety=safety)
        reader = await place.connect()
        acknowledged: dict[int, bytes] = {}
        refused: set[bytes] = set()
        stop = False

        async def publisher(name: bytes) -> None:
            bus = await place.connect()
            n = 0
            while not stop:
                n += 1
                payload = b"%s %d" % (name, n)
                try:
                    position = await bus.publish("orders/a", payload, durable=True)
                    assert position.offset not in acknowledged
                    acknowledged[position.offset] = payload
                except StoreFailed:
                    refused.add(payload)
                    await asyncio.sleep(0.01)

        async with reader.subscribe("orders/**", since="all") as subscription:
            publishing = [asyncio.ensure_future(publisher(b"p%d" % n)) for n in range(4)]
            for _ in range(3):
                known = len(acknowledged)
                await until(lambda known=known: len(acknowledged) > known + 20)
                await asyncio.sleep(random.uniform(0, 0.05))  # where in a transaction it is killed is left to chance
                await asyncio.to_thread(postgres.kill)
                await asyncio.to_thread(postgres.start)
            known = len(acknowledged)
            await until(lambda: len(acknowledged) > known)
            stop = True
            await within(asyncio.gather(*publishing))
            got = await gather(subscription, len(acknowledged))
        assert {message.offset: message.payload for message in got} == acknowledged
        assert [message.offset for message in got] == list(range(len(got)))
        assert [message.sequence for message in got] == list(range(1, len(got) + 1))
        assert refused.isdisjoint(acknowledged.values())
        assert place.stream().figures()["damage"] == 0
        await place.restart()  # so that the broker has none of it in memory
        stored = await place.stored()
        assert {message.offset: message.payload for message in stored} == acknowledged


async def test_a_broker_does_not_start_without_its_database(far: Place, relay: Relay) -> None:
    await far.stop()
    relay.refuse = True
    with pytest.raises(busway.DataFailed, match=r"stream 'orders' can't be opened: the database postgresql://.+"):
        await far.start()
    relay.refuse = False
    await far.start()


async def test_a_stream_is_not_made_without_its_database(far: Place, relay: Relay) -> None:
    await far.remove()
    vanish(relay)
    with pytest.raises(busway.BusError, match=r"stream 'orders' can't be opened: the database postgresql://.+"):
        await far.make()
    assert not (far.folder / "data" / "streams" / "orders").exists()
    relay.refuse = False
    await far.make()


async def test_a_password_is_not_told(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.url(postgres.schema(), port=postgres.port).replace("busway@", "busway:sesame@")
    async with Place("postgresql", tmp_path, url) as place:
        stream = await place.make()
        assert "sesame" not in str(stream.figures())
        config = tmp_path / "data" / "streams" / "orders" / "stream.json"
        assert "sesame" not in config.read_text()


async def test_a_stream_whose_database_is_gone_is_not_removed(far: Place, relay: Relay) -> None:
    bus = await far.connect()
    await within(bus.publish("orders/a", b"0", durable=True))
    vanish(relay)
    with pytest.raises(StoreFailed):
        await within(bus.publish("orders/a", b"lost", durable=True))
    with pytest.raises(StoreFailed):
        await far.remove("orders")
    relay.refuse = False
    await stores_again(bus, b"1")
    assert [message.payload for message in await far.stored()] == [b"0", b"1"]


async def test_two_streams_share_a_database(far: Place) -> None:
    await far.make("bills")
    bus = await far.connect()
    await within(asyncio.gather(*(bus.publish(f"{n}/a", b"", durable=True) for n in ("orders", "bills"))))
    await far.remove("bills")
    assert (await within(bus.publish("orders/a", b"", durable=True))).offset == 1
    await far.restart()
    assert [stream for stream in far.hub.streams.by_name if stream != "default"] == ["orders"]
    assert len(await far.stored()) == 2


@pytest.mark.parametrize("url", ["mysql://localhost/x", "nonsense"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="the URL of the store 'named' is no address of a database"):
        busway.serve(stores={"named": url})


async def test_a_database_in_memory_is_refused(tmp_path: Path) -> None:
    async with Place("postgresql", tmp_path, "sqlite:///:memory:") as place:
        with pytest.raises(busway.Rejected, match="store: "):
            await place.make()
        assert "orders" not in place.hub.streams.by_name
        await place.restart()


async def test_without_a_data_folder_there_is_no_file_for_a_database(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path)
    place.lasting = False
    async with place:
        with pytest.raises(busway.Rejected, match="needs a broker with a data folder"):
            await place.make()
