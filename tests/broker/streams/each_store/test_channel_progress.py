"""Channel progress in a database: acknowledged progress survives a restart, and only changes are written."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from busway.broker.channels.state.progress import (
    ChannelConfig,
    Configured,
    Created,
    Deleted,
    Delivered,
    Done,
    Entry,
    Sought,
    rebuild,
)
from busway.broker.streams.stores import ChannelEntry
from busway.broker.streams.stores.channels import DatabaseJournal
from busway.broker.streams.stores.database import DatabaseStore
from busway.errors import StoreFailed
from tests.support.journals import shown, story
from tests.support.net import within
from tests.support.postgres import Postgres
from tests.support.relay import Relay
from tests.support.store_kits import DatabaseKit, postgresql_kit, sqlite_kit


@pytest.fixture(params=["sqlite", "postgresql"])
async def kit(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DatabaseKit]:
    made = sqlite_kit(tmp_path) if request.param == "sqlite" else postgresql_kit(request.getfixturevalue("postgres"))
    yield made
    await made.close()


async def content(store: DatabaseStore) -> dict[str, tuple]:
    """What a start finds."""
    return shown(await DatabaseJournal(store).start())


async def test_what_was_told_is_there_after_a_restart(kit: DatabaseKit) -> None:
    store = await kit.open()
    journal = DatabaseJournal(store)
    assert await journal.start() == {}
    entries = story()
    for entry in entries:
        await within(journal.write([entry]))
        assert await content(store) == shown(rebuild(entries[: entries.index(entry) + 1]))
    await within(journal.stop())
    again = await kit.reopen(store)
    assert await content(again) == shown(rebuild(entries))
    journal = DatabaseJournal(again)
    await journal.start()
    await within(journal.write([Deleted("c0"), Sought("c1", 3, 0)]))
    assert await content(again) == shown(rebuild([*entries, Deleted("c0"), Sought("c1", 3, 0)]))
    assert journal.figures() == {"channels": 1, "failed": 0, "batches": 1}


async def test_a_channel_with_many_holes_shrinks_again(kit: DatabaseKit) -> None:
    store = await kit.open()
    journal = DatabaseJournal(store)
    await journal.start()
    holes: list[Entry] = [
        Created("c", 1, 0, ChannelConfig()),
        Done("c", 1, 0, tuple((2 * n + 1, 1) for n in range(12_000))),
        Delivered("c", 1, 3, ((0, 1), (4, 1))),
    ]
    await within(journal.write(holes))
    assert len(await store.load_channels()) == 14
    assert await content(store) == shown(rebuild(holes))
    await within(journal.write([Done("c", 1, 23_000)]))
    assert len(await store.load_channels()) == 2
    assert await content(store) == shown(rebuild([*holes, Done("c", 1, 23_000)]))
    await within(journal.write([Deleted("c")]))
    assert await store.load_channels() == []


async def test_while_one_is_written_the_next_gather_and_only_changes_are_written(
    kit: DatabaseKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await kit.open()
    journal = DatabaseJournal(store)
    await journal.start()
    written: list[list[tuple[str, str]]] = []
    save = DatabaseStore.save_channels

    async def watched(store: DatabaseStore, entries: list[ChannelEntry]) -> None:
        written.append([(entry.channel, entry.key) for entry in entries])
        await save(store, entries)

    monkeypatch.setattr(DatabaseStore, "save_channels", watched)
    first = journal.write([Created("a", 1, 0, None), Created("b", 1, 0, None), Done("a", 1, 0, ((5, 1),))])
    await asyncio.sleep(0)
    rest = [journal.write([Done("a", 1, 0, ((n, 1),))]) for n in range(7, 27, 2)]
    await within(asyncio.gather(first, *rest))
    assert written == [[("a", "0"), ("a", "1"), ("b", "0")], [("a", "1")]]
    await within(journal.write([]))
    await within(journal.write([Configured("b", ChannelConfig())]))
    assert written[2:] == [[("b", "0")]]
    assert journal.batches == 4


async def test_what_could_not_be_written_is_written_with_the_next(postgres: Postgres) -> None:
    name = postgres.schema()
    async with Relay(postgres.port) as relay:
        kit = DatabaseKit(postgres.url(name, port=relay.port))
        store = await kit.open()
        journal = DatabaseJournal(store)
        await journal.start()
        await within(journal.write([Created("a", 1, 0, None)]))
        relay.refuse = True
        relay.cut()
        for n in (3, 4):
            with pytest.raises(StoreFailed, match="the channels of stream 'orders' can't be saved: the database"):
                await within(journal.write([Done("a", 1, n), Created(f"new{n}", 1, 0, None)]))
        relay.refuse = False
        await kit.database.back()
        await within(journal.write([]))
        expected = [Created("a", 1, 4, None), Created("new3", 1, 0, None), Created("new4", 1, 0, None)]
        assert await content(store) == shown(rebuild(expected))
        assert journal.failed == 2
        await within(journal.stop())
        await kit.close()
