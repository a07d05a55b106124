"""Tail of a lake: reads the messages that are newer than an archive, for table(). The source calls it.

table() gives the offsets at which the archive ended when it listed the files. A stream may remove messages behind them
before they are read. If it retains them until they are archived, a newer version of the lake has them, and the task reads
them from there.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from busway._core import Selection
from busway.spark import typed
from busway.spark.columns import covered
from busway.spark.endpoints import DataLoss, Endpoints
from busway.spark.lake.coverage import File, Snapshot
from busway.spark.lake.delta_table import Lake
from busway.spark.lake.plan import check_continuity, jumped
from busway.spark.options import Options
from busway.spark.ranges import Available, Place, Range, split
from busway.spark.source import plan

_ALL: Final = "**"
_ROWS: Final = 8192
"""Largest number of rows of a batch from a file."""
_BATCH: Final = 16 << 20
"""Approximate bytes of a batch."""
_CHUNK: Final = 65_536
"""Largest number of live messages that a task reads at a time."""


class Live(InputPartition):
    """A partition of Spark: a range of offsets behind the archive.

    `chunk` is the number of offsets that are read at a time. `topics` are the patterns of the archive; empty means all.
    """

    def __init__(self, part: Range, place: str, chunk: int, topics: Sequence[str] = ()) -> None:
        super().__init__(str(part))
        self.part = part
        self.place = place
        self.chunk = chunk
        self.topics = tuple(topics)


def partitions(options: Options) -> list[InputPartition]:
    """Return the partitions of the messages behind the option startingOffsets."""
    lake = Lake(options.behind)
    snapshot = lake.snapshot()
    given = options.starting if isinstance(options.starting, dict) else {}
    with Endpoints(options) as endpoints:
        everything = endpoints.available()
        known = {info.stream for info in everything} | {stream for _, stream in snapshot.covered}
        if unknown := [name for name in options.streams if name not in known]:
            raise ValueError(
                f"neither the bus nor the lake has a stream {unknown[0]!r}; choose among {', '.join(sorted(known))}"
            )
        available = [info for info in everything if not options.streams or info.stream in options.streams]
        check_continuity(endpoints, snapshot, available)
        begin, end, chunks = dict[Place, int](), dict[Place, int](), dict[Place, int]()
        for info in available:
            at = given.get("/".join(info.place))
            begin[info.place] = info.first if at is None else at + jumped(at, info.first)
            end[info.place] = max(info.next, begin[info.place])
            chunks[info.place] = int(min(max(_BATCH / max(info.each, 1.0), 64), _CHUNK))
        names = endpoints.names
    lost = _lost(snapshot, begin, available)
    while lost and (newer := lake.snapshot()).version > snapshot.version:
        # The archive may have advanced, and the streams may have removed the archived messages.
        snapshot = newer
        lost = _lost(snapshot, begin, available)
    for part in lost:
        plan.report_lost(part, fail=options.fail_on_data_loss)
    # The lake has no messages of other topics, so live messages of these would lack their older part.
    topics = () if _ALL in snapshot.topics else snapshot.topics
    return [
        Live(part, names[part.broker], chunks[part.broker, part.stream], topics)
        for part in plan.tasks(options, begin, end)
    ]


def _lost(snapshot: Snapshot, begin: Mapping[Place, int], available: Sequence[Available]) -> list[Range]:
    """Return the offsets that are neither in the lake nor in the streams any more."""
    archived = {info.place: max(begin[info.place], snapshot.end(info.place) or 0) for info in available}
    return [
        Range(*info.place, archived[info.place], info.first) for info in available if archived[info.place] < info.first
    ]


def read(options: Options, task: Live) -> Iterator[pa.RecordBatch]:
    """Yield the matching messages of a task, in the columns and types of Spark."""
    lake = Lake(options.behind)
    decoder = typed.Decoder(typed.load(options.types), options.columns)
    with Endpoints(options, task.place) as endpoints:
        for part in split([task.part], 1, task.chunk):
            yield from _range(options, lake, endpoints, part, task.topics, decoder)


def _range(
    options: Options, lake: Lake, endpoints: Endpoints, part: Range, topics: Sequence[str], decoder: typed.Decoder
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range. Messages that the stream has removed come from the archive."""
    known = -1
    begin = part.begin
    while begin < part.end:
        left = Range(part.broker, part.stream, begin, part.end)
        try:
            found = _messages(options, endpoints, left, topics, decoder.needed, fail=True)
        except DataLoss:
            snapshot = lake.snapshot()
            end = min(snapshot.end((part.broker, part.stream)) or 0, part.end)
            if snapshot.version == known or end <= begin:
                if options.fail_on_data_loss:
                    raise
                found = _messages(options, endpoints, left, topics, decoder.needed, fail=False)
            else:
                known = snapshot.version
                for file in snapshot.files:
                    if file.stream == part.stream and file.may_have(begin, end):
                        yield from _archived(lake, file, Range(part.broker, part.stream, begin, end), options)
                begin = end
                continue
        for batch in found:
            yield decoder.convert(batch)
        return


def _messages(
    options: Options, endpoints: Endpoints, part: Range, topics: Sequence[str], columns: Sequence[str], *, fail: bool
) -> list[pa.RecordBatch]:
    """Return live messages that match the option topics and, if given, one of `topics`."""
    asked = options.topics
    if not topics or _ALL in asked:
        return list(endpoints.read(part, topics or asked, columns, fail=fail))
    known = [Selection(pattern, b"") for pattern in topics]
    read = endpoints.read(part, asked, columns if "topic" in columns else (*columns, "topic"), fail=fail)
    found = (batch.filter(covered(batch.column("topic"), known)) for batch in read)
    return [batch.select(list(columns)) for batch in found if batch.num_rows]


def _archived(lake: Lake, file: File, part: Range, options: Options) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that are in a range."""
    schema = typed.schema(options.columns, typed.load(options.types))
    topics = () if _ALL in options.topics else tuple(Selection(pattern, b"") for pattern in options.topics)
    # The stream is a partition of the table, so the file does not have it.
    columns: dict[str, Any] = {
        name: pc.scalar(file.stream) if name == "stream" else pc.field(name) for name in (*options.columns, "topic")
    }
    offset = pc.field("offset")
    chosen = (pc.field("broker") == part.broker) & (offset >= part.begin) & (offset < part.end)
    rows = lake.rows(file, schema)
    each = max(min(_BATCH * file.rows // max(file.bytes, 1), _ROWS), 1)
    for batch in rows.to_batches(columns=columns, filter=chosen, batch_size=each):
        found = batch.filter(covered(batch.column("topic"), topics)) if topics else batch
        if found.num_rows:
            yield pa.RecordBatch.from_arrays([found.column(name) for name in options.columns], schema=schema)
