"""A database outage: clear errors, no acknowledged message is lost, and none is stored twice."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, exc

from busway.broker.streams.stores import ChannelEntry, Damage
from busway.broker.streams.stores.connection import Database
from busway.broker.streams.stores.database import DatabaseStore
from busway.errors import StoreFailed
from tests.support.postgres import Postgres
from tests.support.relay import Loss, Relay
from tests.support.store_kits import DatabaseKit, Writer, everything, sqlite_kit


@pytest.fixture
async def relay(postgres: Postgres) -> AsyncIterator[Relay]:
    async with Relay(postgres.port) as relay:
        yield relay


@pytest.fixture
async def name(postgres: Postgres) -> str:
    return postgres.schema()


@pytest.fixture
async def far(postgres: Postgres, relay: Relay, name: str) -> AsyncIterator[DatabaseKit]:
    """A server that is reached through the relay."""
    kit = DatabaseKit(postgres.url(name, port=relay.port))
    yield kit
    await kit.close()


async def test_it_is_told_while_the_server_is_gone_and_goes_on_when_it_is_back(postgres: Postgres, name: str) -> None:
    kit = DatabaseKit(postgres.url(name))
    store = await kit.open()
    other = await kit.open("other")
    writer, others = Writer(), Writer()
    await store.append(writer.make(10))
    more = writer.make(3)
    postgres.stop()
    for _ in range(2):
        for call in (
            store.append(more),
            other.append(Writer().make(3)),
            store.read(0, 1000),
            store.find_time(0),
            store.trim(0, max_count=1),
            store.save_channels([ChannelEntry("a", "b", b"")]),
            store.load_channels(),
            store.purge(),
        ):
            with pytest.raises(
                StoreFailed, match=r"(is gone \(.+\)|can't be opened: .+); it is tried again until it is back"
            ):
                await call
    assert kit.database.gone
    assert (store.first, store.next) == (0, 10)
    postgres.start()
    await kit.database.back()
    await store.append(more)
    await other.append(others.make(3))
    assert await everything(store) == writer.records
    assert await everything(other) == others.records
    assert kit.database.gone is None
    assert store.damage == ()
    await kit.close()


async def test_a_killed_server_loses_nothing_that_was_acknowledged(postgres: Postgres, name: str) -> None:
    """A broker that appends all the time and tries again what failed; the server is killed at random moments."""
    kit = DatabaseKit(postgres.url(name))
    store = await kit.open()
    writer = Writer()
    failed = 0
    stored = asyncio.Event()

    async def broker() -> None:
        nonlocal failed
        while True:
            batch = writer.make(random.randrange(1, 40))
            while True:
                try:
                    await store.append(batch)
                except StoreFailed:
                    failed += 1
                    await kit.database.back()
                else:
                    break
            stored.set()

    appending = asyncio.ensure_future(broker())
    rounds = 0
    while rounds < 3 or (not failed and rounds < 10):  # a kill between two transactions fails none of them
        rounds += 1
        stored.clear()
        await stored.wait()
        known = store.next
        await asyncio.sleep(random.uniform(0, 0.05))  # where in a transaction it is killed is left to chance
        await asyncio.to_thread(postgres.kill)
        await asyncio.to_thread(postgres.start)
        assert not appending.done()
        assert store.next >= known
    stored.clear()
    await stored.wait()
    appending.cancel()
    await asyncio.wait([appending])
    await store.append(writer.records[store.next :])  # the one that was cancelled
    assert failed
    assert store.damage == ()
    assert await everything(store, most_bytes=1 << 20) == writer.records
    assert (await store.usage()).count == len(writer.records)
    await kit.close()


@pytest.mark.parametrize("hold", [False, True], ids=["closed", "half open"])
@pytest.mark.parametrize("loss", ["commit", "answer"])
async def test_a_commit_without_an_answer_is_settled_before_anything_else(
    far: DatabaseKit, relay: Relay, loss: Loss, hold: bool
) -> None:
    store = await far.open()
    other = await far.open("other")
    writer, others = Writer(), Writer()
    await store.append(writer.make(10))
    relay.lose, relay.hold = loss, hold
    relay.refuse = True  # those that come after the one there is

    async def two() -> None:
        await store.append(writer.make(5))
        await store.append(writer.make(2))  # at once: whoever was waiting is not told that it is gone still

    appending = asyncio.ensure_future(two())
    await relay.knocked.wait()
    with pytest.raises(StoreFailed, match="it is tried again until it is back"):
        await store.append(Writer(15).make(2))
    with pytest.raises(StoreFailed, match="it is tried again until it is back"):
        await other.append(Writer().make(2))
    assert not appending.done()
    relay.refuse = False
    await appending
    await other.append(others.make(2))
    assert await everything(store) == writer.records
    assert await everything(other) == others.records
    assert (await store.usage()).count == 17
    assert store.damage == ()


@pytest.mark.parametrize("loss", ["commit", "answer"])
async def test_channels_are_settled_too(far: DatabaseKit, relay: Relay, loss: Loss) -> None:
    store = await far.open()
    relay.lose = loss
    await store.save_channels([ChannelEntry("billing", "floor", b"1")])
    assert await store.load_channels() == [ChannelEntry("billing", "floor", b"1")]
    assert relay.lose is None


@pytest.mark.parametrize("loss", ["commit", "answer"])
async def test_a_trim_without_an_answer_leaves_the_store_right(far: DatabaseKit, relay: Relay, loss: Loss) -> None:
    store = await far.open()
    writer = Writer()
    await store.append(writer.make(10))
    relay.lose = loss
    with pytest.raises(StoreFailed, match="not known whether the change was stored"):
        await store.trim(0, max_count=4)
    await far.database.back()
    assert store.first == (6 if loss == "answer" else 0)
    left = writer.records[store.first :]
    assert await everything(store) == left
    assert [(topic.first, topic.count) for topic in await store.topics()] == [(store.first + 1, len(left))]
    await store.append(writer.make(1))
    await store.trim(0, max_count=4)
    assert await everything(store) == writer.records[7:]


@pytest.mark.parametrize("whole", [False, True], ids=["store", "database"])
async def test_closing_does_not_wait_for_what_is_not_known(far: DatabaseKit, relay: Relay, whole: bool) -> None:
    store = await far.open()
    writer = Writer()
    await store.append(writer.make(10))
    relay.lose, relay.refuse = "answer", True
    appending = asyncio.ensure_future(store.append(writer.make(5)))
    await relay.knocked.wait()
    await (far.database.close() if whole else store.close())
    with pytest.raises(StoreFailed, match="closed before it was known whether this was stored"):
        await appending
    relay.refuse = False
    await far.close()
    again = await far.open()
    assert await everything(again) == writer.records
    await again.append(writer.records)  # the broker that tries it again is right, too
    assert again.next == 15


async def test_a_cancelled_append_is_settled_all_the_same(far: DatabaseKit, relay: Relay) -> None:
    store = await far.open()
    writer = Writer()
    relay.lose, relay.refuse = "commit", True
    appending = asyncio.ensure_future(store.append(writer.make(5)))
    await relay.knocked.wait()
    appending.cancel()
    relay.refuse = False
    await far.database.back()
    assert store.next == 5
    assert await everything(store) == writer.records


async def test_another_server_that_took_over_is_respected(
    far: DatabaseKit, relay: Relay, postgres: Postgres, name: str
) -> None:
    store = await far.open()
    await store.append(Writer().make(10))
    relay.refuse = True
    relay.cut()
    with pytest.raises(StoreFailed):
        await store.read(0, 1000)
    second = Database(postgres.url(name))
    await second.open()
    taken = DatabaseStore(second, "orders")
    await taken.open()
    theirs = Writer(10)
    theirs.sequences["orders/new"] = 10
    await taken.append(theirs.make(5, session=99))
    relay.refuse = False
    while "in use by another server" not in (far.database.gone or ""):
        await asyncio.sleep(0.01)
    with pytest.raises(StoreFailed, match="in use by another server"):
        await store.append(Writer(10).make(1))
    await second.close()
    await far.database.back()
    assert store.next == 15
    with pytest.raises(StoreFailed, match="offset 10 has another message already"):
        await store.append(Writer(10).make(1))


async def test_what_the_database_lost_is_told_and_its_places_stay_empty(
    far: DatabaseKit, relay: Relay, postgres: Postgres, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With `written` a server's crash may cost what it acknowledged last. Readers have seen those offsets: no other gets them."""
    store = await far.open(safety="written")
    writer = Writer()
    await store.append(writer.make(10, "a"))
    with postgres.connect(name) as admin:
        rows = admin.execute('SELECT * FROM "busway_stream"').fetchone()
        topics = admin.execute('SELECT * FROM "busway_topic"').fetchall()
        await store.append([*writer.make(3, "a"), *writer.make(2, "b")])
        relay.refuse = True
        relay.cut()
        with pytest.raises(StoreFailed):
            await store.read(0, 1000)
        # As if the last commit had never been.
        admin.execute('DELETE FROM "busway_records_1" WHERE "offset" >= 10')
        admin.execute('DELETE FROM "busway_topic"')
        admin.execute('DELETE FROM "busway_stream"')
        admin.execute(f'INSERT INTO "busway_stream" VALUES ({", ".join(["%s"] * len(rows))})', rows)
        admin.execute(f'INSERT INTO "busway_topic" VALUES ({", ".join(["%s"] * len(topics[0]))})', topics[0])
    relay.refuse = False
    await far.database.back()
    assert store.damage == (Damage(10, 15, "acknowledged, then lost by the database"),)
    assert "has lost records 10 to 14" in caplog.text
    assert (store.first, store.next) == (0, 15)
    assert await store.sequences() == {"a": 13, "b": 2}
    more = [*writer.make(2, "a"), *writer.make(1, "b")]
    await store.append(more)
    left = writer.records[:10] + more
    assert await everything(store) == left
    assert await store.read(12, 1000) == more
    assert await store.find("a", 12) is None
    assert await store.find("a", 14) == 15
    assert [await store.find_time(record.stored) for record in writer.records] == [*range(10), *[15] * 6, 16, 17]
    assert (await store.usage()).count == 13
    assert await store.trim(0, max_count=5) == (8, 8, 0, 0)
    assert await everything(store) == left[8:]
    await far.close()
    again = await far.open()
    assert (again.first, again.next, await again.sequences()) == (8, 18, {"a": 15, "b": 3})


@pytest.mark.parametrize("arrived", [False, True])
async def test_a_file_that_does_not_say_whether_it_stored_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    kit = sqlite_kit(tmp_path)
    store = await kit.open()
    writer = Writer()
    await store.append(writer.make(10))
    commit = Connection.commit

    def fails(connection: Connection) -> None:
        monkeypatch.setattr(Connection, "commit", commit)
        (commit if arrived else Connection.rollback)(connection)
        raise exc.OperationalError("COMMIT", {}, OSError("disk I/O error"))

    monkeypatch.setattr(Connection, "commit", fails)
    await store.append(writer.make(5))
    assert Connection.commit is commit
    await store.append(writer.make(1))
    assert await everything(store) == writer.records
    assert (await store.usage()).count == 16
    await kit.close()
