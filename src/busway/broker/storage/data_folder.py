"""The data folder of a broker: one server at a time has it, and it remembers who the broker is.

The identity is in `broker.json`, so a server that starts again in its folder has the guid it had. Called when a server
starts and stops.
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
        """Make the folder if it isn't there, claim it, and take other users' access to it away."""
        try:
            make_folder(self.path)
            lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise DataFailed(f"the data folder {self.path} can't be used: {error.strerror}") from error
        try:
            # On the folder itself: that needs no file, so it works where nothing can be written.
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
        """The one that is remembered."""
        file = self.path / IDENTITY
        try:
            found = unsealed(file.read_bytes(), _Identity).guid
            if len(bytes.fromhex(found)) == 16:
                return found
            log.warning("%s holds no guid; the broker gets a new one", file)
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
        file = self.path / IDENTITY
        try:
            replace(file, sealed(_Identity(guid)))
        except OSError as error:
            log.warning("%s can't be written (%s); after a restart the broker is another one", file, error.strerror)


def sealed(value: msgspec.Struct) -> bytes:
    """A value as JSON for people, with a checksum of it, so that a digit that has become another one is noticed."""
    plain = msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])
    return msgspec.json.format(msgspec.json.encode(plain | {_SUM: _sum(plain)}), indent=2) + b"\n"


def unsealed(content: bytes, kind: type[T]) -> T:
    """The value again. Without a checksum (somebody wrote it by hand) it is taken as it is. Raises MsgspecError."""
    plain = msgspec.json.decode(content, type=dict[str, Any])
    told = plain.pop(_SUM, None)
    if told is not None and told != _sum(plain):
        raise msgspec.ValidationError(
            f"the checksum is not that of the rest; if it was changed by hand, remove {_SUM!r}"
        )
    return msgspec.convert(plain, kind)


def _sum(plain: dict[str, Any]) -> str:
    return f"{zlib.crc32(msgspec.json.encode(plain, order='sorted')):08x}"


def replace(file: Path, content: bytes) -> None:
    """Write a file so that after a crash either the old or the new one is there."""
    new = file.with_name(file.name + ".new")
    new.unlink(missing_ok=True)  # it would keep its mode
    with open(new, "wb", opener=lambda path, flags: os.open(path, flags, FILE_MODE)) as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)
    sync(file.parent)


def sync(folder: Path) -> None:
    """Make what was renamed or made in a folder last."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
