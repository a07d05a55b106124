"""Columns for Spark: converts Arrow batches of the engine to the types of Spark. Called by the source.

Spark accepts no dictionaries, no unsigned numbers and no nanoseconds. Message fields become a map of texts.
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
    """Return the schema of these columns in Spark's DDL."""
    return ", ".join(f"`{name}` {SPARK[name]}" for name in columns)


def chosen(schema: Any, typed: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the column names of a schema that the user gave; `typed` are known, too. Raises OptionError."""
    for field in schema.fields:
        if field.name in typed:
            continue
        known = SPARK.get(field.name)
        if known is None:
            raise OptionError(f"there is no column {field.name!r}; choose among {', '.join(COLUMNS)}")
        if field.dataType.simpleString() != known:
            raise OptionError(
                f"the column {field.name!r} is {known}, not {field.dataType.simpleString()}; cast it afterwards"
            )
    return tuple(field.name for field in schema.fields)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return pa.schema([(name, ARROW[name]) for name in columns])


def conform(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Convert a batch of the engine to the columns and types of Spark."""
    arrays = [_as_spark(name, batch.column(name)) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def covered(topics: Any, known: Sequence[Selection]) -> Any:
    """Return a mask of the rows whose topic matches one of the selections. Each distinct topic is matched once."""
    encoded = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
    found = [any(selection.covers(topic) for selection in known) for topic in encoded.dictionary.to_pylist()]
    return pa.array(found, pa.bool_()).take(encoded.indices)


def _as_spark(name: str, array: Any) -> Any:
    if name == "fields":
        return _maps(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    wanted = ARROW[name]
    if array.type == wanted:
        return array
    if pa.types.is_timestamp(array.type):
        return pc.cast(array, wanted, safe=False)  # drops digits below a microsecond
    return array.cast(wanted)


def _maps(packed: Any) -> Any:
    """Convert packed fields to maps of texts. Each distinct value is decoded once, because messages share fields."""
    if not packed.buffers()[2].size:  # no message has fields
        empty, ends = pa.array([], pa.string()), pa.py_buffer(bytes(4 * (len(packed) + 1)))
        return pa.MapArray.from_arrays(pa.Array.from_buffers(pa.int32(), len(packed) + 1, [None, ends]), empty, empty)
    encoded = packed.dictionary_encode()
    ends, keys, values = [0], list[str](), list[str]()
    for fields in encoded.dictionary.to_pylist():
        for key, value in (msgspec.msgpack.decode(fields) if fields else {}).items():
            keys.append(key)
            values.append(value if isinstance(value, str) else _text(value))
        ends.append(len(keys))
    unique = pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )
    return unique.take(encoded.indices)


def _text(value: Any) -> str:
    """Return a value as JSON, with bytes as hexadecimal digits."""
    return json.dumps(value, default=lambda other: other.hex() if isinstance(other, bytes) else str(other))
