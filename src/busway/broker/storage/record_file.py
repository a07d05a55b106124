"""An append-only file of records: the base of the journals of pins and definitions.

All methods run on the thread of the file's owner. A failed append is cut off again. Damage is logged and counted, and a
copy of the damaged file stays.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from busway.broker.storage import data_folder
from busway.broker.storage.permissions import FILE_MODE
from busway.broker.storage.record_format import Damage
from busway.errors import DataFailed

log = logging.getLogger("busway.broker")


class RecordFile:
    """One file with its length and the damage found in it. It is opened for the first write."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._fd = -1
        self._end = 0
        self.damaged = 0
        self.damaged_bytes = 0
        self.rewritten = 0

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

    def _add(self, content: bytes, sync: Callable[[int], object] | None) -> None:
        """Append this to the file."""
        fd = self._open_file()
        try:
            _write(fd, content, self._end)
            if sync is not None:
                sync(fd)
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
