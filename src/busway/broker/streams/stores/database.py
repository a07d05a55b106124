"""The store of a stream in a database, which is a SQLite file or on a PostgreSQL server. `DatabaseStream` calls it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from busway.broker.streams.stores import (
    SAFETIES,
    ChannelEntry,
    Damage,
    Parked,
    Published,
    Record,
    Safety,
    Store,
    TopicUsage,
    Trimmed,
    Usage,
)
from busway.broker.streams.stores.connection import Database
from busway.broker.streams.stores.rows import Rows, State
from busway.errors import Closed, DataFailed

T = TypeVar("T")


class DatabaseStore(Store):
    """The `Store` of one stream in a database. The database is opened before it and closed after it."""

    def __init__(self, database: Database, name: str, *, safety: Safety = "synced") -> None:
        if safety not in SAFETIES:
            raise ValueError(f"safety must be one of {', '.join(SAFETIES)}, not {safety!r}")
        self.safety: Safety = safety
        self._database = database
        self._rows = database.rows(name)

    @property
    def name(self) -> str:
        return self._rows.name

    @property
    def first(self) -> int:
        return self._rows.state.first

    @property
    def next(self) -> int:
        return self._rows.state.next

    @property
    def stored(self) -> int:
        return self._rows.state.stored

    @property
    def known(self) -> Usage:
        """The usage after the last transaction of this broker."""
        state = self._rows.state
        return Usage(state.bytes, state.count)

    @property
    def topic_count(self) -> int:
        """The number of topics that the stream ever had, after the last transaction of this broker."""
        return self._rows.topic_count

    @property
    def damage(self) -> Sequence[Damage]:
        return tuple(self._rows.damage)

    def recover_with(self, find: Callable[[int, int], Sequence[Record]]) -> None:
        """Set a function that returns records (from one offset to before another) that the database has lost.

        It runs on the database's thread.
        """
        self._rows.recovered = find

    async def open(self) -> None:
        def work(connection: Connection) -> State:
            if self._database.holder(self.name) is not None:
                raise DataFailed(f"the stream {self.name!r} is open already")
            return self._rows.open(connection)

        def done(state: State) -> None:
            self._rows.loaded(state)
            self._database.add(self._rows)

        await self._database.write(work, done, "synced")

    async def close(self) -> None:
        await self._database.leave(self._rows)

    async def append(self, records: Sequence[Record]) -> None:
        await self._write(lambda connection: self._rows.append(connection, records), again=self._rows)

    async def read(self, from_: int, most_bytes: int) -> list[Record]:
        return await self._read(lambda connection: self._rows.read(connection, from_, most_bytes))

    async def find_time(self, stored: int) -> int:
        return await self._read(lambda connection: self._rows.find_time(connection, stored))

    async def find(self, topic: str, sequence: int) -> int | None:
        return await self._read(lambda connection: self._rows.find(connection, topic, sequence))

    async def topics(self) -> list[TopicUsage]:
        return await self._read(lambda _: self._rows.topics())

    async def sequences(self) -> dict[str, int]:
        return await self._read(lambda _: self._rows.sequences())

    async def publishers(self, since: int) -> list[Published]:
        return await self._read(lambda connection: self._rows.publishers(connection, since))

    async def waiting(self) -> list[Parked]:
        return await self._read(self._rows.waiting)

    async def trim(
        self,
        now: int,
        *,
        max_age: int | None = None,
        max_bytes: int | None = None,
        max_count: int | None = None,
        hold: int | None = None,
    ) -> Trimmed:
        age = None if max_age is None else now - max_age
        below = await self._read(
            lambda connection: self._rows.limit(connection, age=age, most_bytes=max_bytes, most_count=max_count)
        )
        beyond, below = below, below if hold is None else min(below, hold)
        removed = 0
        # Page by page, so that other tasks run in between.
        while self.first < below:
            _, count = await self._cut(below)
            removed += count
        if self.first >= beyond:
            return Trimmed(self.first, removed)
        size = await self._read(lambda connection: self._rows.bytes_below(connection, beyond))
        return Trimmed(self.first, removed, beyond - self.first, size)

    async def _cut(self, below: int) -> tuple[State, int]:
        self._check_open()
        return await self._database.write(
            lambda connection: self._rows.cut(connection, below),
            lambda result: self._rows.committed(result[0]),
            self.safety,
        )

    async def usage(self) -> Usage:
        return await self._read(lambda _: Usage(self._rows.state.bytes, self._rows.state.count))

    async def load_channels(self) -> list[ChannelEntry]:
        return await self._read(self._rows.load_channels)

    async def save_channels(self, entries: Sequence[ChannelEntry]) -> None:
        self._check_open()
        await self._database.write(
            lambda connection: self._rows.save_channels(connection, entries), lambda _: None, self.safety, self._rows
        )

    async def purge(self) -> Trimmed:
        before = await self.usage()
        await self._write(self._rows.purge)
        return Trimmed(self.first, before.count)

    async def remove(self) -> None:
        self._check_open()
        await self._database.write(self._rows.remove, lambda _: None, "synced")
        await self.close()

    async def _read(self, work: Callable[[Connection], T]) -> T:
        self._check_open()
        return await self._database.read(work)

    async def _write(self, work: Callable[[Connection], State], again: Rows | None = None) -> None:
        self._check_open()
        await self._database.write(work, self._rows.committed, self.safety, again)

    def _check_open(self) -> None:
        if self._database.holder(self.name) is not self._rows:
            raise Closed(f"the store of stream {self.name!r} is closed")
