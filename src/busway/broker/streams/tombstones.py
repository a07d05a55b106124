"""Tombstones: the end offsets of removed streams. A new stream with the same name continues from there.

So an offset never belongs to two messages of a name, and a saved position misses no message of the new stream. The
stream manager reads and writes them.
"""

import logging
from pathlib import Path
from typing import Final

import msgspec

from busway.broker.storage.data_folder import replace, sealed, unsealed
from busway.broker.storage.permissions import make_folder
from busway.common import environment
from busway.errors import DataFailed
from busway.streams import StreamConfig

log = logging.getLogger("busway.broker")

FILE: Final = "ends.json"
_MICROSECOND: Final = 1000
_RESERVED: Final = 1 << 40
"""The offsets that are reserved for one life of a stream in memory."""


class _Ends(msgspec.Struct):
    ends: dict[str, int] = {}


class Tombstones:
    """By stream name, the offset behind the last message. `folder` is the folder of all streams, if there is one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._ends: dict[str, int] = {}
        self._lost = False
        """The file can't be read."""

    def open(self) -> None:
        """Read the file."""
        if self._folder is None:
            return
        try:
            self._ends = unsealed((self._folder / FILE).read_bytes(), _Ends).ends
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            # Large offsets are certainly above those of removed streams.
            log.warning("%s can't be read: %s; new streams begin with large offsets", self._folder / FILE, error)
            self._lost = True

    def begin(self, config: StreamConfig) -> int:
        """The first offset of a new stream."""
        if self._lost:
            return environment.time_ns() // _MICROSECOND
        begin = self._ends.get(config.name, 0)
        if config.store == "memory":
            # The stream ends with the broker, maybe by a crash: reserve all offsets that it may use until then.
            self.ended(config.name, begin + _RESERVED)
        return begin

    def __contains__(self, name: str) -> bool:
        return name in self._ends

    def ended(self, name: str, end: int) -> None:
        """Record the end of a stream that is removed, or that ends with the broker."""
        self._ends[name] = end
        if self._folder is not None:
            try:
                make_folder(self._folder)
                replace(self._folder / FILE, sealed(_Ends(self._ends)))
            except OSError as error:
                reason = f"{self._folder / FILE} can't be written, which has to record the end of stream {name!r}"
                raise DataFailed(f"{reason}: {error.strerror}") from error
