"""The connection to a database: runs transactions on its own thread, and reconnects when the database is back.

A transaction is certainly committed, or certainly not (`StoreFailed` at once), or its COMMIT got no answer. The last
kind is resolved before any other: when the database is back, owning it proves that the old connection has ended. Then
the same task runs again, and finds its records or stores them. Its caller waits until then, and all other callers get
`StoreFailed`.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection, select

from busway.broker.streams.stores import Safety, schema
from busway.broker.streams.stores.dialects import dialect_of
from busway.broker.streams.stores.rows import Rows
from busway.errors import BusError, Closed, DataFailed, StoreFailed

log = logging.getLogger("busway.broker")

T = TypeVar("T")

_DELAYS: Final = 0.05, 5.0
"""Seconds between two attempts to reconnect: the first delay, which doubles, and the longest one."""
_TRIED: Final = "; it is tried again until it is back"


class _UnknownError(Exception):
    """A COMMIT got no answer, and its task is parked."""


class _Task(Generic[T]):
    """Work for the thread. `safety` None: it only reads. `again`: the stream, if the work is idempotent."""

    def __init__(
        self, work: Callable[[Connection], T], done: Callable[[T], object], safety: Safety | None, again: Rows | None
    ) -> None:
        self.work = work
        self.done = done
        self.safety = safety
        self.again = again
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def finish(self, outcome: T | Exception) -> None:
        if self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class Database:
    """A database that only this broker uses from open() to close(), with its open streams."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._dialect = dialect_of(url)
        self._executor: ThreadPoolExecutor
        self._returning: asyncio.Task[None] | None = None
        self._usable = asyncio.Event()
        self._closed = True
        # Changed only on the thread.
        self._connection: Connection | None = None
        self._parked: _Task[Any] | None = None
        self._streams: dict[str, Rows] = {}
        self._fault = f"the database {self._dialect.shown} is not open"

    # On the loop.

    async def open(self) -> None:
        """Connect, claim the database and migrate its tables."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="busway database")
        run = partial(asyncio.get_running_loop().run_in_executor, self._executor)
        try:
            await run(self._connect)
        except BaseException:
            await run(self._disconnect)
            self._executor.shutdown(wait=False)
            raise
        self._closed = False
        self._usable.set()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.gather(self._returning, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(self._executor, self._disconnect)
        self._executor.shutdown(wait=False)
        self._usable.clear()
        parked, self._parked = self._parked, None
        self._abandon(parked)
        self._fault = f"the database {self._dialect.shown} is closed"

    async def leave(self, rows: Rows) -> None:
        """Forget a stream, after all its running tasks."""
        if not self._closed:
            run = asyncio.get_running_loop().run_in_executor
            self._abandon(await run(self._executor, self._forget, rows))

    def _abandon(self, task: _Task[Any] | None) -> None:
        if task is not None:
            reason = f"the store was closed before it was known whether this was stored ({self._fault})"
            task.finish(StoreFailed(reason))

    @property
    def shown(self) -> str:
        """The address without the password."""
        return self._dialect.shown

    @property
    def gone(self) -> str | None:
        """Why the database can't be used now; None: it can."""
        return None if self._usable.is_set() else self._fault

    async def back(self) -> None:
        """Wait until the database can be used."""
        await self._usable.wait()

    async def names(self) -> list[str]:
        """The names of the streams in the database."""
        return sorted(await self.read(lambda connection: list(connection.scalars(select(schema.stream.c.name)))))

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._run(_Task(work, lambda _: None, None, None))

    async def write(
        self, work: Callable[[Connection], T], done: Callable[[T], object], safety: Safety, again: Rows | None = None
    ) -> T:
        """Run `work` in a transaction. `done` is called on the thread once it is committed.

        `again`: the stream, if the work is idempotent. Without it, a COMMIT that gets no answer fails.
        """
        return await self._run(_Task(work, done, safety, again))

    async def _run(self, task: _Task[T]) -> T:
        if self._closed:
            raise Closed(f"the database {self._dialect.shown} is closed")
        if not self._usable.is_set():
            raise StoreFailed(self._fault)
        future = asyncio.get_running_loop().run_in_executor(self._executor, self._do, task)
        future.add_done_callback(lambda future: self._finished(task, future))
        # Only the answer is cancelled with its caller: the transaction continues.
        return await task.answer

    def _finished(self, task: _Task[T], future: "asyncio.Future[T]") -> None:
        error = future.exception()
        if not isinstance(error, _UnknownError):
            task.finish(future.result() if error is None else _plain(error))
        if self._connection is None and self._usable.is_set() and not self._closed:
            self._usable.clear()
            self._returning = asyncio.get_running_loop().create_task(self._come_back(), name="busway database")

    async def _come_back(self) -> None:
        loop = asyncio.get_running_loop()
        delay, longest = _DELAYS
        while True:
            try:
                await loop.run_in_executor(self._executor, self._return)
                break
            except (DataFailed, StoreFailed) as error:
                self._fault = f"{error.reason.removesuffix(_TRIED)}{_TRIED}"
                log.info("%s", self._fault)
            except _UnknownError:
                log.info("%s", self._fault)
            except Exception:
                log.exception("unexpected error while reconnecting to %s", self._dialect.shown)
            await asyncio.sleep(delay)
            delay = min(delay * 2, longest)
        self._usable.set()
        log.warning("the database %s is back", self._dialect.shown)

    def _resolved(self, task: _Task[T], outcome: T | Exception) -> None:
        # First set the event: the caller may use the database as soon as it has its answer.
        if self._connection is not None and not self._closed:
            self._usable.set()
        task.finish(outcome)

    def rows(self, name: str) -> Rows:
        """The rows of a stream, for its store."""
        return Rows(name, self._dialect)

    # On the thread.

    def add(self, rows: Rows) -> None:
        self._streams[rows.name] = rows

    def _forget(self, rows: Rows) -> _Task[Any] | None:
        """Forget a stream. Returns its parked task, which has to be abandoned, if there is one."""
        if self._streams.get(rows.name) is rows:
            del self._streams[rows.name]
        task = self._parked
        if task is None or task.again is not rows:
            return None
        self._parked = None
        return task

    def holder(self, name: str) -> Rows | None:
        """The rows of this stream, if it is open."""
        return self._streams.get(name)

    def _connect(self) -> None:
        shown = self._dialect.shown
        try:
            connection = self._dialect.connect()
        except self._dialect.errors as error:
            raise DataFailed(f"the database {shown} can't be opened: {_words(error)}") from error
        try:
            self._dialect.begin(connection, "synced")
            found = schema.migrate(connection, schema.STEPS)
            states = [(rows, rows.reopen(connection)) for rows in tuple(self._streams.values())]
            connection.commit()
        except BaseException as error:
            self._discard(connection)
            if isinstance(error, DataFailed):
                raise DataFailed(f"the database {shown} can't be used: {error.reason}") from error
            if isinstance(error, self._dialect.errors):
                raise DataFailed(f"the database {shown} can't be opened: {_words(error)}") from error
            raise
        if 0 < found < len(schema.STEPS):
            log.warning("the tables of %s were migrated from version %d to %d", shown, found, len(schema.STEPS))
        for rows, state in states:
            rows.loaded(state)
        self._connection = connection

    def _return(self) -> None:
        """Reconnect, and resolve the parked task. Raises if that fails."""
        if self._connection is None:
            self._connect()
        task, self._parked = self._parked, None
        if task is None:
            return
        outcome: Any
        try:
            outcome = self._do(task)
        except _UnknownError:
            raise
        except Exception as error:
            if self._connection is None:  # the connection was lost again
                self._parked = task
                raise
            outcome = error
        task.answer.get_loop().call_soon_threadsafe(self._resolved, task, outcome)

    def _do(self, task: _Task[T]) -> T:
        connection = self._connection
        if connection is None:
            raise StoreFailed(self._fault)
        try:
            self._dialect.begin(connection, task.safety)
            result = task.work(connection)
            if task.safety is None:
                connection.rollback()
                return result
        except BaseException as error:
            self._roll_back(connection, error)
            if isinstance(error, self._dialect.errors):
                raise StoreFailed(self._fault if self._connection is None else self._refusal(error)) from error
            raise
        try:
            connection.commit()
        except self._dialect.errors as error:
            if self._dialect.rolled_back(connection, error):
                self._roll_back(connection, error)
                raise StoreFailed(self._refusal(error)) from error
            self._lost(connection, error)
            if task.again is not None:
                self._parked = task
                raise _UnknownError from error
            raise StoreFailed(f"{self._fault}; it is not known whether the change was stored") from error
        task.done(result)
        return result

    def _roll_back(self, connection: Connection, error: BaseException) -> None:
        try:
            connection.rollback()
        except self._dialect.errors as second:
            self._lost(connection, second)
            return
        if isinstance(error, self._dialect.errors) and not self._dialect.alive(connection, error):
            self._lost(connection, error)

    def _lost(self, connection: Connection, error: Exception) -> None:
        self._connection = None
        self._discard(connection)
        shown = self._dialect.shown
        self._fault = f"the database {shown} is gone ({_words(error)}){_TRIED}"
        log.error("%s", self._fault)

    def _discard(self, connection: Connection) -> None:
        try:
            connection.invalidate()
            connection.close()
        except self._dialect.errors as error:
            log.info("a connection to %s did not close: %s", self._dialect.shown, _words(error))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except self._dialect.errors as error:
                log.info("a connection to %s did not close: %s", self._dialect.shown, _words(error))
        self._streams.clear()
        self._dialect.release()

    def _refusal(self, error: Exception) -> str:
        return f"the database {self._dialect.shown} refused it: {_words(error)}"


def _words(error: BaseException) -> str:
    """The error text of a database, without SQLAlchemy's additions."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _plain(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else BusError(f"the thread of the database ended: {error!r}")
