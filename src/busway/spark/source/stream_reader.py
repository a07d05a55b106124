"""Streaming reads: each micro-batch is a range of offsets in Spark's checkpoint. Spark calls the reader.

The broker stores no state of a query. The optional channel only shows the progress of the query.
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
    """The reader of a streaming query. Spark runs it in a process beside the driver, and copies of it in tasks."""

    def __init__(self, options: Options) -> None:
        if options.ending is not None:
            raise OptionError(
                "endingOffsets and endingTimestamp are for batch reads: leave them out, or use read instead of readStream"
            )
        if options.behind:
            raise OptionError("the option behind is for batch reads: leave it out, or use read instead of readStream")
        self._options = options
        self._open: Endpoints | None = None
        self._target: dict[Place, int] | None = None
        """The end of a query with the trigger availableNow."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_open": None, "_target": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return the offsets at which a new query begins."""
        available = self._available()
        begin = plan.bounds(self._endpoints, available, self._options.starting, "latest", "startingOffsets")
        for info in available:
            if begin[info.place] > info.next:
                raise OptionError(
                    f"the option startingOffsets says {begin[info.place]} for the stream {info.stream!r}, but the stream ends at {info.next}: give an offset up to that"
                )
        if not isinstance(self._options.starting, dict):
            begin = {info.place: max(begin[info.place], info.first) for info in available}
        return to_json(begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_records:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offsets at which the next micro-batch ends."""
        begin, available = from_json(start), self._available()
        latest = self._latest(begin, available)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._options.max_bytes:
            each = sum(info.bytes for info in available) / max(sum(info.next - info.first for info in available), 1)
            room = max(int(self._options.max_bytes / max(each, 1.0)), 1)
            most = room if most is None else min(most, room)
        if most is not None:
            # Lost messages do not count against the limit.
            present = plan.present(begin, available, fail=False, quiet=True)
            # A new stream is not read in this batch, so the limit does not apply to it.
            new = {place: offset for place, offset in latest.items() if place not in begin}
            latest = new | admit(present, {place: latest[place] for place in begin}, most)
        return to_json(latest)

    def _latest(self, begin: Mapping[Place, int], available: Sequence[Available]) -> dict[Place, int]:
        self._check(begin, available)
        latest = dict(begin)
        for info in available:
            if info.place in begin:
                end = info.next if self._target is None else self._target.get(info.place, begin[info.place])
                latest[info.place] = max(end, begin[info.place])
            elif self._target is None or info.place in self._target:
                # A new stream: this batch records its first offset in the checkpoint, and the next batch reads it.
                latest[info.place] = info.first
        return latest

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the current ends, from which Spark computes the lag of the query."""
        return to_json({info.place: info.next for info in self._available()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {info.place: info.next for info in self._available()}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        begin, stop, available = from_json(start), from_json(end), self._available()
        self._check(begin, available)
        first = plan.present(begin, available, fail=self._options.fail_on_data_loss)
        names = self._endpoints.names
        return [plan.Task(part, names[part.broker]) for part in plan.tasks(self._options, first, stop)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return plan.read(self._options, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Move the channel to the end of a batch. Spark calls this at the next batch, so the channel lags behind."""
        if not self._options.channel:
            return
        for (broker, stream), offset in from_json(end).items():
            try:
                self._endpoints[broker].follow(self._options.channel, stream, offset)
            except BusError as error:
                log.warning(
                    "the channel %r of %r can't be moved to the progress of the query: %s",
                    self._options.channel,
                    stream,
                    error,
                )

    def stop(self) -> None:
        if self._open is not None:
            self._open.close()

    @property
    def _endpoints(self) -> Endpoints:
        if self._open is None:
            self._open = Endpoints(self._options)
        return self._open

    def _available(self) -> list[Available]:
        return self._endpoints.available(self._options.streams)

    def _check(self, begin: Mapping[Place, int], available: Sequence[Available]) -> None:
        """Check that the checkpoint belongs to this bus. Raises OptionError or DataLoss."""
        known_streams = {info.place: info for info in available}
        others = {info.place for info in self._endpoints.available()} if begin.keys() - known_streams.keys() else set()
        for (broker, stream), offset in begin.items():
            if broker not in self._endpoints:
                known = ", ".join(f"{name} is {guid}" for guid, name in self._endpoints.names.items())
                raise OptionError(
                    f"the checkpoint is of another bus: it has offsets of the broker {broker}, but {known}. Use another "
                    "checkpointLocation, or read from the bus of the checkpoint"
                )
            info = known_streams.get((broker, stream))
            if info is None and (broker, stream) in others:
                raise OptionError(
                    f"the query has read the stream {stream!r}, which the option streams does not name any more: name it, or "
                    "use another checkpointLocation"
                )
            if info is None:
                self._reset(
                    f"the stream {stream!r}, of which the query has read {offset} messages, does not exist any more"
                )
            elif info.next < offset:
                self._reset(
                    f"the query has read the stream {stream!r} up to the offset {offset}, but the stream ends at {info.next}"
                )

    def _reset(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}. With the option failOnDataLoss false the query waits for new messages")
        log.warning("%s", text)
