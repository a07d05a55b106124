"""Streaming reads: offsets are plain numbers in Spark's checkpoint, and each micro-batch is a range of them.

The broker keeps nothing of a query; a channel that follows it only shows how far it has come.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from busway.errors import BusError
from busway.spark.endpoints import DataLoss, Endpoints
from busway.spark.options import OptionError, Options
from busway.spark.ranges import Available, Place, admit, from_json, to_json
from busway.spark.source import plan

log = logging.getLogger("busway.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's view of the streams. Lives in a process of its own beside the driver, and as a copy in each task."""

    def __init__(self, options: Options) -> None:
        if options.ending is not None:
            raise OptionError("endingOffsets and endingTimestamp are for batch reads: a streaming query has no end")
        if options.history:
            raise OptionError("the option history is for batch reads")
        self._options = options
        self._open: Endpoints | None = None
        self._target: dict[Place, int] | None = None
        """Where a query with the trigger availableNow ends."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_open": None, "_target": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Where a new query begins."""
        held = self._held()
        begin = plan.bounds(self._places, held, self._options.starting, "latest", "startingOffsets")
        for one in held:
            if begin[one.place] > one.next:
                raise OptionError(
                    f"the option startingOffsets says {begin[one.place]} for the stream {one.stream!r}, but that ends at {one.next}"
                )
        if not isinstance(self._options.starting, dict):
            begin = {one.place: max(begin[one.place], one.first) for one in held}
        return to_json(begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_records:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends."""
        begin, held = from_json(start), self._held()
        latest = self._latest(begin, held)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._options.max_bytes:
            each = sum(one.bytes for one in held) / max(sum(one.next - one.first for one in held), 1)
            room = max(int(self._options.max_bytes / max(each, 1.0)), 1)
            most = room if most is None else min(most, room)
        if most is not None:
            # What is gone already is no part of what may be read at a time.
            there = plan.present(begin, held, fail=False, quiet=True)
            # Streams that are new begin where they begin: there is nothing to read of them yet.
            new = {place: offset for place, offset in latest.items() if place not in begin}
            latest = new | admit(there, {place: latest[place] for place in begin}, most)
        return to_json(latest)

    def _latest(self, begin: Mapping[Place, int], held: Sequence[Available]) -> dict[Place, int]:
        self._check(begin, held)
        latest = dict(begin)
        for one in held:
            if one.place in begin:
                end = one.next if self._target is None else self._target.get(one.place, begin[one.place])
                latest[one.place] = max(end, begin[one.place])
            elif self._target is None or one.place in self._target:
                # A stream that is new: this batch says where it begins, so that the checkpoint has it, and the next one reads it.
                latest[one.place] = one.first
        return latest

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """So that the query's progress shows its lag."""
        return to_json({one.place: one.next for one in self._held()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {one.place: one.next for one in self._held()}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        begin, behind, held = from_json(start), from_json(end), self._held()
        self._check(begin, held)
        first = plan.present(begin, held, fail=self._options.fail_on_data_loss)
        names = self._places.names
        return [plan.Task(one, names[one.broker]) for one in plan.tasks(self._options, first, behind)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return plan.read(self._options, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Everything before is done. Spark tells it when the next batch begins, so it is a hint and no promise."""
        if not self._options.channel:
            return
        for (broker, stream), offset in from_json(end).items():
            try:
                self._places[broker].follow(self._options.channel, stream, offset)
            except BusError as error:
                log.warning("the channel %r of %r does not follow: %s", self._options.channel, stream, error)

    def stop(self) -> None:
        if self._open is not None:
            self._open.close()

    @property
    def _places(self) -> Endpoints:
        if self._open is None:
            self._open = Endpoints(self._options)
        return self._open

    def _held(self) -> list[Available]:
        return self._places.held(self._options.streams)

    def _check(self, begin: Mapping[Place, int], held: Sequence[Available]) -> None:
        """Whether the checkpoint is one of this bus."""
        there = {one.place: one for one in held}
        others = {one.place for one in self._places.held()} if begin.keys() - there.keys() else set()
        for (broker, stream), offset in begin.items():
            if broker not in self._places:
                known = ", ".join(f"{name} is {guid}" for guid, name in self._places.names.items())
                raise OptionError(
                    f"the checkpoint is of another bus: it has offsets of the broker {broker}, but {known}. Take another "
                    "checkpointLocation, or read from the bus that it belongs to"
                )
            one = there.get((broker, stream))
            if one is None and (broker, stream) in others:
                raise OptionError(
                    f"the query has read the stream {stream!r}, which the option streams does not name any more: name it, or "
                    "take another checkpointLocation"
                )
            if one is None:
                self._reset(
                    f"the stream {stream!r}, of which the query has read {offset} messages, is not there any more"
                )
            elif one.next < offset:
                self._reset(
                    f"the query has read the stream {stream!r} up to the offset {offset}, but that ends at {one.next}"
                )

    def _reset(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}. With the option failOnDataLoss false the query waits for it")
        log.warning("%s", text)
