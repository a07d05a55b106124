"""A journal with keys: an append-only file in which the last entry of each key counts.

One thread writes, and waiting entries share one fsync. A failed append is cut off again. Damage is logged and counted,
and a copy of the damaged file stays. The file is rewritten when most of it is obsolete. The pins and the definitions of
a cluster are stored in such files.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from busway.broker.storage import data_folder, record_format
from busway.broker.storage.permissions import FILE_MODE
from busway.broker.storage.record_format import Damage, Found
from busway.errors import DataFailed
from busway.settings import MiB

K = TypeVar("K", bound=Hashable)
E = TypeVar("E")

log = logging.getLogger("busway.broker")

Done: TypeAlias = Callable[[OSError | None], object]
"""Called with None when an entry is on disk, or with the error."""

WORTH: Final = MiB
"""A smaller file is not rewritten while the broker runs."""
AGAIN: Final = (1.0, 60.0)
"""Seconds until a failed write is retried: the first and the longest pause."""


class Waiting(NamedTuple):
    """A record that waits for the thread. An empty one changes the index only."""

    key: Any
    record: bytes
    keeps: bool
    """Whether it is the live record of its key."""
    done: Done


class KeyedJournal(Generic[K, E]):
    """The journal in one file. load(), append() and rewrite() run on its thread, the other methods on the loop.

    `kind` is the type of the entries, and `key` returns the key of an entry. An entry of which `keeps` is false removes
    that of its key. With `retry` a failed write is repeated until it succeeds; otherwise its entries are dropped.
    """

    def __init__(
        self,
        file: Path,
        magic: bytes,
        kind: Any,
        key: Callable[[E], K],
        *,
        keeps: Callable[[E], bool] = lambda _: True,
        retry: bool = False,
    ) -> None:
        self.file = file
        self._fd = -1
        """The file. It is opened for the first write."""
        self._end = 0
        """The length of the file."""
        self.damaged = 0
        self.damaged_bytes = 0
        self.rewritten = 0
        self._magic = magic
        self._decoder: msgspec.msgpack.Decoder[E] = msgspec.msgpack.Decoder(kind)
        self._key = key
        self._keeps = keeps
        self._retry = retry
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"busway {file.name}")
        self._queue: list[Waiting] = []
        self._writing: asyncio.Future[Any] | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._timer: asyncio.TimerHandle | None = None
        self._pause = AGAIN[0]
        self._stopping = False
        self._unreadable = False
        self._index: dict[K, tuple[int, int]] = {}
        """The offset and size of each live record."""
        self._live = 0
        """The bytes of live records."""
        self._next_check = WORTH
        """The size of the file at which the next check for a rewrite is due."""
        self.refused = 0

    def encode(self, entry: E) -> bytes:
        """The record of an entry."""
        return record_format.frame(msgspec.msgpack.encode(entry), self._magic)

    def scan(self, data: bytes) -> Iterator[Found[E] | Damage]:
        """All entries and damaged parts of a file, in order and without gaps."""
        return record_format.scan(data, self._decode, self._magic)

    def _decode(self, body: bytes) -> E:
        try:
            entry = self._decoder.decode(body)
            self._key(entry)  # raises for fields that can't be decoded
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from error
        return entry

    # On the loop.

    async def start(self) -> list[E]:
        """Read the file. Returns the entry of each key, in the order in which they were written."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self.load)

    def store(self, entry: E, done: Done = lambda _: None) -> None:
        """Write an entry. `done` gets the result of the first attempt."""
        self._queue.append(Waiting(self._key(entry), self.encode(entry), self._keeps(entry), done))
        self._write_next()

    def forget(self, key: K) -> None:
        """Leave the entry of a key out when the file is rewritten."""
        self._queue.append(Waiting(key, b"", False, lambda _: None))
        self._write_next()

    async def written(self) -> None:
        """Wait until all entries so far are on disk, or their first write has failed."""
        if not self._quiet.is_set():
            over = asyncio.Event()
            self._queue.append(Waiting(None, b"", False, lambda _: over.set()))
            await over.wait()

    async def stop(self) -> None:
        """Write the waiting entries, with one more attempt if that has failed, and close the file."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._write_next()
        await self._quiet.wait()
        await asyncio.get_running_loop().run_in_executor(self._executor, self.close)
        self._executor.shutdown(wait=False)

    def kill(self) -> None:
        """Close the file without writing."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self.close()

    def figures(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "bytes": self._end,
            "live_bytes": self._live,
            "records": len(self._index),
            "damaged": self.damaged,
            "damaged_bytes": self.damaged_bytes,
            "refused": self.refused,
            "rewritten": self.rewritten,
        }

    def _write_next(self) -> None:
        if self._writing is not None:
            return
        if not self._queue:
            self._quiet.set()
            return
        self._quiet.clear()
        batch, self._queue = self._queue, []
        self._writing = asyncio.get_running_loop().run_in_executor(self._executor, self._work, batch)
        self._writing.add_done_callback(partial(self._written, batch))

    def _written(self, batch: list[Waiting], future: "asyncio.Future[list[OSError | None]]") -> None:
        self._writing = None
        if (error := future.exception()) is not None:
            # Errors of the disk are results. This is a bug, so the log has its traceback.
            log.error("unexpected error in the file %s", self.file, exc_info=error)
            results: list[OSError | None] = [OSError(f"unexpected error: {error}")] * len(batch)
        else:
            results = future.result()
        failed = [waiting for waiting, result in zip(batch, results, strict=True) if result is not None]
        at_once = bool(self._queue) or not (failed and self._retry)
        if failed and self._retry:
            self._queue = [waiting._replace(done=lambda _: None) for waiting in failed] + self._queue
            self._wait_for_disk(next(filter(None, results)))
        elif self._timer is not None:
            self._timer.cancel()
            self._timer, self._pause = None, AGAIN[0]
            log.warning("%s can be written again", self.file)
        for waiting, result in zip(batch, results, strict=True):
            waiting.done(result)
        if at_once:
            self._write_next()
        elif self._writing is None:
            self._quiet.set()

    def _wait_for_disk(self, error: OSError) -> None:
        if self._timer is None:
            log.warning("can't write %s, will retry: %s", self.file, error.strerror or error)
        else:
            self._timer.cancel()
        if not self._stopping:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._write_next)
            self._pause = min(2 * self._pause, AGAIN[1])

    # On the thread.

    def load(self) -> list[E]:
        """Read the file, and rewrite it if it has obsolete or damaged parts. Raises DataFailed if that is impossible."""
        self._unreadable = True
        content = self._content()
        self._unreadable = False
        entries: dict[K, E] = {}
        torn, damage = 0, False
        for found in self.scan(content):
            if isinstance(found, Damage):
                self._report(found)
                torn, damage = (found.size, damage) if found.torn else (torn, True)
                continue
            key, keeps = self._key(found.entry), self._keeps(found.entry)
            self._put(key, found.offset, found.size, keeps=keeps)
            entries.pop(key, None)
            if keeps:
                entries[key] = found.entry
        self._end = len(content) - torn
        records = {key: self.encode(entry) for key, entry in entries.items()}
        try:
            self._cut(torn, damage=damage)
            if b"".join(records.values()) != content[: self._end]:
                self._replace_by(records.items())
        except OSError as error:
            log.warning("%s can't be written (%s); each later change tries it again", self.file, error.strerror)
        return list(entries.values())

    def _work(self, batch: list[Waiting]) -> list[OSError | None]:
        results = self.append(batch)
        if self._end >= self._next_check:
            if self._live * 2 < self._end:
                self.rewrite()
            self._next_check = max(WORTH, self._end * 2 if self._live * 2 < self._end else self._end)
        return results

    def append(self, batch: list[Waiting]) -> list[OSError | None]:
        """Write records with one fsync, or one by one if that fails: a small one may fit on a nearly full disk."""
        try:
            self._append(batch)
        except OSError as error:
            if len(batch) > 1 and not self._retry:
                return [result for waiting in batch for result in self.append([waiting])]
            if not self._retry:
                self.refused += 1
                log.warning("an entry was not written to %s and is refused: %s", self.file, error.strerror or error)
            return [error] * len(batch)
        return [None] * len(batch)

    def _append(self, batch: list[Waiting]) -> None:
        content = b"".join(waiting.record for waiting in batch)
        if self._unreadable:
            self._replace([content])
            data_folder.sync(self.file.parent)
            self._unreadable, offset = False, 0
        else:
            offset = self._end
            if content:
                self._add(content)
        for key, record, keeps, _ in batch:
            self._put(key, offset, len(record), keeps=keeps)
            offset += len(record)

    def _put(self, key: K, offset: int, size: int, *, keeps: bool) -> None:
        if (old := self._index.pop(key, None)) is not None:
            self._live -= old[1]
        if keeps:
            self._index[key] = offset, size
            self._live += size

    def rewrite(self) -> None:
        """Replace the file by a new one without obsolete records."""
        try:
            self._replace_by(self._live_records())
        except OSError as error:
            log.warning("%s could not be rewritten, and stays as it is: %s", self.file, error.strerror or error)

    def _live_records(self) -> Iterator[tuple[K, bytes]]:
        old = self._open_file()
        for key, (offset, size) in self._index.items():
            record = os.pread(old, size, offset)
            if isinstance(next(self.scan(record), None), Found):
                yield key, record
            else:
                self._report(Damage(offset, size, False, "a record that could be read before"))

    def _replace_by(self, records: Iterable[tuple[K, bytes]]) -> None:
        sizes: dict[K, int] = {}

        def content() -> Iterator[bytes]:
            for key, record in records:
                sizes[key] = len(record)
                yield record

        self._replace(content())
        ends = accumulate(sizes.values())
        self._index = {key: (end - size, size) for (key, size), end in zip(sizes.items(), ends, strict=True)}
        self._live = self._end
        data_folder.sync(self.file.parent)

    # The file.

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _content(self) -> bytes:
        try:
            return self.file.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise DataFailed(f"{self.file} can't be read: {error.strerror}") from error

    def _report(self, damage: Damage) -> None:
        self.damaged += 1
        self.damaged_bytes += damage.size
        log.warning("%s: %s", self.file, damage)

    def _cut(self, torn: int, *, damage: bool) -> None:
        """Cut off a torn end. If there is more damage, copy the file before it is rewritten."""
        self._open_file()
        if torn:
            os.ftruncate(self._fd, self._end)
            os.fsync(self._fd)
        if damage:
            copy = self.file.with_name(self.file.name + ".damaged")
            shutil.copy2(self.file, copy)
            log.warning("a copy of the damaged file is in %s", copy)

    def _open_file(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            data_folder.sync(self.file.parent)
        return self._fd

    def _add(self, content: bytes) -> None:
        """Append this to the file."""
        fd = self._open_file()
        try:
            _write(fd, content, self._end)
            os.fsync(fd)
        except OSError:
            try:
                os.ftruncate(fd, self._end)
            except OSError as error:
                # The next append overwrites the rest, or the next start skips it.
                log.warning(
                    "%s could not be cut to %d bytes after a failed write: %s",
                    *(self.file, self._end, error.strerror or error),
                )
            raise
        self._end += len(content)

    def _replace(self, content: Iterable[bytes]) -> None:
        """Replace the file by a new one. The old one can be read until then. The caller has to sync the folder."""
        new_file = self.file.with_name(self.file.name + ".new")
        fd = os.open(new_file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        end = 0
        try:
            for part in content:
                _write(fd, part, end)
                end += len(part)
            os.fsync(fd)
            new_file.replace(self.file)
        except OSError:
            os.close(fd)
            new_file.unlink(missing_ok=True)
            raise
        self.close()
        self._fd, self._end = fd, end
        self.rewritten += 1


def _write(fd: int, content: bytes, at: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(fd, rest, at)
        at += written
        rest = rest[written:]
