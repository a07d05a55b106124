"""The option `history` of the source: reads the archive of a lake, and live messages behind it. Called by the source.

The commits of the lake record the end of the archive for each broker and stream; live messages are read from there. A
stream may remove messages during the read. If it retains them until they are archived, a newer commit has them, and the
task reads them from the lake.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from busway._core import Selection
from busway.spark.columns import ARROW, arrow_schema, conform, covered
from busway.spark.endpoints import DataLoss, Endpoints
from busway.spark.lake import continuity
from busway.spark.lake.table_log.commits import File, LakeError, Snapshot
from busway.spark.lake.table_log.folder import Lake
from busway.spark.options import Bound, OptionError, Options
from busway.spark.ranges import Available, Place, Range, split
from busway.spark.source import plan

_ALL: Final = "**"
_TASK: Final = 64 << 20
"""Approximate bytes of files that one task reads."""
_ATTEMPTS: Final = 5
"""Number of snapshots that a plan reads at most while the archive advances."""
_ROWS: Final = 8192
"""Largest number of rows of a batch from a file."""
_BATCH: Final = 16 << 20
"""Approximate bytes of a batch."""
_CHUNK: Final = 65_536
"""Largest number of live messages that a task reads at a time."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_END: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Selected:
    """The archived messages that a read selects, by offsets and by the time of storing in microseconds.

    A broker and stream without offsets is selected whole.
    """

    begin: Mapping[Place, int] = field(default_factory=dict)
    end: Mapping[Place, int] = field(default_factory=dict)
    since: int | None = None
    until: int | None = None
    places: frozenset[Place] = frozenset()
    """The brokers and streams whose messages the files have."""

    def may_have(self, file: File) -> bool:
        """Return False if a file has no selected message. The bounds of all brokers count, as a file names none."""
        places = [place for place in self.places if place[1] == file.stream]
        begin = min((self.begin.get(place, 0) for place in places), default=0)
        end = max((self.end.get(place, _END) for place in places), default=_END)
        return (
            file.offsets[1] >= begin
            and file.offsets[0] < end
            and (self.since is None or file.stored[1] >= self.since)
            and (self.until is None or file.stored[0] < self.until)
        )


class Archived(InputPartition):
    """A partition of Spark: files of the lake for one task."""

    def __init__(self, files: Sequence[File], selected: Selected) -> None:
        super().__init__([file.path for file in files])
        self.files = tuple(files)
        self.wanted = selected


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


# The plan, on the driver.


def partitions(options: Options) -> list[InputPartition]:
    """Return the partitions of a read with a history."""
    lake = Lake(options.history)
    if not lake.exists():
        raise LakeError(f"{options.history} is not a lake, because it has no commits: give the folder of an archive")
    snapshot = lake.snapshot()
    with Endpoints(options) as endpoints:
        available = _available(endpoints, snapshot, options)
        continuity.check(endpoints, snapshot, available)
        for _ in range(_ATTEMPTS):
            if not any(_begin(snapshot, info) < info.first for info in available):
                break
            # The archive may have advanced, and the streams may have removed the archived messages.
            before, snapshot = snapshot.number, lake.snapshot(snapshot)
            if snapshot.number == before:
                break
        selected = _wanted(options, snapshot, available)
        live = _live(options, endpoints, snapshot, available)
        names = endpoints.names
        each = {info.place: info.each for info in available}
        # The lake has no messages of other topics, so live messages of these would lack their older part.
        topics = () if _ALL in snapshot.topics else snapshot.topics
        tasks: list[InputPartition] = [
            Live(part, names[part.broker], _chunk(each[part.broker, part.stream]), topics) for part in live
        ]
    streams = set(options.streams)
    files = [
        file for file in snapshot.files.values() if (not streams or file.stream in streams) and selected.may_have(file)
    ]
    return [*(Archived(some, selected) for some in _shared(files, options)), *tasks]


def _available(endpoints: Endpoints, snapshot: Snapshot, options: Options) -> list[Available]:
    everything = endpoints.available()
    known = {info.stream for info in everything} | {stream for _, stream in snapshot.covered}
    for name in options.streams:
        if name not in known:
            raise ValueError(
                f"neither the bus nor the lake has a stream {name!r}; choose among {', '.join(sorted(known))}"
            )
    return [info for info in everything if not options.streams or info.stream in options.streams]


def _begin(snapshot: Snapshot, info: Available) -> int:
    """Return the offset at which the read of live messages begins."""
    archived = snapshot.end(info.place)
    return info.first if archived is None else archived + continuity.jumped(archived, info.first)


def _given(bound: Bound | None, snapshot: Snapshot, available: Sequence[Available], option: str) -> dict[Place, int]:
    """Return the offsets that the user gave, by broker and stream. Raises OptionError for an unknown stream."""
    if not isinstance(bound, dict):
        return {}
    known = {*snapshot.covered, *(info.place for info in available)}
    used: set[str] = set()
    found: dict[Place, int] = {}
    for place in known:
        for name in ("/".join(place), place[1]):
            if name in bound:
                found.setdefault(place, bound[name])
                used.add(name)
    if left := [name for name in bound if name not in used]:
        streams = ", ".join(sorted({stream for _, stream in known})) or "none"
        raise OptionError(f"the option {option} names {left[0]!r}, but the read has only the streams: {streams}")
    return found


def _wanted(options: Options, snapshot: Snapshot, available: Sequence[Available]) -> Selected:
    begin = _given(options.starting, snapshot, available, "startingOffsets")
    end = _given(options.ending, snapshot, available, "endingOffsets")
    if options.starting == "latest":
        begin = dict.fromkeys(snapshot.covered, _END)
    if options.ending == "earliest":
        end = dict.fromkeys(snapshot.covered, 0)
    since, until = _microseconds(options.starting), _microseconds(options.ending)
    return Selected(begin, end, since, until, frozenset(snapshot.covered))


def _microseconds(bound: Bound | None) -> int | None:
    return (bound - _EPOCH) // timedelta(microseconds=1) if isinstance(bound, datetime) else None


def _live(options: Options, endpoints: Endpoints, snapshot: Snapshot, available: Sequence[Available]) -> list[Range]:
    """Return the ranges of live messages. Raises DataLoss for lost messages."""
    start = _given(options.starting, snapshot, available, "startingOffsets")
    stop = _given(options.ending, snapshot, available, "endingOffsets")
    begins, until = dict[Place, int](), dict[Place, int]()
    for info in available:
        # A newer snapshot may reach beyond the end that the stream reported before. Everything up to there is archived.
        first = _begin(snapshot, info)
        begin, end = first, max(info.next, first)
        if isinstance(options.starting, datetime):
            begin = max(begin, endpoints[info.broker].find_time(info.stream, options.starting))
        elif options.starting == "latest":
            begin = end
        if isinstance(options.ending, datetime):
            end = min(end, endpoints[info.broker].find_time(info.stream, options.ending))
        elif options.ending == "earliest":
            end = begin
        for option, offset in (("startingOffsets", start.get(info.place)), ("endingOffsets", stop.get(info.place))):
            if offset is not None and offset > max(info.next, first):
                raise OptionError(
                    f"the option {option} says {offset} for the stream {info.stream!r}, but the stream ends at {max(info.next, first)}: give an offset up to that"
                )
        begins[info.place] = max(begin, start.get(info.place, 0))
        until[info.place] = min(end, stop.get(info.place, end))
    unread = [info for info in available if begins[info.place] < until[info.place]]
    begins = plan.present(begins, unread, fail=options.fail_on_data_loss)
    return plan.tasks(options, begins, {info.place: until[info.place] for info in unread})


def _chunk(each: float) -> int:
    return int(min(max(_BATCH / max(each, 1.0), 64), _CHUNK))


def _shared(files: Sequence[File], options: Options) -> Iterator[list[File]]:
    """Yield the files of each task, with about the same number of bytes."""
    total = sum(file.bytes for file in files)
    rows = sum(file.rows for file in files)
    parts = options.min_partitions or max(total // _TASK, min(rows // 200_000, os.cpu_count() or 1), 1)
    size, some, count = -(-total // parts), list[File](), 0
    for file in sorted(files, key=lambda file: file.path):
        some.append(file)
        count += file.bytes
        if count >= size:
            yield some
            some, count = [], 0
    if some:
        yield some


# The read, in a task.


def read(options: Options, task: "Archived | Live") -> Iterator[pa.RecordBatch]:
    """Yield the matching messages of a task, in the columns and types of Spark."""
    lake = Lake(options.history)
    if isinstance(task, Archived):
        for file in task.files:
            yield from _file(lake, file, task.wanted, options)
        return
    with Endpoints(options, task.place) as endpoints:
        for part in split([task.part], 1, task.chunk):
            yield from _range(options, lake, endpoints, part, task.topics)


def _range(
    options: Options, lake: Lake, endpoints: Endpoints, part: Range, topics: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield live messages of a range. Messages that the stream has removed since the plan come from the archive."""
    known = -1
    begin = part.begin
    while begin < part.end:
        left = Range(part.broker, part.stream, begin, part.end)
        try:
            found = _messages(options, endpoints, left, topics, fail=True)
        except DataLoss:
            snapshot = lake.snapshot()
            end = min(snapshot.end((part.broker, part.stream)) or 0, part.end)
            if snapshot.number == known or end <= begin:
                if options.fail_on_data_loss:
                    raise
                found = _messages(options, endpoints, left, topics, fail=False)
            else:
                known = snapshot.number
                place = part.broker, part.stream
                selected = Selected({place: begin}, {place: end}, places=frozenset({place}))
                for file in snapshot.files.values():
                    if file.stream == part.stream and selected.may_have(file):
                        yield from _file(lake, file, selected, options, only=part.broker)
                begin = end
                continue
        for batch in found:
            yield conform(batch, options.columns)
        return


def _messages(
    options: Options, endpoints: Endpoints, part: Range, topics: Sequence[str], *, fail: bool
) -> list[pa.RecordBatch]:
    """Return live messages that match the option topics and, if given, one of `topics`."""
    asked, columns = options.topics, options.columns
    if not topics or _ALL in asked:
        return list(endpoints.read(part, topics or asked, columns, fail=fail))
    known = [Selection(pattern, b"") for pattern in topics]
    read = endpoints.read(part, asked, columns if "topic" in columns else (*columns, "topic"), fail=fail)
    found = (batch.filter(covered(batch.column("topic"), known)) for batch in read)
    return [batch.select(list(columns)) for batch in found if batch.num_rows]


def _file(lake: Lake, file: File, selected: Selected, options: Options, only: str = "") -> Iterator[pa.RecordBatch]:
    """Yield the selected rows of a file. `only`: the guid of a broker, or empty for all brokers."""
    columns, patterns = options.columns, options.topics
    asked = dict.fromkeys(columns)
    if selected.begin or selected.end or only:
        asked |= dict.fromkeys(("broker", "stream", "offset"))
    if selected.since is not None or selected.until is not None:
        asked["stored"] = None
    topics = () if _ALL in patterns else tuple(Selection(pattern, b"") for pattern in patterns)
    if topics:
        asked["topic"] = None
    with lake.parquet(file.path) as opened:
        rows = _rows(opened.metadata)
        for batch in opened.iter_batches(rows, columns=list(asked)):
            matching = _selected(batch, file.stream, selected, topics, only)
            if matching.num_rows:
                yield _conformed(matching, columns)


def _rows(metadata: pq.FileMetaData) -> int:
    """Return the number of rows whose batch is about _BATCH bytes."""
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    most: int = _BATCH * metadata.num_rows // max(size, 1)
    return max(min(most, _ROWS), 1)


def _selected(
    batch: pa.RecordBatch, stream: str, selected: Selected, topics: Sequence[Selection], only: str
) -> pa.RecordBatch:
    masks: list[Any] = []
    if selected.since is not None:
        masks.append(pc.greater_equal(batch.column("stored"), _time(selected.since)))
    if selected.until is not None:
        masks.append(pc.less(batch.column("stored"), _time(selected.until)))
    if topics:
        masks.append(covered(batch.column("topic"), topics))
    if only:
        masks.append(pc.equal(batch.column("broker"), only))
    for (broker, name), offset in selected.begin.items():
        if name == stream:
            masks.append(pc.or_(pc.not_equal(batch.column("broker"), broker), _at_least(batch, offset)))
    for (broker, name), offset in selected.end.items():
        if name == stream:
            masks.append(pc.or_(pc.not_equal(batch.column("broker"), broker), pc.invert(_at_least(batch, offset))))
    for mask in masks[1:]:
        masks[0] = pc.and_(masks[0], mask)
    return batch.filter(masks[0]) if masks else batch


def _at_least(batch: pa.RecordBatch, offset: int) -> Any:
    return pc.greater_equal(batch.column("offset"), pa.scalar(offset, pa.int64()))


def _time(moment: int) -> pa.Scalar:
    return pa.scalar(moment, pa.timestamp("us", tz="UTC"))


def _conformed(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    arrays = [
        found if (found := batch.column(name)).type == ARROW[name] else found.cast(ARROW[name]) for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
