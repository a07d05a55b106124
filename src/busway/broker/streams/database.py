"""A stream in a database: a log in memory, the front, takes messages, and batches of them go to the database.

The stream manager opens it. One batch is stored at a time, in one transaction, while the front collects the next one.
Readers get older records from the database. While the database can't be reached, publishes are refused with the reason,
and readers wait.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from busway._core import Log, Selection, block_part, block_records, encode_records
from busway.broker.streams.stores import Record
from busway.broker.streams.stream import BILLION, Block, Stream, native, patience
from busway.broker.streams.stream_channels import StreamChannels
from busway.common import environment
from busway.common.extras import install_command
from busway.errors import BusError, Closed, Code, DataFailed, Rejected, StoreFailed
from busway.settings import MiB
from busway.streams import StreamConfig

if TYPE_CHECKING:
    from busway.broker.channels.driver import ProgressStore
    from busway.broker.runtime import Runtime
    from busway.broker.streams.stores.connection import Database
    from busway.broker.streams.stores.database import DatabaseStore

log = logging.getLogger("busway.broker")

T = TypeVar("T")

FILE: Final = "stream.sqlite"
_RUINED: Final = {11, 26}
"""SQLite's codes for a damaged file, and for a file that is no database."""
_BATCH: Final = MiB
"""Bytes of records in one transaction."""
_KEPT: Final = 16 * MiB
"""Bytes of stored records that stay in memory."""
_PENDING: Final = 16 * MiB
"""Bytes that may wait to be stored before publishers have to wait."""
_BLOCK: Final = 256 << 10
_CACHED: Final = 16
"""Blocks that are cached for readers."""
_LOOK: Final = 0.1
"""Seconds between two checks of the database while a batch waits for it."""
_DELAYS: Final = 0.05, 5.0
"""The first and the longest delay, in seconds, before a failed read is retried."""
_ENDING: Final = 5.0
"""Seconds that closing waits for the batch that is being stored."""


class DamagedDatabase(DataFailed):
    """The file of a stream is no database, or is damaged. A retry can't help."""


class Databases:
    """The open databases of one broker. Streams with the same address share one, because a database has one owner."""

    def __init__(self) -> None:
        self._open: dict[str | PathLike[str], tuple[Database, int]] = {}

    async def use(self, url: str | PathLike[str]) -> "Database":
        """Open the database of this address, or share it. Calls must not overlap."""
        if url in self._open:
            database, users = self._open[url]
        else:
            try:
                from busway.broker.streams.stores.connection import Database  # noqa: PLC0415, SQLAlchemy is an extra
            except ImportError as error:
                raise DataFailed(f"a database needs SQLAlchemy ({error}): {install_command('db')}") from error
            try:
                database, users = Database(url), 0
            except ValueError as error:
                raise Rejected(f"store: {error}", code=Code.INVALID_SETTING) from error
            await database.open()
        self._open[url] = database, users + 1
        return database

    async def leave(self, url: str | PathLike[str]) -> None:
        """Close the database after its last stream has left it."""
        database, users = self._open[url]
        if users > 1:
            self._open[url] = database, users - 1
        else:
            del self._open[url]
            await database.close()


class DatabaseStream(Stream):
    """One stream in a database."""

    def __init__(
        self,
        runtime: "Runtime",
        channels: StreamChannels,
        number: int,
        config: StreamConfig,
        front: Log,
        folder: Path | None,
        *,
        store: "DatabaseStore",
        database: "Database",
        databases: Databases,
        url: str | PathLike[str],
    ) -> None:
        super().__init__(runtime, channels, number, config, front, folder)
        self._url = url
        self.store = store
        store.recover_with(self._records_of)
        self._database = database
        self._databases = databases
        self._writing: asyncio.Task[None] | None = None
        self._refusing = False
        self._unreadable = False
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._trimming = False
        self._held = 0, 0
        self._fetching: dict[int, dict[Callable[[], object], None]] = {}
        self._cache: OrderedDict[int, Block] = OrderedDict()
        """Fetched blocks, by the offset that was requested."""

    # Start and stop.

    @classmethod
    async def open(
        cls,
        runtime: "Runtime",
        channels: StreamChannels,
        number: int,
        config: StreamConfig,
        folder: Path | None,
        databases: Databases,
        url: str | PathLike[str],
        begin: int,
    ) -> Self:
        """Open the stream. A new one begins at the offset `begin`. Raises DataFailed if the database fails."""
        try:
            database = await databases.use(url)
        except DataFailed as error:
            raise _kind(error)(f"stream {config.name!r} can't be opened: {error.reason}") from error
        try:
            from busway.broker.streams.stores.database import DatabaseStore  # noqa: PLC0415, SQLAlchemy is an extra

            store = DatabaseStore(database, config.name, safety=native(config.safety))
            await store.open()
            sent = await store.publishers(environment.time_ns() - int(config.once * BILLION))
            front = Log.front(
                name=config.name,
                next=store.next or begin,
                stored=store.stored,
                sequences=await store.sequences(),
                sent=[(run.session, run.number, run.offset, run.sequence, run.count) for run in sent],
                waiting=await store.waiting(),
                keep_bytes=_KEPT,
                pending_bytes=_PENDING,
                **patience(config),
            )
        except BaseException as error:
            await databases.leave(url)
            if isinstance(error, DataFailed | StoreFailed):
                raise _kind(error)(f"stream {config.name!r} can't be opened: {error.reason}") from error
            raise
        return cls(
            runtime,
            channels,
            number,
            config,
            front,
            folder,
            store=store,
            database=database,
            databases=databases,
            url=url,
        )

    async def close(self) -> None:
        self._closed = True
        self._stop_listening()
        if self._writing is not None and self._database.gone is None:
            await asyncio.wait({self._writing}, timeout=_ENDING)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.store.close()
            if self._writing is not None:
                await asyncio.wait({self._writing})  # the store has cancelled its batch
        finally:
            await self._databases.leave(self._url)
            self.log.close()

    async def drop(self) -> None:
        await self.store.remove()
        self._closed = True

    def change(self, config: StreamConfig) -> None:
        self.config = config
        self.store.safety = native(config.safety)
        self.log.set(**patience(config))

    # Storing.

    def _rung(self) -> None:
        self.log.clear_signal()
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name=f"busway stream {self.config.name}")

    async def _write(self) -> None:
        try:
            while (waits := self.log.unstored(_BATCH)) is not None:
                await self._store(*waits)
        finally:
            self._writing = None

    async def _store(self, first: int, end: int, block: bytes) -> None:
        try:
            await self._append(block)
        except BusError as error:
            if not self._refusing:
                log.warning(
                    "stream %r: messages can't be stored, and are refused until that works: %s",
                    *(self.config.name, error.reason),
                )
            self._refuse(error.reason)
        except Exception:
            log.exception("stream %r: unexpected error while storing offsets %d to %d", self.config.name, first, end)
            self._refuse("an unexpected error, which the broker has logged")
        else:
            if self._refusing:
                log.warning("stream %r: messages are stored again", self.config.name)
                self._refusing = False
            self.log.stored(end)
            self._commit()

    async def _append(self, block: bytes) -> None:
        appending = asyncio.ensure_future(self.store.append(_records(block)))
        while not (await asyncio.wait({appending}, timeout=_LOOK))[0]:
            # Whether this batch was stored is unknown until the database is back. Later publishes are refused.
            if (reason := self._database.gone) is not None:
                self._refuse(reason, taken=False)
        await appending

    def _refuse(self, reason: str, *, taken: bool = True) -> None:
        self._refusing = True
        self.log.fail(reason, taken=taken)
        self._commit()

    def _records_of(self, begin: int, end: int) -> list[Record]:
        """The records from `begin` to `end` that the front still has. Runs on the database's thread."""
        records: list[Record] = []
        while begin < end:
            try:
                first, behind, block = self.log.read(begin, _BATCH)
            except DataFailed:  # the front was closed
                break
            if first != begin or not block:
                break
            records += _records(block)
            begin = behind
        return [record for record in records if record.offset < end]

    # Reading.

    @property
    def first(self) -> int:
        return min(self.store.first, self.log.safe) if self.store.next else self.log.safe

    def read(self, offset: int, most: int, again: Callable[[], object]) -> Block | None:
        if self._closed:
            raise DataFailed(f"stream {self.config.name!r} is closed")
        begin = max(offset, self.first)
        if begin >= self.log.first:
            return self.log.read(begin, most)
        for asked, (first, end, block) in self._cache.items():
            if asked <= begin < end:
                self._cache.move_to_end(asked)
                # An empty block means that no records are left before the first one of the front.
                return block_part(block, max(begin, first), most) if block else self.log.read(end, most)
        if (waiting := self._fetching.get(begin)) is not None:
            waiting[again] = None
        else:
            self._fetching[begin] = {again: None}
            self._begin(self._fetch(begin, max(most, _BLOCK)))
        return None

    async def _fetch(self, begin: int, most: int) -> None:
        try:
            self._cache_block(begin, await self._retrying(lambda: self.store.read(begin, most)))
        finally:
            for again in self._fetching.pop(begin):
                again()

    def _cache_block(self, asked: int, records: list[Record]) -> None:
        # Records behind `safe` are not acknowledged yet, and there is a hole where the database has lost some.
        safe, end = self.log.safe, records[0].offset if records else 0
        rows = []
        for record in records:
            if record.offset != end or end >= safe:
                break
            rows.append(_row(record))
            end += 1
        if rows:
            self._cache[asked] = rows[0][0], end, encode_records(rows)
        else:
            self._cache[asked] = self.log.first, self.log.first, b""
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)

    def begin_at(self, moment: int, found: Callable[[int], object]) -> int | None:
        self._begin(self._find_time(moment, found))
        return None

    async def _find_time(self, moment: int, found: Callable[[int], object]) -> None:
        offset = await self._retrying(lambda: self.store.find_time(moment))
        found(min(offset, self.safe))

    async def find_time(self, moment: int) -> int:
        return min(await self.store.find_time(moment), self.safe)

    async def find(self, topic: str, sequence: int) -> int | None:
        known = {usage.topic: usage for usage in await self.store.topics()}.get(topic)
        if known is None or sequence > known.last:
            return None
        return await self.store.find(topic, max(sequence, known.first))

    def skip(self, offset: int, selection: Selection) -> int:  # noqa: ARG002, the database has no index of topics
        return offset

    async def topics(self) -> list[tuple[str, int, int, int]]:
        return [(usage.topic, usage.first, usage.last, usage.count) for usage in await self.store.topics()]

    def channel_journal(self) -> "ProgressStore":
        from busway.broker.streams.stores.channels import DatabaseJournal  # noqa: PLC0415, as above

        return DatabaseJournal(self.store)

    async def _retrying(self, read: Callable[[], Awaitable[T]]) -> T:
        """Call `read`, and retry it until it succeeds; while the database is gone, wait for it."""
        delay, longest = _DELAYS
        while True:
            try:
                found = await read()
            except Closed:
                raise
            except Exception as error:
                if not self._unreadable:
                    reason, expected = str(error), isinstance(error, StoreFailed)
                    log.warning(
                        "stream %r can't be read, and is retried: %s", self.config.name, reason, exc_info=not expected
                    )
                self._unreadable = True
            else:
                self._unreadable = False
                return found
            if self._database.gone is not None:
                await self._database.back()
            else:
                await asyncio.sleep(delay)
                delay = min(delay * 2, longest)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"busway stream {self.config.name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Closed):
            log.error("unexpected error in stream %r", self.config.name, exc_info=error)

    # Time.

    def trim(self, clock: int) -> None:
        self.log.trim(clock)  # forgets old publishers
        if not self._trimming:
            self._trimming = True
            self._begin(self._trim(clock))

    async def _trim(self, clock: int) -> None:
        config = self.config
        age = None if config.max_age is None else int(config.max_age * BILLION)
        before = self.first
        try:
            limits = {"max_age": age, "max_bytes": config.max_bytes, "max_count": config.max_count}
            hold = None if config.retain_until is None else self._hold()
            trimmed = await self.store.trim(clock, **limits, hold=hold)
            self._held = trimmed.held, trimmed.held_bytes
            self._report_held(trimmed.held)
        except StoreFailed as error:
            if self._database.gone is None:
                log.warning("stream %r: old messages can't be removed: %s", config.name, error.reason)
        finally:
            self._trimming = False
        if self.first > before:
            for asked in [asked for asked in self._cache if asked < self.first]:
                del self._cache[asked]
            self.log.drop_waiting(self.first)
            self._report_dropped()
            self._channels.trimmed(self)
            self._runtime.flush()

    # Figures.

    def figures(self, *, channels: bool = True) -> dict[str, Any]:
        usage = self.store.known
        return {
            **super().figures(channels=channels),
            "first": self.first,
            "bytes": usage.bytes,
            "count": usage.count,
            "buckets": 0,
            "held": self._held[0],
            "held_bytes": self._held[1],
            "damage": len(self.store.damage),
            "topic_count": self.store.topic_count,
            "gone": self._database.gone,
        }


def _kind(error: BaseException) -> type[DataFailed]:
    """The type of the error for a stream that can't be opened."""
    cause: BaseException | None = error
    while cause is not None:
        if getattr(cause, "sqlite_errorcode", 0) & 0xFF in _RUINED:
            return DamagedDatabase
        cause = cause.__cause__
    return DataFailed


def _records(block: bytes) -> list[Record]:
    records = []
    for row in block_records(block):
        offset, sequence, stored, topic, payload, fields, sender, session, number, sent, expires, due = row
        records.append(
            Record(offset, sequence, stored, sent, session, number, expires, due, topic, sender, fields, payload)
        )
    return records


def _row(record: Record) -> tuple[int, int, int, str, bytes, bytes | None, str, int, int, int, int, int]:
    offset, sequence, stored, sent, session, number, expires, due, topic, sender, fields, payload = record
    return offset, sequence, stored, topic, payload, fields, sender, session, number, sent, expires, due
