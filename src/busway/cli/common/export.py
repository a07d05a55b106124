"""Stored messages as a file of Arrow or Parquet, which is there when all of it was written."""

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
    """A function that writes a batch. Leaving it by an error leaves what was there before."""
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
    """Texts as they are: in a file of Arrow all batches would need one dictionary."""
    pa = arrow()
    arrays = [one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names)
