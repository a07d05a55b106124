"""The tables of a database store, their version, and the steps from one version to the next.

One database holds several streams. Each has a table of records of its own, named by the stream's number, so that appending
touches no other stream's index and removing a stream is dropping a table. Every name is quoted.
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
"""`begins` and `ends`: bytes there ever were before the first record and up to the end of the last one."""

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
"""`left`: how many records it has. A topic stays when its records go, so that its sequence goes on."""

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

    `before` is how many bytes there ever were in the stream before the record: with it, as with `stored`, the offset that a
    limit means is found by halving, so neither needs an index. The sender is bytes, since PostgreSQL takes no text with a zero.
    """
    name = f"busway_records_{number}"
    table = Table(
        name,
        MetaData(),
        # SQLite makes only INTEGER the number of the row itself; all its integers have 64 bits.
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
"""The n-th makes a database of version n, from 1 on, out of one of the version before. A step is never changed once released."""


def prepare(connection: Connection) -> None:
    """Make the table of the version, on which a server then claims the database."""
    version.create(connection, checkfirst=True)


def migrate(connection: Connection, steps: Sequence[Step] = STEPS) -> int:
    """Bring the tables to the newest version, in the transaction that is open; the version they had."""
    found = connection.scalar(select(version.c.version)) or 0
    if found > len(steps):
        raise DataFailed(
            f"the tables are of version {found}, made by a newer busway; this one knows versions up to {len(steps)}: update it"
        )
    for step in steps[found:]:
        step(connection)
    if found < len(steps):
        connection.execute(delete(version))
        connection.execute(insert(version).values(version=len(steps)))
    return found
