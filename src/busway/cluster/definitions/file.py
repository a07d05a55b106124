"""The append-only file `cluster.log` in the data folder: the definitions that a node knows.

A thread appends all waiting records at once. It writes the whole file anew when most records are obsolete, or when the
content is uncertain. A failed write delays no caller: it is logged once and retried. `agreement` owns the file.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from busway.broker.storage import data_folder, record_format
from busway.broker.storage.record_file import RecordFile
from busway.broker.storage.record_format import Damage
from busway.cluster.definitions.definitions import Definition, without_url
from busway.errors import DataFailed

log = logging.getLogger("busway.cluster")

FILE: Final = "cluster.log"
MAGIC: Final = b"\xc1BWD"
_WORTH: Final = 4096
"""Records below which the file is never written anew."""
_AGAIN: Final = (1.0, 60.0)
"""Seconds until a failed write is retried: the first and the longest pause."""


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """A record of the file. The last record of a key counts."""

    one: Definition
    lacks: str = ""
    """Why the node could not apply the definition."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Noted)


def encode(records: Noted) -> bytes:
    """Encode one record of the file."""
    return record_format.frame(_encoder.encode(records), MAGIC)


def decode(body: bytes) -> Noted:
    """Decode one record of the file. Raises ValueError."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


class DefinitionFile(RecordFile):
    """The file of one node. Call load() first; _write() runs on the file's thread."""

    def __init__(self, folder: Path, whole: Callable[[], Iterable[Noted]]) -> None:
        super().__init__(folder / FILE)
        self._whole = whole
        """Returns all current records."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="busway definitions")
        self._queue: list[Noted] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._writing: asyncio.Future[OSError | None] | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._records = 0
        self._rewrite_at = _WORTH
        self._stale = False
        """Whether a read or write failed, so that the file must be written anew."""
        self._pause = _AGAIN[0]
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    def load(self) -> list[Noted]:
        """The current records of the file, oldest first."""
        try:
            content = self._content()
        except DataFailed as error:
            log.warning("%s; this node takes its streams and channels from the other nodes", error.reason)
            self._stale = True
            return []
        records: dict[str, Noted] = {}
        torn, damage = 0, False
        for found in record_format.scan(content, decode, MAGIC):
            if isinstance(found, Damage):
                self._report(found)
                torn, damage = (found.size, damage) if found.torn else (torn, True)
                continue
            self._records += 1
            definition = without_url(found.entry.one)
            damage = damage or definition is not found.entry.one  # then the file is written anew without the URL
            records.pop(definition.key, None)
            records[definition.key] = Noted(definition, found.entry.lacks)
        self._end = len(content) - torn
        self._rewrite_at = max(_WORTH, 2 * len(records))
        try:
            if torn or damage:
                self._cut(torn, damage=damage)
        except OSError as error:
            log.warning("can't write %s: %s", self.file, error.strerror)
            damage = True
        self._stale = damage
        return list(records.values())

    # On the event loop.

    def note(self, *records: Noted) -> None:
        """Write records soon."""
        self._queue += records
        self._write_next()

    async def written(self) -> None:
        """Wait until all records passed to note() so far are on disk, or their write has failed."""
        if self._quiet.is_set():
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._write_next()
        await done

    async def stop(self) -> None:
        """Write the waiting records, with one more attempt if that fails, and close the file."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._write_next(again=True)
        await self._quiet.wait()
        await asyncio.get_running_loop().run_in_executor(self._executor, self.close)
        self._executor.shutdown(wait=False)

    def kill(self) -> None:
        """Close the file without writing."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self.close()

    def _write_next(self, *, again: bool = False) -> None:
        if self._writing is not None:
            return
        if not self._queue and not self._waiting and not again:
            self._quiet.set()
            return
        self._quiet.clear()
        batch, self._queue = self._queue, []
        waiting, self._waiting = self._waiting, []
        whole = None
        if self._stale or self._records + len(batch) > self._rewrite_at:
            batch, whole = [], list(self._whole())
        run = asyncio.get_running_loop().run_in_executor
        self._writing = run(self._executor, self._write, batch if whole is None else whole, whole is not None)
        self._writing.add_done_callback(lambda future: self._written(waiting, future))

    def _written(self, waiting: "list[asyncio.Future[None]]", future: "asyncio.Future[OSError | None]") -> None:
        self._writing = None
        error = future.exception() or future.result()
        if error is not None:
            self._failed(error)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer, self._pause = None, _AGAIN[0]
            log.warning("%s can be written again", self.file)
        for done in waiting:
            if not done.done():
                done.set_result(None)
        self._write_next()

    def _failed(self, error: BaseException) -> None:
        self._stale = True
        if self._timer is None:
            log.warning("can't write %s, will retry: %s", self.file, getattr(error, "strerror", None) or error)
        else:
            self._timer.cancel()
        if not self._stopping:
            self._timer = asyncio.get_running_loop().call_later(self._pause, lambda: self._write_next(again=True))
            self._pause = min(2 * self._pause, _AGAIN[1])

    # On the thread.

    def _write(self, records: list[Noted], whole: bool) -> OSError | None:  # noqa: FBT001, passed by position
        try:
            if whole:
                self._replace(map(encode, records))
                data_folder.sync(self.file.parent)
                self._records, self._rewrite_at, self._stale = len(records), max(_WORTH, 2 * len(records)), False
            else:
                self._add(b"".join(map(encode, records)), os.fsync)
                self._records += len(records)
        except OSError as error:
            return error
        return None
