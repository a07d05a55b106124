"""Plan of a read: computes ranges of offsets and tasks from options and available offsets. Called by the readers."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from busway.spark.endpoints import DataLoss, Endpoints, lost_text
from busway.spark.options import Bound, OptionError, Options
from busway.spark.ranges import Available, Place, Range, split
from busway.spark.typed import Decoder, load

log = logging.getLogger("busway.spark")

_WORTH: Final = 200_000
"""Records from which a second task is worthwhile."""
_MOST: Final = 1_000_000
"""Largest number of records of a task, so that the retry of a failed task is short."""


def bounds(
    endpoints: Endpoints, available: Sequence[Available], bound: Bound | None, default: str, option: str
) -> dict[Place, int]:
    """Return the offset of a bound for each available stream."""
    bound = default if bound is None else bound
    if isinstance(bound, dict):
        return _given(available, bound, default, option)
    if isinstance(bound, datetime):
        return {info.place: endpoints[info.broker].find_time(info.stream, bound) for info in available}
    return {info.place: info.first if bound == "earliest" else info.next for info in available}


def _given(available: Sequence[Available], given: Mapping[str, int], default: str, option: str) -> dict[Place, int]:
    left, out = dict(given), {}
    for info in available:
        found = left.pop(f"{info.broker}/{info.stream}", None)
        found = given.get(info.stream) if found is None else found
        out[info.place] = (info.first if default == "earliest" else info.next) if found is None else found
    for info in available:
        left.pop(info.stream, None)
    if left:
        name = next(iter(left))
        streams = ", ".join(sorted({info.stream for info in available})) or "none"
        raise OptionError(f"the option {option} names {name!r}, but the read has only the streams: {streams}")
    return out


def present(
    begin: Mapping[Place, int], available: Sequence[Available], *, fail: bool, quiet: bool = False
) -> dict[Place, int]:
    """Move begins behind lost offsets. These raise DataLoss or, without `fail`, are logged unless `quiet`."""
    out = dict(begin)
    for info in available:
        wanted = begin.get(info.place)
        if wanted is not None and wanted < info.first:
            if not quiet:
                report_lost(Range(info.broker, info.stream, wanted, info.first), fail=fail)
            out[info.place] = info.first
    return out


def report_lost(part: Range, *, fail: bool) -> None:
    """Report that a whole range is lost: raise DataLoss, or log it if `fail` is false."""
    text = lost_text(part, part.begin, part.end)
    if fail:
        raise DataLoss(text)
    log.warning("%s", text)


def tasks(options: Options, begin: Mapping[Place, int], end: Mapping[Place, int]) -> list[Range]:
    """Return the range of each task. Equal offsets give equal tasks, because a sink identifies rows by partition."""
    ranges = [Range(*place, begin[place], offset) for place, offset in sorted(end.items()) if place in begin]
    total = sum(map(len, ranges))
    parts = options.min_partitions or (2 if total >= _WORTH else 1)
    return split(ranges, parts, options.partition_records or _MOST)


def batch(options: Options, endpoints: Endpoints) -> list[Range]:
    """Return the ranges of a batch read: from the start or the first offset, to the end or the current end."""
    available = endpoints.available(options.streams)
    begin = bounds(endpoints, available, options.starting, "earliest", "startingOffsets")
    end = bounds(endpoints, available, options.ending, "latest", "endingOffsets")
    if not isinstance(options.starting, dict):
        # The broker may remove messages while a time is looked up. Messages before the first offset were not requested.
        begin = {info.place: max(begin[info.place], info.first) for info in available}
    for info in available:
        if end[info.place] > info.next:
            raise OptionError(
                f"the option endingOffsets says {end[info.place]} for the stream {info.stream!r}, but the stream ends at {info.next}: give an offset up to that"
            )
        if (
            isinstance(options.starting, dict)
            and isinstance(options.ending, dict)
            and begin[info.place] > end[info.place]
        ):
            raise OptionError(
                f"the option startingOffsets says {begin[info.place]} for the stream {info.stream!r}, which is behind "
                f"endingOffsets {end[info.place]}: give a lower start"
            )
        if begin[info.place] > max(end[info.place], info.next):
            raise OptionError(
                f"the option startingOffsets says {begin[info.place]} for the stream {info.stream!r}, but the stream ends at {info.next}: give an offset up to that"
            )
    begin = present(begin, available, fail=options.fail_on_data_loss)
    return tasks(options, begin, end)


class Task(InputPartition):
    """A partition of Spark: one range, and the url or path that has it."""

    def __init__(self, part: Range, place: str) -> None:
        super().__init__(str(part))
        self.part = part
        self.place = place

    def __repr__(self) -> str:
        return f"Task({self.part})"


def read(options: Options, task: Task) -> Iterator[pa.RecordBatch]:
    """Yield the matching messages of a task, in the columns and types of Spark."""
    decoder = Decoder(load(options.types), options.columns)
    with Endpoints(options, task.place) as endpoints:
        for batch in endpoints.read(task.part, options.topics, decoder.needed, fail=options.fail_on_data_loss):
            yield decoder.convert(batch)
