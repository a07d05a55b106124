"""A file of records that is only appended to, and written anew as a whole: what the journal and the pins do alike on their threads.

What could not be appended is cut off again. What is damaged is told and counted, and a copy of the file is kept.
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
    """The file, where it ends, and what was wrong with it; it is opened when it is first needed."""

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

    def _told(self, damage: Damage) -> None:
        self.damaged += 1
        self.damaged_bytes += damage.size
        log.warning("%s: %s", self.file, damage)

    def _cut(self, torn: int, *, damage: bool) -> None:
        """Take a torn end off, and put a copy aside if there is more damage, before the file is written anew."""
        self._open_file()
        if torn:
            os.ftruncate(self._fd, self._end)
            os.fsync(self._fd)
        if damage:
            aside = self.file.with_name(self.file.name + ".damaged")
            shutil.copy2(self.file, aside)
            log.warning("a copy of the damaged file is in %s", aside)

    def _open_file(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            data_folder.sync(self.file.parent)
        return self._fd

    def _add(self, content: bytes, sync: Callable[[int], object] | None) -> None:
        """Write this at the end."""
        fd = self._open_file()
        try:
            _write(fd, content, self._end)
            if sync is not None:
                sync(fd)
        except OSError:
            try:
                os.ftruncate(fd, self._end)
            except OSError as error:
                # What is left there is written over by what comes next, or skipped by the next start.
                log.warning("%s could not be cut to %d bytes: %s", self.file, self._end, error.strerror or error)
            raise
        self._end += len(content)

    def _replace(self, content: Iterable[bytes]) -> None:
        """Put a new file in the place of the old one, which can be read until then; that it lasts is for the caller to see to."""
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
