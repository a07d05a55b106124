"""Stored records as Arrow: turns the blocks of a log into record batches, of the columns that are asked for only.

The engine makes the buffers; pyarrow, which comes with `busway[arrow]`, only wraps them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from busway import _core

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("offset", "topic", "sequence", "stored", "time", "id", "sender", "fields", "payload")
"""All columns there are: fields as MessagePack, times in UTC with nanoseconds, the id as 32 hexadecimal digits."""


def record_batch(
    blocks: bytes | Sequence[bytes],
    columns: Sequence[str] = COLUMNS,
    *,
    selection: _core.Selection | None = None,
    begin: int = 0,
    end: int = (1 << 64) - 1,
    now: int = 0,
) -> "pa.RecordBatch":
    """The records of some blocks with offsets from `begin` to before `end` that a selection asks for and that have not expired."""
    import pyarrow as pa  # noqa: PLC0415 - it is large, and only needed here

    given = [blocks] if isinstance(blocks, bytes) else list(blocks)
    rows, made = _core.columns(given, list(columns), selection, begin, end, now)
    arrays = [_MAKE[kind](pa, rows, [pa.py_buffer(part) for part in buffers]) for kind, buffers in made]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def _plain(pa: Any, kind: Any, rows: int, buffers: list[Any]) -> Any:
    return pa.Array.from_buffers(kind, rows, [None, *buffers])


def _dictionary(pa: Any, rows: int, buffers: list[Any]) -> Any:
    indices, ends, texts = buffers
    numbers = _plain(pa, pa.int32(), rows, [indices])
    return pa.DictionaryArray.from_arrays(numbers, _plain(pa, pa.string(), ends.size // 4 - 1, [ends, texts]))


_MAKE: Final[dict[str, Callable[[Any, int, list[Any]], Any]]] = {
    "unsigned": lambda pa, rows, buffers: _plain(pa, pa.uint64(), rows, buffers),
    "time": lambda pa, rows, buffers: _plain(pa, pa.timestamp("ns", tz="UTC"), rows, buffers),
    "text": lambda pa, rows, buffers: _plain(pa, pa.string(), rows, buffers),
    "binary": lambda pa, rows, buffers: _plain(pa, pa.binary(), rows, buffers),
    "dictionary": _dictionary,
}
