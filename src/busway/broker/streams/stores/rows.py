"""The rows of one stream in a database: the statements that store, find and remove its records.

All methods run on the thread of a `Database`, inside an open transaction. `State` is an immutable value: a write
returns the state after its transaction, and `Rows.state` changes only when that is committed.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Column,
    Connection,
    Table,
    Update,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    not_,
    select,
    update,
)

from busway.broker.streams.stores import HEAD, ChannelEntry, Damage, Parked, Published, Record, TopicUsage, schema
from busway.broker.streams.stores.dialects import Dialect, Row
from busway.errors import StoreFailed

log = logging.getLogger("busway.broker")

_PAGE: Final = 8192
"""The number of rows that are read or removed at once."""
_FIGURES: Final = ("first", "next", "stored", "count", "begins", "ends")
_UPDATE: Final = (
    update(schema.stream)
    .where(schema.stream.c.id == bindparam("number"))
    .values({name: bindparam(name) for name in _FIGURES})
)
_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64


class Topic(NamedTuple):
    """A topic as in the schema."""

    id: int
    first: int
    last: int
    left: int


@dataclass(frozen=True, slots=True)
class State:
    """The state of a stream, as in the schema. As the result of a write, `topics` has only the changed ones."""

    first: int = 0
    next: int = 0
    stored: int = 0
    count: int = 0
    begins: int = 0
    ends: int = 0
    topics: Mapping[str, Topic] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return self.ends - self.begins


class Rows:
    """Records, topics and channels of one stream."""

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.name = name
        self.damage: list[Damage] = []
        self.recovered: Callable[[int, int], Sequence[Record]] = lambda _begin, _end: ()
        """Returns the records from one offset to before another that are still in memory. Called on the thread."""
        self.state = State()
        self._dialect = dialect
        self._put_topics = dialect.put(schema.topic)
        self._put_channels = dialect.put(schema.channel)
        self._id = 0
        self._table: Table = schema.records(0)
        self._topics: dict[str, Topic] = {}
        self._names: dict[int, str] = {}
        self._lengths: dict[str, int] = {}
        self._topic_id = 0

    # Opening.

    def open(self, connection: Connection) -> State:
        """Create the stream if the database doesn't have it, and read its state."""
        found = connection.scalar(select(schema.stream.c.id).where(schema.stream.c.name == self.name))
        if found is None:
            found = (connection.scalar(select(func.max(schema.stream.c.id))) or 0) + 1
            values = dict.fromkeys(_FIGURES, 0)
            connection.execute(insert(schema.stream).values(id=found, name=self.name, **values))
            schema.records(found).create(connection)
        self._id = found
        self._table = schema.records(found)
        return self._load(connection)

    def reopen(self, connection: Connection) -> State:
        """Read the state after a lost connection, and store lost records again.

        A killed server may lose the last commits that it has answered, unless their safety was "synced". Records that
        are still in memory are stored again; all others are reported as damage, and their offsets stay empty.
        """
        known = self.state
        found = self._load(connection)
        if found.next > known.next:
            log.info("stream %s: the records that were being stored when the connection was lost are stored", self.name)
        if found.next >= known.next:
            return found
        left = self.recovered(found.next, known.next)
        if [record.offset for record in left] == list(range(found.next, known.next)):
            log.warning(
                "stream %s: the database has lost records %d to %d; they are stored again from memory",
                *(self.name, found.next, known.next - 1),
            )
            return self._store_again(connection, found, left)
        log.error("stream %s: the database has lost records %d to %d", self.name, found.next, known.next - 1)
        self.damage.append(Damage(found.next, known.next, "acknowledged, then lost by the database"))
        topics = dict(found.topics)
        for name, topic in self._topics.items():
            stored = topics.get(name, Topic(topic.id, topic.last + 1, 0, 0))
            topics[name] = stored._replace(last=max(topic.last, stored.last))
        first = found.first if found.count else known.next
        return self._write(connection, replace(found, first=first, next=known.next, stored=known.stored, topics=topics))

    def _store_again(self, connection: Connection, found: State, left: Sequence[Record]) -> State:
        known = replace(self.state, topics=dict(self._topics))
        self.loaded(found)
        try:
            stored = self.append(connection, left)
        finally:
            self.loaded(known)  # until it is committed
        return replace(stored, topics={**found.topics, **stored.topics})

    def _load(self, connection: Connection) -> State:
        columns = schema.stream.c
        wanted = [columns[name] for name in _FIGURES]
        row = connection.execute(select(*wanted).where(columns.id == self._id, columns.name == self.name)).first()
        if row is None:
            raise StoreFailed(f"another program has removed the stream {self.name!r} from the database")
        columns = schema.topic.c
        found = connection.execute(
            select(columns.topic, columns.id, columns.first, columns.last, columns.left).where(
                columns.stream == self._id
            )
        )
        return State(**row._mapping, topics={name: Topic(*rest) for name, *rest in found})  # noqa: SLF001, its name

    def loaded(self, state: State) -> None:
        """Replace the state by the one that was read from the database."""
        self._topics.clear()
        self._names.clear()
        self._topic_id = 0
        self.committed(state)

    def committed(self, state: State) -> None:
        """Apply the result of a committed transaction."""
        for name, topic in state.topics.items():
            self._topics[name] = topic
            self._names[topic.id] = name
            self._topic_id = max(self._topic_id, topic.id)
        self.state = replace(state, topics={})

    # Writing.

    def append(self, connection: Connection, records: Sequence[Record]) -> State:
        state = self.state
        fresh = [record for record in records if record.offset >= state.next]
        if len(fresh) < len(records):
            self._check_repeated(connection, [record for record in records if record.offset < state.next])
        if not fresh:
            return replace(state, topics={})
        expected = fresh[0].offset if not state.count else state.next
        stored, ends, topics = state.stored, state.ends, dict[str, Topic]()
        fresh_id = self._topic_id
        rows: list[Row] = []
        ended: list[dict[str, int]] = []
        for record in fresh:
            offset, sequence, at, time, session, number, expires, due, name, sender, fields, payload = record
            if offset != expected:
                raise StoreFailed(f"the record has the offset {offset}, but {expected} is the next one")
            topic = topics.get(name) or self._topics.get(name)
            if topic is None:
                fresh_id += 1
                topic = Topic(fresh_id, max(sequence, 1), max(sequence - 1, 0), 0)
            if sequence == 0:
                topics[name] = topic
            elif sequence <= topic.last:
                raise StoreFailed(f"topic {name!r} has sequence {topic.last} already, so {sequence} is refused")
            else:
                first = topic.first if topic.left else sequence
                topics[name] = Topic(topic.id, first, sequence, topic.left + 1)
            stored = max(stored, at)  # never decreases, also if a clock is set back: records are searched by their time
            name_bytes = sender.encode()
            session = session - _WRAP if session >= _SIGN else session
            number = number - _WRAP if number >= _SIGN else number
            if due and sequence:
                ended.append({"at": due, "who": session, "which": number})
            # The column is unique within a topic, so delayed messages have negative values.
            rows.append(
                (
                    offset,
                    sequence or -1 - offset,
                    stored,
                    time,
                    session,
                    number,
                    expires,
                    due,
                    topic.id,
                    name_bytes,
                    fields,
                    payload,
                    ends,
                )
            )
            ends += HEAD + self._length(name) + len(name_bytes) + len(payload) + (len(fields) if fields else 0)
            expected += 1
        self._dialect.insert(connection, self._table, rows)
        if ended:
            connection.execute(self._end_waiting(), ended)
        first = state.first if state.count else fresh[0].offset
        new = State(first, expected, stored, state.count + len(fresh), state.begins, ends, topics)
        return self._write(connection, new)

    def _end_waiting(self) -> Update:
        columns = self._table.c
        waits = columns.due > 0, columns.due == bindparam("at"), columns.sequence < 0
        own = columns.session == bindparam("who"), columns.number == bindparam("which")
        return update(self._table).where(*waits, *own).values(due=0)

    def _length(self, name: str) -> int:
        length = self._lengths.get(name)
        if length is None:
            length = self._lengths[name] = len(name.encode())
        return length

    def _check_repeated(self, connection: Connection, records: Sequence[Record]) -> None:
        """Refuse a record if its offset has another message. Offsets whose records were removed are not checked."""
        columns = self._table.c
        wanted = (columns.offset, columns.session, columns.number, columns.sequence, columns.topic)
        inside = columns.offset.between(records[0].offset, records[-1].offset)
        stored = {row[0]: row for row in connection.execute(select(*wanted).where(inside))}
        for record in records:
            if (row := stored.get(record.offset)) is None:
                continue
            _, session, number, sequence, topic = row
            known = session % _WRAP, number % _WRAP, max(sequence, 0), self._names.get(topic)
            if known != (record.session, record.number, record.sequence, record.topic):
                raise StoreFailed(f"offset {record.offset} has another message already, of topic {known[3]!r}")

    def cut(self, connection: Connection, below: int) -> tuple[State, int]:
        """Remove at most a page of the records below this offset. Returns the state and how many were removed."""
        table, columns = self._table, self._table.c
        state = self.state
        last = connection.scalar(
            select(columns.offset).where(columns.offset < below).order_by(columns.offset).offset(_PAGE - 1).limit(1)
        )
        inside = columns.offset <= last if last is not None else columns.offset < below
        gone = connection.execute(
            select(
                columns.topic,
                func.count(),
                func.sum(case((columns.sequence > 0, 1), else_=0)),
                func.max(columns.sequence),
            )
            .where(inside)
            .group_by(columns.topic)
        ).all()
        connection.execute(delete(table).where(inside))
        topics = {}
        removed = 0
        for number, count, messages, sequence in gone:
            removed += count
            if messages:
                name = self._names[number]
                topic = self._topics[name]
                topics[name] = topic._replace(first=sequence + 1, left=topic.left - messages)
        left = connection.execute(select(columns.offset, columns.before).order_by(columns.offset).limit(1)).first()
        first, begins = (state.next, state.ends) if left is None else left
        new = replace(state, first=first, begins=begins, count=state.count - removed, topics=topics)
        return self._write(connection, new), removed

    def purge(self, connection: Connection) -> State:
        connection.execute(delete(self._table))
        topics = {
            name: topic._replace(first=topic.last + 1, left=0) for name, topic in self._topics.items() if topic.left
        }
        state = self.state
        return self._write(connection, replace(state, first=state.next, begins=state.ends, count=0, topics=topics))

    def remove(self, connection: Connection) -> None:
        self._table.drop(connection)
        connection.execute(delete(schema.channel).where(schema.channel.c.stream == self._id))
        connection.execute(delete(schema.topic).where(schema.topic.c.stream == self._id))
        connection.execute(delete(schema.stream).where(schema.stream.c.id == self._id))

    def _write(self, connection: Connection, state: State) -> State:
        if state.topics:
            rows = [{"stream": self._id, "topic": name, **topic._asdict()} for name, topic in state.topics.items()]
            connection.execute(self._put_topics, rows)
        values = {name: getattr(state, name) for name in _FIGURES}
        connection.execute(_UPDATE, {"number": self._id, **values})
        return state

    # Reading.

    def read(self, connection: Connection, from_: int, most_bytes: int) -> list[Record]:
        columns, state = self._table.c, self.state
        start = connection.execute(
            select(columns.offset, columns.before).where(columns.offset >= from_).order_by(columns.offset).limit(1)
        ).first()
        if start is None:
            return []
        # A limit for the search: the database does not know that `before` only grows.
        usual = max(HEAD, state.bytes // max(1, state.count))
        limit = start.offset + min(2 * most_bytes // usual + 16, most_bytes // HEAD + 1)
        inside = columns.offset.between(start.offset, limit), columns.before < start.before + max(1, most_bytes)
        found = connection.execute(select(self._table).where(*inside).order_by(columns.offset)).all()
        records = [self._record(row) for row in found]
        last = found[-1]
        if len(records) > 1 and last.before + records[-1].size - start.before > most_bytes:
            records.pop()
        return records

    def _record(self, row: Any) -> Record:
        offset, sequence, stored, time, session, number, expires, due, topic, sender, fields, payload, _ = row
        if session < 0:
            session += _WRAP
        if number < 0:
            number += _WRAP
        name = self._names[topic]
        return Record(
            *(offset, max(sequence, 0), stored, time, session, number, expires, due),
            *(name, sender.decode(), fields, payload),
        )

    def find_time(self, connection: Connection, stored: int) -> int:
        return self._search(connection, self._table.c.stored, stored)

    def find(self, connection: Connection, topic: str, sequence: int) -> int | None:
        known = self._topics.get(topic)
        if known is None or not known.first <= sequence <= known.last:
            return None
        columns = self._table.c
        where = columns.topic == known.id, columns.sequence == sequence
        return connection.scalar(select(columns.offset).where(*where))

    def waiting(self, connection: Connection) -> list[Parked]:
        columns = self._table.c
        wanted = select(columns.due, columns.offset, columns.session, columns.number)
        found = connection.execute(wanted.where(columns.due > 0, columns.sequence < 0))
        return sorted(Parked(due, offset, session % _WRAP, number % _WRAP) for due, offset, session, number in found)

    def publishers(self, connection: Connection, since: int) -> list[Published]:
        runs: list[Published] = []
        session = number = offset = sequence = count = 0
        for row in self._ids(connection, self._search(connection, self._table.c.stored, since)):
            if row == (session, number + count, offset + count, sequence + count):
                count += 1
                continue
            if count:
                runs.append(Published(session % _WRAP, number % _WRAP, offset, sequence, count))
            (session, number, offset, sequence), count = row, 1
        if count:
            runs.append(Published(session % _WRAP, number % _WRAP, offset, sequence, count))
        return runs

    def _ids(self, connection: Connection, offset: int) -> Iterator[Row]:
        columns = self._table.c
        wanted = select(columns.session, columns.number, columns.offset, columns.sequence).order_by(columns.offset)
        wanted = wanted.where(columns.session != 0, not_(and_(columns.due > 0, columns.sequence > 0)))
        while True:
            page = connection.execute(wanted.where(columns.offset >= offset).limit(_PAGE)).all()
            for session, number, at, sequence in page:
                yield session, number, at, max(sequence, 0)
            if len(page) < _PAGE:
                return
            offset = page[-1].offset + 1

    def limit(self, connection: Connection, *, age: int | None, most_bytes: int | None, most_count: int | None) -> int:
        """The offset below which all records are beyond a limit: by the time `age`, by bytes, or by number."""
        columns, state = self._table.c, self.state
        found = [state.first]
        if age is not None:
            found.append(self._search(connection, columns.stored, age))
        if most_bytes is not None:
            found.append(self._search(connection, columns.before, state.ends - most_bytes))
        if most_count is not None and state.count > most_count:
            skip = select(columns.offset).order_by(columns.offset).offset(state.count - most_count).limit(1)
            beyond = connection.scalar(skip)
            found.append(state.next if beyond is None else beyond)
        return max(found)

    def bytes_below(self, connection: Connection, offset: int) -> int:
        """The bytes of the records before an offset."""
        columns, state = self._table.c, self.state
        found = connection.scalar(
            select(columns.before).where(columns.offset >= offset).order_by(columns.offset).limit(1)
        )
        ends: int = state.ends if found is None else found
        return ends - state.begins

    def _search(self, connection: Connection, column: Column[int], value: int) -> int:
        """The first offset with at least this value in a column that only grows; `next` if there is none."""
        offset = self._table.c.offset
        wanted = select(offset, column).order_by(offset).limit(1)
        low, high = self.state.first, self.state.next
        best = high
        while low < high:
            middle = (low + high) // 2
            row = connection.execute(wanted.where(offset >= middle)).first()
            if row is None or row[0] >= high:
                high = middle  # no record from the middle on
            elif row[1] >= value:
                best, high = row[0], middle
            else:
                low = row[0] + 1
        return best

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def topics(self) -> list[TopicUsage]:
        used = [TopicUsage(name, topic.first, topic.last, topic.left) for name, topic in self._topics.items()]
        return sorted(topic for topic in used if topic.count)

    def sequences(self) -> dict[str, int]:
        return {name: topic.last for name, topic in self._topics.items() if topic.last}

    # Channels.

    def load_channels(self, connection: Connection) -> list[ChannelEntry]:
        columns = schema.channel.c
        found = connection.execute(
            select(columns.channel, columns.key, columns.value).where(columns.stream == self._id)
        )
        # Sorted here, because databases sort texts in different orders.
        return sorted(ChannelEntry(*row) for row in found)

    def save_channels(self, connection: Connection, entries: Sequence[ChannelEntry]) -> None:
        last = {(entry.channel, entry.key): entry.value for entry in entries}
        gone = [(channel, key) for (channel, key), value in last.items() if value is None]
        put = [
            {"stream": self._id, "channel": channel, "key": key, "value": value}
            for (channel, key), value in last.items()
            if value is not None
        ]
        columns = schema.channel.c
        for channel, key in gone:
            where = columns.stream == self._id, columns.channel == channel, columns.key == key
            connection.execute(delete(schema.channel).where(*where))
        if put:
            connection.execute(self._put_channels, put)
