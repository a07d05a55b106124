"""Columns for Spark: turns Arrow batches of the engine into exactly what Spark asks for.

Spark takes no dictionaries, no unsigned numbers and no nanoseconds, and fields are a map of texts to it.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from busway._core import Selection
from busway.spark.options import COLUMNS, OptionError

_MAP: Final = pa.map_(pa.string(), pa.string())
ARROW: Final[dict[str, pa.DataType]] = {
    "broker": pa.string(),
    "stream": pa.string(),
    "offset": pa.int64(),
    "topic": pa.string(),
    "sequence": pa.int64(),
    "stored": pa.timestamp("us", tz="UTC"),
    "time": pa.timestamp("us", tz="UTC"),
    "id": pa.string(),
    "sender": pa.string(),
    "fields": _MAP,
    "payload": pa.binary(),
}
SPARK: Final = {
    "broker": "string",
    "stream": "string",
    "offset": "bigint",
    "topic": "string",
    "sequence": "bigint",
    "stored": "timestamp",
    "time": "timestamp",
    "id": "string",
    "sender": "string",
    "fields": "map<string,string>",
    "payload": "binary",
}


def ddl(columns: Sequence[str]) -> str:
    """The schema of these columns, as Spark writes it."""
    return ", ".join(f"`{name}` {SPARK[name]}" for name in columns)


def chosen(schema: Any) -> tuple[str, ...]:
    """The columns of a schema that the user gave. Raises OptionError."""
    for one in schema.fields:
        known = SPARK.get(one.name)
        if known is None:
            raise OptionError(f"there is no column {one.name!r}; there are {', '.join(COLUMNS)}")
        if one.dataType.simpleString() != known:
            raise OptionError(
                f"the column {one.name!r} is {known}, not {one.dataType.simpleString()}; cast it afterwards"
            )
    return tuple(one.name for one in schema.fields)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, ARROW[name]) for name in columns])


def conform(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """A batch of the engine's columns as Spark wants it."""
    arrays = [_as_spark(name, batch.column(name)) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def covered(topics: Any, known: Sequence[Selection]) -> Any:
    """In which rows of a column of topics one of these matches; each topic is looked at once."""
    several = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
    found = [any(one.covers(topic) for one in known) for topic in several.dictionary.to_pylist()]
    return pa.array(found, pa.bool_()).take(several.indices)


def _as_spark(name: str, array: Any) -> Any:
    if name == "fields":
        return _maps(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    wanted = ARROW[name]
    if array.type == wanted:
        return array
    if pa.types.is_timestamp(array.type):
        return pc.cast(array, wanted, safe=False)  # what is finer than a microsecond goes
    return array.cast(wanted)


def _maps(packed: Any) -> Any:
    """Fields as maps of texts; messages often have the same, so each is read once."""
    if not packed.buffers()[2].size:  # often there are none
        nothing, ends = pa.array([], pa.string()), pa.py_buffer(bytes(4 * (len(packed) + 1)))
        return pa.MapArray.from_arrays(
            pa.Array.from_buffers(pa.int32(), len(packed) + 1, [None, ends]), nothing, nothing
        )
    several = packed.dictionary_encode()
    ends, keys, values = [0], list[str](), list[str]()
    for one in several.dictionary.to_pylist():
        for key, value in (msgspec.msgpack.decode(one) if one else {}).items():
            keys.append(key)
            values.append(value if isinstance(value, str) else _text(value))
        ends.append(len(keys))
    unique = pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )
    return unique.take(several.indices)


def _text(value: Any) -> str:
    """A value that is no text: JSON, and bytes as hexadecimal digits."""
    return json.dumps(value, default=lambda other: other.hex() if isinstance(other, bytes) else str(other))
