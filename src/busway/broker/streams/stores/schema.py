"""The tables of a database store, their version, and the steps from one version to the next.

One database has several streams. Each has its own table of records, named by the stream's number. So an append changes
no index of another stream, and a stream is removed by dropping a table. Every name is quoted.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    delete,
    insert,
    select,
)

from busway.errors import DataFailed

TABLES: Final = MetaData()
VERSION_TABLE: Final = "busway_schema"


def _column(name: str, kind: Any, *more: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, *more, quote=True, nullable=options.pop("nullable", False), **options)


version = Table(VERSION_TABLE, TABLES, _column("version", Integer, primary_key=True, autoincrement=False), quote=True)

stream = Table(
    "busway_stream",
    TABLES,
    _column("id", Integer, primary_key=True, autoincrement=False),
    _column("name", Text, unique=True),
    _column("first", BigInteger),
    _column("next", BigInteger),
    _column("stored", BigInteger),
    _column("count", BigInteger),
    _column("begins", BigInteger),
    _column("ends", BigInteger),
    quote=True,
)
"""`begins` and `ends`: the total bytes ever stored before the first record, and up to the end of the last one."""

topic = Table(
    "busway_topic",
    TABLES,
    _column("stream", Integer, ForeignKey(stream.c.id), primary_key=True, autoincrement=False),
    _column("id", Integer, primary_key=True, autoincrement=False),
    _column("topic", Text),
    _column("first", BigInteger),
    _column("last", BigInteger),
    _column("left", BigInteger),
    quote=True,
)
"""`left`: the number of its records. A topic stays when its records are removed, so that its sequence continues."""

channel = Table(
    "busway_channel",
    TABLES,
    _column("stream", Integer, ForeignKey(stream.c.id), primary_key=True, autoincrement=False),
    _column("channel", Text, primary_key=True),
    _column("key", Text, primary_key=True),
    _column("value", LargeBinary),
    quote=True,
)


def records(number: int) -> Table:
    """The table of a stream's records.

    `before` is the total of bytes ever stored before the record. Limits by `before` and by `stored` are found by binary
    search, so neither needs an index. The sender is bytes, because PostgreSQL refuses text with a zero byte.
    """
    name = f"busway_records_{number}"
    table = Table(
        name,
        MetaData(),
        # SQLite uses only an INTEGER column as the row id; all its integers have 64 bits.
        _column("offset", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
        _column("sequence", BigInteger),
        _column("stored", BigInteger),
        _column("time", BigInteger),
        _column("session", BigInteger),
        _column("number", BigInteger),
        _column("expires", BigInteger),
        _column("due", BigInteger),
        _column("topic", Integer),
        _column("sender", LargeBinary),
        _column("fields", LargeBinary, nullable=True),
        _column("payload", LargeBinary),
        _column("before", BigInteger),
        quote=True,
    )
    Index(f"{name}_sequence", table.c.topic, table.c.sequence, unique=True)
    late = table.c.due > 0
    Index(f"{name}_due", table.c.due, postgresql_where=late, sqlite_where=late)
    return table


Step: TypeAlias = Callable[[Connection], None]


def _first(connection: Connection) -> None:
    TABLES.create_all(connection, tables=[stream, topic, channel])


STEPS: Sequence[Step] = (_first,)
"""The n-th step migrates a database from version n - 1 to n. A released step never changes."""


def prepare(connection: Connection) -> None:
    """Create the table of the version. A server then locks it to claim the database."""
    version.create(connection, checkfirst=True)


def migrate(connection: Connection, steps: Sequence[Step] = STEPS) -> int:
    """Migrate the tables to the newest version, in the open transaction. Returns the version that they had."""
    found = connection.scalar(select(version.c.version)) or 0
    if found > len(steps):
        raise DataFailed(
            f"the tables have version {found} of a newer busway, "
            f"and this one knows versions up to {len(steps)}: update it"
        )
    for step in steps[found:]:
        step(connection)
    if found < len(steps):
        connection.execute(delete(version))
        connection.execute(insert(version).values(version=len(steps)))
    return found
