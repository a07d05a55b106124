"""Databases as stores: one owner, several streams, table versions, and errors that name the cause."""

import asyncio
import shutil
import sqlite3
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text

from busway.broker.streams.stores import ChannelEntry, Record, Safety, dialects, schema
from busway.broker.streams.stores.connection import Database
from busway.broker.streams.stores.database import DatabaseStore
from busway.broker.streams.stores.rows import State
from busway.errors import Closed, DataFailed, StoreFailed
from tests.support.postgres import Postgres
from tests.support.store_kits import DatabaseKit, Writer, everything, sqlite_kit


async def test_a_second_server_is_refused(kit: DatabaseKit) -> None:
    await kit.open()
    second = Database(kit.url)
    with pytest.raises(DataFailed, match=r"is in use by another server.*; give each its own"):
        await second.open()
    await kit.close()
    await second.open()
    await second.close()


async def test_a_server_that_could_not_open_does_not_own(tmp_path: Path) -> None:
    file = tmp_path / "bus.db"
    file.write_bytes(b"this is no database" * 100)
    with pytest.raises(DataFailed, match="file is not a database"):
        await Database(file).open()
    file.unlink()
    database = Database(file)
    await database.open()
    await database.close()


async def test_a_server_that_just_ended_is_waited_for(postgres: Postgres) -> None:
    name = postgres.schema()
    first = Database(postgres.url(name))
    await first.open()
    second = Database(postgres.url(name))
    opening = asyncio.ensure_future(second.open())
    await waiting(postgres, 1)
    await first.close()
    await opening
    await second.close()


async def test_servers_that_start_at_once_make_the_tables_once(postgres: Postgres) -> None:
    name = postgres.schema()
    servers = [Database(postgres.url(name)) for _ in range(3)]
    with postgres.connect() as admin:
        admin.execute("SELECT pg_advisory_lock(%s)", [dialects._LOCK])
        opening = [asyncio.ensure_future(server.open()) for server in servers]
        await waiting(postgres, 3)
    results = await asyncio.gather(*opening, return_exceptions=True)
    assert [type(result) for result in results if result is not None] == [DataFailed] * 2
    for server in servers:
        await server.close()


async def waiting(postgres: Postgres, count: int) -> None:
    """Until so many wait for a lock."""
    with postgres.connect() as look:
        found = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while look.execute(found).fetchone() != (count,):
            await asyncio.sleep(0.01)


async def test_several_streams_share_a_database(kit: DatabaseKit) -> None:
    names = ["orders", "Orders", 'odd "name"; DROP TABLE busway_stream --', "größe"]
    stores = [await kit.open(name) for name in names]
    writers = [Writer() for _ in names]
    for turn in range(5):
        await asyncio.gather(
            *(store.append(writer.make(turn + 3)) for store, writer in zip(stores, writers, strict=True))
        )
    await stores[0].save_channels([ChannelEntry("billing", "floor", b"0")])
    await stores[1].save_channels([ChannelEntry("billing", "floor", b"1")])
    await stores[2].purge()
    assert await kit.database.names() == sorted(names)
    await kit.close()
    stores = [await kit.open(name) for name in names]
    writers[2].records = []
    for store, writer in zip(stores, writers, strict=True):
        assert await everything(store) == writer.records
    assert await stores[0].load_channels() == [ChannelEntry("billing", "floor", b"0")]
    assert await stores[1].load_channels() == [ChannelEntry("billing", "floor", b"1")]
    await stores[0].remove()
    assert await everything(stores[1]) == writers[1].records
    assert await stores[1].load_channels() == [ChannelEntry("billing", "floor", b"1")]
    again = await kit.open("orders")
    assert again.next == 0


async def test_a_stream_is_opened_once(kit: DatabaseKit) -> None:
    await kit.open()
    with pytest.raises(DataFailed, match="'orders' is open already"):
        await DatabaseStore(kit.database, "orders").open()


async def test_a_store_that_is_opened_again_knows_only_what_is_there(kit: DatabaseKit) -> None:
    store = await kit.open()
    await store.append(Writer().make(3))
    await store.close()
    await store.open()
    assert len(await everything(store)) == 3
    await store.remove()
    await store.open()
    assert await store.sequences() == {}
    await store.append(Writer().make(2))
    assert len(await everything(store)) == 2


async def test_tables_of_a_newer_version_are_left_alone(kit: DatabaseKit) -> None:
    store = await kit.open()
    await store.append(Writer().make(3))

    def newer(connection: Connection) -> None:
        connection.execute(text('UPDATE "busway_schema" SET "version" = 99'))

    await kit.database.write(newer, lambda _: None, "synced")
    await kit.close()
    with pytest.raises(
        DataFailed, match="version 99 of a newer busway, and this one knows versions up to 1: update it"
    ):
        await kit.open()


async def test_tables_are_brought_to_the_newest_version(
    kit: DatabaseKit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = await kit.open()
    await store.append(Writer().make(3))
    await kit.close()

    def fails(connection: Connection) -> None:
        connection.execute(text('ALTER TABLE "busway_stream" ADD COLUMN "colour" TEXT'))
        raise DataFailed("no paint")

    def works(connection: Connection) -> None:
        connection.execute(text('ALTER TABLE "busway_stream" ADD COLUMN "colour" TEXT'))

    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, fails))
    with pytest.raises(DataFailed, match="no paint"):
        await kit.open()
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS[:-1], works))
    store = await kit.open()  # the step that failed was taken back, or there would be two columns of one name
    assert "from version 1 to 2" in caplog.text
    assert len(await everything(store)) == 3
    await kit.close()
    caplog.clear()
    await kit.open()
    assert "version" not in caplog.text


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "is no address of a database: write sqlite:///PATH or postgresql://USER@HOST/NAME"),
        ("mysql://localhost/bus", "no database store for 'mysql': sqlite and postgresql are known"),
        ("sqlite://", 'needs the path of a file .*; in memory, use the store "memory"'),
        ("sqlite:///:memory:", 'needs the path of a file .*; in memory, use the store "memory"'),
    ],
)
def test_an_address_that_can_not_be_is_refused(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Database(url)


def test_a_safety_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="safety must be one of memory, written, synced, not 'sure'"):
        DatabaseStore(Database("sqlite:///x"), "orders", safety="sure")  # type: ignore[arg-type]


async def test_a_password_is_never_told(postgres: Postgres) -> None:
    nobody = f"postgresql://busway:secret@/nobody?host={postgres.folder}&port={postgres.port}"
    with pytest.raises(DataFailed, match='database "nobody" does not exist') as caught:
        await Database(nobody).open()
    assert "secret" not in str(caught.value)
    assert "busway:***@" in str(caught.value)


async def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataFailed, match=r"can't be opened: .*No such file"):
        await Database(f"postgresql://busway@/bus?host={tmp_path}").open()


async def test_a_database_with_another_encoding_is_refused(postgres: Postgres) -> None:
    with postgres.connect() as admin:
        admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(DataFailed, match="has the encoding LATIN1; busway needs one with UTF8"):
        await Database(postgres.url(database="latin")).open()


async def test_a_closed_database_says_so(kit: DatabaseKit) -> None:
    store = await kit.open()
    await kit.database.close()
    with pytest.raises(Closed, match="is closed"):
        await store.read(0, 1000)
    with pytest.raises(Closed, match="is closed"):
        await kit.database.names()


@pytest.mark.parametrize(
    ("safety", "sqlite", "postgresql"), [("synced", 2, "on"), ("written", 1, "on"), ("memory", 1, "off")]
)
async def test_a_commit_is_as_safe_as_the_stream_promises(
    kit: DatabaseKit, monkeypatch: pytest.MonkeyPatch, safety: Safety, sqlite: int, postgresql: str
) -> None:
    """What the database is asked for while records are written; that it keeps its word is shown by killing it."""
    other = await kit.open("other")
    store = await kit.open(safety=safety)
    asked = []
    ask = text("PRAGMA synchronous" if isinstance(kit.url, Path) else "SHOW synchronous_commit")
    for rows in (store._rows, other._rows):
        append = rows.append

        def watch(connection: Connection, records: Sequence[Record], append: Callable[..., State] = append) -> State:
            asked.append(connection.scalar(ask))
            return append(connection, records)

        monkeypatch.setattr(rows, "append", watch)
    await store.append(Writer().make())
    await other.append([])
    await store.append([])
    wanted, synced = (sqlite, 2) if isinstance(kit.url, Path) else (postgresql, "on")
    assert asked == [wanted, synced, wanted]


async def test_a_full_disk_fails_appends_until_there_is_room(tmp_path: Path) -> None:
    kit = sqlite_kit(tmp_path)
    store = await kit.open()
    writer = Writer()
    await store.append(writer.make(10))

    def limit(pages: int) -> object:
        return kit.database.read(lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}"))

    await limit(1)  # as many as it has
    much = writer.make(1, payload=b"x" * 100_000)
    for _ in range(3):
        with pytest.raises(StoreFailed, match="refused it: database or disk is full"):
            await store.append(much)
        assert await everything(store) == writer.records[:10]
    assert store.next == 10
    await limit(1_000_000)
    await store.append(much)
    assert await everything(store) == writer.records
    await kit.close()


async def test_a_file_that_another_program_writes_fails_appends_meanwhile(tmp_path: Path) -> None:
    kit = sqlite_kit(tmp_path)
    store = await kit.open()
    writer = Writer()
    await store.append(writer.make(10))
    await kit.database.read(lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout = 10"))
    other = sqlite3.connect(tmp_path / "bus.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    more = writer.make(5)
    with pytest.raises(StoreFailed, match="refused it: database is locked"):
        await store.append(more)
    assert await everything(store) == writer.records[:10]
    other.execute("ROLLBACK")
    other.close()
    await store.append(more)
    assert await everything(store) == writer.records
    await kit.close()


async def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("no folder")
    with pytest.raises(DataFailed, match=r"can't be made: (Not a directory|File exists)"):
        await Database(folder / "bus.db").open()


async def test_a_lock_file_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    kit = sqlite_kit(tmp_path)
    await kit.open()
    await kit.close()
    (tmp_path / "bus.db.lock").unlink()
    (tmp_path / "bus.db.lock").mkdir()
    with pytest.raises(DataFailed, match=r"the lock file .* can't be made: Is a directory"):
        await kit.open()
    shutil.rmtree(tmp_path / "bus.db.lock")
    await kit.open()
    await kit.close()
    assert stat.S_ISREG((tmp_path / "bus.db.lock").stat().st_mode)


async def test_a_full_server_fails_appends_until_there_is_room(postgres: Postgres) -> None:
    """A server that can't store says so and goes on; a constraint stands for its full disk."""
    name = postgres.schema()
    kit = DatabaseKit(postgres.url(name))
    store = await kit.open()
    writer = Writer()
    await store.append(writer.make(10))
    with psycopg.connect(postgres.url(name), autocommit=True) as admin:
        admin.execute('ALTER TABLE "busway_records_1" ADD CONSTRAINT "full" CHECK ("offset" < 12)')
        more = writer.make(5)
        with pytest.raises(StoreFailed, match=r'refused it: .*violates check constraint "full"'):
            await store.append(more)
        assert kit.database.gone is None
        assert await everything(store) == writer.records[:10]
        admin.execute('ALTER TABLE "busway_records_1" DROP CONSTRAINT "full"')
    await store.append(more)
    assert await everything(store) == writer.records
    await kit.close()


async def test_the_queries_of_a_long_stream_look_at_few_rows(postgres: Postgres) -> None:
    """No query that is made for one place walks through the table."""
    name = postgres.schema()
    kit = DatabaseKit(postgres.url(name))
    store = await kit.open()
    writer = Writer()
    for _ in range(10):
        await store.append(writer.make(2000, payload=b""))
    with postgres.connect(name) as admin:
        admin.execute('ANALYZE "busway_records_1"')
    walked = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relid = '\"busway_records_1\"'::regclass"

    def counted(work: object) -> int:
        def run(connection: Connection) -> int:
            work(connection)  # type: ignore[operator]
            return int(connection.execute(text(walked)).scalar_one())

        return kit.database.read(run)  # type: ignore[return-value]

    rows = store._rows
    for work in (
        lambda connection: rows.read(connection, 100, 5000),
        lambda connection: rows.find_time(connection, writer.records[1234].stored),
        lambda connection: rows.find(connection, "orders/new", 15_000),
        lambda connection: rows.limit(connection, age=None, most_bytes=10_000, most_count=None),
        rows.waiting,
    ):
        assert await counted(work) == 0  # type: ignore[misc]
    await kit.close()
