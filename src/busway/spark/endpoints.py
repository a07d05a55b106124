"""Endpoints of a read: running brokers or data folders, with one interface. The source and the lake use them."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from busway import log_reader
from busway._core import Log, Selection
from busway.arrow import plain_batch
from busway.errors import BusError, Disconnected
from busway.positions import moment
from busway.spark.columns import covered
from busway.spark.connect import connected, retry_disconnected
from busway.spark.options import Options
from busway.spark.ranges import Available, Range
from busway.sync.generated.stream import Stream as SyncStream

log = logging.getLogger("busway.spark")

_BLOCK: Final = 1 << 20
"""Bytes that are read at a time: a few thousand rows, with which Spark is fastest."""


class DataLoss(RuntimeError):  # noqa: N818 - as Spark calls it
    """Messages of the requested range are lost."""


ReportLoss: TypeAlias = Callable[[str], None]
"""Called with a text about lost messages. It raises to end the read, or returns to continue."""


class Endpoint(Protocol):
    """One broker, or the data folder of a broker."""

    broker: str
    """The guid of the broker."""
    name: str
    """The url or path that the user gave."""

    def available(self) -> list[Available]:
        """Return the offsets that its streams have now."""

    def find_time(self, stream: str, time: datetime) -> int:
        """Return the offset of the first message that was stored at this time or later."""

    def batches(
        self, part: Range, pattern: str, columns: Sequence[str], report_loss: ReportLoss
    ) -> Iterator[pa.RecordBatch]:
        """Yield the matching messages of a range as columns of the engine. Lost messages are reported and skipped."""

    def follow(self, channel: str, stream: str, offset: int) -> None:
        """Move a channel to this offset, so that it shows the progress of the read."""

    def close(self) -> None:
        """Close the connection or the files."""


class Folder:
    """The endpoint of a data folder. A broker may run in the folder."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.name = path
        self.broker = log_reader.owner(self._path)
        self._logs: dict[str, Log] = {}

    def available(self) -> list[Available]:
        self._logs = {stream: log_reader.view(self._path, stream) for stream in log_reader.streams(self._path)}
        return [Available(self.broker, stream, log.first, log.safe, log.usage[0]) for stream, log in self._logs.items()]

    def find_time(self, stream: str, time: datetime) -> int:
        return self._log(stream).find_time(moment("time", time))

    def batches(
        self, part: Range, pattern: str, columns: Sequence[str], report_loss: ReportLoss
    ) -> Iterator[pa.RecordBatch]:
        log = self._log(part.stream, part.end)
        selection = None if pattern == "**" else Selection(pattern, b"")
        same = {"broker": part.broker, "stream": part.stream}
        at = part.begin
        while at < part.end:
            if at < log.first:  # skip() would not report lost messages
                report_loss(lost_text(part, at, min(log.first, part.end)))
                at = log.first
                continue
            begin = at if selection is None else max(at, log.skip(at, selection))
            if begin >= part.end:
                return
            first, following, made = plain_batch(log, begin, part.end, _BLOCK, columns, selection=selection, same=same)
            if first > begin:
                report_loss(lost_text(part, begin, min(first, part.end)))
            if following <= begin:
                report_loss(lost_text(part, begin, part.end))
                return
            if made.num_rows:
                yield made
            at = following

    def follow(self, channel: str, stream: str, offset: int) -> None:
        raise NotImplementedError("a folder has no channels; options.read_options() rejects the option channel")

    def close(self) -> None:
        self._logs.clear()

    def _log(self, stream: str, end: int = 0) -> Log:
        """Return a view of a stream that reaches at least to `end`."""
        log = self._logs.get(stream)
        if log is None or log.safe < end:
            log = self._logs[stream] = log_reader.view(self._path, stream)
        return log


class Broker:
    """The endpoint of a running broker."""

    def __init__(self, url: str, options: Options) -> None:
        self.name = url
        self._timeout = options.timeout
        self._bus = connected(url, options, name="spark")
        try:
            self.broker = self.available()[0].broker
        except BaseException:
            self._bus.close()
            raise

    def available(self) -> list[Available]:
        streams = retry_disconnected(self.name, self._timeout, self._bus.streams)
        return [Available(info.broker, info.name, info.first, info.next, info.bytes) for info in streams]

    def find_time(self, stream: str, time: datetime) -> int:
        return retry_disconnected(self.name, self._timeout, lambda: self._bus.stream(stream).locate(time))

    def batches(
        self, part: Range, pattern: str, columns: Sequence[str], report_loss: ReportLoss
    ) -> Iterator[pa.RecordBatch]:
        asked = columns if "offset" in columns else (*columns, "offset")
        at, lost, done = part.begin, 0, False
        while not done:
            stream = self._stream(part.stream)
            try:
                with closing(stream.arrow(at, part.end, topic=pattern, columns=asked, expired=True)) as batches:
                    for batch in batches:
                        yield batch.select(list(columns)) if len(asked) > len(columns) else batch
                        at = batch.column("offset")[-1].as_py() + 1
                done = True
            except Disconnected:
                log.warning(
                    "%s: the connection was lost; reading resumes from offset %d after the reconnect", self.name, at
                )
            lost += stream.lost
        if lost:
            report_loss(_loss(part, lost, f"of the offsets {part.begin} to {part.end - 1}"))
        if (end := max(self._stream(part.stream).info().next, part.begin)) < part.end:
            report_loss(lost_text(part, end, part.end))

    def _stream(self, name: str) -> SyncStream:
        """Return a stream. Waits for the connection."""
        return retry_disconnected(self.name, self._timeout, lambda: self._bus.stream(name))

    def follow(self, channel: str, stream: str, offset: int) -> None:
        if all(entry["name"] != channel for entry in self._bus.stream(stream).info().channels):
            self._bus.create_channel(stream, channel, start=offset)
        self._bus.seek_channel(stream, channel, offset)

    def close(self) -> None:
        self._bus.close()


class Endpoints:
    """All endpoints of a read, or only the endpoint named `only`, by the guids of their brokers.

    Each process makes its own, because connections can't be sent to another process.
    """

    def __init__(self, options: Options, only: str = "") -> None:
        self._all: dict[str, Endpoint] = {}
        with ExitStack() as opened:
            for name in [only] if only else (*options.paths, *options.urls):
                endpoint = Folder(name) if options.paths else _connected(name, options)
                if endpoint.broker in self._all:  # another address of a broker that is connected already
                    endpoint.close()
                    continue
                opened.callback(endpoint.close)
                self._all[endpoint.broker] = endpoint
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._opened.close()

    @property
    def names(self) -> dict[str, str]:
        """The url or path that the user gave for each broker."""
        return {broker: endpoint.name for broker, endpoint in self._all.items()}

    def __getitem__(self, broker: str) -> Endpoint:
        return self._all[broker]

    def __contains__(self, broker: object) -> bool:
        return broker in self._all

    def available(self, streams: Sequence[str] = ()) -> list[Available]:
        """Return the offsets that these streams have now; empty: all streams. Raises ValueError for unknown names."""
        everything = [info for endpoint in self._all.values() for info in endpoint.available()]
        known = {info.stream for info in everything}
        for name in streams:
            if name not in known:
                endpoints = ", ".join(self.names.values())
                streams_there = ", ".join(sorted(known)) or "none"
                raise ValueError(f"{endpoints} has no stream {name!r}; its streams are: {streams_there}")
        return [info for info in everything if not streams or info.stream in streams]

    def read(
        self, part: Range, patterns: Sequence[str], columns: Sequence[str], *, fail: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range that match one of the patterns, as columns of the engine.

        Lost messages raise DataLoss; if `fail` is false, they are logged and skipped.
        """
        endpoint = self._all.get(part.broker)
        if endpoint is None:
            known = ", ".join(f"{name} is {guid}" for guid, name in self.names.items())
            raise DataLoss(f"the broker {part.broker} can't be found any more ({known}): give its url or path")

        def report_loss(text: str) -> None:
            if fail:
                raise DataLoss(text)
            log.warning("%s", text)

        for number, pattern in enumerate(patterns):
            before = patterns[:number]
            asked = columns if not before or "topic" in columns else (*columns, "topic")
            for batch in endpoint.batches(part, pattern, asked, report_loss):
                left = _without(batch, before) if before else batch
                if left.num_rows:
                    yield left.select(list(columns)) if left.num_columns > len(columns) else left


def _connected(url: str, options: Options) -> Broker:
    try:
        return Broker(url, options)
    except BusError as error:
        raise ConnectionError(f"{url} can't be reached: {error}") from error


def _without(batch: pa.RecordBatch, patterns: Sequence[str]) -> pa.RecordBatch:
    """Return the rows whose topics match none of these patterns. Matching rows were read before."""
    known = [Selection(pattern, b"") for pattern in patterns]
    return batch.filter(pc.invert(covered(batch.column("topic"), known)))


def lost_text(part: Range, begin: int, end: int) -> str:
    """Describe lost offsets, and how to read the rest."""
    return _loss(part, end - begin, f"the offsets {begin} to {end - 1}")


def _loss(part: Range, count: int, which: str) -> str:
    return (
        f"{count} messages of the stream {part.stream!r} of the broker {part.broker} are lost: {which}. The limits of the "
        "stream removed them, or they are damaged. With the option failOnDataLoss false the rest is read"
    )
