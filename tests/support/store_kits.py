"""Kits that open a store in a database of each kind, and open the same one again."""

from pathlib import Path

from busway.broker.streams.stores import Record, Safety, Store
from busway.broker.streams.stores.connection import Database
from busway.broker.streams.stores.database import DatabaseStore
from tests.support.postgres import Postgres

DAY = 86_400 * 10**9
NOON = 1_700_000_000 * 10**9


class DatabaseKit:
    """Stores of one database, which can be closed and opened again."""

    def __init__(self, url: str | Path) -> None:
        self.url = url
        self.database = Database(url)
        self._open = False
        self._stores: list[Store] = []

    async def open(self, name: str = "orders", *, safety: Safety = "synced") -> DatabaseStore:
        if not self._open:
            await self.database.open()
            self._open = True
        store = DatabaseStore(self.database, name, safety=safety)
        await store.open()
        self._stores.append(store)
        return store

    async def reopen(self, store: Store) -> DatabaseStore:
        await self.close()
        return await self.open(store.name)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        await self.database.close()
        self._open = False
        self._stores.clear()


def sqlite_kit(folder: Path) -> DatabaseKit:
    return DatabaseKit(folder / "bus.db")


def postgresql_kit(postgres: Postgres) -> DatabaseKit:
    return DatabaseKit(postgres.url(postgres.schema()))


class Writer:
    """Gives records their offsets and sequences as the broker does, and remembers them: the model of a store."""

    def __init__(self, start: int = 0) -> None:
        self.next = start
        self.sequences: dict[str, int] = {}
        self.records: list[Record] = []

    def make(
        self,
        count: int = 1,
        topic: str = "orders/new",
        *,
        stored: int | None = None,
        session: int = 7,
        number: int | None = None,
        expires: int = 0,
        due: int = 0,
        waits: bool = False,
        sender: str = "till",
        fields: bytes | None = None,
        payload: bytes = b"payload",
    ) -> list[Record]:
        made = []
        for _ in range(count):
            sequence = 0
            if not waits:
                sequence = self.sequences[topic] = self.sequences.get(topic, 0) + 1
            made.append(
                Record(
                    offset=self.next,
                    sequence=sequence,
                    stored=NOON + self.next if stored is None else stored,
                    time=NOON - 5,
                    session=session,
                    number=self.next if number is None else number,
                    expires=expires,
                    due=due,
                    topic=topic,
                    sender=sender,
                    fields=fields,
                    payload=payload,
                )
            )
            self.next += 1
        self.records += made
        return made


async def everything(store: Store, from_: int = 0, most_bytes: int = 4096) -> list[Record]:
    """All records, read piece by piece."""
    found: list[Record] = []
    at = from_
    while piece := await store.read(at, most_bytes):
        found += piece
        at = piece[-1].offset + 1
    return found
