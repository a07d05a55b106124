"""The dialects SQLite and PostgreSQL: connecting, claiming the database, the safety of a commit, and storing many rows.

All methods run on the thread of a `Database`.
"""

import fcntl
import logging
import os
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast

import sqlalchemy
from sqlalchemy import URL, Connection, Engine, Table, event, exc, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.pool import NullPool

from busway.broker.storage import data_folder
from busway.broker.storage.permissions import FILE_MODE, make_folder
from busway.broker.streams.stores import Safety, schema
from busway.common.extras import install_command
from busway.errors import DataFailed

log = logging.getLogger("busway.broker")

Row: TypeAlias = tuple[Any, ...]
_LOCK: Final = 0x62757377 << 32
"""The upper half of the numbers of busway's advisory locks in PostgreSQL: "busw"."""
_LOCK_NOT_AVAILABLE: Final = "55P03"
_SESSION: Final = {
    "synchronous_commit": "on",
    # The server soon notices that a broker's machine is gone, and releases its lock.
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_BROKEN: Final = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB)
"""After these errors the SQLite file is reopened."""


class Dialect(Protocol):
    """One kind of database."""

    shown: str
    """The address without a password, for messages."""
    errors: tuple[type[Exception], ...]
    """The exceptions that the database or the connection raises."""

    def connect(self) -> Connection:
        """Connect and claim the database. Raises DataFailed if another server owns it. The claim may survive."""

    def release(self) -> None:
        """Give up the claim after the connection was closed."""

    def begin(self, connection: Connection, safety: Safety | None) -> None:
        """Begin a transaction with this safety; None: it only reads."""

    def alive(self, connection: Connection, error: Exception) -> bool:
        """Whether the connection can be used after this error."""

    def rolled_back(self, connection: Connection, error: Exception) -> bool:
        """Whether it is certain, after a failed COMMIT, that nothing was stored."""

    def insert(self, connection: Connection, table: Table, rows: Sequence[Row]) -> None:
        """Insert many rows at once, with values in the order of the table's columns."""

    def put(self, table: Table) -> Any:
        """An INSERT that overwrites the row with the same key."""


def dialect_of(url: str | os.PathLike[str]) -> Dialect:
    """The dialect of an address: the path of a SQLite file, sqlite:///PATH or postgresql://…"""
    if isinstance(url, os.PathLike):
        return SQLite(Path(url))
    try:
        parsed = sqlalchemy.make_url(url)
    except exc.ArgumentError:
        raise ValueError(
            "this is no address of a database: write sqlite:///PATH or postgresql://USER@HOST/NAME"
        ) from None
    match parsed.get_backend_name():
        case "sqlite":
            if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
                raise ValueError(
                    'a SQLite database needs the path of a file (sqlite:///PATH); in memory, use the store "memory"'
                )
            return SQLite(Path(parsed.database))
        case "postgresql" | "postgres":
            return PostgreSQL(parsed)
        case other:
            raise ValueError(f"no database store for {other!r}: sqlite and postgresql are known")


@lru_cache(maxsize=256)
def _insert_sql(table: Table, mark: str) -> str:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    return f'INSERT INTO "{table.name}" ({names}) VALUES ({", ".join(mark for _ in table.columns)})'  # noqa: S608, constants


@lru_cache(maxsize=256)
def _copy_sql(table: Table) -> tuple[str, list[str]]:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    types = [column.type.compile(postgresql.dialect()).lower() for column in table.columns]  # type: ignore[no-untyped-call]
    return f'COPY "{table.name}" ({names}) FROM STDIN (FORMAT BINARY)', types


class SQLite:
    """A SQLite file with a lock file beside it. With WAL, other programs can read it without blocking writes."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.shown = f"sqlite:///{self.path}"
        self.errors: tuple[type[Exception], ...] = (exc.SQLAlchemyError,)
        self._lock = -1
        self._safety = ""
        self._engine = sqlalchemy.create_engine(URL.create("sqlite", database=str(self.path)), poolclass=NullPool)
        event.listen(self._engine, "connect", self._connected)
        event.listen(self._engine, "begin", self._begin)

    def connect(self) -> Connection:
        self._claim()
        self._safety = ""
        connection = self._engine.connect()
        try:
            with connection.begin():
                schema.prepare(connection)
            data_folder.sync(self.path.parent)
        except BaseException:
            connection.close()
            raise
        return connection

    def _claim(self) -> None:
        if self._lock >= 0:
            return
        # The lock file is never removed: otherwise two servers could each lock their own file.
        file = self.path.with_name(self.path.name + ".lock")
        try:
            make_folder(self.path.parent)
            lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))  # SQLite copies this mode
        except OSError as error:
            raise DataFailed(f"the lock file {file} can't be made: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise DataFailed(f"the database {self.path} is in use by another server; give each its own") from None
        except OSError as error:
            os.close(lock)
            raise DataFailed(f"the lock file {file} can't be locked: {error.strerror}") from error
        self._lock = lock

    def release(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def begin(self, connection: Connection, safety: Safety | None) -> None:
        wanted = "" if safety is None else "FULL" if safety == "synced" else "NORMAL"
        if wanted and wanted != self._safety:
            # Not through SQLAlchemy, which would begin a transaction first; inside of one the pragma has no effect.
            connection.connection.cursor().execute(f"PRAGMA synchronous = {wanted}")
            self._safety = wanted
        connection.info["begin"] = "BEGIN" if safety is None else "BEGIN IMMEDIATE"
        connection.begin()

    def alive(self, connection: Connection, error: Exception) -> bool:
        code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0) & 0xFF
        return not connection.invalidated and code not in _BROKEN

    def rolled_back(self, connection: Connection, error: Exception) -> bool:
        # An open transaction can be rolled back, and SQLite does that on a full disk. Otherwise the outcome is unknown.
        full = getattr(getattr(error, "orig", error), "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        return full or bool(getattr(connection.connection.driver_connection, "in_transaction", False))

    def insert(self, connection: Connection, table: Table, rows: Sequence[Row]) -> None:
        connection.exec_driver_sql(_insert_sql(table, "?"), list(rows))

    def put(self, table: Table) -> Any:
        put = sqlite.insert(table)
        return put.on_conflict_do_update(index_elements=list(table.primary_key), set_=_others(table, put.excluded))

    @staticmethod
    def _connected(connection: Any, record: Any) -> None:
        del record
        connection.isolation_level = None  # the dialect sends BEGIN: sqlite3 would send it too late
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA busy_timeout = 5000")
        cursor.close()

    @staticmethod
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.info.pop("begin", "BEGIN IMMEDIATE"))


class PostgreSQL:
    """A PostgreSQL server. The owner of the tables has an advisory lock, which ends with the connection."""

    def __init__(self, url: URL) -> None:
        try:
            import psycopg  # noqa: PLC0415, psycopg is an extra
        except ImportError as error:
            raise DataFailed(f"PostgreSQL needs psycopg ({error}): {install_command('db')}") from error
        # Without the query, which may contain a password, too.
        self.shown = url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
        self.errors: tuple[type[Exception], ...] = (exc.SQLAlchemyError, psycopg.Error)
        self._mine: Row | None = None
        # A server that stops answering is noticed within these seconds.
        defaults = {
            "application_name": "busway",
            "connect_timeout": 10,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
        }
        self._engine: Engine = sqlalchemy.create_engine(
            url.set(drivername="postgresql+psycopg"),
            poolclass=NullPool,
            connect_args={name: value for name, value in defaults.items() if name not in url.query},
        )

    def connect(self) -> Connection:
        connection = self._engine.connect()
        try:
            for name, value in _SESSION.items():
                connection.exec_driver_sql(f"SET {name} = {value}")
            self._check(connection)
            # So that two servers that start at once create the table once.
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            schema.prepare(connection)
            connection.commit()
            self._claim(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: Connection) -> None:
        if (encoding := connection.scalar(text("SHOW server_encoding"))) != "UTF8":
            raise DataFailed(f"the database {self.shown} has the encoding {encoding}; busway needs one with UTF8")
        if connection.scalar(text("SHOW fsync")) != "on":
            log.warning("%s runs with fsync off: acknowledged messages may be lost in a power failure", self.shown)

    def _claim(self, connection: Connection) -> None:
        table = f'"{schema.VERSION_TABLE}"'
        number = connection.scalar(text("SELECT CAST(:table AS regclass)::oid::bigint"), {"table": table})
        lock = {"lock": _LOCK | cast("int", number)}
        if not connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), lock):
            owner = self._owner(connection, lock["lock"])
            if owner is not None and tuple(owner[:2]) == self._mine:
                # The server has not noticed yet that this broker's last connection is gone: terminate it.
                connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": owner[0]})
            connection.commit()
            try:
                # A connection that has just ended, or was terminated, keeps its lock for a moment.
                connection.execute(text("SET LOCAL lock_timeout = '2s'"))
                connection.execute(text("SELECT pg_advisory_lock(:lock)"), lock)
            except exc.OperationalError as error:
                if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                    raise
                holder = f" (process {owner[0]} of PostgreSQL, from {owner[2]})" if owner else ""
                raise DataFailed(
                    f"the database {self.shown} is in use by another server{holder}; give each its own"
                ) from None
        mine = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        self._mine = tuple(connection.execute(text(mine)).one())
        connection.commit()

    @staticmethod
    def _owner(connection: Connection, lock: int) -> Row | None:
        found = connection.execute(
            text(
                "SELECT pid, backend_start, coalesce(host(client_addr), 'a Unix socket') FROM pg_stat_activity WHERE pid ="
                " (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = :high"
                " AND objid = :low AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
            ),
            {"high": lock >> 32, "low": lock & 0xFFFF_FFFF},
        ).first()
        return None if found is None else tuple(found)

    def release(self) -> None:
        self._mine = None

    def begin(self, connection: Connection, safety: Safety | None) -> None:
        connection.begin()
        if safety == "memory":
            # A killed PostgreSQL server may lose the last commits then, as in a power failure.
            connection.exec_driver_sql("SET LOCAL synchronous_commit = off")

    def alive(self, connection: Connection, error: Exception) -> bool:
        del error
        return not connection.invalidated and not getattr(connection.connection.driver_connection, "closed", True)

    def rolled_back(self, connection: Connection, error: Exception) -> bool:
        del error
        # A server that reports a failed COMMIT has rolled the transaction back.
        return not connection.invalidated and not getattr(connection.connection.driver_connection, "closed", True)

    def insert(self, connection: Connection, table: Table, rows: Sequence[Row]) -> None:
        sql, types = _copy_sql(table)
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(sql) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def put(self, table: Table) -> Any:
        put = postgresql.insert(table)
        return put.on_conflict_do_update(index_elements=list(table.primary_key), set_=_others(table, put.excluded))


def _others(table: Table, excluded: Any) -> dict[str, Any]:
    return {column.name: excluded[column.name] for column in table.columns if not column.primary_key}
