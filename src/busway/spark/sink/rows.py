"""Rows of the sink: checks the columns of a table, and converts batches to runs of messages. Called by sink and replay.

It does no I/O. Errors name the row.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any, Final

import msgspec
import pyarrow as pa

from busway.client.durable.feed import Run
from busway.errors import BusError
from busway.fields import encode_fields
from busway.spark.options import OptionError, nearest, storable

ACCEPTED: Final = {
    "topic": ("string",),
    "payload": ("binary", "string"),
    "fields": ("map<string,string>",),
    "time": ("timestamp",),
    "key": ("string",),
}
"""The columns that the sink accepts, with their types."""
KEY: Final = "key"
"""The message field for the column key."""

_LAST: Final = (2**63 - 1) // 1000
"""Largest time in microseconds whose nanoseconds fit into 64 bits."""
_TOPICS: Final = 100_000
"""Largest number of topics and of fields that are cached from one batch to the next."""

_packed: Final = msgspec.msgpack.Encoder(order="deterministic")


class BadRow(ValueError):  # noqa: N818 - named after the row
    """A row that can't be stored as a message."""


def check_columns(schema: Any, topic: str) -> None:
    """Check that rows of this schema can be written. Raises OptionError."""
    for field in schema.fields:
        wanted = ACCEPTED.get(field.name)
        if wanted is None:
            hint = nearest(field.name, tuple(ACCEPTED))
            raise OptionError(f"there is no column {field.name!r} in a message{hint}; choose columns with select()")
        found = field.dataType.simpleString()
        if found not in wanted:
            raise OptionError(f"the column {field.name!r} must be {' or '.join(wanted)}, not {found}: cast it")
    names = [field.name for field in schema.fields]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"the column {name!r} appears {names.count(name)} times; keep one of them")
    if "payload" not in names:
        raise OptionError(
            "the column payload (binary or string) is missing; to_json(struct(...)) makes it from several columns"
        )
    if "topic" not in names and not topic:
        raise OptionError("the rows have no topic: add a column topic, or give the option topic for all rows")


class Rows:
    """Turns the batches of one partition into runs, counting its rows from 0."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._topics: dict[str, str] = {}
        self._fields: dict[Any, bytes] = {}
        self.count = 0

    def runs(self, batch: pa.RecordBatch) -> list[Run]:
        """Convert a batch to runs of messages, in order. Raises BadRow."""
        size = batch.num_rows
        columns = {name: batch.column(name) for name in batch.schema.names}
        payloads: list[Any] = columns["payload"].to_pylist()
        if columns["payload"].null_count:
            raise self.bad(payloads.index(None), "the payload is null")
        topics = self._all_topics(columns.get("topic"), size)
        fields = self._all_fields(columns.get("fields"), columns.get("key"), size)
        times = self._times(columns.get("time"))
        first, self.count = self.count, self.count + size
        if times is not None:
            each = zip(range(first, first + size), topics, payloads, fields, times, strict=True)
            return [Run(row, topic, (payload,), packed, time) for row, topic, payload, packed, time in each]
        return list(_grouped(first, topics, fields, payloads))

    def bad(self, row: int, reason: str) -> BadRow:
        """Return the error for a row of the current batch."""
        return BadRow(self.name(self.count + row) + ": " + reason)

    def name(self, row: int) -> str:
        """Return the name of a row for messages."""
        return f"row {row} of partition {self._partition}"

    def _all_topics(self, column: Any, size: int) -> Sequence[str]:
        if column is None:
            return [self._topic] * size
        checked, topics = self._topics, column.to_pylist()
        if len(checked) > _TOPICS:
            checked.clear()
        for row, topic in enumerate(topics):
            if topic not in checked:
                checked[topic] = self._check(row, topic)
        return [checked[topic] for topic in topics]

    def _check(self, row: int, topic: str | None) -> str:
        if topic is None:
            if not self._topic:
                raise self.bad(row, "the topic is null: fill it, or give the option topic")
            return self._topic
        try:
            found = storable(topic)
        except ValueError as error:
            raise self.bad(row, f"the topic {topic!r} can't be stored: {error}") from error
        return found

    def _all_fields(self, maps: Any, keys: Any, size: int) -> Sequence[bytes]:
        if maps is None and keys is None:
            return [b""] * size
        given = maps.to_pylist() if maps is not None else [None] * size
        several = keys.to_pylist() if keys is not None else [None] * size
        packed = self._fields
        if len(packed) > _TOPICS:
            packed.clear()
        out: list[bytes] = []
        for row, (pairs, key) in enumerate(zip(given, several, strict=True)):
            known = (tuple(pairs) if pairs else None, key)
            if known not in packed:
                packed[known] = self._pack(row, pairs, key)
            out.append(packed[known])
        return out

    def _pack(self, row: int, pairs: list[tuple[str, str | None]] | None, key: str | None) -> bytes:
        fields: dict[str, Any] = dict(sorted(pairs)) if pairs else {}
        if key is not None:
            if KEY in fields:
                raise self.bad(row, f"the field {KEY!r} and the column key exclude each other: remove one of them")
            fields[KEY] = key
        try:
            return encode_fields(fields)
        except (BusError, ValueError) as error:
            raise self.bad(row, f"its fields can't be stored: {error}") from error

    def _times(self, column: Any) -> list[int] | None:
        if column is None:
            return None
        if column.null_count:
            raise self.bad(
                column.to_pylist().index(None),
                "the time is null: fill it, or leave the column out to use the time of writing",
            )
        times: list[int] = column.cast(pa.timestamp("us", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
        for row, time in enumerate(times):
            if not 0 < time <= _LAST:
                raise self.bad(row, "the time must lie between 1970 and 2262, the range of 64 bits of nanoseconds")
        return [1000 * time for time in times]


def _grouped(
    first: int, topics: Sequence[str], fields: Sequence[bytes], payloads: Sequence[bytes | str]
) -> Iterator[Run]:
    at = 0
    for (topic, packed), some in groupby(zip(topics, fields, strict=True)):
        end = at + sum(1 for _ in some)
        yield Run(first + at, topic, payloads[at:end], packed)
        at = end


def content(topic: str, fields: dict[str, Any], time: int, payload: bytes | str) -> bytes:
    """Return a digest by which a row equals a stored message. `time`: 0 if the rows have no times."""
    data = payload.encode() if isinstance(payload, str) else payload
    head = _packed.encode((topic, fields, time))
    return blake2b(head + data, digest_size=16).digest()
