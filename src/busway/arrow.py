"""Converts blocks of stored records and messages to Arrow record batches; streams, subscriptions and Spark call it.

The engine builds the buffers of the requested columns, and pyarrow (from `busway[arrow]`) wraps them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from busway import _core
from busway.common.checks import check_type
from busway.common.extras import install_command

if TYPE_CHECKING:
    import pyarrow as pa

_Made: TypeAlias = tuple[str, list[_core.ColumnBuffer]]

COLUMNS: Final = ("offset", "topic", "sequence", "stored", "time", "id", "sender", "fields", "payload")
"""All columns of a record: fields as MessagePack, times in UTC with nanoseconds, the id as 32 hexadecimal digits."""


PLACED: Final = ("broker", "stream", *COLUMNS)
"""All columns of a message, which may come from any stream of any broker."""


def record_batch(
    blocks: bytes | Sequence[bytes],
    columns: Sequence[str] = COLUMNS,
    *,
    selection: _core.Selection | None = None,
    begin: int = 0,
    end: int = (1 << 64) - 1,
    now: int = 0,
    same: Mapping[str, str] | None = None,
) -> "pa.RecordBatch":
    """Return the matching records of blocks that have not expired, with offsets from `begin` to before `end`.

    `same` maps the names of columns to a text that is the same in every row.
    """
    pa = arrow()
    given = [blocks] if isinstance(blocks, bytes) else list(blocks)
    same = same or {}
    rows, made = _core.columns(given, [name for name in columns if name not in same], selection, begin, end, now)
    repeated = {name: _repeated(pa, rows, text) for name, text in same.items() if name in columns}
    return _batch(pa, columns, rows, made, repeated)


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns as a tuple. Raises TypeError or ValueError for a name that messages do not have."""
    check_type("columns", columns, (list, tuple), "a list of names")
    for name in columns:
        if name not in PLACED:
            raise ValueError(f"there is no column {name!r}; the columns are {', '.join(PLACED)}")
    return tuple(columns)


def message_batch(messages: Iterable[_core.Message], columns: Sequence[str] = PLACED) -> "pa.RecordBatch":
    """Return the messages of a subscription as rows.

    Broker, stream, offset, sequence and stored time are null for a message that is not stored. Notices about retained
    messages are left out.
    """
    pa = arrow()
    rows = [message for message in messages if message.kind not in {"notify", "withdrawn"}]
    arrays = []
    for name in columns:
        kind, value = _OF_MESSAGES[name]
        arrays.append(_KINDS[kind](pa, [value(message) for message in rows]))
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def plain_batch(
    log: _core.Log,
    begin: int,
    end: int,
    most: int,
    columns: Sequence[str],
    *,
    selection: _core.Selection | None = None,
    now: int = 0,
    same: Mapping[str, str] | None = None,
) -> tuple[int, int, "pa.RecordBatch"]:
    """Read about `most` bytes of records of a log from `begin` to before `end` as a record batch, without blocks.

    Return the first offset, the next offset to read, and the rows. Their types are plain: strings instead of
    dictionaries, microseconds instead of nanoseconds, and signed integers.
    """
    pa = arrow()
    same = same or {}
    wanted = [name for name in columns if name not in same]
    first, following, rows, made = log.columns(begin, most, wanted, selection, end, now)
    repeated = {name: pa.repeat(text, rows) for name, text in same.items() if name in columns}
    return first, following, _batch(pa, columns, rows, made, repeated)


def arrow() -> Any:
    """Return the module pyarrow. Raises ImportError with an install command if it is missing."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - a large optional package
    except ImportError as error:
        raise ImportError(f"Arrow needs pyarrow: {install_command('arrow')}", name="pyarrow") from error
    return pa


def _batch(pa: Any, columns: Sequence[str], rows: int, made: Sequence[_Made], same: Mapping[str, Any]) -> Any:
    stored = (_MAKE[kind](pa, rows, [pa.py_buffer(part) for part in buffers]) for kind, buffers in made)
    arrays = [same[name] if name in same else next(stored) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def _repeated(pa: Any, rows: int, text: str) -> Any:
    return pa.DictionaryArray.from_arrays(_plain(pa, pa.int32(), rows, [pa.py_buffer(bytes(4 * rows))]), [text])


def _plain(pa: Any, kind: Any, rows: int, buffers: list[Any]) -> Any:
    return pa.Array.from_buffers(kind, rows, [None, *buffers])


def _dictionary(pa: Any, rows: int, buffers: list[Any]) -> Any:
    indices, ends, texts = buffers
    numbers = _plain(pa, pa.int32(), rows, [indices])
    return pa.DictionaryArray.from_arrays(numbers, _plain(pa, pa.string(), ends.size // 4 - 1, [ends, texts]))


_KINDS: Final[dict[str, Callable[[Any, list[Any]], Any]]] = {
    "unsigned": lambda pa, values: pa.array(values, pa.uint64()),
    "nanoseconds": lambda pa, values: pa.array(values, pa.timestamp("ns", tz="UTC")),
    "text": lambda pa, values: pa.array(values, pa.string()),
    "binary": lambda pa, values: pa.array(values, pa.binary()),
    "dictionary": lambda pa, values: pa.array(values, pa.string()).dictionary_encode(),
}
_OF_MESSAGES: Final[dict[str, tuple[str, Callable[[_core.Message], Any]]]] = {
    "broker": ("dictionary", lambda message: message.broker),
    "stream": ("dictionary", lambda message: message.stream),
    "offset": ("unsigned", lambda message: message.offset),
    "topic": ("dictionary", lambda message: message.topic),
    "sequence": ("unsigned", lambda message: message.sequence),
    "stored": ("nanoseconds", lambda message: message.stored_ns),
    "time": ("nanoseconds", lambda message: message.time_ns),
    "id": ("text", lambda message: message.id),
    "sender": ("dictionary", lambda message: message.sender),
    "fields": ("binary", lambda message: msgspec.msgpack.encode(message.fields) if message.fields else b""),
    "payload": ("binary", lambda message: message.payload),
}

_MAKE: Final[dict[str, Callable[[Any, int, list[Any]], Any]]] = {
    "unsigned": lambda pa, rows, buffers: _plain(pa, pa.uint64(), rows, buffers),
    "signed": lambda pa, rows, buffers: _plain(pa, pa.int64(), rows, buffers),
    "nanoseconds": lambda pa, rows, buffers: _plain(pa, pa.timestamp("ns", tz="UTC"), rows, buffers),
    "microseconds": lambda pa, rows, buffers: _plain(pa, pa.timestamp("us", tz="UTC"), rows, buffers),
    "text": lambda pa, rows, buffers: _plain(pa, pa.string(), rows, buffers),
    "binary": lambda pa, rows, buffers: _plain(pa, pa.binary(), rows, buffers),
    "dictionary": _dictionary,
}
