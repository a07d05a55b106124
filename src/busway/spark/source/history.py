"""The option `history` of the source: what a lake has archived, and from exactly where that ends what is live.

Per broker and stream the archive ends at an offset, which stands in the commits; live messages are read from there on. What a stream
removes while it is read is in a newer commit by then, if it waits for the archive: so a task that finds it gone takes it from there.
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
"""Bytes of files that one task reads, about."""
_LOOKS: Final = 5
_ROWS: Final = 8192
_BATCH: Final = 16 << 20
_CHUNK: Final = 65_536
"""Live messages that a task reads at a time, at most."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_END: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of the archive: offsets by broker and stream (none: all), and times of storing, in microseconds."""

    begin: Mapping[Place, int] = field(default_factory=dict)
    end: Mapping[Place, int] = field(default_factory=dict)
    since: int | None = None
    until: int | None = None
    places: frozenset[Place] = frozenset()
    """Whose messages the files have."""

    def may(self, file: File) -> bool:
        """Whether a file may have some of it. It doesn't say whose messages it has, so only bounds of all brokers together rule it out."""
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
    """Files of the lake for one task."""

    def __init__(self, files: Sequence[File], wanted: Wanted) -> None:
        super().__init__([file.path for file in files])
        self.files = tuple(files)
        self.wanted = wanted


class Live(InputPartition):
    """A range of offsets behind the archive, how many of them are read at a time, and what topics the archive has (none: all)."""

    def __init__(self, part: Range, place: str, chunk: int, topics: Sequence[str] = ()) -> None:
        super().__init__(str(part))
        self.part = part
        self.place = place
        self.chunk = chunk
        self.topics = tuple(topics)


# Where it begins and ends.


def partitions(options: Options) -> list[InputPartition]:
    """What the tasks of a read with a history do."""
    lake = Lake(options.history)
    if not lake.exists():
        raise LakeError(f"{options.history} is no lake: it has no commits")
    snapshot = lake.snapshot()
    with Endpoints(options) as places:
        held = _held(places, snapshot, options)
        continuity.check(places, snapshot, held)
        for _ in range(_LOOKS):
            if not any(_begin(snapshot, one) < one.first for one in held):
                break
            # What is archived may have moved on, and the streams have let go of it.
            before, snapshot = snapshot.number, lake.snapshot(snapshot)
            if snapshot.number == before:
                break
        wanted = _wanted(options, snapshot, held)
        live = _live(options, places, snapshot, held)
        names = places.names
        each = {one.place: one.each for one in held}
        # Of other topics it has nothing, so live ones of them would be a part without a beginning.
        topics = () if _ALL in snapshot.topics else snapshot.topics
        tasks: list[InputPartition] = [
            Live(one, names[one.broker], _chunk(each[one.broker, one.stream]), topics) for one in live
        ]
    streams = set(options.streams)
    files = [file for file in snapshot.files.values() if (not streams or file.stream in streams) and wanted.may(file)]
    return [*(Archived(some, wanted) for some in _shared(files, options)), *tasks]


def _held(places: Endpoints, snapshot: Snapshot, options: Options) -> list[Available]:
    there = places.held()
    known = {one.stream for one in there} | {stream for _, stream in snapshot.covered}
    for name in options.streams:
        if name not in known:
            raise ValueError(
                f"neither the bus nor the lake has a stream {name!r}; there are {', '.join(sorted(known))}"
            )
    return [one for one in there if not options.streams or one.stream in options.streams]


def _begin(snapshot: Snapshot, one: Available) -> int:
    """Where live reading begins."""
    archived = snapshot.end(one.place)
    return one.first if archived is None else archived + continuity.jumped(archived, one.first)


def _given(bound: Bound | None, snapshot: Snapshot, held: Sequence[Available], option: str) -> dict[Place, int]:
    """Offsets that the user gave, by broker and stream."""
    if not isinstance(bound, dict):
        return {}
    known = {*snapshot.covered, *(one.place for one in held)}
    used: set[str] = set()
    found: dict[Place, int] = {}
    for place in known:
        for name in ("/".join(place), place[1]):
            if name in bound:
                found.setdefault(place, bound[name])
                used.add(name)
    if left := [name for name in bound if name not in used]:
        streams = ", ".join(sorted({stream for _, stream in known})) or "none"
        raise OptionError(f"the option {option} names {left[0]!r}, but what is read has the streams {streams}")
    return found


def _wanted(options: Options, snapshot: Snapshot, held: Sequence[Available]) -> Wanted:
    begin = _given(options.starting, snapshot, held, "startingOffsets")
    end = _given(options.ending, snapshot, held, "endingOffsets")
    if options.starting == "latest":
        begin = dict.fromkeys(snapshot.covered, _END)
    if options.ending == "earliest":
        end = dict.fromkeys(snapshot.covered, 0)
    since, until = _microseconds(options.starting), _microseconds(options.ending)
    return Wanted(begin, end, since, until, frozenset(snapshot.covered))


def _microseconds(bound: Bound | None) -> int | None:
    return (bound - _EPOCH) // timedelta(microseconds=1) if isinstance(bound, datetime) else None


def _live(options: Options, places: Endpoints, snapshot: Snapshot, held: Sequence[Available]) -> list[Range]:
    """What is read of the streams themselves. Raises DataLoss if it is not there."""
    start = _given(options.starting, snapshot, held, "startingOffsets")
    stop = _given(options.ending, snapshot, held, "endingOffsets")
    begins, until = dict[Place, int](), dict[Place, int]()
    for one in held:
        # A newer look at the commits may have more than the stream had when it was asked: all of that is archived.
        first = _begin(snapshot, one)
        begin, end = first, max(one.next, first)
        if isinstance(options.starting, datetime):
            begin = max(begin, places[one.broker].find_time(one.stream, options.starting))
        elif options.starting == "latest":
            begin = end
        if isinstance(options.ending, datetime):
            end = min(end, places[one.broker].find_time(one.stream, options.ending))
        elif options.ending == "earliest":
            end = begin
        for option, offset in (("startingOffsets", start.get(one.place)), ("endingOffsets", stop.get(one.place))):
            if offset is not None and offset > max(one.next, first):
                raise OptionError(
                    f"the option {option} says {offset} for the stream {one.stream!r}, but that ends at {max(one.next, first)}"
                )
        begins[one.place] = max(begin, start.get(one.place, 0))
        until[one.place] = min(end, stop.get(one.place, end))
    there = [one for one in held if begins[one.place] < until[one.place]]
    begins = plan.present(begins, there, fail=options.fail_on_data_loss)
    return plan.tasks(options, begins, {one.place: until[one.place] for one in there})


def _chunk(each: float) -> int:
    return int(min(max(_BATCH / max(each, 1.0), 64), _CHUNK))


def _shared(files: Sequence[File], options: Options) -> Iterator[list[File]]:
    """The files for each task: about the same bytes."""
    total = sum(file.bytes for file in files)
    rows = sum(file.rows for file in files)
    parts = options.min_partitions or max(total // _TASK, min(rows // 200_000, os.cpu_count() or 1), 1)
    size, some, count = -(-total // parts), list[File](), 0
    for file in sorted(files, key=lambda one: one.path):
        some.append(file)
        count += file.bytes
        if count >= size:
            yield some
            some, count = [], 0
    if some:
        yield some


# What a task does.


def read(options: Options, task: "Archived | Live") -> Iterator[pa.RecordBatch]:
    """Its messages that match, with the columns and types that Spark wants."""
    lake = Lake(options.history)
    if isinstance(task, Archived):
        for file in task.files:
            yield from _file(lake, file, task.wanted, options)
        return
    with Endpoints(options, task.place) as places:
        for part in split([task.part], 1, task.chunk):
            yield from _range(options, lake, places, part, task.topics)


def _range(
    options: Options, lake: Lake, places: Endpoints, part: Range, topics: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Some live messages; those that are gone meanwhile from the archive, which must have them by now."""
    known = -1
    begin = part.begin
    while begin < part.end:
        left = Range(part.broker, part.stream, begin, part.end)
        try:
            found = _messages(options, places, left, topics, fail=True)
        except DataLoss:
            snapshot = lake.snapshot()
            end = min(snapshot.end((part.broker, part.stream)) or 0, part.end)
            if snapshot.number == known or end <= begin:
                if options.fail_on_data_loss:
                    raise
                found = _messages(options, places, left, topics, fail=False)
            else:
                known = snapshot.number
                place = part.broker, part.stream
                wanted = Wanted({place: begin}, {place: end}, places=frozenset({place}))
                for file in snapshot.files.values():
                    if file.stream == part.stream and wanted.may(file):
                        yield from _file(lake, file, wanted, options, only=part.broker)
                begin = end
                continue
        for batch in found:
            yield conform(batch, options.columns)
        return


def _messages(
    options: Options, places: Endpoints, part: Range, topics: Sequence[str], *, fail: bool
) -> list[pa.RecordBatch]:
    """Live messages that match what is asked for, and one of these topics if there are any."""
    asked, columns = options.topics, options.columns
    if not topics or _ALL in asked:
        return list(places.read(part, topics or asked, columns, fail=fail))
    known = [Selection(one, b"") for one in topics]
    read = places.read(part, asked, columns if "topic" in columns else (*columns, "topic"), fail=fail)
    found = (batch.filter(covered(batch.column("topic"), known)) for batch in read)
    return [batch.select(list(columns)) for batch in found if batch.num_rows]


def _file(lake: Lake, file: File, wanted: Wanted, options: Options, only: str = "") -> Iterator[pa.RecordBatch]:
    """The rows of a file that are asked for; `only` of one broker."""
    columns, patterns = options.columns, options.topics
    asked = dict.fromkeys(columns)
    if wanted.begin or wanted.end or only:
        asked |= dict.fromkeys(("broker", "stream", "offset"))
    if wanted.since is not None or wanted.until is not None:
        asked["stored"] = None
    topics = () if _ALL in patterns else tuple(Selection(pattern, b"") for pattern in patterns)
    if topics:
        asked["topic"] = None
    with lake.parquet(file.path) as opened:
        rows = _rows(opened.metadata)
        for batch in opened.iter_batches(rows, columns=list(asked)):
            kept = _selected(batch, file.stream, wanted, topics, only)
            if kept.num_rows:
                yield _conformed(kept, columns)


def _rows(metadata: pq.FileMetaData) -> int:
    """How many rows make a batch that is not too large."""
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    most: int = _BATCH * metadata.num_rows // max(size, 1)
    return max(min(most, _ROWS), 1)


def _selected(
    batch: pa.RecordBatch, stream: str, wanted: Wanted, topics: Sequence[Selection], only: str
) -> pa.RecordBatch:
    masks: list[Any] = []
    if wanted.since is not None:
        masks.append(pc.greater_equal(batch.column("stored"), _time(wanted.since)))
    if wanted.until is not None:
        masks.append(pc.less(batch.column("stored"), _time(wanted.until)))
    if topics:
        masks.append(covered(batch.column("topic"), topics))
    if only:
        masks.append(pc.equal(batch.column("broker"), only))
    for (broker, name), offset in wanted.begin.items():
        if name == stream:
            masks.append(pc.or_(pc.not_equal(batch.column("broker"), broker), _at_least(batch, offset)))
    for (broker, name), offset in wanted.end.items():
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
