"""Stored records as Arrow: turns the blocks of a log into record batches, of the columns that are asked for only.

The engine makes the buffers; pyarrow, which comes with `busway[arrow]`, only wraps them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from busway import _core

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("offset", "topic", "sequence", "stored", "time", "id", "sender", "fields", "payload")
"""All columns that records have: fields as MessagePack, times in UTC with nanoseconds, the id as 32 hexadecimal digits."""


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
    """The records of some blocks with offsets from `begin` to before `end` that a selection asks for and that have not expired.

    `same` are columns that have one text in every row.
    """
    pa = arrow()
    given = [blocks] if isinstance(blocks, bytes) else list(blocks)
    same = same or {}
    rows, made = _core.columns(given, [name for name in columns if name not in same], selection, begin, end, now)
    stored = (_MAKE[kind](pa, rows, [pa.py_buffer(part) for part in buffers]) for kind, buffers in made)
    arrays = [_repeated(pa, rows, same[name]) if name in same else next(stored) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def arrow() -> Any:
    """The module pyarrow, if it is installed."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - it is large, and only needed here
    except ImportError as error:
        raise ImportError("Arrow needs pyarrow: pip install 'busway[arrow]'", name="pyarrow") from error
    return pa


def _repeated(pa: Any, rows: int, text: str) -> Any:
    return pa.DictionaryArray.from_arrays(_plain(pa, pa.int32(), rows, [pa.py_buffer(bytes(4 * rows))]), [text])


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
