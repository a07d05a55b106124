"""The data folder of a broker: locks it for one server at a time, and stores the broker's identity.

The guid is in `broker.json`, so that a restarted server has the same one. The server calls this module when it starts
and stops; other modules use its functions for sealed JSON files.
"""

import fcntl
import logging
import os
import zlib
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from busway.broker.storage.permissions import FILE_MODE, make_folder, restrict
from busway.errors import DataFailed

log = logging.getLogger("busway.broker")

IDENTITY: Final = "broker.json"
CHANNELS: Final = "channels"
"""The folder with the progress of a stream's channels, in the folder of the stream."""
JOURNAL: Final = "channels.log"
"""The file with it that version 0.1.0 wrote."""
_SUM: Final = "checksum"

T = TypeVar("T")


class _Identity(msgspec.Struct, forbid_unknown_fields=True):
    guid: str


class DataFolder:
    """A folder that no other server uses, from open() to close()."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = -1

    def open(self) -> None:
        """Create the folder if it is missing, lock it, and remove the access of other users."""
        try:
            make_folder(self.path)
            lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise DataFailed(f"the data folder {self.path} can't be used: {error.strerror}") from error
        try:
            # The lock is on the folder itself. That needs no file, so it works on a full or read-only disk.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise DataFailed(f"the data folder {self.path} is in use by another server; give each its own") from None
        except OSError as error:
            os.close(lock)
            raise DataFailed(f"the data folder {self.path} can't be locked: {error.strerror}") from error
        self._lock = lock
        restrict(self.path)

    def close(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def guid(self) -> str | None:
        """The stored guid; None: there is none."""
        file = self.path / IDENTITY
        try:
            found = unsealed(file.read_bytes(), _Identity).guid
            if len(bytes.fromhex(found)) == 16:
                return found
            log.warning("%s has no valid guid; the broker gets a new one", file)
        except FileNotFoundError:
            if (self.path / "streams").is_dir():
                log.warning("%s is missing; the broker gets a new guid", file)
            return None
        except OSError as error:
            log.warning("%s can't be read (%s); the broker gets a new guid", file, error.strerror)
        except (msgspec.MsgspecError, ValueError) as error:
            log.warning("%s is damaged (%s); the broker gets a new guid", file, error)
        return None

    def remember(self, guid: str) -> None:
        """Store the guid."""
        file = self.path / IDENTITY
        try:
            replace(file, sealed(_Identity(guid)))
        except OSError as error:
            log.warning("can't write %s (%s): this broker will have a new guid after a restart", file, error.strerror)


def sealed(value: msgspec.Struct) -> bytes:
    """A value as readable JSON with a checksum, which detects damage."""
    plain = msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])
    return msgspec.json.format(msgspec.json.encode(plain | {_SUM: _sum(plain)}), indent=2) + b"\n"


def unsealed(content: bytes, kind: type[T]) -> T:
    """Read a sealed value. A value without a checksum, as written by hand, is accepted. Raises MsgspecError."""
    plain = msgspec.json.decode(content, type=dict[str, Any])
    checksum = plain.pop(_SUM, None)
    if checksum is not None and checksum != _sum(plain):
        raise msgspec.ValidationError(
            f"the checksum does not match the content; if you have changed it by hand, remove {_SUM!r}"
        )
    return msgspec.convert(plain, kind)


def _sum(plain: dict[str, Any]) -> str:
    return f"{zlib.crc32(msgspec.json.encode(plain, order='sorted')):08x}"


def replace(file: Path, content: bytes) -> None:
    """Replace a file atomically: after a crash there is either the old or the new one."""
    new = file.with_name(file.name + ".new")
    new.unlink(missing_ok=True)  # an existing file would keep its mode
    with open(new, "wb", opener=lambda path, flags: os.open(path, flags, FILE_MODE)) as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)
    sync(file.parent)


def sync(folder: Path) -> None:
    """Sync a folder, so that files created or renamed in it survive a crash."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
