"""Export of stored messages to an Arrow or Parquet file, for `busway replay --out`."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busway.arrow import arrow, record_batch
from busway.client.streams.stream import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa


@contextlib.contextmanager
def writer(file: Path) -> "Iterator[Callable[[pa.RecordBatch], None]]":
    """Yield a function that writes a batch. The file is replaced at the end; after an error it is unchanged."""
    arrow()
    part = file.with_name(f".{file.name}.part")
    schema = _plain(record_batch([], COLUMNS, same={"broker": "", "stream": ""})).schema
    try:
        with _opened(part, schema, parquet=file.suffix == ".parquet") as out:
            yield lambda batch: out.write_batch(_plain(batch))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(part: Path, schema: Any, *, parquet: bool) -> Iterator[Any]:
    if parquet:
        from pyarrow import parquet as pq

        with pq.ParquetWriter(part, schema) as out:
            yield out
    else:
        from pyarrow import OSFile, ipc

        with OSFile(str(part), "wb") as sink, ipc.new_file(sink, schema) as out:
            yield out


def _plain(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Decode dictionary columns: all batches of an Arrow file would have to share one dictionary."""
    pa = arrow()
    arrays = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names)
