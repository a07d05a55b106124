"""The streams and channels of a cluster as a node knows them, in a file of its data folder that is only appended to.

A thread writes: all that has come meanwhile at once, and everything anew when most of the file is history, or when it is not known what is
in it. A disk that can't be written keeps nobody waiting: it is told once, and tried again.
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
"""Records that a file may have before it is looked at whether most of them are history."""
_AGAIN: Final = (1.0, 60.0)
"""Seconds until it is tried again to write, at first and at most."""


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """A record of the file: the last one of a key counts."""

    one: Definition
    lacks: str = ""
    """Why the node does not have it so."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Noted)


def encode(noted: Noted) -> bytes:
    """One record of the file."""
    return record_format.frame(_encoder.encode(noted), MAGIC)


def decode(body: bytes) -> Noted:
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


class DefinitionFile(RecordFile):
    """The file of one node; load() is called before anything else, _write() on its thread."""

    def __init__(self, folder: Path, whole: Callable[[], Iterable[Noted]]) -> None:
        super().__init__(folder / FILE)
        self._whole = whole
        """All that counts."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="busway definitions")
        self._queue: list[Noted] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._writing: asyncio.Future[OSError | None] | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._records = 0
        self._look = _WORTH
        self._stale = False
        """Something could not be written, or read."""
        self._pause = _AGAIN[0]
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    def load(self) -> list[Noted]:
        """What counts of all that is there, the oldest ones first."""
        try:
            content = self._content()
        except DataFailed as error:
            log.warning("%s; the other nodes' word counts", error.reason)
            self._stale = True
            return []
        noted: dict[str, Noted] = {}
        torn, damage = 0, False
        for found in record_format.scan(content, decode, MAGIC):
            if isinstance(found, Damage):
                self._told(found)
                torn, damage = (found.size, damage) if found.torn else (torn, True)
                continue
            self._records += 1
            one = without_url(found.entry.one)
            damage = damage or one is not found.entry.one  # then it is written anew, without what was there
            noted.pop(one.key, None)
            noted[one.key] = Noted(one, found.entry.lacks)
        self._end = len(content) - torn
        self._look = max(_WORTH, 2 * len(noted))
        try:
            if torn or damage:
                self._cut(torn, damage=damage)
        except OSError as error:
            log.warning("%s can't be written: %s", self.file, error.strerror)
            damage = True
        self._stale = damage
        return list(noted.values())

    # On the loop.

    def note(self, *noted: Noted) -> None:
        """Write these, soon."""
        self._queue += noted
        self._go_on()

    async def written(self) -> None:
        """Return when all that was noted so far is on disk, or could not be written."""
        if self._quiet.is_set():
            return
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(told)
        self._go_on()
        await told

    async def stop(self) -> None:
        """Wait until everything is written, or was tried once more, and let go of the file."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._go_on(again=True)
        await self._quiet.wait()
        await asyncio.get_running_loop().run_in_executor(self._executor, self.close)
        self._executor.shutdown(wait=False)

    def kill(self) -> None:
        """Let go of the file, without writing."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self.close()

    def _go_on(self, *, again: bool = False) -> None:
        if self._writing is not None:
            return
        if not self._queue and not self._waiting and not again:
            self._quiet.set()
            return
        self._quiet.clear()
        batch, self._queue = self._queue, []
        waiting, self._waiting = self._waiting, []
        whole = None
        if self._stale or self._records + len(batch) > self._look:
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
            log.warning("%s is written again", self.file)
        for told in waiting:
            if not told.done():
                told.set_result(None)
        self._go_on()

    def _failed(self, error: BaseException) -> None:
        self._stale = True
        if self._timer is None:
            log.warning(
                "%s can't be written, and is tried again: %s", self.file, getattr(error, "strerror", None) or error
            )
        else:
            self._timer.cancel()
        if not self._stopping:
            self._timer = asyncio.get_running_loop().call_later(self._pause, lambda: self._go_on(again=True))
            self._pause = min(2 * self._pause, _AGAIN[1])

    # On the thread.

    def _write(self, noted: list[Noted], whole: bool) -> OSError | None:  # noqa: FBT001, handed over by position
        try:
            if whole:
                self._replace(map(encode, noted))
                data_folder.sync(self.file.parent)
                self._records, self._look, self._stale = len(noted), max(_WORTH, 2 * len(noted)), False
            else:
                self._add(b"".join(map(encode, noted)), os.fsync)
                self._records += len(noted)
        except OSError as error:
            return error
        return None
