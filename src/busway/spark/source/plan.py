"""Where a read begins and ends: turns what the user asked for, and what is there, into ranges of offsets."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from busway.spark.columns import conform
from busway.spark.endpoints import DataLoss, Endpoints, gone
from busway.spark.options import Bound, OptionError, Options
from busway.spark.ranges import Available, Place, Range, split

log = logging.getLogger("busway.spark")

_WORTH: Final = 200_000
"""Records from which on it is worth a second task."""
_MOST: Final = 1_000_000
"""Records of one task at most, so that one that fails has not much to do again."""


def bounds(
    places: Endpoints, held: Sequence[Available], bound: Bound | None, default: str, option: str
) -> dict[Place, int]:
    """The offset that a bound means, for each stream; those that are not there are not looked at."""
    bound = default if bound is None else bound
    if isinstance(bound, dict):
        return _given(held, bound, default, option)
    if isinstance(bound, datetime):
        return {one.place: places[one.broker].find_time(one.stream, bound) for one in held}
    return {one.place: one.first if bound == "earliest" else one.next for one in held}


def _given(held: Sequence[Available], given: Mapping[str, int], default: str, option: str) -> dict[Place, int]:
    left, out = dict(given), {}
    for one in held:
        found = left.pop(f"{one.broker}/{one.stream}", None)
        found = given.get(one.stream) if found is None else found
        out[one.place] = (one.first if default == "earliest" else one.next) if found is None else found
    for one in held:
        left.pop(one.stream, None)
    if left:
        name = next(iter(left))
        streams = ", ".join(sorted({one.stream for one in held})) or "none"
        raise OptionError(f"the option {option} names {name!r}, but what is read has the streams {streams}")
    return out


def present(
    begin: Mapping[Place, int], held: Sequence[Available], *, fail: bool, quiet: bool = False
) -> dict[Place, int]:
    """Where to begin so that everything from there on is there; what is gone is an error or is said in the log, unless quiet."""
    out = dict(begin)
    for one in held:
        asked = begin.get(one.place)
        if asked is not None and asked < one.first:
            if not quiet:
                tell_lost(Range(one.broker, one.stream, asked, one.first), fail=fail)
            out[one.place] = one.first
    return out


def tell_lost(part: Range, *, fail: bool) -> None:
    """All of this is gone."""
    text = gone(part, part.begin, part.end)
    if fail:
        raise DataLoss(text)
    log.warning("%s", text)


def tasks(options: Options, begin: Mapping[Place, int], end: Mapping[Place, int]) -> list[Range]:
    """What each task reads. The same for the same offsets on every machine, since a sink knows an epoch again by its partitions."""
    ranges = [Range(*place, begin[place], offset) for place, offset in sorted(end.items()) if place in begin]
    total = sum(map(len, ranges))
    parts = options.min_partitions or (2 if total >= _WORTH else 1)
    return split(ranges, parts, options.partition_records or _MOST)


def batch(options: Options, places: Endpoints) -> list[Range]:
    """What a batch read reads: from its start, or everything there is, to its end, or what there is now."""
    held = places.held(options.streams)
    begin = bounds(places, held, options.starting, "earliest", "startingOffsets")
    end = bounds(places, held, options.ending, "latest", "endingOffsets")
    if not isinstance(options.starting, dict):
        # A broker may remove messages while this is asked; what is gone before it began was not asked for.
        begin = {one.place: max(begin[one.place], one.first) for one in held}
    for one in held:
        if end[one.place] > one.next:
            raise OptionError(
                f"the option endingOffsets says {end[one.place]} for the stream {one.stream!r}, but that ends at {one.next}"
            )
        if (
            isinstance(options.starting, dict)
            and isinstance(options.ending, dict)
            and begin[one.place] > end[one.place]
        ):
            raise OptionError(
                f"the option startingOffsets says {begin[one.place]} for the stream {one.stream!r}, which is behind "
                f"endingOffsets {end[one.place]}"
            )
        if begin[one.place] > max(end[one.place], one.next):
            raise OptionError(
                f"the option startingOffsets says {begin[one.place]} for the stream {one.stream!r}, but that ends at {one.next}"
            )
    begin = present(begin, held, fail=options.fail_on_data_loss)
    return tasks(options, begin, end)


class Task(InputPartition):
    """One range, and what the user called the place that has it."""

    def __init__(self, part: Range, place: str) -> None:
        super().__init__(str(part))
        self.part = part
        self.place = place

    def __repr__(self) -> str:
        return f"Task({self.part})"


def read(options: Options, task: Task) -> Iterator[pa.RecordBatch]:
    """Its messages that match, with the columns and types that Spark wants."""
    columns = options.columns
    with Endpoints(options, task.place) as places:
        for batch in places.read(task.part, options.topics, columns, fail=options.fail_on_data_loss):
            yield conform(batch, columns)
