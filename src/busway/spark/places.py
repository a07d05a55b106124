"""Where messages are read from: running brokers, or data folders. Both answer the same questions."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from busway import folders, sync
from busway._core import Log, Selection
from busway.columns import record_batch
from busway.spark.options import Options
from busway.spark.ranges import Held, Range
from busway.transport.tls import client_context

_BLOCK: Final = 1 << 20
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Lost(RuntimeError):
    """Messages that were to be read are gone."""


class Place(Protocol):
    """One broker, or its folder."""

    broker: str

    def held(self) -> list[Held]:
        """What its streams hold now."""

    def find_time(self, stream: str, moment: datetime) -> int:
        """Offset of the first message that was stored then or later."""

    def batches(self, part: Range, pattern: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The messages of a range that match, as the engine's columns. Raises Lost."""

    def close(self) -> None: ...


class Folder:
    """A data folder, whether a broker is at work in it or not."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.broker = folders.owner(self._path)
        self._logs: dict[str, Log] = {}

    def held(self) -> list[Held]:
        self._logs = {stream: folders.view(self._path, stream) for stream in folders.streams(self._path)}
        return [Held(self.broker, stream, log.first, log.safe, log.usage[0]) for stream, log in self._logs.items()]

    def find_time(self, stream: str, moment: datetime) -> int:
        return self._log(stream).find_time((moment - _EPOCH) // _MICROSECOND * 1000)

    def batches(self, part: Range, pattern: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        log = self._log(part.stream, part.end)
        selection = None if pattern == "**" else Selection(pattern, b"")
        same = {"broker": part.broker, "stream": part.stream}
        at = part.begin
        while at < part.end:
            begin = at if selection is None else max(at, log.skip(at, selection))
            first, following, block = log.read(begin, _BLOCK)
            if first > begin and begin < part.end:
                raise Lost(gone(part.stream, begin, min(first, part.end)))
            if not block or first >= part.end:
                return
            yield record_batch(block, columns, selection=selection, begin=at, end=part.end, same=same)
            at = following

    def close(self) -> None:
        self._logs.clear()

    def _log(self, stream: str, end: int = 0) -> Log:
        """A look at a stream that is new enough to have this offset."""
        log = self._logs.get(stream)
        if log is None or log.safe < end:
            log = self._logs[stream] = folders.view(self._path, stream)
        return log
